//! When to look at which Playground. One that is worked on is not looked at meanwhile: what was asked for comes after.

use super::tables::Key;
use std::collections::{BTreeSet, HashMap, HashSet};
use tokio::time::Instant;

/// The times, by Playground. As large as there are Playgrounds.
#[derive(Default)]
pub(super) struct Schedule {
    times: HashMap<Key, Instant>,
    /// Those that can be looked at, in their order.
    free: BTreeSet<(Instant, Key)>,
    held: HashSet<Key>,
}

impl Schedule {
    /// Looks at a Playground at this time, unless that is done before.
    pub(super) fn look_at(&mut self, key: Key, at: Instant) {
        if self.times.get(&key).is_some_and(|known| *known <= at) {
            return;
        }
        let before = self.times.insert(key.clone(), at);
        if self.held.contains(&key) {
            return;
        }
        if let Some(before) = before {
            self.free.remove(&(before, key.clone()));
        }
        self.free.insert((at, key));
    }

    /// A Playground is worked on.
    pub(super) fn hold(&mut self, key: Key) {
        if let Some(at) = self.times.get(&key) {
            self.free.remove(&(*at, key.clone()));
        }
        self.held.insert(key);
    }

    /// And no more.
    pub(super) fn release(&mut self, key: &Key) {
        if self.held.remove(key)
            && let Some(at) = self.times.get(key)
        {
            self.free.insert((*at, key.clone()));
        }
    }

    /// A Playground has gone.
    pub(super) fn forget(&mut self, key: &Key) {
        self.hold(key.clone());
        self.held.remove(key);
        self.times.remove(key);
    }

    /// When the next can be looked at.
    pub(super) fn next(&self) -> Option<Instant> {
        self.free.first().map(|(at, _)| *at)
    }

    /// Takes so many at most out whose time has come, those first that have waited longest.
    pub(super) fn take(&mut self, now: Instant, most: usize) -> Vec<Key> {
        let mut taken = Vec::new();
        while taken.len() < most && self.next().is_some_and(|at| at <= now) {
            let Some((_, key)) = self.free.pop_first() else { break };
            self.times.remove(&key);
            taken.push(key);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tables::key, *};
    use std::time::Duration;

    #[test]
    fn who_is_worked_on_is_looked_at_afterwards_and_the_earlier_of_two_times_counts() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let later = |seconds: u64| now + Duration::from_secs(seconds);
        let [a, b, c] = ["a", "b", "c"].map(|name| key(Some("ns"), Some(name)));
        schedule.look_at(a.clone(), later(3));
        schedule.look_at(b.clone(), later(2));
        schedule.look_at(b.clone(), later(4));
        schedule.look_at(a.clone(), later(1));
        assert_eq!(schedule.next(), Some(later(1)));
        assert_eq!(schedule.take(now, 9), Vec::<Key>::new());
        schedule.hold(a.clone());
        schedule.look_at(a.clone(), now);
        assert_eq!((schedule.next(), schedule.take(later(9), 9)), (Some(later(2)), vec![b.clone()]));
        schedule.release(&a);
        schedule.release(&b);
        assert_eq!(schedule.next(), Some(now));
        schedule.look_at(c.clone(), later(1));
        assert_eq!(schedule.take(later(9), 1), [a]);
        schedule.hold(b.clone());
        schedule.release(&b);
        schedule.look_at(b.clone(), later(2));
        assert_eq!(schedule.take(later(9), 9), [c.clone(), b], "released with nothing to look at, and looked at later");
        schedule.look_at(c.clone(), now);
        schedule.hold(c.clone());
        schedule.forget(&c);
        schedule.release(&c);
        assert_eq!(schedule.next(), None);
    }
}
