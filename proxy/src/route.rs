//! Which replica should answer: pure, over a snapshot of what is known. No clock, no global randomness, no I/O.
//!
//! [`rank`] puts the candidates in order of preference and says which of them may be sent to at once. When none may,
//! the request waits (see [`crate::late`]) instead of queueing behind a guess.
//!
//! The ladder, one step per state of knowledge:
//! 1. [`Step::Fresh`]: lowest expected wait, from reports young enough to be believed.
//! 2. [`Step::Stale`]: fewest of this proxy's own requests in flight.
//! 3. [`Step::RoundRobin`]: nothing known of any replica, so each in its turn.
//!
//! Missing, late or wrong reports never make an error: they only move a replica down the ladder.

mod assess;
#[cfg(test)]
mod tests;

use assess::{Assessment, Tier};
use dunlin_protocol::{id::ReplicaId, load::LoadReport};
use rand::{Rng, RngExt, seq::SliceRandom};
use std::time::{Duration, Instant};

/// Candidates whose expected waits differ by less than this factor are as good as equal: the choice between them is
/// random, so that many proxies with the same reports don't all take the same replica.
const NEAR_EQUAL: f64 = 1.2;

/// What is known of one replica that serves the model.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// Which replica.
    pub(crate) replica: ReplicaId,
    /// How it can be reached now.
    pub(crate) reach: Reach,
    /// Slots by its announcement; 0 when only a topic record is known.
    pub(crate) slots: u16,
    /// Its newest load report.
    pub(crate) load: Option<Load>,
    /// What this proxy itself knows.
    pub(crate) own: Own,
}

/// How a replica can be reached, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// Connected without a relay.
    Direct,
    /// Not dialled yet.
    Unknown,
    /// Connected through a relay.
    Relayed,
    /// Silent for seconds: takes no new request while another can.
    Suspect,
    /// Its last connection closed.
    Gone,
}

/// A load report, reduced to what routing reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// When it arrived, on this machine's clock.
    pub(crate) received: Instant,
    /// Slots now.
    pub(crate) slots: u16,
    /// Requests in the engine and in the agent's short queue, sent through that agent.
    pub(crate) admitted: u32,
    /// Requests in the engine, whoever sent them, by its own metrics.
    pub(crate) engine: Option<u32>,
    /// Time to first token, else time per request: the engine's speed as its agent measured it, microseconds.
    pub(crate) speed_us: Option<u32>,
    /// Share of the KV cache in use, thousandths.
    pub(crate) kv_permille: Option<u16>,
    /// Takes nothing new.
    pub(crate) draining: bool,
}

impl Load {
    /// The part of `report` that routing reads.
    pub(crate) fn new(report: &LoadReport, received: Instant) -> Self {
        let engine = report.engine.and_then(|engine| Some(engine.running?.saturating_add(engine.waiting.unwrap_or(0))));
        Self {
            received,
            slots: report.slots,
            admitted: u32::from(report.in_flight) + u32::from(report.queued),
            engine,
            speed_us: report.measured.ttft_us.or(report.measured.service_us),
            kv_permille: report.engine.and_then(|engine| engine.kv_used_permille),
            draining: report.draining,
        }
    }
}

/// What this proxy knows of a replica from its own requests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Own {
    /// Requests of this proxy that the replica has now.
    pub(crate) in_flight: u32,
    /// Of those, sent since the newest report arrived: the report can't count them.
    pub(crate) sent_since: u32,
    /// Ended since the newest report arrived: the report may still count them.
    pub(crate) ended_since: u32,
    /// Refused a request as `full` since the newest report, and so short a time ago that it still is.
    pub(crate) refused: bool,
    /// Whether its failures keep it out.
    pub(crate) standing: Standing,
}

/// Whether a replica's failures keep it out of rotation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// In rotation.
    #[default]
    Good,
    /// Back-off is over: one request may try it.
    Probation,
    /// Out, or on probation with its one request under way.
    Ejected,
}

/// What is asked of the ranking besides the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// Replicas on which this very request failed already.
    pub(crate) tried: &'a [ReplicaId],
    /// Grows with every request for the model: whose turn it is in round robin.
    pub(crate) turn: u64,
    /// A report older than this is not believed. Longer than the agents' heartbeat.
    pub(crate) fresh: Duration,
}

/// The step of the ladder by which a replica was ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// By a fresh report.
    Fresh,
    /// By own requests in flight.
    Stale,
    /// By turn.
    RoundRobin,
}

impl Step {
    /// As in the header `x-dunlin-route` and in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Stale => "stale",
            Self::RoundRobin => "round-robin",
        }
    }
}

/// One candidate in its place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ranked {
    /// Which.
    pub(crate) replica: ReplicaId,
    /// Why it stands where it does.
    pub(crate) step: Step,
    /// Whether a request may go there now; the free ones come first.
    pub(crate) free: bool,
}

/// Orders the usable candidates, best first. Draining ones are left out; ejected, suspect and already tried ones come
/// last, and are free only when there is nobody else at all.
pub(crate) fn rank(candidates: &[Candidate], ask: &Ask<'_>, now: Instant, rng: &mut impl Rng) -> Vec<Ranked> {
    let mut view = assess::assess(candidates, ask, now);
    let step = pool_step(&view);
    match step {
        Step::Fresh => assess::expect_waits(&mut view),
        Step::Stale => view.iter_mut().for_each(|one| one.cost = f64::from(one.own_in_flight)),
        Step::RoundRobin => {}
    }
    only_first_tiers_are_free(&mut view);
    view.shuffle(rng);
    view.sort_by(|a, b| a.order().cmp(&b.order()).then(a.cost.total_cmp(&b.cost)));
    match step {
        Step::RoundRobin => take_turns(&mut view, ask.turn),
        _ => mix_near_equals(&mut view, rng),
    }
    view.iter().map(|one| Ranked { replica: one.replica, step: one.step(step), free: one.free }).collect()
}

/// The best step that any candidate in rotation allows.
fn pool_step(view: &[Assessment]) -> Step {
    let best = |of: &dyn Fn(&Assessment) -> bool| view.iter().filter(|one| one.tier.in_rotation()).any(of);
    let nobody_in_rotation = !view.iter().any(|one| one.tier.in_rotation());
    let any = |of: &dyn Fn(&Assessment) -> bool| if nobody_in_rotation { view.iter().any(of) } else { best(of) };
    if any(&|one| one.fresh) {
        Step::Fresh
    } else if any(&|one| one.reported || one.own_in_flight > 0) {
        Step::Stale
    } else {
        Step::RoundRobin
    }
}

/// While anyone is in rotation, those out of it wait for better days; otherwise the best of them must do: ejection never
/// empties the pool.
fn only_first_tiers_are_free(view: &mut [Assessment]) {
    let best = view.iter().map(|one| one.tier).min().unwrap_or(Tier::Direct);
    for one in view {
        one.free &= one.tier.in_rotation() || one.tier == best;
    }
}

/// Starts the free ones of the best tier at the one whose turn it is, in order of replica.
fn take_turns(view: &mut [Assessment], turn: u64) {
    let group = leading(view, |a, b| a.order() == b.order());
    group.sort_by_key(|one| one.replica);
    let len = group.len().max(1) as u64;
    group.rotate_left(usize::try_from(turn % len).unwrap_or(0));
}

/// Puts one of the leaders that are as good as equal in front, by chance.
fn mix_near_equals(view: &mut [Assessment], rng: &mut impl Rng) {
    let group = leading(view, |a, b| a.order() == b.order() && b.cost <= a.cost * NEAR_EQUAL);
    if group.len() > 1 {
        let chosen = rng.random_range(0..group.len());
        group[..=chosen].rotate_right(1);
    }
}

/// The longest run at the front whose members all belong to the first.
fn leading(view: &mut [Assessment], belongs: impl Fn(&Assessment, &Assessment) -> bool) -> &mut [Assessment] {
    let len = match view.first() {
        Some(first) => view.iter().take_while(|one| belongs(first, one)).count(),
        None => 0,
    };
    &mut view[..len]
}
