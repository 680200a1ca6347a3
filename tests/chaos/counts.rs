//! What became of all requests.

use std::{fmt, time::Duration};

/// Wrong answers that are kept to be shown.
const SHOWN: usize = 10;

/// One request.
pub(super) struct Asked {
    /// Until the first event.
    pub(super) first: Duration,
    /// Longest time between two events.
    pub(super) gap: Duration,
    /// Each time that the stream went on elsewhere.
    pub(super) moves: Vec<Move>,
    pub(super) end: End,
}

/// A stream went on at another replica.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    /// From its text so far; else the whole request was asked again.
    pub(super) continued: bool,
    /// From the last event of one to the first of the other.
    pub(super) gap: Duration,
}

pub(super) enum End {
    /// To the letter.
    Whole,
    /// An error before the first byte of the answer.
    Failed(String),
    /// An error in words after some of a right answer.
    Told(String),
    /// Ended after some of the answer without a word.
    Silent(String),
    /// Another text than the engine's.
    Different { what: String, wrong: Wrong },
}

/// How a text differs from the right one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Characters that are missing.
    pub(super) lost: usize,
    /// Characters that should not be there, such as those that were said twice.
    pub(super) added: usize,
}

impl Wrong {
    /// Of a text that ended, or of one that went on otherwise than `right` before its end.
    pub(super) fn between(right: &str, text: &str) -> Self {
        let same = |a: &mut dyn Iterator<Item = char>, b: &mut dyn Iterator<Item = char>| {
            a.zip(b).take_while(|(a, b)| a == b).count()
        };
        let (right_length, length) = (right.chars().count(), text.chars().count());
        let head = same(&mut right.chars(), &mut text.chars());
        let tail = same(&mut right.chars().rev(), &mut text.chars().rev());
        let tail = tail.min(right_length.min(length) - head);
        Self { lost: right_length - head - tail, added: length - head - tail }
    }
}

/// Of all requests.
#[derive(Debug, Default)]
pub(super) struct Counts {
    requests: usize,
    whole: usize,
    failed: usize,
    told: usize,
    silent: usize,
    different: usize,
    wrong: Wrong,
    moves: Vec<Move>,
    first: Vec<Duration>,
    longest_gap: Duration,
    /// The first of those that should not be.
    pub(super) shown: Vec<String>,
}

impl Counts {
    pub(super) fn add(&mut self, asked: Asked) {
        self.requests += 1;
        self.first.push(asked.first);
        self.longest_gap = self.longest_gap.max(asked.gap);
        self.moves.extend(asked.moves);
        let (count, what) = match asked.end {
            End::Whole => (&mut self.whole, None),
            End::Told(why) => (&mut self.told, Some(why)),
            End::Failed(why) => (&mut self.failed, Some(why)),
            End::Silent(why) => (&mut self.silent, Some(why)),
            End::Different { what, wrong } => {
                self.wrong.lost += wrong.lost;
                self.wrong.added += wrong.added;
                (&mut self.different, Some(what))
            }
        };
        *count += 1;
        if self.shown.len() < SHOWN {
            self.shown.extend(what);
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    /// Streams that went on elsewhere from their text so far.
    pub(super) fn continued(&self) -> usize {
        self.moves.iter().filter(|moved| moved.continued).count()
    }

    /// Whether every answer was whole, but for one in a thousand of the lost streams that ended in words after a right
    /// beginning. All that is asked here may go on.
    pub(super) fn is_right(&self) -> bool {
        let lost = self.moves.len() + self.told;
        let failed = self.failed + self.silent + self.different;
        failed == 0 && self.requests > 0 && self.told * 1000 <= lost
    }
}

fn mean(durations: impl Iterator<Item = Duration>) -> (usize, Duration) {
    let (count, sum) = durations.fold((0, Duration::ZERO), |(count, sum), one| (count + 1, sum + one));
    (count, sum.checked_div(u32::try_from(count).unwrap()).unwrap_or_default())
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, whole, failed, told, silent, different, wrong, .. } = self;
        writeln!(
            f,
            "{requests} requests: {whole} whole, {failed} failed before the first byte, {told} ended with an error event, \
             {silent} ended silently, {different} had other text ({} characters lost, {} too many)",
            wrong.lost, wrong.added
        )?;
        let mut gaps: Vec<Duration> = self.moves.iter().map(|moved| moved.gap).collect();
        gaps.sort();
        let at = |share: usize| gaps.get((gaps.len() * share / 100).min(gaps.len().saturating_sub(1)));
        let (all, all_mean) = mean(gaps.iter().copied());
        let silence = |gap: &&Duration| **gap >= super::LATE;
        let (silent, silent_mean) = mean(gaps.iter().filter(silence).copied());
        let (seen, seen_mean) = mean(gaps.iter().filter(|gap| !silence(gap)).copied());
        writeln!(
            f,
            "{} went on, {} were asked again; gap of all {all}: mean {all_mean:.0?}, half within {:.0?}, 99 % within {:.0?}; of \
             the {seen} whose end was seen: mean {seen_mean:.0?}; of the {silent} that fell silent: {silent_mean:.0?}",
            self.continued(),
            all - self.continued(),
            at(50).copied().unwrap_or_default(),
            at(99).copied().unwrap_or_default(),
        )?;
        let (_, first) = mean(self.first.iter().copied());
        let slowest = self.first.iter().max().copied().unwrap_or_default();
        write!(f, "first event after {first:.0?} (mean), {slowest:.2?} (slowest); longest gap {:.2?}", self.longest_gap)
    }
}

#[test]
fn what_is_lost_and_what_is_said_twice_is_counted() {
    let wrong = |text| Wrong::between("flocks of dunlins", text);
    assert_eq!(wrong("flocks of dunlins"), Wrong::default());
    assert_eq!(wrong("flocks dunlins"), Wrong { lost: 3, added: 0 });
    assert_eq!(wrong("flocks of of dunlins"), Wrong { lost: 0, added: 3 });
    assert_eq!(wrong("flocks in dunlins"), Wrong { lost: 2, added: 2 });
    assert_eq!(Wrong::between("aaaa", "aa"), Wrong { lost: 2, added: 0 });
}
