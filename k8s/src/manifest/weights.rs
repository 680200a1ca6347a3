//! How weights reach a pod.

use super::{Making, pod};
use crate::{
    engine::{WEIGHTS, file_of},
    revision::Snapshot,
};
use serde_json::{Value, json};

/// Where weights come from, as far as a pod is concerned.
pub(super) enum Source<'a> {
    /// The engine finds them by itself.
    Engine,
    /// The loader brings them.
    Fetched { snapshot: &'a Snapshot, from: String, arguments: Vec<String> },
    /// They lie in a volume of this kind already.
    Mounted(Value),
}

impl<'a> Source<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let source = &snapshot.model.source;
        if snapshot.runtime.runtime == "demo" {
            return Self::Engine;
        }
        let hubs = [("hf", &source.huggingface), ("modelscope", &source.modelscope)];
        for (scheme, repository) in hubs {
            let Some(repository) = repository else { continue };
            let revision = repository.revision.as_ref().map(|revision| format!("@{revision}")).unwrap_or_default();
            let mut arguments = Vec::new();
            let lists = [("--allow", &repository.allow), ("--ignore", &repository.ignore)];
            for (flag, list) in lists {
                arguments.extend(list.iter().flat_map(|pattern| [flag.to_owned(), pattern.clone()]));
            }
            repository.file.iter().for_each(|file| arguments.extend(["--file".to_owned(), file.clone()]));
            return Self::Fetched { snapshot, from: format!("{scheme}://{}{revision}", repository.repo), arguments };
        }
        if let Some(uri) = &source.uri {
            if uri.starts_with("ollama://") || uri.starts_with("ngc://") {
                return Self::Engine;
            }
            return Self::Fetched { snapshot, from: uri.clone(), arguments: Vec::new() };
        }
        if let Some(claim) = &source.pvc {
            return Self::Mounted(
                json!({ "persistentVolumeClaim": { "claimName": claim.claim_name, "readOnly": true } }),
            );
        }
        if let Some(path) = &source.host_path {
            // Of a single file its folder is mounted.
            let folder = file_of(path).map_or(path.as_str(), |file| &path[..path.len() - file.len()]);
            return Self::Mounted(json!({ "hostPath": { "path": folder, "type": "Directory" } }));
        }
        match &source.image {
            Some(image) => Self::Mounted(json!({ "image": { "reference": image } })),
            None => Self::Engine,
        }
    }

    pub(super) fn volume(&self) -> Option<Value> {
        let mut volume = match self {
            Self::Engine => return None,
            Self::Fetched { .. } => json!({ "emptyDir": {} }),
            Self::Mounted(kind) => kind.clone(),
        };
        volume["name"] = "models".into();
        Some(volume)
    }

    pub(super) fn mount(&self, read_only: bool) -> Option<Value> {
        let mount = || json!({ "name": "models", "mountPath": WEIGHTS, "readOnly": read_only });
        (!matches!(self, Self::Engine)).then(mount)
    }

    /// The init container that loads them. Keys for hubs reach it alone.
    pub(super) fn loader(&self, making: Making<'_>) -> Option<Value> {
        let Self::Fetched { snapshot, from, arguments } = self else { return None };
        let command = ["fetch", from, "--to", WEIGHTS].into_iter().map(str::to_owned).chain(arguments.iter().cloned());
        let mut variables = pod::env(&making.settings.replica_defaults.env);
        variables.push(json!({ "name": "DUNLIN_SOCKET", "value": "/dunlin/agent.sock" }));
        let mut container = json!({
            "name": "fetch", "image": making.settings.image, "args": command.collect::<Vec<_>>(), "env": variables,
            "volumeMounts": [{ "name": "dunlin", "mountPath": "/dunlin" }, self.mount(false)],
            "resources": { "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "memory": "1Gi" } },
            "securityContext": pod::locked_down(),
        });
        if let Some(secret) = &snapshot.model.secret_name {
            container["envFrom"] = json!([{ "secretRef": { "name": secret } }]);
        }
        pod::pull_policy(making, &mut container);
        Some(container)
    }
}
