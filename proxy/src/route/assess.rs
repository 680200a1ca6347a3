//! What each candidate is worth: whether its report is believed, whether it has a slot free, and the expected wait.

use super::{Ask, Candidate, Reach, Standing, Step};
use dunlin_protocol::id::ReplicaId;
use std::time::Instant;

/// Slots presumed of a replica known only by its topic record. Agents refuse what is too much, so too high a guess
/// costs one round trip.
const PRESUMED_SLOTS: u32 = 64;
/// The slowest replica is taken for at most this many times slower than the fastest: one bad measurement (a cold start)
/// must not shut a replica out for ever.
const SLOWEST: f64 = 8.0;
/// From this share of the KV cache on, engines begin to preempt and recompute.
const KV_PRESSURE_PERMILLE: u16 = 800;
/// How much slower a replica counts with its KV cache full.
const KV_FULL_FACTOR: f64 = 4.0;

/// Classes of preference that no load outweighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tier {
    /// Connected.
    Direct,
    /// Needs a dial.
    Unknown,
    /// Only through a relay.
    Relayed,
    /// This request failed there already.
    Tried,
    /// Silent.
    Suspect,
    /// Lost.
    Gone,
    /// Its failures keep it out.
    Ejected,
}

impl Tier {
    /// Whether requests go there in the normal course.
    pub(super) fn in_rotation(self) -> bool {
        self <= Self::Relayed
    }
}

/// One candidate, judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Assessment {
    pub(super) replica: ReplicaId,
    pub(super) tier: Tier,
    /// Has a slot and may be used.
    pub(super) free: bool,
    /// Its report is young enough.
    pub(super) fresh: bool,
    /// Its report has no numbers of the engine itself, only the agent's own counts.
    mute: bool,
    /// There is a report of whatever age.
    pub(super) reported: bool,
    pub(super) own_in_flight: u32,
    /// Lower is better, within equal [`Assessment::order`].
    pub(super) cost: f64,
    /// Requests that the replica is presumed to have.
    work: u32,
    slots: u32,
    speed_us: Option<u32>,
    kv_permille: Option<u16>,
}

impl Assessment {
    /// What comes before cost.
    pub(super) fn order(&self) -> (bool, Tier) {
        (!self.free, self.tier)
    }

    /// The step that applied to this one when the pool as a whole stands on `pool`.
    pub(super) fn step(&self, pool: Step) -> Step {
        match pool {
            Step::Fresh if !self.fresh => Step::Stale,
            step => step,
        }
    }
}

/// Judges all candidates that take requests.
pub(super) fn assess(candidates: &[Candidate], ask: &Ask<'_>, now: Instant) -> Vec<Assessment> {
    candidates.iter().filter_map(|candidate| assess_one(candidate, ask, now)).collect()
}

fn assess_one(candidate: &Candidate, ask: &Ask<'_>, now: Instant) -> Option<Assessment> {
    let own = candidate.own;
    let believed = candidate.load.filter(|load| now.saturating_duration_since(load.received) <= ask.fresh);
    if believed.is_some_and(|load| load.draining) {
        return None;
    }
    let slots = match believed.map(|load| load.slots).or(Some(candidate.slots)) {
        None | Some(0) => PRESUMED_SLOTS,
        Some(slots) => u32::from(slots),
    };
    // Own requests are known exactly; the report adds those of other proxies, as of when it was made.
    let busy = match believed {
        Some(load) => load.admitted.saturating_add(own.sent_since).saturating_sub(own.ended_since).max(own.in_flight),
        None => own.in_flight,
    };
    let engine = believed.and_then(|load| load.engine);
    Some(Assessment {
        replica: candidate.replica,
        tier: tier(candidate, ask),
        free: busy < slots && !own.refused,
        fresh: believed.is_some(),
        mute: engine.is_none(),
        reported: candidate.load.is_some(),
        own_in_flight: own.in_flight,
        cost: 0.0,
        work: busy.max(engine.unwrap_or(0)),
        slots,
        speed_us: believed.and_then(|load| load.speed_us),
        kv_permille: believed.and_then(|load| load.kv_permille),
    })
}

fn tier(candidate: &Candidate, ask: &Ask<'_>) -> Tier {
    if candidate.own.standing == Standing::Ejected {
        return Tier::Ejected;
    }
    match candidate.reach {
        Reach::Suspect => Tier::Suspect,
        Reach::Gone => Tier::Gone,
        _ if ask.tried.contains(&candidate.replica) => Tier::Tried,
        Reach::Direct => Tier::Direct,
        Reach::Unknown => Tier::Unknown,
        Reach::Relayed => Tier::Relayed,
    }
}

/// Sets each cost to the expected wait to the first token, microseconds: work ahead over slots, at the measured speed.
///
/// A replica whose report is too old is presumed to be as busy as the fresh ones are on average: it is neither shunned
/// nor, however idle it was when last heard, the winner of every pick. The same holds for one whose engine gives no
/// numbers beside others that do: what comes to it from elsewhere nobody sees.
pub(super) fn expect_waits(view: &mut [Assessment]) {
    let occupancy = mean_occupancy(view);
    let fastest = view.iter().filter_map(|one| one.speed_us).min().map_or(1.0, |us| f64::from(us.max(1)));
    for one in view {
        let slots = f64::from(one.slots);
        let known = f64::from(one.work);
        let work = if one.fresh && !one.mute { known } else { known.max(occupancy * slots) };
        // Unmeasured counts as fast: it gets measured by being used.
        let speed = one.speed_us.map_or(fastest, |us| f64::from(us).clamp(fastest, fastest * SLOWEST));
        one.cost = speed * (work + 1.0) / slots * kv_factor(one.kv_permille);
    }
}

fn mean_occupancy(view: &[Assessment]) -> f64 {
    let (sum, count) = view
        .iter()
        .filter(|one| one.fresh && !one.mute)
        .fold((0.0, 0.0), |(sum, count), one| (sum + f64::from(one.work) / f64::from(one.slots), count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

fn kv_factor(permille: Option<u16>) -> f64 {
    let over = permille.unwrap_or(0).min(1000).saturating_sub(KV_PRESSURE_PERMILLE);
    let range = f64::from(1000 - KV_PRESSURE_PERMILLE);
    1.0 + (KV_FULL_FACTOR - 1.0) * f64::from(over) / range
}
