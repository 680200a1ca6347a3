//! A pod that a Playground controls, and where it stands.

use k8s_openapi::{
    api::core::v1::{ContainerStatus, Pod, PodStatus},
    jiff::Timestamp,
};

/// Where a pod stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// No node has taken it.
    Unbound {
        /// What the scheduler says.
        why: Option<String>,
    },
    /// Its image or its weights are on the way.
    Pulling(Word),
    /// The engine runs.
    Loading(Word),
    /// Its agent says that it serves.
    Up,
    /// It ended.
    Ended(Word),
}

/// One word and one sentence, where there is something to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Word {
    /// One word.
    pub reason: Option<String>,
    /// A sentence.
    pub message: Option<String>,
}

/// A pod that a Playground controls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPod {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Uid of the Playground.
    pub owner: String,
    /// Its node.
    pub node: Option<String>,
    /// Where it stands.
    pub stage: Stage,
    /// When it will have been killed, if it has been told to end.
    pub ends_at: Option<Timestamp>,
}

impl OwnPod {
    /// Whether it has been told to end.
    #[must_use]
    pub fn ending(&self) -> bool {
        self.ends_at.is_some()
    }

    pub(super) fn of(pod: &Pod) -> Option<Self> {
        let controller = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
        if controller.kind != "Playground" || !controller.api_version.starts_with("dunlin.dev/") {
            return None;
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|name| !name.is_empty());
        Some(Self {
            name: pod.metadata.name.clone()?,
            uid: pod.metadata.uid.clone()?,
            owner: controller.uid.clone(),
            stage: stage(pod.status.as_ref(), node.is_some()),
            node,
            // The API server adds the grace period to it.
            ends_at: pod.metadata.deletion_timestamp.as_ref().map(|at| at.0),
        })
    }
}

fn stage(status: Option<&PodStatus>, bound: bool) -> Stage {
    let Some(status) = status else { return Stage::Unbound { why: None } };
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        let reason = status.reason.clone().unwrap_or_else(|| "Ended".to_owned());
        return Stage::Ended(word(&reason, status.message.as_deref().unwrap_or("the pod ended")));
    }
    let condition = |kind: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    if !bound {
        let scheduled = condition("PodScheduled").filter(|condition| condition.status == "False");
        return Stage::Unbound { why: scheduled.and_then(|condition| condition.message.clone()) };
    }
    if condition("Ready").is_some_and(|condition| condition.status == "True") {
        return Stage::Up;
    }
    let before = status.init_container_statuses.iter().flatten();
    let all: Vec<&ContainerStatus> = before.chain(status.container_statuses.iter().flatten()).collect();
    if let Some(stuck) = all.iter().find_map(|container| stuck(container)) {
        return stuck;
    }
    let runs = |name: &str| {
        let found = all.iter().find(|container| container.name == name);
        found.and_then(|container| container.state.as_ref()).is_some_and(|state| state.running.is_some())
    };
    if runs("engine") {
        return Stage::Loading(Word::default());
    }
    Stage::Pulling(if runs("fetch") { word("Weights", "fetching the weights") } else { Word::default() })
}

fn word(reason: &str, message: &str) -> Word {
    Word { reason: Some(reason.to_owned()), message: Some(message.to_owned()) }
}

/// What keeps a container from running, said so that the next step is clear.
fn stuck(container: &ContainerStatus) -> Option<Stage> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let told = waiting.message.clone().unwrap_or_default();
    let name = &container.name;
    let (reason, image) = (waiting.reason.as_deref()?, &container.image);
    match reason {
        "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
            let message = format!(
                "the image {image} of container {name} can't be pulled: {told}. Check the image and its tag (BackendRuntime), and imagePullSecrets if its registry is private"
            );
            Some(Stage::Pulling(word("ImagePull", &message)))
        }
        "CreateContainerConfigError" => {
            let message = format!(
                "container {name} can't be configured: {told}. If a Secret is missing, create it in this namespace (Model: spec.secretName)"
            );
            Some(Stage::Pulling(word("MissingConfig", &message)))
        }
        "CreateContainerError" | "RunContainerError" | "StartError" => {
            Some(Stage::Pulling(word("ContainerError", &format!("container {name} can't be started: {told}"))))
        }
        "CrashLoopBackOff" => {
            let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            let code = last.map_or(0, |ended| ended.exit_code);
            let why = last.and_then(|ended| ended.message.as_deref().or(ended.reason.as_deref())).unwrap_or_default();
            let message =
                format!("container {name} ends again and again, last with code {code} {why}; look at its logs");
            Some(if name == "fetch" {
                Stage::Pulling(word("FetchFails", &message))
            } else {
                Stage::Loading(word("CrashLoop", &message))
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(status: Value, node: &str) -> Stage {
        let pod = json!({
            "metadata": { "name": "p", "uid": "u", "ownerReferences": [
                { "apiVersion": "dunlin.dev/v1alpha1", "kind": "Playground", "name": "x", "uid": "o", "controller": true } ] },
            "spec": { "containers": [], "nodeName": node }, "status": status,
        });
        OwnPod::of(&serde_json::from_value(pod).unwrap()).unwrap().stage
    }

    #[test]
    fn a_pod_is_told_by_what_holds_it_up() {
        let unbound =
            of(json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}), "");
        assert_eq!(unbound, Stage::Unbound { why: Some("0/3 nodes".to_owned()) });
        let waiting = |name: &str, reason: &str| {
            json!({"name": name, "image": "i:1", "imageID": "", "ready": false, "restartCount": 0,
                   "state": {"waiting": {"reason": reason, "message": "told"}}})
        };
        let running = json!({"name": "engine", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}});
        let reason = |stage: Stage| match stage {
            Stage::Pulling(word) | Stage::Loading(word) | Stage::Ended(word) => word.reason.unwrap_or_default(),
            Stage::Unbound { .. } | Stage::Up => String::new(),
        };
        assert_eq!(reason(of(json!({"containerStatuses": [waiting("engine", "ImagePullBackOff")]}), "n")), "ImagePull");
        assert_eq!(
            reason(of(json!({"initContainerStatuses": [waiting("fetch", "CreateContainerConfigError")]}), "n")),
            "MissingConfig"
        );
        assert!(matches!(
            of(json!({"containerStatuses": [waiting("engine", "CrashLoopBackOff")]}), "n"),
            Stage::Loading(_)
        ));
        assert_eq!(
            of(json!({"containerStatuses": [waiting("engine", "PodInitializing")]}), "n"),
            Stage::Pulling(Word::default())
        );
        assert_eq!(of(json!({"containerStatuses": [running]}), "n"), Stage::Loading(Word::default()));
        assert_eq!(of(json!({"conditions": [{"type": "Ready", "status": "True"}]}), "n"), Stage::Up);
        assert_eq!(reason(of(json!({"phase": "Failed", "reason": "Evicted"}), "n")), "Evicted");
    }
}
