//! With whom to compare revocation lists, and when: gossip reaches who listens at that moment, this reaches the others.
//! Pure.
//!
//! Who asks for a member's list names its own, so that each question tells both sides whether they differ. Three things
//! lead to one: a round now and then with a member chosen by chance, a change of the own list, and a member that was
//! seen to have another list.

use dunlin_protocol::{id::PeerId, revocation::ListVersion};
use rand::{Rng, RngExt, seq::IteratorRandom};
use std::{
    collections::HashMap,
    ops::Range,
    time::{Duration, Instant},
};

/// Time between two rounds, each with one member. Drawn anew for each, so that members that start together don't stay
/// in step.
const ROUND: Range<Duration> = Duration::from_secs(8)..Duration::from_secs(12);
/// Members that are asked after a change of the own list: it tells them that there is another one.
const SPREAD: usize = 8;
/// Within this time of the change, so that not all who heard the same gossip ask at once.
const SPREAD_WITHIN: Duration = Duration::from_millis(200);
/// Shortest time between two such waves.
const SPREAD_APART: Duration = Duration::from_secs(3);
/// Wait before a member that has another list is asked again; doubles up to [`AGAIN_MAX`] while its list brings nothing
/// new: anybody can claim to have another one.
const AGAIN: Duration = Duration::from_secs(2);
const AGAIN_MAX: Duration = Duration::from_secs(120);
/// Time between two of these: what the first one brings mostly is what the others have as well.
const APART: Duration = Duration::from_millis(50);
/// Members of which that is remembered; beyond it, those that may be asked at once are forgotten, and no more taken in.
const REMEMBERED: usize = 4096;

/// What is to be asked, and what came of it.
#[derive(Debug)]
pub(crate) struct AntiEntropy {
    round: Instant,
    spread: Option<Instant>,
    /// Of the last wave.
    spread_at: Option<Instant>,
    others: HashMap<PeerId, Other>,
    /// Of the last question to one of them.
    asked_at: Option<Instant>,
    /// When the first of them is to be asked; `None` while there is none.
    others_at: Option<Instant>,
}

/// A member that was seen to have another list.
#[derive(Debug)]
struct Other {
    /// Its list, while it is to be asked for that.
    list: Option<ListVersion>,
    /// When it was asked last.
    asked: Option<Instant>,
    /// From then on.
    wait: Duration,
    /// Whether it is not known what came of that.
    pending: bool,
}

impl Other {
    fn at(&self, now: Instant) -> Instant {
        self.asked.map_or(now, |asked| now.max(asked + self.wait))
    }
}

impl AntiEntropy {
    pub(crate) fn new(now: Instant, rng: &mut impl Rng) -> Self {
        Self {
            round: now + rng.random_range(Duration::ZERO..ROUND.end),
            spread: None,
            spread_at: None,
            others: HashMap::new(),
            asked_at: None,
            others_at: None,
        }
    }

    /// The own list is another one now.
    pub(crate) fn changed(&mut self, now: Instant, rng: &mut impl Rng) {
        let soon = now + rng.random_range(Duration::ZERO..SPREAD_WITHIN);
        self.spread.get_or_insert(self.spread_at.map_or(soon, |last| soon.max(last + SPREAD_APART)));
    }

    /// `peer` was seen to have another list, called `list`.
    pub(crate) fn differs(&mut self, peer: PeerId, list: ListVersion, now: Instant) {
        if self.others.len() >= REMEMBERED && !self.others.contains_key(&peer) {
            self.others.retain(|_, other| other.list.is_some() || other.at(now) > now);
            if self.others.len() >= REMEMBERED {
                return;
            }
        }
        let new = || Other { list: None, asked: None, wait: AGAIN, pending: false };
        let other = self.others.entry(peer).or_insert_with(new);
        other.list = Some(list);
        let at = other.at(now);
        self.others_at = Some(self.others_at.map_or(at, |first| first.min(at)));
    }

    /// What came of asking `peer`: whether its list had anything new.
    pub(crate) fn answered(&mut self, peer: &PeerId, news: bool, now: Instant) {
        let Some(other) = self.others.get_mut(peer) else { return };
        if news {
            other.wait = AGAIN;
        } else if other.pending {
            other.wait = (other.wait * 2).min(AGAIN_MAX);
        }
        other.pending = false;
        if other.list.is_some() {
            let at = other.at(now);
            self.others_at = self.others_at.map(|first| first.min(at));
        }
    }

    /// When [`Self::due`] is to be called next.
    pub(crate) fn next(&self) -> Instant {
        let first = self.spread.map_or(self.round, |at| at.min(self.round));
        self.others_at.map_or(first, |at| at.min(first))
    }

    /// Members to ask now, of those that are `connected`. `own`: the own list.
    pub(crate) fn due<C: Iterator<Item = PeerId>>(
        &mut self,
        connected: impl Fn() -> C,
        own: ListVersion,
        now: Instant,
        rng: &mut impl Rng,
    ) -> Vec<PeerId> {
        let mut due = Vec::new();
        if self.round <= now {
            self.round = now + rng.random_range(ROUND);
            due.extend(connected().choose(rng));
        }
        if self.spread.take_if(|at| *at <= now).is_some() {
            self.spread_at = Some(now);
            due.extend(connected().sample(rng, SPREAD));
        }
        if self.others_at.is_some_and(|at| at <= now) {
            due.extend(self.next_other(connected(), own, now));
        }
        due.sort_unstable();
        due.dedup();
        due
    }

    /// One of those with another list that may be asked now. Forgets what became pointless: who has gone compares when
    /// it comes back.
    fn next_other(
        &mut self,
        connected: impl Iterator<Item = PeerId>,
        own: ListVersion,
        now: Instant,
    ) -> Option<PeerId> {
        let connected: std::collections::HashSet<PeerId> = connected.collect();
        for (peer, other) in &mut self.others {
            other.list = other.list.filter(|list| *list != own && connected.contains(peer));
        }
        let waiting = self.others.iter_mut().filter(|(_, other)| other.list.is_some());
        let first = waiting.min_by_key(|(peer, other)| (other.at(now), **peer));
        let chosen = first.filter(|(_, other)| other.at(now) <= now).map(|(peer, other)| {
            *other = Other { list: None, asked: Some(now), wait: other.wait, pending: true };
            self.asked_at = Some(now);
            *peer
        });
        let next = self.others.values().filter(|other| other.list.is_some()).map(|other| other.at(now)).min();
        self.others_at = next.map(|at| self.asked_at.map_or(at, |last| at.max(last + APART)));
        chosen
    }
}

#[cfg(test)]
mod tests;
