//! Telling the mesh: what a replica is, when that changes; what its load is, on change and once a second.

use super::Replica;
use dunlin_node::{Handle, Offer};
use dunlin_protocol::{
    announcement::ReplicaState,
    load::{EngineLoad, LoadReport, Measured},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::{MissedTickBehavior, interval};

/// Reports go out at most this often. The node lowers the rate further in large meshes.
const INTERVAL: Duration = Duration::from_millis(100);
/// And at least this often.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A measured duration or speed that moved by less than a fifth is no news.
const RELATIVE: u64 = 5;
/// Models of an engine that are named in the log.
const NAMED: usize = 8;
/// A share that moved by less than this, thousandths, is no news.
const SHARE: u16 = 20;

/// Announces the replica whenever its view changes; ends when it is gone for good.
pub(crate) async fn announce(replica: Arc<Replica>, handle: Handle) {
    let mut view = replica.watch();
    loop {
        let state = view.borrow_and_update().state;
        let offer = replica.offer();
        tell(&replica, &offer);
        handle.offer(offer).await;
        if (state == ReplicaState::Gone && replica.is_ending()) || view.changed().await.is_err() {
            return;
        }
    }
}

/// What the operator of this machine reads. Why it starts is told where the reason is found.
fn tell(replica: &Replica, Offer { index, state, slots, models, .. }: &Offer) {
    let view = replica.view();
    let url = view.url.as_ref().map(tracing::field::display);
    match state {
        ReplicaState::Starting | ReplicaState::Unhealthy => {}
        ReplicaState::Ready => {
            let models: Vec<&str> = models.iter().map(|model| model.id.as_str()).take(NAMED).collect();
            tracing::info!(replica = index, url, models = models.join(", "), slots, "engine serves");
        }
        ReplicaState::Draining => tracing::info!(replica = index, "engine takes nothing new"),
        ReplicaState::Gone => tracing::info!(replica = index, "engine is withdrawn"),
    }
}

/// Reports the replica's load until dropped.
pub(crate) async fn report(replica: Arc<Replica>, handle: Handle) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last: Option<(LoadReport, Instant)> = None;
    loop {
        let now = ticks.tick().await.into_std();
        replica.counters.sample(now);
        if !matches!(replica.view().state, ReplicaState::Ready | ReplicaState::Draining) {
            continue;
        }
        let report = replica.load(&handle, now);
        let due =
            last.as_ref().is_none_or(|(old, sent)| now.duration_since(*sent) >= HEARTBEAT || is_news(old, &report));
        if due {
            handle.report(report.clone());
            last = Some((report, now));
        }
    }
}

/// Whether `new` says something that a proxy should know before the next heartbeat.
fn is_news(old: &LoadReport, new: &LoadReport) -> bool {
    let counts = |report: &LoadReport| (report.slots, report.in_flight, report.queued, report.draining);
    counts(old) != counts(new)
        || measured_is_news(&old.measured, &new.measured)
        || match (&old.engine, &new.engine) {
            (Some(old), Some(new)) => engine_is_news(old, new),
            (old, new) => old.is_some() != new.is_some(),
        }
}

fn measured_is_news(old: &Measured, new: &Measured) -> bool {
    let pairs = [(old.ttft_us, new.ttft_us), (old.itl_us, new.itl_us), (old.service_us, new.service_us)];
    pairs.into_iter().any(|(old, new)| match (old, new) {
        (Some(old), Some(new)) => moved(old, new),
        (old, new) => old != new,
    }) || moved(old.chunks_per_s, new.chunks_per_s)
}

fn moved(old: u32, new: u32) -> bool {
    u64::from(old.abs_diff(new)) * RELATIVE > u64::from(old.max(new))
}

/// Token counts grow with every token and are no news by themselves.
fn engine_is_news(old: &EngineLoad, new: &EngineLoad) -> bool {
    let share = |old: Option<u16>, new: Option<u16>| match (old, new) {
        (Some(old), Some(new)) => old.abs_diff(new) >= SHARE,
        (old, new) => old != new,
    };
    (old.running, old.waiting) != (new.running, new.waiting)
        || share(old.kv_used_permille, new.kv_used_permille)
        || share(old.prefix_hit_permille, new.prefix_hit_permille)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::id::{PeerId, ReplicaId, Version};

    fn base() -> LoadReport {
        LoadReport {
            replica: ReplicaId { peer: PeerId::random(), index: 0 },
            version: Version::default(),
            slots: 8,
            in_flight: 2,
            queued: 0,
            draining: false,
            measured: Measured { ttft_us: Some(1000), chunks_per_s: 100, ..Measured::default() },
            engine: Some(EngineLoad { running: Some(2), kv_used_permille: Some(500), ..EngineLoad::default() }),
        }
    }
    fn news(change: impl FnOnce(&mut LoadReport)) -> bool {
        let old = base();
        let mut new = old.clone();
        new.version.seq += 1;
        change(&mut new);
        is_news(&old, &new)
    }
    fn engine_news(change: impl FnOnce(&mut EngineLoad)) -> bool {
        news(|report| change(report.engine.as_mut().unwrap()))
    }

    #[test]
    fn a_new_version_alone_is_no_news() {
        assert!(!news(|_| {}));
    }

    #[test]
    fn counts_are_news() {
        assert!(news(|report| report.in_flight = 3));
        assert!(news(|report| report.queued = 1));
        assert!(news(|report| report.draining = true));
        assert!(engine_news(|engine| engine.running = Some(3)));
        assert!(engine_news(|engine| engine.waiting = Some(0)));
        assert!(news(|report| report.engine = None));
    }

    #[test]
    fn small_moves_are_none() {
        assert!(!news(|report| report.measured.ttft_us = Some(1100)));
        assert!(news(|report| report.measured.ttft_us = Some(1300)));
        assert!(news(|report| report.measured.itl_us = Some(1)));
        assert!(!news(|report| report.measured.chunks_per_s = 110));
        assert!(news(|report| report.measured.chunks_per_s = 0));
        assert!(!engine_news(|engine| engine.kv_used_permille = Some(510)));
        assert!(engine_news(|engine| engine.kv_used_permille = Some(530)));
        assert!(!engine_news(|engine| engine.generated_tokens = None));
    }
}
