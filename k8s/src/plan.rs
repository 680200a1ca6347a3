//! Placement: which replica goes to which node, as hardware of which flavor. Pure, over integers.
//!
//! `plan(demand, nodes, previous) -> Plan`. What it promises, and `plan/properties.rs` holds it to:
//! - no node gets more than it has free, and only nodes whose labels and taints suit a flavor are given for it;
//! - flavors in their order: a later one is given only when no node had room for an earlier one;
//! - what was planned before stays where it is while that still fits, so that a new replica moves nobody;
//! - the order in which nodes are listed decides nothing.
//!
//! Within a flavor, first the topology domain with the fewest replicas of the same playground (where the flavor names a
//! topology key; those count that are there already), then the node that is left with the least free of the scarcest resource, so that large holes stay.

mod node;
#[cfg(test)]
mod properties;
mod quantity;

pub use node::{Amounts, Labels, NodeView, Taint, Vocabulary};
pub use quantity::parse as parse_quantity;

use crate::resources::Toleration;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::Arc,
};

/// Name of a replica's pod, unique in its namespace; with the namespace before it, in the cluster.
pub type ReplicaKey = Arc<str>;

/// One kind of hardware that will do, with what a replica takes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlavorNeed {
    /// Its name.
    pub name: Arc<str>,
    /// Labels that a node must have.
    pub selector: Labels,
    /// Taints that don't matter.
    pub tolerations: Vec<Toleration>,
    /// What one replica takes.
    pub needs: Amounts,
    /// The resource that it is about: its GPUs, else the processor. Index into the vocabulary.
    pub scarce: usize,
    /// A node label over whose values replicas are spread.
    pub topology_key: Option<Arc<str>>,
}

/// A replica that needs a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// Which.
    pub key: ReplicaKey,
    /// Replicas with the same group are spread over topology domains.
    pub group: Arc<str>,
    /// Nodes of replicas that the group has already and that are no demand, one entry for each. The same for the whole group.
    pub beside: Arc<[Arc<str>]>,
    /// What will do, best first. At most [`crate::resources::FLAVORS`].
    pub flavors: Arc<[FlavorNeed]>,
    /// The flavor to wait for when there is no room for any: an index, taken modulo their number.
    pub wait_for: usize,
}

/// A place, as it was planned before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Previous {
    /// Name of the flavor.
    pub flavor: Arc<str>,
    /// Name of the node.
    pub node: Arc<str>,
}

/// Where a replica goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On this node.
    OnNode {
        /// Name of the flavor.
        flavor: Arc<str>,
        /// Name of the node.
        node: Arc<str>,
    },
    /// Nowhere yet: its pod waits for a node of this flavor, which may make an autoscaler add one.
    Provision {
        /// Name of the flavor.
        flavor: Arc<str>,
        /// Why there is no room, flavor by flavor.
        tried: Vec<Tried>,
    },
}

/// Why a flavor has no room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// Name of the flavor.
    pub flavor: Arc<str>,
    /// Why.
    pub why: Why,
}

/// Why no node takes a replica of one flavor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// There are no nodes at all.
    NoNodes,
    /// No node has its labels.
    NoLabels {
        /// The labels, `key=value,...`.
        selector: String,
    },
    /// The nodes with its labels are cordoned, not ready, or have a taint that is not tolerated.
    Closed {
        /// How many have the labels.
        nodes: usize,
        /// What closes one of them.
        example: String,
    },
    /// The nodes that are open could never hold it.
    TooSmall {
        /// How many are open.
        nodes: usize,
        /// What there is not enough of.
        resource: String,
        /// What one replica takes.
        wanted: String,
        /// What the largest node has in all.
        largest: String,
    },
    /// The nodes that are open are full.
    Full {
        /// How many are open.
        nodes: usize,
        /// What there is not enough of.
        resource: String,
        /// What one replica takes.
        wanted: String,
        /// The most that one node has free.
        free: String,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNodes => f.write_str("the cluster has no nodes"),
            Self::NoLabels { selector } => write!(f, "no node has the labels {selector}"),
            Self::Closed { nodes, example } => write!(f, "none of {nodes} nodes with its labels is open ({example})"),
            Self::TooSmall { nodes, resource, wanted, largest } => {
                write!(f, "needs {wanted} {resource}, and the largest of {nodes} nodes has {largest} in all")
            }
            Self::Full { nodes, resource, wanted, free } => {
                write!(f, "needs {wanted} {resource}, and {nodes} nodes have at most {free} free")
            }
        }
    }
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.flavor, self.why)
    }
}

/// Where every replica goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// By replica.
    pub places: BTreeMap<ReplicaKey, Place>,
}

/// Finds a place for every replica.
#[must_use]
pub fn plan<'a>(
    demand: &'a [Demand],
    nodes: &'a [NodeView],
    previous: &BTreeMap<ReplicaKey, Previous>,
    vocabulary: &Vocabulary,
) -> Plan {
    let mut board = Board::new(nodes);
    let mut plan = Plan::default();
    let mut ordered: Vec<&'a Demand> = demand.iter().filter(|demand| !demand.flavors.is_empty()).collect();
    ordered.sort_by(|a, b| a.key.cmp(&b.key));
    // First what has a place, so that nobody new can take it.
    ordered.retain(|demand| match previous.get(&demand.key).and_then(|before| board.keep(demand, before)) {
        Some(place) => {
            plan.places.insert(demand.key.clone(), place);
            false
        }
        None => true,
    });
    for demand in ordered {
        let place = board.place(demand, vocabulary);
        plan.places.insert(demand.key.clone(), place);
    }
    plan
}

/// The nodes while they fill up.
struct Board<'a> {
    nodes: Vec<&'a NodeView>,
    by_name: HashMap<&'a str, usize>,
    free: Vec<Amounts>,
    /// Which nodes are open to hardware of this description: found once for all flavors that share it.
    open: HashMap<(&'a Labels, &'a [Toleration]), Arc<[usize]>>,
    /// Replicas by topology domain, for each group and node label that spreads them.
    crowds: HashMap<(&'a str, &'a str), HashMap<&'a str, u32>>,
    /// Descriptions that had no room, and have none until the end: free room only shrinks.
    exhausted: HashSet<(&'a Labels, &'a [Toleration], &'a Amounts)>,
}

impl<'a> Board<'a> {
    fn new(nodes: &'a [NodeView]) -> Self {
        let mut nodes: Vec<&NodeView> = nodes.iter().collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Self {
            by_name: nodes.iter().enumerate().map(|(index, node)| (&*node.name, index)).collect(),
            free: nodes.iter().map(|node| node.free.clone()).collect(),
            nodes,
            open: HashMap::new(),
            crowds: HashMap::new(),
            exhausted: HashSet::new(),
        }
    }

    fn keep(&mut self, demand: &'a Demand, before: &Previous) -> Option<Place> {
        let flavor = demand.flavors.iter().find(|flavor| flavor.name == before.flavor)?;
        let &index = self.by_name.get(&*before.node)?;
        let fits = self.nodes[index].closed_to(flavor).is_none() && self.free[index].hold(&flavor.needs);
        fits.then(|| self.take(demand, flavor, index))
    }

    fn place(&mut self, demand: &'a Demand, vocabulary: &Vocabulary) -> Place {
        for flavor in &*demand.flavors {
            if let Some(index) = self.best(demand, flavor) {
                return self.take(demand, flavor, index);
            }
        }
        let tried = demand.flavors.iter().map(|flavor| self.explain(flavor, vocabulary)).collect();
        let waited = &demand.flavors[demand.wait_for % demand.flavors.len()];
        Place::Provision { flavor: waited.name.clone(), tried }
    }

    fn open(&mut self, flavor: &'a FlavorNeed) -> Arc<[usize]> {
        let nodes = &self.nodes;
        let find = || (0..nodes.len()).filter(|&index| nodes[index].closed_to(flavor).is_none()).collect();
        self.open.entry((&flavor.selector, &flavor.tolerations)).or_insert_with(find).clone()
    }

    fn best(&mut self, demand: &'a Demand, flavor: &'a FlavorNeed) -> Option<usize> {
        let description = (&flavor.selector, flavor.tolerations.as_slice(), &flavor.needs);
        if self.exhausted.contains(&description) {
            return None;
        }
        let open = self.open(flavor);
        let key = flavor.topology_key.as_deref();
        if let Some(key) = key {
            self.crowd(demand, key);
        }
        let crowd = |index: usize| {
            let key = key?;
            let by_domain = self.crowds.get(&(&*demand.group, key))?;
            by_domain.get(self.nodes[index].labels.get(key)?.as_str()).copied()
        };
        let fitting = open.iter().copied().filter(|&index| self.free[index].hold(&flavor.needs));
        let best = fitting.min_by_key(|&index| {
            let left = self.free[index].get(flavor.scarce) - flavor.needs.get(flavor.scarce);
            (crowd(index).unwrap_or(0), left, index)
        });
        if best.is_none() {
            self.exhausted.insert(description);
        }
        best
    }

    fn crowd(&mut self, demand: &'a Demand, key: &'a str) -> &mut HashMap<&'a str, u32> {
        let (nodes, by_name) = (&self.nodes, &self.by_name);
        self.crowds.entry((&demand.group, key)).or_insert_with(|| {
            let mut crowd = HashMap::new();
            for &index in demand.beside.iter().filter_map(|name| by_name.get(&**name)) {
                let domain = nodes[index].labels.get(key);
                domain.into_iter().for_each(|domain| *crowd.entry(domain.as_str()).or_default() += 1);
            }
            crowd
        })
    }

    fn take(&mut self, demand: &'a Demand, flavor: &'a FlavorNeed, index: usize) -> Place {
        self.free[index].subtract(&flavor.needs);
        let node = self.nodes[index];
        if let Some(key) = flavor.topology_key.as_deref()
            && let Some(domain) = node.labels.get(key)
        {
            *self.crowd(demand, key).entry(domain).or_default() += 1;
        }
        Place::OnNode { flavor: flavor.name.clone(), node: node.name.clone() }
    }

    fn explain(&mut self, flavor: &'a FlavorNeed, vocabulary: &Vocabulary) -> Tried {
        let tried = |why| Tried { flavor: flavor.name.clone(), why };
        if self.nodes.is_empty() {
            return tried(Why::NoNodes);
        }
        let labelled: Vec<&'a NodeView> =
            self.nodes.iter().copied().filter(|node| node.has(&flavor.selector)).collect();
        let Some(first) = labelled.first() else {
            let selector: Vec<String> = flavor.selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
            return tried(Why::NoLabels { selector: selector.join(",") });
        };
        let (nodes, example) = (labelled.len(), first.closed_to(flavor));
        let open = self.open(flavor);
        if open.is_empty() {
            let example = format!("{} {}", first.name, example.unwrap_or_default());
            return tried(Why::Closed { nodes, example });
        }
        let nodes = open.len();
        let most = |of: &dyn Fn(usize) -> i64| open.iter().map(|&index| of(index)).max().unwrap_or(0);
        let short = |free: &dyn Fn(usize, usize) -> i64| {
            flavor.needs.iter().find(|&(resource, wanted)| most(&|index| free(index, resource)) < wanted)
        };
        let show = |resource: usize, amount: i64| vocabulary.show(resource, amount);
        if let Some((resource, wanted)) = short(&|index, resource| self.nodes[index].allocatable.get(resource)) {
            let largest = most(&|index| self.nodes[index].allocatable.get(resource));
            let (wanted, largest) = (show(resource, wanted), show(resource, largest));
            return tried(Why::TooSmall { nodes, resource: vocabulary.name(resource), wanted, largest });
        }
        // Each amount may be there on some node, and all of them on none: then it is told by the scarce one.
        let scarce = (flavor.scarce, flavor.needs.get(flavor.scarce));
        let (resource, wanted) = short(&|index, resource| self.free[index].get(resource)).unwrap_or(scarce);
        let free = most(&|index| self.free[index].get(resource));
        let (wanted, free) = (show(resource, wanted), show(resource, free.max(0)));
        tried(Why::Full { nodes, resource: vocabulary.name(resource), wanted, free })
    }
}
