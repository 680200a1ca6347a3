//! What each candidate is: whether its report is believed, in which class of preference it stands, whether it has a slot
//! free.

use super::{Ask, Candidate, Held, Load, Loads, Reach, Room, Speed, Standing, Step};
use dunlin_protocol::id::ReplicaId;
use std::time::{Duration, Instant};

/// Slots presumed of a replica known only by its topic record. Agents refuse what is too much, so too high a guess
/// costs one round trip.
const PRESUMED_SLOTS: u32 = 64;
/// A KV cache that is used less than this, thousandths, tells too little of its size, and has room enough.
const KV_TELLS_PERMILLE: u16 = 300;
/// A guess about less than this of a prompt, KiB, is too small to spoil the measuring of prefill speeds. There is nearly
/// always some: a replica of which none is measured any more would be as good as any other.
const GUESS_KIB: f64 = 1.0;
/// Streams that have begun and are silent together for so long make a replica the last choice.
const SILENT: Duration = Duration::from_millis(1000);
/// A first token that is late by this, and by [`LATE`] times what was expected, does the same.
const LATE_BY: Duration = Duration::from_millis(1500);
/// Times the expected time to the first token.
const LATE: f64 = 4.0;
/// One of so many slots' requests waits at its agent for the next slot: see `dunlin_agent::admit`.
const SLOTS_PER_WAITER: u32 = 8;

/// Classes of preference that no load outweighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tier {
    /// Connected.
    Direct,
    /// Needs a dial.
    Unknown,
    /// Only through a relay.
    Relayed,
    /// Its engine says nothing, to anybody.
    Silent,
    /// Its connection is silent.
    Suspect,
    /// Its failures keep it out. One that is well again is found out sooner here than where this request has failed.
    Ejected,
    /// This request failed there already.
    Tried,
    /// Lost.
    Gone,
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
    pub(super) room: Room,
    /// Full, but for what will have ended by the time that a request gets there.
    pub(super) soon: bool,
    /// Its report is young enough.
    pub(super) fresh: bool,
    /// Its report has no numbers of the engine itself, only the agent's own counts.
    pub(super) mute: bool,
    /// There is a report of whatever age.
    pub(super) reported: bool,
    pub(super) own_in_flight: u32,
    /// Lower is better, within equal [`Assessment::order`].
    pub(super) cost: f64,
    /// Requests that the replica is presumed to have.
    pub(super) work: u32,
    pub(super) slots: u32,
    pub(super) speed: Speed,
    pub(super) kv_permille: Option<u16>,
    /// How long its engine's streams have been silent.
    pub(super) silent: Duration,
    /// KiB that are to be prefilled before this request.
    pub(super) ahead_kib: u32,
    /// KiB of this request that are to be prefilled.
    pub(super) new_kib: f64,
    /// Whether that is a guess about what other proxies did.
    pub(super) guess: bool,
    /// Quarters of this request's prompt that it holds, by what this proxy knows: 0 to 4.
    pub(super) held_quarters: u8,
    pub(super) held: Held,
    pub(super) rtt: Option<Duration>,
    /// What its engine must load first.
    pub(super) loads: Loads,
    /// How many kinds of hardware are preferred to its own.
    pub(super) flavor: u8,
}

impl Assessment {
    /// What comes before cost.
    pub(super) fn order(&self) -> (Room, Tier) {
        (self.room, self.tier)
    }

    /// How long its first token takes by its own measurements, with what is ahead of it.
    pub(super) fn measured(&self) -> Option<Duration> {
        let prefill = (f64::from(self.ahead_kib) + self.new_kib) * self.speed.per_kib_us.unwrap_or(0.0);
        self.speed.first_token_us.map(|us| Duration::from_micros((us + prefill) as u64))
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
    // Our own requests are known exactly; the report adds those of others, as of when it was made.
    let others = believed.map_or(0, |load| load.admitted.saturating_sub(own.reported.in_flight));
    let busy = own.in_flight.saturating_add(others);
    // What others send to the engine past its agent makes it slower, and leaves the agent's slots as they are.
    let in_engine = believed.and_then(|load| Some(load.running?.saturating_add(load.waiting))).unwrap_or(0);
    let outside = in_engine.saturating_sub(believed.map_or(0, |load| load.admitted));
    // An engine that lets requests of its agent alone wait runs as many as it can: its KV cache is full.
    let limit = believed.filter(|load| load.waiting > 0 && outside == 0).and_then(|load| load.running);
    let slots = limit.map_or(slots, |running| slots.min(running.max(1)));
    // Whoever refuses is full, whatever it said before.
    let busy = if own.refused { busy.max(slots) } else { busy };
    let others_kib = believed.map_or(0, |load| load.unstarted_kib.saturating_sub(own.reported.unstarted_kib));
    let speed = candidate.load.map(|load| load.speed).unwrap_or_default();
    let refused = own.refused || !fits(candidate, believed, ask.kib);
    let soon = !refused && busy >= slots && busy < slots + ending_on_the_way(candidate.rtt, slots, &speed);
    let loaded = candidate.load.is_some_and(|load| load.recent.contains(&ask.tag));
    Some(Assessment {
        replica: candidate.replica,
        tier: tier(candidate, believed.map_or(Duration::ZERO, |load| load.silent), &speed, ask),
        room: room(busy, slots, others > 0 || soon, refused),
        soon: soon && others == 0,
        fresh: believed.is_some(),
        mute: believed.is_none_or(|load| load.running.is_none()),
        reported: candidate.load.is_some(),
        own_in_flight: own.in_flight,
        cost: 0.0,
        work: busy.saturating_add(outside),
        slots,
        speed,
        kv_permille: believed.and_then(|load| load.kv_permille),
        silent: believed.map_or(Duration::ZERO, |load| load.silent),
        ahead_kib: own.unstarted_kib.saturating_add(others_kib),
        new_kib: (ask.kib - own.cached_kib - own.home_kib).max(0.0),
        guess: own.home_kib >= GUESS_KIB,
        // A prompt of nothing is held by nobody.
        held_quarters: (4.0 * own.cached_kib / ask.kib.max(f64::MIN_POSITIVE)).min(4.0) as u8,
        held: own.held,
        rtt: candidate.rtt,
        loads: if loaded { Loads::Never } else { candidate.loads },
        flavor: candidate.load.map_or(0, |load| load.flavor),
    })
}

/// Whether the KV cache has room for a prompt of `kib` more. How large it is, in KiB of prompts, the share in use and the
/// prompts that use it tell.
fn fits(candidate: &Candidate, believed: Option<Load>, kib: f64) -> bool {
    let own = candidate.own;
    let Some((load, permille)) = believed.and_then(|load| Some((load, load.kv_permille?))) else { return true };
    if permille < KV_TELLS_PERMILLE || load.in_flight_kib == 0 {
        return true;
    }
    let capacity = f64::from(load.in_flight_kib) * 1000.0 / f64::from(permille);
    let others = load.in_flight_kib.saturating_sub(own.reported.in_flight_kib);
    let used = f64::from(own.in_flight_kib) + f64::from(others);
    // With nothing in it, it takes whatever it ever can.
    used == 0.0 || used + kib <= capacity
}

fn room(busy: u32, slots: u32, maybe: bool, refused: bool) -> Room {
    match busy < slots {
        _ if refused => Room::Full,
        true => Room::Free,
        false if maybe => Room::Maybe,
        false => Room::Full,
    }
}

/// Answers of a full replica that will have ended by the time that its end is heard of here and another request has got
/// there, as many as its agent lets wait: where it is far, its slots would be idle for that long each time.
fn ending_on_the_way(rtt: Option<Duration>, slots: u32, speed: &Speed) -> u32 {
    let (Some(rtt), Some(decode)) = (rtt, speed.decode_us) else { return 0 };
    let service = speed.first_token_us.unwrap_or(0.0) + decode;
    let ending = f64::from(slots) * rtt.as_secs_f64() * 1e6 / service.max(1.0);
    (ending.round() as u32).min((slots / SLOTS_PER_WAITER).max(1))
}

fn tier(candidate: &Candidate, silent: Duration, speed: &Speed, ask: &Ask<'_>) -> Tier {
    match candidate.reach {
        Reach::Gone => Tier::Gone,
        _ if ask.tried.contains(&candidate.replica) => Tier::Tried,
        _ if candidate.own.standing == Standing::Ejected => Tier::Ejected,
        Reach::Suspect => Tier::Suspect,
        _ if silent >= SILENT || is_late(candidate, speed) => Tier::Silent,
        Reach::Direct => Tier::Direct,
        Reach::Unknown => Tier::Unknown,
        Reach::Relayed => Tier::Relayed,
    }
}

/// Whether the first token of one of our own requests is overdue, by what the replica is known for. Of an unmeasured
/// one nothing can be late.
fn is_late(candidate: &Candidate, speed: &Speed) -> bool {
    let Some(first_token) = speed.first_token_us else { return false };
    let ahead = candidate.own.unstarted_kib.max(candidate.load.map_or(0, |load| load.unstarted_kib));
    let expected = first_token + f64::from(ahead) * speed.per_kib_us.unwrap_or(0.0);
    let waited = candidate.own.unanswered;
    waited >= LATE_BY && waited.as_secs_f64() * 1e6 > LATE * expected
}
