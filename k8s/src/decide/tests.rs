//! A Playground in a toy world where anything may happen in any order.

use super::*;
use crate::{
    resources::PlaygroundSpec,
    revision::{Revision, Snapshot},
};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeSet;

/// Something that happens.
#[derive(Debug, Clone)]
enum Event {
    Scale(i32),
    Update(u8),
    /// Of the pods, in order of name, this one (modulo their number).
    Serves(usize),
    Ends(usize),
    Vanishes(usize),
    IsTold(usize),
    /// A pod that claims to be the Playground's.
    Planted,
    Pause(bool),
    Wait(u32),
    /// All that is not stored is forgotten.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => (0..6_i32).prop_map(Event::Scale),
        1 => (0..3_u8).prop_map(Event::Update),
        4 => (0..16_usize).prop_map(Event::Serves),
        1 => (0..16_usize).prop_map(Event::Ends),
        1 => (0..16_usize).prop_map(Event::Vanishes),
        1 => (0..16_usize).prop_map(Event::IsTold),
        1 => Just(Event::Planted),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => (1..200_u32).prop_map(Event::Wait),
        1 => Just(Event::Restart),
    ]
}

struct Toy {
    playground: Playground,
    version: u8,
    pods: HashMap<String, OwnPod>,
    stored: PlaygroundStatus,
    memory: Memory,
    now: Timestamp,
    born: BTreeSet<String>,
    uids: u32,
}

fn wanted(version: u8, playground: &Playground) -> Wanted {
    let model = json!({"servedName": "m", "source": {"image": "i"}, "flavors": [{"name": "a"}, {"name": "b"}]});
    let snapshot = Snapshot {
        playground: playground.spec.clone(),
        restarted_at: None,
        model_name: "m".to_owned(),
        model: serde_json::from_value(model).unwrap(),
        runtime_name: "r".to_owned(),
        runtime: serde_json::from_value(json!({"runtime": "vllm"})).unwrap(),
    };
    let revision = Revision { name: format!("p-{version}"), number: i64::from(version) + 1, snapshot };
    Wanted { revision: std::sync::Arc::new(revision), is_new: false, outdated: false }
}

impl Toy {
    fn new() -> Self {
        let spec = PlaygroundSpec { model: Some("m".to_owned()), replicas: 2, ..PlaygroundSpec::nothing() };
        Self {
            playground: Playground::new("p", spec),
            version: 0,
            pods: HashMap::new(),
            stored: PlaygroundStatus::default(),
            memory: Memory::default(),
            now: Timestamp::UNIX_EPOCH,
            born: BTreeSet::new(),
            uids: 0,
        }
    }

    fn pod(&mut self, name: &str) -> String {
        self.uids += 1;
        let uid = format!("uid-{}", self.uids);
        let pod = OwnPod {
            name: name.to_owned(),
            uid: uid.clone(),
            owner: "o".to_owned(),
            node: None,
            stage: Stage::Unbound { why: None },
            ends_at: None,
        };
        self.pods.insert(uid.clone(), pod);
        uid
    }

    fn happen(&mut self, event: &Event) {
        let mut names: Vec<String> = self.pods.values().map(|pod| pod.uid.clone()).collect();
        names.sort();
        let pick = |index: usize| names.get(index % names.len().max(1)).cloned();
        let uid = match event {
            Event::Serves(index) | Event::Ends(index) | Event::Vanishes(index) | Event::IsTold(index) => pick(*index),
            _ => None,
        };
        match event {
            Event::Scale(replicas) => self.playground.spec.replicas = *replicas,
            Event::Update(version) => self.version = *version,
            Event::Pause(paused) => self.playground.spec.paused = *paused,
            Event::Wait(seconds) => self.now = later(self.now, Duration::from_secs(u64::from(*seconds))),
            Event::Restart => self.memory = Memory::default(),
            Event::Planted => drop(self.pod("p-0-1")),
            Event::Serves(_) | Event::Ends(_) | Event::Vanishes(_) | Event::IsTold(_) => {
                let Some(uid) = uid else { return };
                if matches!(event, Event::Vanishes(_)) {
                    self.pods.remove(&uid);
                    return;
                }
                let Some(pod) = self.pods.get_mut(&uid) else { return };
                pod.node = Some("n".to_owned());
                match event {
                    Event::Serves(_) => pod.stage = Stage::Up,
                    Event::Ends(_) => pod.stage = Stage::Ended(Word::default()),
                    _ => pod.ends_at = Some(Timestamp::UNIX_EPOCH),
                }
            }
        }
    }

    /// One look, carried out whole.
    fn look(&mut self) {
        // What a paused Playground does is chosen with its revision.
        let version = if self.playground.spec.paused {
            self.stored.revision.trim_start_matches("p-").parse().unwrap_or(self.version)
        } else {
            self.version
        };
        let wanted = wanted(version, &self.playground);
        let waits = [("a".to_owned(), Duration::from_secs(60)), ("b".to_owned(), Duration::from_secs(60))];
        let patience = Patience::default();
        let sight = |pod: &OwnPod, _: Option<&str>| Sight { serving: pod.stage == Stage::Up, ..Sight::default() };
        let pods = self.pods.clone();
        let facts = Facts {
            refused: None,
            name: "p",
            playground: &self.playground,
            wanted: Ok(&wanted),
            waits: &waits,
            pods: &pods,
            sight: &sight,
            patience: &patience,
            now: self.now,
        };
        let serving = |status: &PlaygroundStatus| {
            status.replica_states.iter().filter(|state| state.phase == Phase::Ready).count()
        };
        let mut draft = survey(&facts, self.stored.clone(), &mut self.memory);
        let empty: Vec<(usize, usize)> = draft.unplaced(&self.memory).collect();
        for (index, tried) in empty {
            let flavor = ["a", "b"][tried % 2];
            draft.fill(index, &Place::OnNode { flavor: flavor.into(), node: "n".into() }, self.now);
        }
        let decision = settle(&facts, draft, &self.memory);
        self.check(&decision, &pods, serving);
        self.stored = decision.status.clone();
        for ending in &decision.endings {
            if let Some(pod) = self.pods.get_mut(&ending.uid) {
                pod.ends_at = Some(Timestamp::UNIX_EPOCH);
            }
        }
        let now = self.now;
        for state in decision.births {
            assert!(self.born.insert(state.name.clone()), "{} is born twice", state.name);
            let uid = self.pod(&state.name);
            self.memory.created(&state.name, &uid, now);
            let stored = self.stored.replica_states.iter_mut().find(|known| known.name == state.name).unwrap();
            stored.pod_uid = Some(uid);
        }
    }

    fn check(&self, decision: &Decision, pods: &HashMap<String, OwnPod>, serving: impl Fn(&PlaygroundStatus) -> usize) {
        let status = &decision.status;
        let live = status.replica_states.iter().filter(|state| state.phase != Phase::Draining).count();
        let desired = usize::try_from(self.playground.spec.replicas).unwrap();
        let most = desired + usize::try_from(self.playground.spec.strategy.max_surge).unwrap();
        assert!(live <= most, "{live} live, {desired} wanted");
        let names: BTreeSet<&String> = status.replica_states.iter().map(|state| &state.name).collect();
        assert_eq!(names.len(), status.replica_states.len(), "a name stands twice");
        for birth in &decision.births {
            assert!(names.contains(&birth.name) && birth.flavor.is_some(), "{} is born without a record", birth.name);
        }
        let recorded: HashSet<&String> =
            status.replica_states.iter().filter_map(|state| state.pod_uid.as_ref()).collect();
        for pod in pods.values().filter(|pod| !recorded.contains(&pod.uid) && !pod.ending()) {
            assert!(decision.endings.iter().any(|ending| ending.uid == pod.uid), "{} is nobody's, and stays", pod.uid);
        }
        // Nothing that serves is taken down below what is wanted, unless there is no room beside it.
        let could = pods.values().filter(|pod| pod.stage == Stage::Up && !pod.ending() && recorded.contains(&pod.uid));
        let least = could.count().min(desired.saturating_sub(1));
        assert!(serving(status) >= least, "{} serve, {least} could", serving(status));
    }
}

proptest! {
    #[test]
    fn whatever_happens_it_stays_in_bounds_and_comes_to_rest(events in prop::collection::vec(event(), 0..60)) {
        let mut toy = Toy::new();
        for event in &events {
            toy.happen(event);
            toy.look();
        }
        // Left in peace, everything that was wanted is there, and nothing else.
        toy.playground.spec.paused = false;
        for _ in 0..60 {
            toy.now = later(toy.now, Duration::from_secs(400));
            toy.pods.retain(|_, pod| !pod.ending());
            for pod in toy.pods.values_mut() {
                if !matches!(pod.stage, Stage::Ended(_)) {
                    pod.node = Some("n".to_owned());
                    pod.stage = Stage::Up;
                }
            }
            toy.look();
        }
        toy.pods.retain(|_, pod| !pod.ending());
        toy.look();
        let desired = usize::try_from(toy.playground.spec.replicas).unwrap();
        prop_assert_eq!(toy.stored.replica_states.len(), desired);
        prop_assert_eq!(toy.pods.len(), desired);
        let revision = format!("p-{}", toy.version);
        prop_assert!(toy.stored.replica_states.iter().all(|state| state.phase == Phase::Ready && state.revision == revision));
        prop_assert_eq!(&toy.stored.conditions[1].reason, if desired == 0 { "NotNeeded" } else { "Complete" });
    }
}
