//! Telling the mesh: what a replica is, when that changes; what its load is, on change and once a second.

use super::{
    Replica,
    due::{Due, INTERVAL},
};
use crate::engine::EngineUrl;
use dunlin_node::{Handle, Offer};
use dunlin_protocol::announcement::ReplicaState;
use std::{sync::Arc, time::Instant};
use tokio::time::{MissedTickBehavior, interval};

/// Models of an engine that are named in the log.
const NAMED: usize = 8;

/// Announces the replica whenever its view changes; ends when it is gone for good.
pub(crate) async fn announce(replica: Arc<Replica>, handle: Handle) {
    let mut view = replica.watch();
    let mut told = None;
    loop {
        let state = view.borrow_and_update().state;
        let offer = replica.offer();
        let news = news(&replica, &offer);
        if told.as_ref() != Some(&news) {
            tell(&news);
            told = Some(news);
        }
        handle.offer(offer).await;
        if (state == ReplicaState::Gone && replica.is_ending()) || view.changed().await.is_err() {
            return;
        }
    }
}

/// What the operator of this machine reads of a replica. The mesh is told more, the outcome of the self-test among it.
#[derive(PartialEq)]
struct News {
    index: u16,
    state: ReplicaState,
    url: Option<EngineUrl>,
    models: String,
    slots: u16,
}

fn news(replica: &Replica, Offer { index, state, slots, models, .. }: &Offer) -> News {
    let models: Vec<&str> = models.iter().map(|model| model.id.as_str()).take(NAMED).collect();
    News { index: *index, state: *state, url: replica.view().url.clone(), models: models.join(", "), slots: *slots }
}

/// Why it starts is told where the reason is found.
fn tell(News { index, state, url, models, slots }: &News) {
    let url = url.as_ref().map(tracing::field::display);
    match state {
        ReplicaState::Starting | ReplicaState::Unhealthy => {}
        ReplicaState::Ready => tracing::info!(replica = index, url, models, slots, "engine serves"),
        ReplicaState::Draining => tracing::info!(replica = index, "engine takes nothing new"),
        ReplicaState::Gone => tracing::info!(replica = index, "engine is withdrawn"),
    }
}

/// Reports the replica's load until dropped: a change at once, unless the last report is too young.
pub(crate) async fn report(replica: Arc<Replica>, handle: Handle) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut due = Due::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => replica.counters.sample(Instant::now()),
            () = replica.gate.moved(), if due.may(Instant::now()) => {}
        }
        if !matches!(replica.view().state, ReplicaState::Ready | ReplicaState::Draining) {
            continue;
        }
        let now = Instant::now();
        let report = replica.load(&handle, now);
        if due.take(&report, now) {
            handle.report(report);
            // What changes until the next one may go out is told then.
            ticks.reset();
        }
    }
}
