use super::*;
use crate::test_data::runtime;

pub(crate) fn replica(models: &[&str]) -> Replica {
    let source = Source::Attach("http://127.0.0.1:9".parse().unwrap());
    let models = models.iter().map(|id| ModelId::new(id).unwrap()).collect();
    Replica::new(0, &EngineConfig { models, ..EngineConfig::new(source) }, runtime("llamacpp"))
}

/// C1: an engine that stops answering metric reads is not "last seen idle" for ever.
#[test]
fn old_readings_do_not_count() {
    let replica = replica(&[]);
    let until = Instant::now() + Duration::from_secs(2);
    let load = EngineLoad { running: Some(0), ..EngineLoad::default() };
    replica.set_reading(Reading { load, adapters: None }, until);
    assert!(replica.reading(until - Duration::from_millis(1)).is_some());
    assert_eq!(replica.reading(until), None);
}

/// C16: a proxy holds a request for a model that it knows to be starting.
#[test]
fn configured_models_are_announced_from_the_start() {
    let replica = replica(&["tiny", "small"]);
    let offered = |replica: &Replica| {
        let Offer { state, models, .. } = replica.offer();
        (state, models.iter().map(|model| model.id.to_string()).collect::<Vec<_>>())
    };
    let starting = (ReplicaState::Starting, vec!["tiny".to_owned(), "small".to_owned()]);
    assert_eq!(offered(&replica), starting);
    replica.set_serving(Err("loading".to_owned().into()));
    assert_eq!(offered(&replica), starting);
}

#[test]
fn nothing_undoes_draining() {
    let replica = replica(&[]);
    replica.set_serving(Ok(Vec::new()));
    assert_eq!(replica.view().state, ReplicaState::Ready);
    replica.drain();
    replica.set_serving(Ok(Vec::new()));
    replica.process_ended("killed");
    assert_eq!(replica.view().state, ReplicaState::Draining);
    assert!(replica.gate.counts().draining);
}

/// A model that is missing makes the engine be looked at now, and a client that asks for a hundred such models makes
/// that happen once.
#[tokio::test]
async fn a_missing_model_is_looked_into_at_once_and_seldom() {
    let replica = replica(&[]);
    let looks = || tokio::time::timeout(Duration::from_millis(20), replica.look.notified());
    assert!(looks().await.is_err());
    replica.model_missed();
    assert!(looks().await.is_ok());
    (0..100).for_each(|_| replica.model_missed());
    assert!(looks().await.is_err());
    *lock(&replica.doubted) = Instant::now().checked_sub(DOUBTS_APART);
    replica.model_missed();
    assert!(looks().await.is_ok());
}

/// Nobody waits for a found engine that went away; when it is back, it serves.
#[test]
fn what_left_may_come_back_until_the_end() {
    let replica = replica(&[]);
    replica.set_serving(Ok(Vec::new()));
    replica.leave();
    assert_eq!(replica.view().state, ReplicaState::Gone);
    replica.set_serving(Ok(Vec::new()));
    assert_eq!(replica.view().state, ReplicaState::Ready);
    replica.leave();
    replica.drain();
    assert_eq!(replica.view().state, ReplicaState::Gone, "it has nothing to drain");
    replica.set_serving(Ok(Vec::new()));
    assert_eq!(replica.view().state, ReplicaState::Gone);
}

#[test]
fn slots_are_the_users_or_the_engines_or_the_runtimes() {
    let told = replica(&[]);
    assert_eq!(told.view().slots, runtime("llamacpp").slots.default);
    told.set_slots(Some(4));
    assert_eq!((told.view().slots, told.gate.counts().slots), (4, 4));
    let source = Source::Attach("http://127.0.0.1:9".parse().unwrap());
    let config = EngineConfig { slots: Some(7), ..EngineConfig::new(source) };
    let fixed = Replica::new(0, &config, runtime("llamacpp"));
    fixed.set_slots(Some(4));
    assert_eq!(fixed.view().slots, 7);
}

#[test]
fn watchers_hear_only_of_changes() {
    let replica = replica(&[]);
    let mut watch = replica.watch();
    replica.set_serving(Err("loading".to_owned().into()));
    assert!(watch.has_changed().unwrap());
    watch.mark_unchanged();
    replica.set_serving(Err("loading".to_owned().into()));
    assert!(!watch.has_changed().unwrap());
}
