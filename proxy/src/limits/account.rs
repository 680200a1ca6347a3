//! The account of one key at the proxy that owns it: who holds how much of each limit. Pure.

use super::{
    Caps,
    view::{LEASE, View},
};
use dunlin_protocol::{
    id::PeerId,
    lease::{Granted, Held, KINDS},
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Held at the same time rather than within a time.
pub(super) const CONCURRENT: usize = 2;

/// What a proxy asks for counts for so long after it has said so.
const FRESH: Duration = Duration::from_secs(2);

/// What one proxy holds, as it said last or was granted since.
#[derive(Debug, Clone, Copy)]
struct Holding {
    epoch: u64,
    seq: u64,
    renewed: Instant,
    held: [i64; KINDS],
    demand: [i64; KINDS],
    /// Wanted, and not granted.
    short: [i64; KINDS],
}

/// What a process held that was followed by another one of its proxy.
#[derive(Debug, Clone, Copy)]
struct Former {
    until: Instant,
    held: [i64; KINDS],
}

/// One key's account.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    holdings: BTreeMap<PeerId, Holding>,
    former: Vec<Former>,
}

/// Who asks, and when it said so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker {
    pub(super) peer: PeerId,
    pub(super) epoch: u64,
    pub(super) seq: u64,
}

impl Account {
    /// Takes in what a proxy holds, and gives it what it wants as far as `may_grant` and there is any. `None`: an older
    /// word than the last one.
    pub(super) fn report(
        &mut self,
        asker: Asker,
        of: &[Held; KINDS],
        (key, caps): (&str, &Caps),
        view: &View,
        may_grant: bool,
        now: Instant,
    ) -> Option<[Granted; KINDS]> {
        self.expire(view, now);
        if let Some(before) = self.holdings.get(&asker.peer) {
            if (asker.epoch, asker.seq) <= (before.epoch, before.seq) {
                return None;
            }
            if asker.epoch > before.epoch {
                // What the process before has used still counts; what it had running has ended with it.
                let mut held = before.held;
                held[CONCURRENT] = 0;
                self.former.push(Former { until: before.renewed + LEASE, held });
            }
        }
        let mut holding = Holding {
            epoch: asker.epoch,
            seq: asker.seq,
            renewed: now,
            held: of.map(|held| held.held.max(0)),
            demand: of.map(|held| held.demand.max(0)),
            short: [0; KINDS],
        };
        self.holdings.insert(asker.peer, holding);
        let mut answer = [Granted { granted: 0, target: i64::MAX, left: 0 }; KINDS];
        let limited = || caps.iter().enumerate().filter_map(|(kind, cap)| Some((kind, (*cap)?)));
        for (kind, cap) in limited() {
            let capacity = self.capacity(kind, key, cap, view, now);
            let left = (capacity - self.sum(kind, view)).max(0);
            let want = of[kind].want.max(0);
            let fair = self.fair(kind, &asker.peer, capacity, view, now);
            let others = self.missing(kind, &asker.peer, capacity, view, now);
            // Up to what is fair; more only of what nobody else is waiting for.
            let most = (fair - holding.held[kind]).max(left - others).clamp(0, left);
            let granted = if may_grant { want.min(most) } else { 0 };
            holding.held[kind] += granted;
            holding.short[kind] = want - granted;
            let held = holding.held[kind];
            // So much is lacking elsewhere, or is held by all together beyond what may be.
            let excess = self.sum(kind, view) - capacity;
            let lacks = if excess > 0 { excess } else { others - (left - granted) };
            let target = if lacks > 0 && held > fair { fair.max(held - lacks) } else { i64::MAX };
            answer[kind] = Granted { granted, target, left: left - granted };
        }
        self.holdings.insert(asker.peer, holding);
        Some(answer)
    }

    /// What may be held by those who are there.
    fn capacity(&self, kind: usize, key: &str, cap: i64, view: &View, now: Instant) -> i64 {
        let ghosts = view.ghosts().iter().map(|(peer, ghost)| {
            let share = view.share(peer, key, cap);
            if kind == CONCURRENT && ghost.ended {
                return 0;
            }
            let held = self.holdings.get(peer).filter(|holding| holding.renewed + LEASE > now);
            share.max(held.map_or(0, |holding| holding.held[kind]))
        });
        // They go by their shares by now, whatever they hold.
        let silent = view.silent().iter().map(|peer| {
            let held = self.holdings.get(peer).map_or(0, |holding| holding.held[kind]);
            (view.share(peer, key, cap) - held).max(0)
        });
        let former = self.former.iter().map(|former| former.held[kind]);
        cap - ghosts.sum::<i64>() - silent.sum::<i64>() - former.sum::<i64>()
    }

    fn sum(&self, kind: usize, view: &View) -> i64 {
        let here = self.holdings.iter().filter(|(peer, _)| view.contains(peer));
        here.map(|(_, holding)| holding.held[kind]).sum()
    }

    /// How much of a limit is `peer`'s when more is asked for than there is: by what each one's clients ask for.
    fn fair(&self, kind: usize, peer: &PeerId, capacity: i64, view: &View, now: Instant) -> i64 {
        let here = || self.holdings.iter().filter(|(peer, _)| view.contains(peer));
        let capacity = i128::from(capacity.max(0));
        // Who has fallen silent asks for nothing.
        let weight = |holding: &Holding| match holding.renewed + FRESH > now {
            true => i128::from(holding.demand[kind]),
            false => 0,
        };
        let weights: i128 = here().map(|(_, holding)| weight(holding)).sum();
        if weights == 0 {
            return i64::try_from(capacity).unwrap_or(i64::MAX);
        }
        let part = |holding: &Holding| capacity * weight(holding) / weights;
        // What is left by rounding is that one's who asks for most.
        let rest = capacity - here().map(|(_, holding)| part(holding)).sum::<i128>();
        let first = here().max_by_key(|(peer, holding)| (weight(holding), **peer)).map(|(peer, _)| peer);
        let own = self.holdings.get(peer).map_or(0, part);
        i64::try_from(own + if first == Some(peer) { rest } else { 0 }).unwrap_or(i64::MAX)
    }

    /// How much the others lack: what they wanted and did not get, as far as it is fair.
    fn missing(&self, kind: usize, asker: &PeerId, capacity: i64, view: &View, now: Instant) -> i64 {
        let short = self.holdings.iter().filter(|(peer, holding)| {
            *peer != asker && view.contains(peer) && holding.short[kind] > 0 && holding.renewed + FRESH > now
        });
        let lacks = |(peer, holding): (&PeerId, &Holding)| {
            let fair = self.fair(kind, peer, capacity, view, now);
            holding.short[kind].min((fair - holding.held[kind]).max(0))
        };
        short.map(lacks).sum()
    }

    fn expire(&mut self, view: &View, now: Instant) {
        self.former.retain(|former| former.until > now);
        let known = |peer: &PeerId| view.contains(peer) || view.ghosts().contains_key(peer);
        self.holdings.retain(|peer, holding| known(peer) || holding.renewed + LEASE > now);
    }

    /// Whether nothing is held by anybody.
    pub(super) fn is_empty(&mut self, view: &View, now: Instant) -> bool {
        self.expire(view, now);
        self.former.is_empty() && self.holdings.values().all(|holding| holding.held == [0; KINDS])
    }
}
