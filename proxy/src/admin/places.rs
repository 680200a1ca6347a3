//! Who is connected to the admin API, and who makes room when all places are taken: whoever has asked nothing for longest.
//! Pure.
//!
//! Connections without a request cost their owner nothing, and one address may hold all of them: were they only waited for,
//! nobody else would get in for as long as a head may take.

use std::{collections::BTreeMap, time::Instant};

/// Connections, each with what ends it.
#[derive(Debug)]
pub(super) struct Places<E> {
    most: usize,
    next: u64,
    taken: BTreeMap<u64, Place<E>>,
}

#[derive(Debug)]
struct Place<E> {
    /// Since when it has no request that is being answered.
    idle: Option<Instant>,
    end: E,
}

impl<E> Places<E> {
    /// So many of them.
    pub(super) fn new(most: usize) -> Self {
        Self { most, next: 0, taken: BTreeMap::new() }
    }

    /// A client has come that `end` ends. Its number, and what ends the one that makes room for it. `None`: all are being
    /// answered, and it is not let in.
    pub(super) fn come(&mut self, end: E, now: Instant) -> Option<(u64, Option<E>)> {
        let ended = if self.taken.len() < self.most {
            None
        } else {
            let idle = self.taken.iter().filter_map(|(number, place)| Some((place.idle?, *number)));
            Some(self.taken.remove(&idle.min()?.1)?.end)
        };
        self.next += 1;
        self.taken.insert(self.next, Place { idle: Some(now), end });
        Some((self.next, ended))
    }

    /// A request has come.
    pub(super) fn asks(&mut self, number: u64) {
        if let Some(place) = self.taken.get_mut(&number) {
            place.idle = None;
        }
    }

    /// It was answered.
    pub(super) fn answered(&mut self, number: u64, now: Instant) {
        if let Some(place) = self.taken.get_mut(&number) {
            place.idle = Some(now);
        }
    }

    /// The client has gone, or was ended.
    pub(super) fn gone(&mut self, number: u64) {
        self.taken.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn whoever_has_asked_nothing_for_longest_makes_room() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut places = Places::new(2);
        assert_eq!(places.come("a", now), Some((1, None)));
        assert_eq!(places.come("b", after(1)), Some((2, None)));
        // The first one is older, and was answered later.
        places.asks(1);
        places.answered(1, after(2));
        assert_eq!(places.come("c", after(3)), Some((3, Some("b"))));
        places.asks(1);
        assert_eq!(places.come("d", after(4)), Some((4, Some("c"))), "one that is being answered stays");
        places.asks(4);
        assert_eq!(places.come("e", after(5)), None);
        places.gone(1);
        assert_eq!(places.come("f", after(6)), Some((5, None)));
        // What is said of those that were ended changes nothing.
        places.answered(2, after(7));
        places.gone(3);
        assert_eq!(places.taken.len(), 2);
    }
}
