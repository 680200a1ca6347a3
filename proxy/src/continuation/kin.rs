//! Which replicas may go on with an answer.

use dunlin_node::directory::Replica;
use dunlin_protocol::{
    announcement::ReplicaState,
    id::{ModelId, RuntimeName},
    record::Continuation,
};

/// What gave the answer so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kin {
    runtime: RuntimeName,
    root: u64,
    parent: Option<ModelId>,
    context: Option<u32>,
}

impl Kin {
    /// What `replica` answers for `model` with; `None` where it doesn't say.
    pub(crate) fn of(replica: &Replica, model: &ModelId) -> Option<Self> {
        let served = replica.models.iter().find(|served| served.id == *model)?;
        let (runtime, root) = (replica.runtime.clone()?, served.root?);
        Some(Self { runtime, root, parent: served.parent.clone(), context: served.context })
    }

    /// The runtime.
    pub(crate) fn runtime(&self) -> &RuntimeName {
        &self.runtime
    }

    /// Whether `replica` may go on: the same in all, with at least the same context, and proved in a self-test.
    pub(crate) fn goes_on_at(&self, replica: &Replica, model: &ModelId) -> bool {
        let able = replica.state == ReplicaState::Ready && replica.continuation == Continuation::Exact;
        able && self.is_of(replica, model)
    }

    /// Whether `replica` has the same, with at least the same context, whatever it has proved.
    pub(crate) fn is_of(&self, replica: &Replica, model: &ModelId) -> bool {
        Self::of(replica, model).is_some_and(|other| {
            let same = (&other.runtime, other.root, &other.parent) == (&self.runtime, self.root, &self.parent);
            same && other.context >= self.context
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_node::directory::Reachability;
    use dunlin_protocol::{
        announcement::ServedModel,
        id::{PeerId, ReplicaId, Version},
    };

    fn id(name: &str) -> ModelId {
        ModelId::new(name).unwrap()
    }

    fn replica() -> Replica {
        Replica {
            id: ReplicaId { peer: PeerId::random(), index: 0 },
            state: ReplicaState::Ready,
            runtime: Some("vllm".parse().unwrap()),
            continuation: Continuation::Exact,
            unconfirmed: false,
            slots: 1,
            models: vec![ServedModel { id: id("m"), parent: Some(id("p")), context: Some(100), root: Some(7) }],
            version: Version::default(),
            addresses: Vec::new(),
            reachability: Reachability::Unknown,
            load: None,
        }
    }

    #[test]
    fn only_the_same_in_all_goes_on() {
        let (model, kin) = (id("m"), Kin::of(&replica(), &id("m")).unwrap());
        let goes_on = |change: &dyn Fn(&mut Replica)| {
            let mut other = replica();
            change(&mut other);
            kin.goes_on_at(&other, &model)
        };
        assert!(goes_on(&|_| {}));
        assert!(goes_on(&|other| other.models[0].context = Some(101)));
        assert!(!goes_on(&|other| other.models[0].context = Some(99)));
        assert!(!goes_on(&|other| other.models[0].context = None));
        assert!(!goes_on(&|other| other.models[0].root = Some(8)));
        assert!(!goes_on(&|other| other.models[0].root = None));
        assert!(!goes_on(&|other| other.models[0].parent = None));
        assert!(!goes_on(&|other| other.models[0].id = id("n")));
        assert!(!goes_on(&|other| other.runtime = Some("sglang".parse().unwrap())));
        assert!(!goes_on(&|other| other.continuation = Continuation::None));
        assert!(!goes_on(&|other| other.state = ReplicaState::Draining));
    }

    #[test]
    fn who_does_not_say_what_it_has_loaded_is_nobodys_kin() {
        let mut silent = replica();
        silent.models[0].root = None;
        assert_eq!(Kin::of(&silent, &id("m")), None);
    }
}
