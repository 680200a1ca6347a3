//! Which replica should answer: pure, over a snapshot of what is known. No clock, no global randomness, no I/O.
//!
//! [`rank`] puts the candidates in order of preference and says which of them may be sent to at once. When none may,
//! the request waits (see [`crate::late`]) instead of queueing behind a guess.
//!
//! The ladder, one step per state of knowledge:
//! 1. [`Step::Fresh`]: lowest expected time to the first token, from reports young enough to be believed.
//! 2. [`Step::Stale`]: the same from this proxy's own requests, and the speeds that the replicas were last known for.
//! 3. [`Step::RoundRobin`]: nothing known of any replica, so each in its turn.
//!
//! Missing, late or wrong reports never make an error: they only move a replica down the ladder.

mod assess;
mod expect;
#[cfg(test)]
mod tests;

use assess::{Assessment, Tier};
use dunlin_protocol::{
    id::ReplicaId,
    load::{LoadReport, RECENT_MODELS},
};
use rand::{Rng, seq::SliceRandom};
use std::time::{Duration, Instant};

/// Candidates whose expected times differ by less than this factor are as good as equal: of those on the most preferred
/// hardware the one that holds most of the prompt is taken, to the quarter, then the one with the fewest of our own
/// requests, else any, so that many proxies with the same reports don't all take the same replica.
const NEAR_EQUAL: f64 = 1.15;
/// So much shorter than that of the best free replica must the expected time at a full one be, for the request to wait
/// for that.
const WORTH_WAITING: f64 = 0.6;

/// What is known of one replica that serves the model.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Which replica.
    pub replica: ReplicaId,
    /// How it can be reached now.
    pub reach: Reach,
    /// There and back, where it was measured.
    pub rtt: Option<Duration>,
    /// Slots by its announcement; 0 when only a topic record is known.
    pub slots: u16,
    /// Why its engine may have to load the model first.
    pub loads: Loads,
    /// Its newest load report.
    pub load: Option<Load>,
    /// What this proxy itself knows.
    pub own: Own,
}

/// What an engine holds beside the model that is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Loads {
    /// Nothing: its one model is always there.
    #[default]
    Never,
    /// Adapters, of which this is one.
    Adapter,
    /// Several models, which it may load on demand.
    Model,
}

/// How a replica can be reached, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
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
pub struct Load {
    /// When it arrived, on this machine's clock.
    pub received: Instant,
    /// Slots now.
    pub slots: u16,
    /// Requests in the engine and in the agent's short queue, sent through that agent.
    pub admitted: u32,
    /// Requests that the engine runs, whoever sent them, by its own metrics.
    pub running: Option<u32>,
    /// Requests that wait inside the engine.
    pub waiting: u32,
    /// As its agent measured it.
    pub speed: Speed,
    /// KiB of the prompts in flight.
    pub in_flight_kib: u32,
    /// New KiB of prompts of which no token has come.
    pub unstarted_kib: u32,
    /// How long the engine's streams have been silent.
    pub silent: Duration,
    /// Tags of the models served last.
    pub recent: [u32; RECENT_MODELS],
    /// Share of the KV cache in use, thousandths.
    pub kv_permille: Option<u16>,
    /// Takes nothing new.
    pub draining: bool,
    /// How many kinds of hardware are preferred to its own.
    pub flavor: u8,
}

/// An engine's measured speed, microseconds; `None` until there was traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Speed {
    /// To the first token of an empty prompt.
    pub first_token_us: Option<f64>,
    /// Added per KiB of prompt.
    pub per_kib_us: Option<f64>,
    /// From the first token to the end of an answer.
    pub decode_us: Option<f64>,
}

impl Speed {
    fn new(report: &LoadReport) -> Self {
        let measured = &report.measured;
        let us = |value: Option<u32>| value.map(f64::from);
        // Answers in one piece tell of no first token: all of their time is taken for decoding.
        let decode = measured.service_us.map(|whole| whole.saturating_sub(measured.ttft_us.unwrap_or(0)));
        Self {
            // Not the plain average of all instead: it is there after one request, and waiting for others is in it.
            first_token_us: us(measured.first_token_us),
            per_kib_us: us(measured.prefill_us_per_kib),
            decode_us: us(decode),
        }
    }
}

/// The time between two answers that `candidates` can give together with all slots in use, by what was measured of them;
/// of which nothing was, counts as the mean of the others. `None` where none was.
pub(crate) fn pace(candidates: &[Candidate]) -> Option<Duration> {
    let reachable = candidates.iter().filter(|one| one.reach != Reach::Gone);
    let rates = reachable.map(|one| {
        let load = one.load?;
        let answer_us = load.speed.first_token_us.unwrap_or(0.0) + load.speed.decode_us?;
        (answer_us > 0.0).then(|| f64::from(load.slots) * 1e6 / answer_us)
    });
    let (all, known, sum) = rates.fold((0_u32, 0_u32, 0.0), |(all, known, sum), rate| match rate {
        Some(rate) => (all + 1, known + 1, sum + rate),
        None => (all + 1, known, sum),
    });
    (sum > 0.0).then(|| Duration::from_secs_f64(f64::from(known) / (sum * f64::from(all))))
}

impl Load {
    /// The part of `report` that routing reads.
    #[must_use]
    pub fn new(report: &LoadReport, received: Instant) -> Self {
        Self {
            received,
            slots: report.slots,
            admitted: u32::from(report.in_flight) + u32::from(report.queued),
            running: report.engine.and_then(|engine| engine.running),
            waiting: report.engine.and_then(|engine| engine.waiting).unwrap_or(0),
            speed: Speed::new(report),
            in_flight_kib: report.measured.in_flight_kib,
            unstarted_kib: report.measured.unstarted_kib,
            silent: Duration::from_millis(report.measured.silent_ms.into()),
            recent: report.measured.recent,
            kv_permille: report.engine.and_then(|engine| engine.kv_used_permille),
            draining: report.draining,
            flavor: report.flavor,
        }
    }
}

/// How much of what a report counts may have been ours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reported {
    /// Requests in flight.
    pub in_flight: u32,
    /// KiB of their prompts.
    pub in_flight_kib: u32,
    /// New KiB of prompts of which no token had come.
    pub unstarted_kib: u32,
}

/// What this proxy knows of a replica from its own requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Own {
    /// Requests of this proxy that the replica has now.
    pub in_flight: u32,
    /// KiB of their prompts.
    pub in_flight_kib: u32,
    /// New KiB of the prompts sent there of which no token has come.
    pub unstarted_kib: u32,
    /// The same at most, while the newest report was on its way.
    pub reported: Reported,
    /// How long the oldest of those has been waiting for its first token.
    pub unanswered: Duration,
    /// KiB of this request's prompt that it holds from earlier ones.
    pub cached_kib: f64,
    /// As much more of it may have come there through other proxies.
    pub home_kib: f64,
    /// What it holds of earlier requests beside the prompt.
    pub held: Held,
    /// Refused a request as `full` since the newest report, and so short a time ago that it still is.
    pub refused: bool,
    /// Whether its failures keep it out.
    pub standing: Standing,
}

/// What a replica holds of a request's history that its prompt doesn't tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Nothing.
    #[default]
    Nothing,
    /// It answered this session's last request.
    Session,
    /// It gave the response that the request builds on.
    Response,
}

/// Whether a replica's failures keep it out of rotation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Standing {
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
pub struct Ask<'a> {
    /// Replicas on which this very request failed already.
    pub tried: &'a [ReplicaId],
    /// Grows with every request for the model: whose turn it is in round robin.
    pub turn: u64,
    /// A report older than this is not believed. Longer than the agents' heartbeat.
    pub fresh: Duration,
    /// Size of the prompt, KiB.
    pub kib: f64,
    /// [`dunlin_protocol::load::model_tag`] of the model.
    pub tag: u32,
}

/// The step of the ladder by which a replica was ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// By a fresh report.
    Fresh,
    /// By own requests in flight.
    Stale,
    /// By turn.
    RoundRobin,
}

impl Step {
    /// From the best informed.
    pub const ALL: [Self; 3] = [Self::Fresh, Self::Stale, Self::RoundRobin];

    /// As in the header `x-dunlin-route` and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Stale => "stale",
            Self::RoundRobin => "round-robin",
        }
    }
}

/// Whether a request may go to a replica now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// A slot is free.
    Free,
    /// Others have the slots as of the last report: one may have become free since, or soon will, and the agent holds a
    /// request for that long. Of those who wait, one may try.
    Maybe,
    /// None.
    Full,
}

/// One candidate in its place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// Which.
    pub replica: ReplicaId,
    /// Why it stands where it does.
    pub step: Step,
    /// Whether a request may go there now; the free ones come first.
    pub room: Room,
    /// Expected time to the first token, microseconds; with a share of what the answer keeps others waiting.
    pub cost: f64,
    /// How long its first token takes by its own measurements, which [`Self::cost`] bounds; `None` where there are none.
    pub measured: Option<Duration>,
    /// It is full, but for what will have ended by the time that a request gets there.
    pub soon: bool,
    /// Whether requests go there in the normal course.
    pub in_rotation: bool,
    /// KiB of the prompt that are new to it.
    pub new_kib: f64,
    /// Whether that is a guess about what other proxies did.
    pub guess: bool,
}

impl Ranked {
    /// When its first token is expected, milliseconds: by its own measurements, or by its place in the pool where that says
    /// more.
    #[must_use]
    pub fn expected_ms(&self) -> Option<u32> {
        let measured = self.measured?.max(Duration::from_micros(self.cost as u64));
        Some(u32::try_from(measured.as_millis()).unwrap_or(u32::MAX))
    }
}

/// Orders the usable candidates, best first. Draining ones are left out; silent, suspect, ejected and already tried ones
/// come last, and are free only when there is nobody else at all.
pub fn rank(candidates: &[Candidate], ask: &Ask<'_>, now: Instant, rng: &mut impl Rng) -> Vec<Ranked> {
    let mut view = assess::assess(candidates, ask, now);
    let step = pool_step(&view);
    if step != Step::RoundRobin {
        expect::expect_times(&mut view);
    }
    only_first_tiers_are_free(&mut view);
    view.shuffle(rng);
    view.sort_by(|a, b| a.order().cmp(&b.order()).then(a.cost.total_cmp(&b.cost)));
    match step {
        Step::RoundRobin => take_turns(&mut view, ask.turn),
        _ => mix_near_equals(&mut view),
    }
    let ranked = |one: &Assessment| Ranked {
        replica: one.replica,
        step: one.step(step),
        room: one.room,
        soon: one.soon,
        cost: one.cost,
        measured: one.measured(),
        in_rotation: one.tier.in_rotation(),
        new_kib: one.new_kib,
        guess: one.guess,
    };
    view.iter().map(ranked).collect()
}

/// Share of the requests at these replicas that came from others, as far as reports tell: 0 to 1; `None`
/// without any.
#[must_use]
pub fn share_of_others(candidates: &[Candidate]) -> Option<f64> {
    let (others, all) = candidates.iter().fold((0, 0), |(others, all), one| {
        let foreign = one.load.map_or(0, |load| load.admitted.saturating_sub(one.own.reported.in_flight));
        (others + u64::from(foreign), all + u64::from(foreign) + u64::from(one.own.in_flight))
    });
    (all > 0).then(|| others as f64 / all as f64)
}

/// The full replica whose slot had better be waited for than the best of the free taken: the prompt is in its cache, or
/// the free ones are so much slower.
#[must_use]
pub fn worth_waiting_for(ranked: &[Ranked]) -> Option<Ranked> {
    let best = ranked.first().filter(|best| best.room == Room::Free && best.step != Step::RoundRobin)?;
    let full = ranked.iter().filter(|one| one.room != Room::Free && one.in_rotation);
    full.filter(|one| one.cost < best.cost * WORTH_WAITING).min_by(|a, b| a.cost.total_cmp(&b.cost)).copied()
}

/// The best step that any candidate in rotation allows.
fn pool_step(view: &[Assessment]) -> Step {
    let nobody_in_rotation = !view.iter().any(|one| one.tier.in_rotation());
    let any = |of: &dyn Fn(&Assessment) -> bool| {
        view.iter().filter(|one| nobody_in_rotation || one.tier.in_rotation()).any(of)
    };
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
        if !one.tier.in_rotation() && one.tier != best {
            one.room = Room::Full;
        }
    }
}

/// Starts the free ones of the best tier at the one whose turn it is, in order of replica.
fn take_turns(view: &mut [Assessment], turn: u64) {
    let group = leading(view, |a, b| a.order() == b.order());
    group.sort_by_key(|one| one.replica);
    let len = group.len().max(1) as u64;
    group.rotate_left(usize::try_from(turn % len).unwrap_or(0));
}

/// Puts the one of the leaders on the most preferred hardware in front; of several, the one that holds most of the prompt:
/// a short one's cache saves less than the near-equal differ by, and work all the same; of several, the one that has the
/// fewest of our own requests; of equals, the first by chance.
fn mix_near_equals(view: &mut [Assessment]) {
    let group = leading(view, |a, b| a.order() == b.order() && b.cost <= a.cost * NEAR_EQUAL);
    let share = |one: &Assessment| f64::from(one.own_in_flight) / f64::from(one.slots);
    let by_preference = |a: &Assessment, b: &Assessment| {
        let hardware = a.flavor.cmp(&b.flavor);
        hardware.then(b.held_quarters.cmp(&a.held_quarters)).then(share(a).total_cmp(&share(b)))
    };
    if let Some(chosen) = (0..group.len()).min_by(|&a, &b| by_preference(&group[a], &group[b])) {
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
