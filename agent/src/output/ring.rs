//! The newest lines of an engine, bounded in bytes. Pure.

use std::{collections::VecDeque, sync::Arc};

/// What a line costs beside its text, bytes: number, pointer, allocation.
const LINE_OVERHEAD: usize = 48;

/// A line of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Counts from 0 since the agent's start, without gaps.
    pub number: u64,
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
    /// Keeps about `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { lines: VecDeque::new(), bytes: 0, limit, next: 0 }
    }

    /// Adds a line; returns the number of the one after it.
    pub fn push(&mut self, text: &str) -> u64 {
        self.bytes += text.len() + LINE_OVERHEAD;
        self.lines.push_back(Line { number: self.next, text: text.into() });
        self.next += 1;
        while self.bytes > self.limit
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= oldest.text.len() + LINE_OVERHEAD;
        }
        self.next
    }

    /// The last `count` lines.
    #[must_use]
    pub fn tail(&self, count: usize) -> Vec<Line> {
        self.lines.range(self.lines.len().saturating_sub(count)..).cloned().collect()
    }

    /// Lines from `number` on that are still here, at most `count`.
    #[must_use]
    pub fn since(&self, number: u64, count: usize) -> Vec<Line> {
        let oldest = self.next - self.lines.len() as u64;
        let skip = usize::try_from(number.saturating_sub(oldest)).unwrap_or(usize::MAX);
        self.lines.iter().skip(skip).take(count).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| &*line.text).collect()
    }

    #[test]
    fn keeps_the_newest_within_its_bytes() {
        let mut ring = Ring::new(3 * (LINE_OVERHEAD + 2));
        for n in 10..20 {
            ring.push(&n.to_string());
        }
        assert_eq!(texts(&ring.tail(100)), ["17", "18", "19"]);
        assert_eq!(texts(&ring.tail(2)), ["18", "19"]);
        assert_eq!(ring.tail(1)[0].number, 9);
        ring.push(&"x".repeat(1000));
        assert_eq!(texts(&ring.tail(100)), [""; 0]);
        assert_eq!(ring.bytes, 0);
    }

    #[test]
    fn follows_from_a_number() {
        let mut ring = Ring::new(3 * (LINE_OVERHEAD + 1));
        for n in 0..5 {
            ring.push(&n.to_string());
        }
        assert_eq!(texts(&ring.since(3, 10)), ["3", "4"]);
        assert_eq!(texts(&ring.since(0, 10)), ["2", "3", "4"]);
        assert_eq!(texts(&ring.since(0, 1)), ["2"]);
        assert_eq!(texts(&ring.since(5, 10)), [""; 0]);
        assert_eq!(texts(&ring.since(99, 10)), [""; 0]);
    }
}
