//! How long a candidate is expected to take to the first token.
//!
//! The time until a slot is free, the prefill of what is ahead and of what is new of this prompt, the round trip, the
//! loading of a model that isn't in memory; and a small share of what the answer will take, so that of two replicas
//! that begin equally soon the faster and emptier one is taken, and the slots of the slower one stay free for when they
//! are needed.

use super::{
    Held, Loads,
    assess::{Assessment, Tier},
};
use std::time::Duration;

/// Time to first token of an empty prompt where nobody has measured any.
const FIRST_TOKEN_US: f64 = 30_000.0;
/// Prefill per KiB where nobody has measured any: 256 tokens at 25,000 tokens/s.
const PER_KIB_US: f64 = 10_000.0;
/// Time from first to last token where nobody has measured any.
const DECODE_US: f64 = 1_000_000.0;
/// So much of a measured time to first token may be chance: a few first requests that met a cold engine, a busy moment.
/// Replicas that differ by less count as equally fast, or else one that began badly would get next to nothing while others
/// are free, and so would never be measured again. An answer takes many times as long.
const CHANCE_US: f64 = 14_000.0;
/// The slowest replica is taken for at most this many times slower than the fastest: one bad measurement (a cold start)
/// must not shut a replica out.
const SLOWEST: f64 = 8.0;
/// Share of an answer's decoding that counts, since it keeps a slot from others.
const DECODE_SHARE: f64 = 0.03;
/// Shorter silence of an engine's streams is nothing unusual.
const SILENCE: Duration = Duration::from_millis(250);
/// From this share of the KV cache on, engines begin to preempt and recompute.
const KV_PRESSURE_PERMILLE: u16 = 800;
/// How much slower a replica counts with its KV cache full.
const KV_FULL_FACTOR: f64 = 4.0;
/// Loading an adapter into an engine that runs.
const ADAPTER_US: f64 = 300_000.0;
/// Loading a model into an engine that runs.
const MODEL_US: f64 = 5_000_000.0;
/// What a replica is preferred by that has served this session, beyond what the prompt itself tells.
const SESSION_US: f64 = 20_000.0;
/// What the replica is preferred by that holds an earlier response which the request builds on: no other can know it.
const RESPONSE_US: f64 = 2_000_000.0;
/// What a relay costs beside the round trip through it: it is somebody's, and shared.
const RELAY_US: f64 = 50_000.0;

/// Sets each cost, microseconds.
///
/// A replica whose report is too old is presumed to be as busy as the fresh ones are on average: it is neither shunned
/// nor, however idle it was when last heard, the winner of every pick. The same holds for one whose engine gives no
/// numbers beside others that do: what comes to it from elsewhere nobody sees.
pub(super) fn expect_times(view: &mut [Assessment]) {
    let occupancy = mean_occupancy(view);
    let first_token = Scale::of(view.iter().map(|one| one.speed.first_token_us), FIRST_TOKEN_US);
    let per_kib = Scale::of(view.iter().map(|one| one.speed.per_kib_us), PER_KIB_US);
    let decode = Scale::of(view.iter().map(|one| one.speed.decode_us), DECODE_US);
    let held = view.iter().map(|one| one.held).max().unwrap_or_default();
    for one in view {
        let slots = f64::from(one.slots);
        let known = f64::from(one.work);
        let work = if one.fresh && !one.mute { known } else { known.max(occupancy * slots) };
        let first_token = first_token.get(one.speed.first_token_us.map(|us| us - CHANCE_US));
        let decode = decode.get(one.speed.decode_us);
        let until_slot = (known + 1.0 - slots).max(0.0) * (first_token + decode) / slots;
        let kib = f64::from(one.ahead_kib) + one.new_kib;
        let engine =
            first_token + kib * per_kib.get(one.speed.per_kib_us) + DECODE_SHARE * decode * (1.0 + work / slots);
        one.cost = until_slot + engine * kv_factor(one.kv_permille) + way(one) + loading(one.loads) + silence(one);
        if one.held < held {
            one.cost += held.worth();
        }
    }
}

/// Measurements of one kind over the pool.
struct Scale {
    fastest: f64,
}

impl Scale {
    fn of(measured: impl Iterator<Item = Option<f64>>, otherwise: f64) -> Self {
        Self { fastest: measured.flatten().reduce(f64::min).unwrap_or(otherwise) }
    }

    /// Unmeasured counts as fast: it gets measured by being used.
    fn get(&self, measured: Option<f64>) -> f64 {
        measured.map_or(self.fastest, |us| us.min((self.fastest * SLOWEST).max(1000.0)).max(self.fastest))
    }
}

impl Held {
    fn worth(self) -> f64 {
        match self {
            Self::Nothing => 0.0,
            Self::Session => SESSION_US,
            Self::Response => RESPONSE_US,
        }
    }
}

/// The way there and back.
fn way(one: &Assessment) -> f64 {
    let rtt = one.rtt.map_or(0.0, |rtt| rtt.as_secs_f64() * 1e6);
    if one.tier == Tier::Relayed { rtt + RELAY_US } else { rtt }
}

/// An engine that has said nothing for a while will go on saying nothing for about as long.
fn silence(one: &Assessment) -> f64 {
    if one.silent < SILENCE { 0.0 } else { one.silent.as_secs_f64() * 1e6 }
}

fn loading(loads: Loads) -> f64 {
    match loads {
        Loads::Never => 0.0,
        Loads::Adapter => ADAPTER_US,
        Loads::Model => MODEL_US,
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
