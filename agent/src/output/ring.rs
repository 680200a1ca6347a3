//! The newest lines of an engine, bounded in bytes. Pure.

use std::{collections::VecDeque, sync::Arc, time::Instant};

/// What a line costs beside its text, bytes: number, pointer, allocation.
const LINE_OVERHEAD: usize = 48;

/// A line of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Counts from 0 since the agent's start, without gaps.
    pub number: u64,
    /// When it was written.
    pub at: Instant,
    /// Without its end.
    pub text: Arc<str>,
}

/// The newest lines. The oldest go when there are more bytes than allowed.
#[derive(Debug)]
pub struct Ring {
    lines: VecDeque<Line>,
    bytes: usize,
    limit: usize,
    next: u64,
}

impl Ring {
    /// Keeps about `limit` bytes; its first line will have the number `next`.
    #[must_use]
    pub fn new(limit: usize, next: u64) -> Self {
        Self { lines: VecDeque::new(), bytes: 0, limit, next }
    }

    /// Adds a line; returns the number of the one after it.
    pub fn push(&mut self, text: &str, at: Instant) -> u64 {
        self.bytes += text.len() + LINE_OVERHEAD;
        self.lines.push_back(Line { number: self.next, at, text: text.into() });
        self.next += 1;
        while self.bytes > self.limit
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= oldest.text.len() + LINE_OVERHEAD;
        }
        self.next
    }

    /// Number of the line that comes next.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Lines from `number` on that are still here.
    pub fn since(&self, number: u64) -> impl Iterator<Item = &Line> {
        let oldest = self.next - self.lines.len() as u64;
        let skip = usize::try_from(number.saturating_sub(oldest)).unwrap_or(usize::MAX);
        self.lines.range(skip.min(self.lines.len())..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(ring: &Ring, from: u64) -> Vec<&str> {
        ring.since(from).map(|line| &*line.text).collect()
    }

    #[test]
    fn keeps_the_newest_within_its_bytes() {
        let (mut ring, now) = (Ring::new(3 * (LINE_OVERHEAD + 2), 0), Instant::now());
        for n in 10..20 {
            ring.push(&n.to_string(), now);
        }
        assert_eq!(texts(&ring, 0), ["17", "18", "19"]);
        assert_eq!(ring.since(9).next().unwrap().number, 9);
        ring.push(&"x".repeat(1000), now);
        assert_eq!(texts(&ring, 0), [""; 0]);
        assert_eq!((ring.bytes, ring.next()), (0, 11));
    }

    #[test]
    fn follows_from_a_number() {
        let (mut ring, now) = (Ring::new(3 * (LINE_OVERHEAD + 1), 5), Instant::now());
        for n in 5..10 {
            ring.push(&n.to_string(), now);
        }
        assert_eq!(texts(&ring, 8), ["8", "9"]);
        assert_eq!(texts(&ring, 0), ["7", "8", "9"]);
        assert_eq!(texts(&ring, 10), [""; 0]);
        assert_eq!(texts(&ring, 99), [""; 0]);
    }
}
