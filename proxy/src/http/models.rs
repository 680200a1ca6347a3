//! The lists of models: joined over all replicas that serve.

use crate::names::Names;
use dunlin_node::directory::{Directory, Reachability, Replica};
use dunlin_protocol::{
    announcement::{ReplicaState, ServedModel},
    id::ModelId,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What all replicas together say of a model.
struct Joined<'a> {
    served: &'a ServedModel,
    runtime: Option<&'a str>,
    context: Option<u32>,
    replicas: usize,
}

/// `GET /v1/models`: by name, and then the aliases; those that `may` be asked for.
pub(super) fn list(directory: &Directory, names: &Names, may: impl Fn(&ModelId) -> bool, started: u64) -> Value {
    let mut models: BTreeMap<&ModelId, Joined<'_>> = BTreeMap::new();
    for replica in ready(directory) {
        for served in &replica.models {
            models.entry(&served.id).or_insert_with(|| Joined::new(served, replica)).join(served);
        }
    }
    let aliases = names.aliases().filter_map(|(alias, model)| Some((alias, models.get(model)?)));
    let named = models.iter().map(|(id, model)| (*id, model)).chain(aliases);
    let data: Vec<Value> =
        named.filter(|(name, _)| may(name)).map(|(name, model)| model.to_json(name, started)).collect();
    json!({"object": "list", "data": data})
}

/// `GET /v1/models/ID`: `None` when no replica serves it.
pub(super) fn one(directory: &Directory, names: &Names, asked: &ModelId, started: u64) -> Option<Value> {
    let id = names.resolve(asked);
    let mut joined: Option<Joined<'_>> = None;
    for replica in directory.replicas(id).filter(|replica| serves(replica)) {
        if let Some(served) = replica.models.iter().find(|served| served.id == *id) {
            joined.get_or_insert_with(|| Joined::new(served, replica)).join(served);
        }
    }
    joined.map(|model| model.to_json(asked, started))
}

/// How many models can be asked.
pub(super) fn count(directory: &Directory) -> usize {
    let mut models: Vec<_> = ready(directory).flat_map(|replica| &replica.models).map(|served| &served.id).collect();
    models.sort_unstable();
    models.dedup();
    models.len()
}

fn ready(directory: &Directory) -> impl Iterator<Item = &Replica> {
    directory.all_replicas().filter(|replica| serves(replica))
}

/// Whether a request could find it. Peers whose rights are unknown are not in the directory at all.
fn serves(replica: &Replica) -> bool {
    replica.state == ReplicaState::Ready && replica.reachability != Reachability::Disconnected
}

impl<'a> Joined<'a> {
    fn new(served: &'a ServedModel, replica: &'a Replica) -> Self {
        Self { served, runtime: replica.runtime.as_ref().map(AsRef::as_ref), context: None, replicas: 0 }
    }

    /// The shortest context counts: a request may go to any of the replicas.
    fn join(&mut self, served: &ServedModel) {
        self.replicas += 1;
        self.context = match (self.context, served.context) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// OpenAI's fields, and vLLM's `root`, `parent` and `max_model_len` where known, under the name `id`.
    fn to_json(&self, id: &ModelId, started: u64) -> Value {
        let mut model = json!({
            "id": id.as_str(),
            "object": "model",
            "created": started,
            "owned_by": self.runtime.unwrap_or("dunlin"),
            "replicas": self.replicas,
        });
        if *id != self.served.id {
            model["root"] = self.served.id.as_str().into();
        }
        if let Some(parent) = &self.served.parent {
            model["parent"] = parent.as_str().into();
        }
        if let Some(context) = self.context {
            model["max_model_len"] = context.into();
        }
        model
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_node::directory::{Event, Rights};
    use dunlin_protocol::{
        announcement::Announcement,
        id::{PeerId, ReplicaId, Role, Roles, RuntimeName, Version},
        pattern::Models,
        record::Continuation,
    };
    use std::time::Instant;

    fn announce(directory: &mut Directory, state: ReplicaState, models: &[(&str, Option<u32>)]) -> PeerId {
        let models = models.iter().map(|(id, context)| ServedModel {
            id: ModelId::new(id).unwrap(),
            parent: id.strip_suffix("-lora").map(|parent| ModelId::new(parent).unwrap()),
            context: *context,
            root: None,
        });
        let peer = PeerId::random();
        let rights = Rights { roles: Roles::NONE.with(Role::Agent), models: Models::Any, issued_at: 0 };
        directory.apply(Event::Member { peer, rights }, Instant::now());
        let announcement = Announcement {
            replica: ReplicaId { peer, index: 0 },
            version: Version { epoch: 1, seq: 1 },
            state,
            runtime: RuntimeName::new("vllm").unwrap(),
            continuation: Continuation::None,
            slots: 4,
            models: models.collect(),
        };
        directory.apply(Event::Announcement(announcement), Instant::now());
        peer
    }

    #[test]
    fn models_are_listed_while_somebody_can_be_asked() {
        let mut directory = Directory::default();
        let (a, b) = (ModelId::new("a").unwrap(), ModelId::new("b").unwrap());
        let lost = announce(&mut directory, ReplicaState::Ready, &[("a", None), ("b", None)]);
        announce(&mut directory, ReplicaState::Ready, &[("b", None)]);
        for (event, models, replicas) in [
            (Event::Connected { peer: lost, relayed: false }, 2, 2),
            (Event::Disconnected { peer: lost }, 1, 1),
            (Event::Connected { peer: lost, relayed: true }, 2, 2),
        ] {
            directory.apply(event, Instant::now());
            assert_eq!(count(&directory), models);
            assert_eq!(list(&directory, &Names::default(), |_| true, 7)["data"].as_array().unwrap().len(), models);
            assert_eq!(one(&directory, &Names::default(), &a, 7).is_some(), models == 2);
            assert_eq!(one(&directory, &Names::default(), &b, 7).unwrap()["replicas"], replicas);
        }
    }

    #[test]
    fn models_are_joined_over_replicas_that_serve() {
        let id = |id: &str| ModelId::new(id).unwrap();
        let mut directory = Directory::default();
        announce(&mut directory, ReplicaState::Ready, &[("a/b", Some(4096)), ("a/b-lora", None)]);
        announce(&mut directory, ReplicaState::Ready, &[("a/b", Some(2048))]);
        announce(&mut directory, ReplicaState::Starting, &[("later", None)]);
        let names = Names::new([(id("alias"), id("a/b"))].into(), [].into()).unwrap();
        let list = list(&directory, &names, |_| true, 7);
        let expected = json!({"object": "list", "data": [
            {"id": "a/b", "object": "model", "created": 7, "owned_by": "vllm", "replicas": 2, "max_model_len": 2048},
            {"id": "a/b-lora", "object": "model", "created": 7, "owned_by": "vllm", "replicas": 1, "parent": "a/b"},
            {"id": "alias", "object": "model", "created": 7, "owned_by": "vllm", "replicas": 2, "max_model_len": 2048, "root": "a/b"},
        ]});
        assert_eq!(list, expected);
        assert_eq!(one(&directory, &names, &id("a/b"), 7).as_ref(), Some(&expected["data"][0]));
        assert_eq!(one(&directory, &names, &id("alias"), 7).as_ref(), Some(&expected["data"][2]));
        assert_eq!(one(&directory, &names, &id("later"), 7), None);
        assert_eq!(count(&directory), 2);
    }
}
