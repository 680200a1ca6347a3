//! A node, cut down.

use crate::plan::{Amounts, Labels, NodeView, Taint, Vocabulary, parse_quantity};
use k8s_openapi::api::core::v1::Node;
use std::sync::Arc;

/// What decides about a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NodeFacts {
    labels: Arc<Labels>,
    taints: Arc<[Taint]>,
    open: bool,
    /// Nothing is heard of it.
    pub(super) lost: bool,
    allocatable: Arc<Amounts>,
}

impl NodeFacts {
    pub(super) fn of(node: &Node, vocabulary: &mut Vocabulary) -> Self {
        let spec = node.spec.clone().unwrap_or_default();
        let status = node.status.clone().unwrap_or_default();
        let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
        let mut allocatable = Amounts::default();
        for (name, quantity) in status.allocatable.iter().flatten() {
            if let (Some(index), Some(amount)) = (vocabulary.index(name), parse_quantity(&quantity.0)) {
                allocatable.set(index, amount);
            }
        }
        let taint = |taint: &k8s_openapi::api::core::v1::Taint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        };
        let leaving = node.metadata.deletion_timestamp.is_some();
        Self {
            labels: Arc::new(node.metadata.labels.clone().unwrap_or_default()),
            taints: spec.taints.iter().flatten().map(taint).collect(),
            // A node that says nothing of being ready is taken at its word.
            open: !leaving && !spec.unschedulable.unwrap_or(false) && ready.is_none_or(|ready| ready.status == "True"),
            lost: ready.is_some_and(|ready| ready.status != "True"),
            allocatable: Arc::new(allocatable),
        }
    }

    pub(super) fn view(&self, name: &Arc<str>, used: Option<&Amounts>) -> NodeView {
        let mut free = (*self.allocatable).clone();
        used.into_iter().for_each(|used| free.subtract(used));
        NodeView {
            name: name.clone(),
            labels: self.labels.clone(),
            taints: self.taints.clone(),
            open: self.open,
            allocatable: self.allocatable.clone(),
            free,
        }
    }
}
