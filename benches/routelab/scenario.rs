//! The situations in which policies are compared.

use super::{Micros, SECOND, engine::Spec};

/// One situation.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// As in the table.
    pub name: &'static str,
    /// The engines.
    pub engines: Vec<Spec>,
    /// When requests come.
    pub arrivals: Arrivals,
    /// What they ask.
    pub prompts: Prompts,
    /// Tokens of the answer, at least and at most.
    pub answer: (u64, u64),
    /// Adapters asked for instead of the model.
    pub adapters: usize,
    /// How reports travel.
    pub reports: Reports,
    /// Requests of one run.
    pub requests: usize,
}

/// When requests come.
#[derive(Debug, Clone, Copy)]
pub enum Arrivals {
    /// Independently.
    Steady { per_s: f64 },
    /// So many within 10 ms.
    Bursts { size: usize, per_s: f64 },
}

/// What requests ask.
#[derive(Debug, Clone, Copy)]
pub struct Prompts {
    /// Beginnings of which each prompt has one; 0 for none.
    pub shared: u64,
    /// Tokens of these.
    pub prefix_tokens: u64,
    /// Tokens of what is each prompt's own, at least and at most.
    pub tokens: (u64, u64),
}

/// How reports travel.
#[derive(Debug, Clone, Copy)]
pub struct Reports {
    /// Microseconds on the way, at least and at most.
    pub delay: (Micros, Micros),
    /// Share that is lost.
    pub lost: f64,
    /// Whether answers carry the load as well.
    pub on_answers: bool,
}

const LAN: Reports = Reports { delay: (500, 20_000), lost: 0.01, on_answers: true };
const CHAT: Prompts = Prompts { shared: 0, prefix_tokens: 0, tokens: (50, 750) };

/// So many slots with so many milliseconds from token to token, and a prefill to match.
fn spec(slots: u16, inter_token_ms: u64) -> Spec {
    Spec {
        slots,
        first_token: inter_token_ms * 1_500,
        prefill: inter_token_ms * 2_000,
        inter_token: inter_token_ms * 1_000,
        kv_tokens: 1_000_000,
        cache_tokens: 200_000,
        adapters: 0,
        way: 500,
        turns_slow: None,
        hangs: None,
    }
}

fn unequal() -> Vec<Spec> {
    vec![spec(8, 10), spec(8, 20), spec(4, 10)]
}

fn base(name: &'static str, engines: Vec<Spec>, per_s: f64, requests: usize) -> Scenario {
    Scenario {
        name,
        engines,
        arrivals: Arrivals::Steady { per_s },
        prompts: CHAT,
        answer: (30, 90),
        adapters: 0,
        reports: LAN,
        requests,
    }
}

/// All situations, with so many requests each.
pub fn all(requests: usize) -> Vec<Scenario> {
    let equal = || vec![spec(8, 10); 4];
    let length = |per_s: f64| (requests as f64 / per_s * SECOND as f64) as Micros;
    let mut slow = base("one turns 4x slower", equal(), 31.0, requests);
    slow.engines[0].turns_slow = Some((length(31.0) / 4, 4.0));
    let mut hang = base("one hangs for 20 s", equal(), 28.0, requests);
    hang.engines[0].hangs = Some((length(28.0) / 4, length(28.0) / 4 + 20 * SECOND));
    let mut bursts = base("bursts between reports", equal(), 0.0, requests);
    bursts.arrivals = Arrivals::Bursts { size: 16, per_s: 30.0 };
    let mut prefixes = base("shared prefixes", equal(), 24.0, requests);
    prefixes.prompts = Prompts { shared: 32, prefix_tokens: 4_000, tokens: (50, 300) };
    prefixes.engines.iter_mut().for_each(|engine| engine.cache_tokens = 60_000);
    let mut adapters = base("adapters", equal(), 20.0, requests);
    adapters.adapters = 12;
    adapters.engines.iter_mut().for_each(|engine| engine.adapters = 4);
    let mut stale = base("stale reports", unequal(), 20.0, requests);
    stale.reports = Reports { delay: (2 * SECOND, 4 * SECOND), lost: 0.3, on_answers: false };
    let mut kv = base("small KV caches", equal(), 24.0, requests);
    kv.prompts.tokens = (200, 3_000);
    kv.engines.iter_mut().for_each(|engine| engine.kv_tokens = 10_000);
    kv.engines[0].kv_tokens = 5_000;
    let mut far = base("two of four are far", equal(), 36.0, requests);
    far.engines.iter_mut().take(2).for_each(|engine| engine.way = 40_000);
    vec![
        base("equal", equal(), 40.0, requests),
        base("unequal", unequal(), 20.0, requests),
        slow,
        hang,
        bursts,
        prefixes,
        adapters,
        stale,
        kv,
        far,
    ]
}
