//! What is known of the cluster, cut down to what decides: tens of thousands of pods of others cost some bytes each.

mod cache;
mod node;
mod own_pod;
mod usage;

pub use cache::Cache;
pub use own_pod::{OwnPod, Stage, Word};

use crate::plan::{Amounts, NodeView, Vocabulary};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::Event;
use node::NodeFacts;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use usage::Usage;

/// Names that are kept without asking whether something still has them.
const NAMES: usize = 1_024;

/// Nodes and pods.
#[derive(Default)]
pub struct World {
    /// Names of resources.
    pub vocabulary: Vocabulary,
    nodes: Cache<Arc<str>, NodeFacts>,
    pods: Cache<(Arc<str>, Arc<str>), Usage>,
    /// Names of nodes and namespaces, each kept once.
    names: HashSet<Arc<str>>,
    /// How many names there may be before those are dropped that nothing has any more.
    names_most: usize,
    /// By uid of the Playground that controls them, then by their own.
    own: HashMap<String, HashMap<String, OwnPod>>,
    own_by_name: HashMap<(Arc<str>, Arc<str>), (String, String)>,
    used: HashMap<Arc<str>, Amounts>,
}

/// What a change concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Concerns {
    /// Uid of the Playground whose pod it is.
    pub playground: Option<String>,
    /// There may be room where there was none.
    pub room: bool,
}

impl World {
    /// Whether both lists have been seen whole.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.nodes.is_whole() && self.pods.is_whole()
    }

    /// Whether nothing is heard of a node, or it has gone.
    #[must_use]
    pub fn is_lost(&self, node: &str) -> bool {
        self.nodes.get(node).is_none_or(|facts| facts.lost)
    }

    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        if self.names.len() >= self.names_most {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.names_most = (2 * self.names.len()).max(NAMES);
        }
        let name: Arc<str> = name.into();
        self.names.insert(name.clone());
        name
    }

    /// Takes in a change of a node.
    pub fn node(&mut self, event: Event<Node>) -> Concerns {
        match event {
            Event::Init => self.nodes.begin(),
            Event::InitApply(node) | Event::Apply(node) => {
                let name = self.shared(node.metadata.name.as_deref().unwrap_or_default());
                let facts = NodeFacts::of(&node, &mut self.vocabulary);
                let before = self.nodes.put(name, facts.clone());
                return Concerns { room: before.as_ref() != Some(&facts), ..Concerns::default() };
            }
            Event::Delete(node) => {
                self.nodes.remove(node.metadata.name.as_deref().unwrap_or_default());
            }
            Event::InitDone => drop(self.nodes.finish()),
        }
        Concerns::default()
    }

    /// Takes in a change of a pod; of a list that came anew, of each that has gone.
    pub fn pod(&mut self, event: Event<Pod>) -> Vec<Concerns> {
        match event {
            Event::Init => self.pods.begin(),
            Event::InitApply(pod) | Event::Apply(pod) => return vec![self.put(&pod)],
            Event::Delete(pod) => {
                let key = self.key(&pod);
                let gone = self.pods.remove(&key);
                return gone.map(|usage| self.forget(&key, &usage)).into_iter().collect();
            }
            Event::InitDone => {
                let gone = self.pods.finish();
                return gone.into_iter().map(|(key, usage)| self.forget(&key, &usage)).collect();
            }
        }
        Vec::new()
    }

    fn key(&mut self, pod: &Pod) -> (Arc<str>, Arc<str>) {
        let namespace = self.shared(pod.metadata.namespace.as_deref().unwrap_or_default());
        (namespace, pod.metadata.name.as_deref().unwrap_or_default().into())
    }

    fn put(&mut self, pod: &Pod) -> Concerns {
        let key = self.key(pod);
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|name| !name.is_empty());
        let node = node.map(|name| self.shared(name));
        let usage = Usage::of(pod, node, &mut self.vocabulary);
        let before = self.pods.put(key.clone(), usage.clone());
        let mut room = false;
        if before.as_ref() != Some(&usage) {
            if let Some(before) = &before {
                room = before.counts && !usage.counts;
                self.count(before, false);
            }
            self.count(&usage, true);
        }
        // A pod of the same name may be another pod.
        let own = OwnPod::of(pod);
        let id = own.as_ref().map(|own| (own.owner.clone(), own.uid.clone()));
        if let Some((owner, uid)) = self.own_by_name.get(&key).cloned()
            && Some((&owner, &uid)) != id.as_ref().map(|(owner, uid)| (owner, uid))
        {
            self.forget_own(&key);
        }
        let Some(own) = own else { return Concerns { playground: None, room } };
        let owner = own.owner.clone();
        self.own_by_name.insert(key, (owner.clone(), own.uid.clone()));
        self.own.entry(owner.clone()).or_default().insert(own.uid.clone(), own);
        Concerns { playground: Some(owner), room }
    }

    fn forget(&mut self, key: &(Arc<str>, Arc<str>), usage: &Usage) -> Concerns {
        self.count(usage, false);
        Concerns { playground: self.forget_own(key), room: usage.counts }
    }

    fn forget_own(&mut self, key: &(Arc<str>, Arc<str>)) -> Option<String> {
        let (owner, uid) = self.own_by_name.remove(key)?;
        if let Some(pods) = self.own.get_mut(&owner) {
            pods.remove(&uid);
            if pods.is_empty() {
                self.own.remove(&owner);
            }
        }
        Some(owner)
    }

    fn count(&mut self, usage: &Usage, more: bool) {
        let Some(node) = usage.node.as_ref().filter(|_| usage.counts) else { return };
        let used = self.used.entry(node.clone()).or_default();
        if more {
            used.add(&usage.needs)
        } else {
            used.subtract(&usage.needs)
        }
        if used.iter().next().is_none() {
            self.used.remove(node);
        }
    }

    /// The pods that a Playground controls, by uid.
    #[must_use]
    pub fn pods_of(&self, playground_uid: &str) -> Option<&HashMap<String, OwnPod>> {
        self.own.get(playground_uid)
    }

    /// Uids of Playgrounds that control pods.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.own.keys().map(String::as_str)
    }

    /// The nodes as placement sees them.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeView> {
        self.nodes.iter().map(|(name, facts)| facts.view(name, self.used.get(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(number: usize) -> Pod {
        let requests = json!({"requests": {"cpu": "1"}});
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": format!("ns-{number}")},
            "spec": {"nodeName": format!("node-{number}"), "containers": [{"name": "c", "resources": requests}]},
            "status": {"phase": "Running"},
        }))
        .unwrap()
    }

    #[test]
    fn what_comes_and_goes_leaves_nothing_behind() {
        let mut world = World::default();
        for number in 0..10 * NAMES {
            world.pod(Event::Apply(pod(number)));
            if number > 0 {
                world.pod(Event::Delete(pod(number - 1)));
            }
        }
        assert_eq!(world.used.len(), 1);
        assert!(world.names.len() <= NAMES, "{}", world.names.len());
    }
}
