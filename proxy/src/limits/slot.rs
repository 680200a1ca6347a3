//! What this proxy holds of one key's limits, and has used of it. Pure.

use super::{
    Caps,
    account::CONCURRENT,
    log::{Log, WINDOW},
};
use dunlin_protocol::lease::{Granted, Held, KINDS};
use std::time::{Duration, Instant};

/// For so long after a request more is kept at hand than was just used.
const WARM: Duration = Duration::from_secs(2);
/// What is kept at hand then: one part in so many of the limit. With every one of three proxies keeping it, nine tenths
/// can still be used where they are asked for.
const AT_HAND: i64 = 60;
/// What is asked for and used is counted over so long at least, and demand is smoothed over so long.
const COUNTED: Duration = Duration::from_millis(400);
const SMOOTHED: Duration = Duration::from_secs(15);
/// After an answer that there is nothing left, for so long nobody asks at once again.
const DRY: Duration = Duration::from_millis(100);

/// One limit.
#[derive(Debug, Clone, Default)]
struct Lease {
    /// May be used, or was used within the window.
    held: i64,
    /// Of what is held, more than this goes back as it becomes free.
    target: Option<i64>,
    log: Log,
    running: i64,
    /// Asked for since it was counted last.
    asked: i64,
    /// Used since then.
    used_lately: i64,
    /// What is kept at hand for what is used so fast.
    lately: i64,
    /// Asked for and not had, in the time that was counted last.
    missed: i64,
    /// Asked for, for a whole window, smoothed.
    demand: f64,
    /// What is left at the owner, as it said last.
    left: i64,
}

impl Lease {
    /// Takes in what was asked for and used within `since`.
    fn count(&mut self, kind: usize, used: i64, since: Duration) {
        // Those that run are there all the time.
        let newest = match kind {
            CONCURRENT => (self.asked + used) as f64,
            _ => self.asked as f64 * (WINDOW.as_secs_f64() / since.as_secs_f64()),
        };
        let weight = (since.as_secs_f64() / SMOOTHED.as_secs_f64()).min(1.0);
        self.demand += (newest - self.demand) * weight;
        self.lately = self.used_lately * 2;
        self.missed = (self.asked - self.used_lately).max(0);
        (self.asked, self.used_lately) = (0, 0);
    }
}

/// One key.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    leases: [Lease; KINDS],
    pub(super) caps: Caps,
    /// In a report that was not answered yet.
    pub(super) busy: bool,
    pub(super) dry: Option<Instant>,
    touched: Instant,
    counted: Instant,
}

impl Slot {
    pub(super) fn new(caps: Caps, now: Instant) -> Self {
        Self { leases: Default::default(), caps, busy: false, dry: None, touched: now, counted: now }
    }

    pub(super) fn expire(&mut self, now: Instant) {
        self.leases.iter_mut().for_each(|lease| lease.log.expire(now));
    }

    fn used(&self, kind: usize) -> i64 {
        if kind == CONCURRENT { self.leases[kind].running } else { self.leases[kind].log.sum() }
    }

    /// Notes that a client asks for so much, once for each request.
    pub(super) fn asks(&mut self, cost: &[i64; KINDS], now: Instant) {
        self.touched = now;
        for (lease, cost) in self.leases.iter_mut().zip(cost) {
            lease.asked += cost;
        }
    }

    /// The first limit that has no room for `cost`; `share` is what may be used of it at least. Call [`Self::expire`]
    /// before.
    pub(super) fn lacks(&self, cost: &[i64; KINDS], share: impl Fn(usize, i64) -> i64) -> Option<usize> {
        (0..KINDS).find(|&kind| {
            let Some(cap) = self.caps[kind] else { return false };
            let lease = &self.leases[kind];
            let may = lease.held.min(lease.target.unwrap_or(i64::MAX)).max(share(kind, cap)).min(cap);
            // What is larger than the whole limit passes when all of that is free; none of it is nothing's worth.
            cap == 0 || may - self.used(kind) < cost[kind].min(cap)
        })
    }

    pub(super) fn take(&mut self, cost: &[i64; KINDS], now: Instant) {
        for (kind, cost) in cost.iter().enumerate() {
            let lease = &mut self.leases[kind];
            if self.caps[kind].is_some() {
                lease.used_lately += cost;
                if kind == CONCURRENT { lease.running += cost } else { lease.log.add(*cost, now) }
            }
        }
    }

    /// One of those that run has ended.
    pub(super) fn ended(&mut self) {
        let lease = &mut self.leases[CONCURRENT];
        lease.running = (lease.running - 1).max(0);
    }

    /// Of one kind, `reserved` was used at `at`, and it was `used` in truth.
    pub(super) fn settle(&mut self, kind: usize, at: Instant, reserved: i64, used: i64, now: Instant) {
        if self.caps[kind].is_none() {
            return;
        }
        let log = &mut self.leases[kind].log;
        log.expire(now);
        if used < reserved { log.refund(at, reserved - used) } else { log.add(used - reserved, now) }
    }

    /// What is held, once what is not needed was given back. `waiting`: what those who wait need; `keeps`: whether more is
    /// kept at hand than is used, so that the next ones need not ask.
    pub(super) fn report(&mut self, waiting: &[i64; KINDS], keeps: bool, now: Instant) -> [Held; KINDS] {
        self.expire(now);
        let since = now.saturating_duration_since(self.counted);
        // Requests make reports too: counted from one to the next, each would seem to be many.
        let counts = since >= COUNTED;
        if counts {
            self.counted = now;
        }
        let warm = keeps && now.saturating_duration_since(self.touched) < WARM;
        std::array::from_fn(|kind| {
            let used = self.used(kind);
            let Some(cap) = self.caps[kind] else { return Held::default() };
            let lease = &mut self.leases[kind];
            if counts {
                lease.count(kind, used, since);
            }
            // What was used beyond what was held is held too: the others have that much less.
            lease.held = lease.held.max(used);
            let at_hand = if warm { at_hand(kind, cap) } else { 0 };
            let waiting = if waiting[kind] > 0 { waiting[kind] + at_hand } else { 0 };
            let kept = match lease.left {
                _ if !warm => 0,
                // What does not run is free at once, for whoever asks first.
                0 if kind == CONCURRENT => 0,
                // Where all is used up, what lies idle here is what somebody waits for elsewhere.
                0 => lease.missed.min(lease.lately.max(at_hand) * 2),
                // What ended a moment ago is not taken again at once: the few that are left are somebody else's next.
                _ if kind == CONCURRENT => lease.lately.min(cap / AT_HAND),
                // What was asked for in vain too: else a burst far from the owner would grow only by what has passed.
                _ => lease.lately.max(lease.missed).max(at_hand),
            };
            let needed = (used + kept.max(waiting)).min(cap).max(used);
            lease.held = lease.held.min(needed.min(lease.target.unwrap_or(i64::MAX)).max(used));
            // Where others need it more, the owner gives less than is wanted.
            let want = needed - lease.held;
            Held { held: lease.held, want, demand: lease.demand.round() as i64 }
        })
    }

    /// What the owner answered.
    pub(super) fn granted(&mut self, of: &[Granted; KINDS], asked: &[Held; KINDS], now: Instant) {
        let mut dry = false;
        for (kind, granted) in of.iter().enumerate() {
            let lease = &mut self.leases[kind];
            lease.held += granted.granted.max(0);
            lease.target = (granted.target != i64::MAX).then_some(granted.target);
            lease.left = granted.left;
            dry |= granted.granted < asked[kind].want;
        }
        self.dry = dry.then(|| now + DRY);
    }

    /// Whether a limit is used up, so that what becomes free here should not wait for long.
    pub(super) fn is_pressed(&self, now: Instant) -> bool {
        let used_up = (0..KINDS).any(|kind| self.caps[kind].is_some() && self.leases[kind].left == 0);
        used_up && now.saturating_duration_since(self.touched) < WARM
    }

    /// How much is left of a limit, as far as this proxy knows.
    pub(super) fn remaining(&self, kind: usize) -> Option<i64> {
        let cap = self.caps[kind]?;
        let lease = &self.leases[kind];
        let free = lease.held.min(lease.target.unwrap_or(i64::MAX)) - self.used(kind);
        Some((free.max(0) + lease.left).clamp(0, (cap - self.used(kind)).max(0)))
    }

    /// How long until nothing of it is used any more.
    pub(super) fn reset(&self, kind: usize, now: Instant) -> Duration {
        self.leases[kind].log.ends().map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// How long until there may be room for so much.
    pub(super) fn wait(&self, kind: usize, cost: i64, now: Instant) -> Duration {
        let Some(cap) = self.caps[kind] else { return Duration::ZERO };
        let lease = &self.leases[kind];
        let may = lease.held.min(lease.target.unwrap_or(i64::MAX)).min(cap);
        let lacks = cost.min(cap) - (may - self.used(kind));
        let own = (kind != CONCURRENT && lacks > 0).then(|| lease.log.frees(lacks)).flatten();
        // Used up elsewhere: as often as something becomes free.
        let often = match cap {
            _ if kind == CONCURRENT => Duration::from_secs(1),
            0 => WINDOW,
            cap => WINDOW.div_f64(cap as f64),
        };
        own.map_or(often, |at| at.saturating_duration_since(now)).clamp(Duration::from_secs(1), WINDOW)
    }

    /// Whether the slot says nothing that anybody needs.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        let empty = (0..KINDS).all(|kind| self.leases[kind].held == 0 && self.used(kind) == 0);
        empty && !self.busy && now.saturating_duration_since(self.touched) > WARM
    }
}

fn at_hand(kind: usize, cap: i64) -> i64 {
    // One that runs is not used up: none is kept.
    if kind == CONCURRENT { 0 } else { cap / AT_HAND }
}
