//! What a pod takes of its node.

use crate::plan::{Amounts, Vocabulary, parse_quantity};
use k8s_openapi::api::core::v1::{Container, Pod};
use std::sync::Arc;

/// What a pod takes of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) node: Option<Arc<str>>,
    pub(super) needs: Amounts,
    /// Whether it takes anything: it is on a node, and has not ended.
    pub(super) counts: bool,
}

impl Usage {
    pub(super) fn of(pod: &Pod, node: Option<Arc<str>>, vocabulary: &mut Vocabulary) -> Self {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let counts = node.is_some() && phase != "Succeeded" && phase != "Failed";
        let needs = if counts { needs(pod, vocabulary) } else { Amounts::default() };
        Self { node, needs, counts }
    }
}

/// As the scheduler adds up: containers and sidecars together, or the largest of the other init containers.
fn needs(pod: &Pod, vocabulary: &mut Vocabulary) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::default() };
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let mut sum = Amounts::default();
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    for container in spec.containers.iter().chain(sidecars) {
        sum.add(&requests(container, vocabulary));
    }
    for container in spec.init_containers.iter().flatten().filter(|container| !is_sidecar(container)) {
        for (index, amount) in requests(container, vocabulary).iter() {
            sum.set(index, sum.get(index).max(amount));
        }
    }
    vocabulary.index("pods").into_iter().for_each(|index| sum.set(index, 1_000));
    sum
}

fn requests(container: &Container, vocabulary: &mut Vocabulary) -> Amounts {
    let mut amounts = Amounts::default();
    let Some(resources) = &container.resources else { return amounts };
    // A limit without a request is a request.
    for (name, quantity) in resources.limits.iter().flatten().chain(resources.requests.iter().flatten()) {
        if let (Some(index), Some(amount)) = (vocabulary.index(name), parse_quantity(&quantity.0)) {
            amounts.set(index, amount);
        }
    }
    amounts
}
