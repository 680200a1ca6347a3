//! The lines of an engine's present run and of the one before. Pure.

use super::ring::{Line, Ring};
use std::{ops::Range, time::Instant};

/// Which lines are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Selection {
    /// At most so many, the last ones.
    pub tail: Option<usize>,
    /// Only those written at or after this.
    pub since: Option<Instant>,
    /// Only those of the run before the present one.
    pub previous: bool,
}

/// Two runs, each bounded in bytes, so that a talkative new run doesn't take away how the last one ended. Line numbers
/// go on from one to the next.
#[derive(Debug)]
pub struct Runs {
    previous: Ring,
    current: Ring,
    limit: usize,
}

impl Runs {
    /// Keeps about `limit` bytes of each run.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { previous: Ring::new(limit, 0), current: Ring::new(limit, 0), limit }
    }

    /// What was the present run is the one before from now on.
    pub fn begin(&mut self) {
        let next = self.current.next();
        self.previous = std::mem::replace(&mut self.current, Ring::new(self.limit, next));
    }

    /// Adds a line to the present run; returns the number of the one after it.
    pub fn push(&mut self, text: &str, at: Instant) -> u64 {
        self.current.push(text, at)
    }

    /// Numbers of the lines that are asked for: from the first of them to the one after the last.
    #[must_use]
    pub fn select(&self, selection: Selection) -> Range<u64> {
        let chosen = |line: &&Line| selection.since.is_none_or(|since| line.at >= since);
        let current = (!selection.previous).then_some(&self.current);
        let lines: Vec<u64> = std::iter::once(&self.previous)
            .chain(current)
            .flat_map(|run| run.since(0))
            .filter(chosen)
            .map(|line| line.number)
            .collect();
        let end = if selection.previous { self.previous.next() } else { self.current.next() };
        let skip = lines.len().saturating_sub(selection.tail.unwrap_or(usize::MAX));
        lines.get(skip).copied().unwrap_or(end)..end
    }

    /// Lines from `number` on that are still here, at most `count`.
    #[must_use]
    pub fn since(&self, number: u64, count: usize) -> Vec<Line> {
        self.previous.since(number).chain(self.current.since(number)).take(count).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    fn texts(runs: &Runs, selection: Selection) -> Vec<String> {
        let range = runs.select(selection);
        let lines = runs.since(range.start, usize::MAX);
        lines.iter().filter(|line| line.number < range.end).map(|line| line.text.to_string()).collect()
    }

    fn two_runs(start: Instant) -> Runs {
        let mut runs = Runs::new(10_000);
        for (second, text) in (0..).zip(["a", "b", "end of the first"]) {
            runs.push(text, start + second * SECOND);
        }
        runs.begin();
        for (second, text) in (10..).zip(["c", "d"]) {
            runs.push(text, start + second * SECOND);
        }
        runs
    }

    #[test]
    fn runs_are_told_apart_and_shown_in_one_go() {
        let runs = two_runs(Instant::now());
        assert_eq!(texts(&runs, Selection::default()), ["a", "b", "end of the first", "c", "d"]);
        assert_eq!(texts(&runs, Selection { tail: Some(3), ..Selection::default() }), ["end of the first", "c", "d"]);
        let previous = Selection { previous: true, ..Selection::default() };
        assert_eq!(texts(&runs, previous), ["a", "b", "end of the first"]);
        assert_eq!(texts(&runs, Selection { tail: Some(1), ..previous }), ["end of the first"]);
        assert_eq!(texts(&runs, Selection { tail: Some(0), ..previous }), [""; 0]);
    }

    #[test]
    fn since_counts_from_when_a_line_was_written() {
        let start = Instant::now();
        let runs = two_runs(start);
        let since = |seconds: u32| Selection { since: Some(start + seconds * SECOND), ..Selection::default() };
        assert_eq!(texts(&runs, since(2)), ["end of the first", "c", "d"]);
        assert_eq!(texts(&runs, Selection { tail: Some(1), ..since(2) }), ["d"]);
        assert_eq!(texts(&runs, Selection { previous: true, ..since(1) }), ["b", "end of the first"]);
        assert_eq!(texts(&runs, since(60)), [""; 0]);
    }

    #[test]
    fn a_talkative_run_does_not_push_the_last_one_out() {
        let (mut runs, now) = (Runs::new(1000), Instant::now());
        runs.push("why it crashed", now);
        runs.begin();
        for n in 0..1000 {
            runs.push(&n.to_string(), now);
        }
        assert_eq!(texts(&runs, Selection { previous: true, ..Selection::default() }), ["why it crashed"]);
        runs.begin();
        let previous = texts(&runs, Selection { previous: true, ..Selection::default() });
        assert_eq!(previous.last().unwrap(), "999");
        assert!(previous.len() < 100);
    }
}
