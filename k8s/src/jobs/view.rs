//! Kubernetes objects as operators see them. Pure.

use crate::resources::{Model, Phase, Playground, ReplicaState};
use dunlin_protocol::jobs::{Job, JobModel, JobName, JobReplica};

pub(super) fn job(playground: &Playground, cluster: &str, whole: bool) -> Job {
    let metadata = &playground.metadata;
    let status = playground.status.clone().unwrap_or_default();
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let bad = |kind: &str, value: &str| status.conditions.iter().find(|one| one.kind == kind && one.status == value);
    let message = bad("Progressing", "False").or_else(|| bad("Available", "False")).map(|one| one.message.clone());
    let replicas = if whole { status.replica_states.iter().map(replica).collect() } else { Vec::new() };
    Job {
        id: JobName {
            cluster: cluster.to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        },
        model: playground.spec.main_model().unwrap_or_default().to_owned(),
        runtime: playground.spec.runtime_name().to_owned(),
        wanted: count(playground.spec.replicas),
        ready: count(status.ready_replicas),
        updated: count(status.updated_replicas),
        paused: playground.spec.paused,
        ending: metadata.deletion_timestamp.is_some(),
        message: message.unwrap_or_default(),
        created: metadata.creation_timestamp.as_ref().and_then(|at| u64::try_from(at.0.as_second()).ok()).unwrap_or(0),
        replicas,
    }
}

fn replica(state: &ReplicaState) -> JobReplica {
    JobReplica {
        name: state.name.clone(),
        phase: phase(state.phase).to_owned(),
        flavor: state.flavor.clone(),
        node: state.node.clone(),
        peer: state.peer_id.clone(),
        progress: state.progress.and_then(|progress| u8::try_from(progress).ok()),
        message: state.message.clone().or_else(|| state.reason.clone()),
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Pending => "Pending",
        Phase::Placing => "Placing",
        Phase::Pulling => "Pulling",
        Phase::Loading => "Loading",
        Phase::Ready => "Ready",
        Phase::Draining => "Draining",
        Phase::Failed => "Failed",
    }
}

pub(super) fn model(model: &Model, cluster: &str) -> JobModel {
    let source = &model.spec.source;
    let hub = |scheme: &str, repository: &crate::resources::Repository| format!("{scheme}://{}", repository.repo);
    let from = source.huggingface.as_ref().map(|repository| hub("hf", repository));
    let from = from.or_else(|| source.modelscope.as_ref().map(|repository| hub("modelscope", repository)));
    let from = from.or_else(|| source.uri.clone());
    let from = from.or_else(|| source.pvc.as_ref().map(|claim| format!("pvc {}", claim.claim_name)));
    let from = from.or_else(|| source.host_path.clone()).or_else(|| source.image.clone());
    JobModel {
        cluster: cluster.to_owned(),
        name: model.metadata.name.clone().unwrap_or_default(),
        served: model.spec.served_name.clone(),
        source: from.unwrap_or_default(),
        flavors: model.spec.flavors.iter().map(|flavor| flavor.name.clone()).collect(),
    }
}
