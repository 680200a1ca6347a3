//! How long an engine may take, and how much it may say, before it counts as lost. Pure.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How many times longer than for a short prompt the longest is borne with.
pub const LONGEST_PROMPT: f64 = 5.0;
/// Longest that may be set, seconds: a day.
pub const LONGEST_S: f64 = 86_400.0;
/// Largest answer that may be set, MiB.
pub const LARGEST_MIB: u32 = 1 << 20;
const KIB_PER_MIB: f64 = 1024.0;
const BYTES_PER_MIB: u64 = 1 << 20;

/// Bounds of one kind of engine's answers. An agent holds its engine to them; proxies, which hear of them with each answer,
/// wait a little longer, in case that it is the agent that hangs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bounds {
    /// Seconds to the first byte of a streamed answer to a short prompt.
    pub first_byte_s: f64,
    /// Seconds to the first byte of an answer in one piece, which begins when all of it has been generated. Also how long
    /// a stream may go on with comments only.
    pub whole_s: f64,
    /// Seconds that an answer which has begun may be silent; a comment is a sign of life.
    pub inter_token_s: f64,
    /// For each MiB of prompt all three are longer by so many times, up to [`LONGEST_PROMPT`] times in all.
    pub per_mib: f64,
    /// Largest answer, MiB: one that is larger has no end.
    pub answer_mib: u32,
}

impl Default for Bounds {
    /// Two minutes of prefill; ten for the whole of an answer; half a minute between two tokens; twice the time for 256 KiB
    /// of prompt.
    fn default() -> Self {
        Self { first_byte_s: 120.0, whole_s: 600.0, inter_token_s: 30.0, per_mib: 4.0, answer_mib: 1024 }
    }
}

/// The bounds of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// To the first byte of the answer.
    pub first_byte: Duration,
    /// To the first byte while comments show that the engine is at work.
    pub whole: Duration,
    /// From one piece of the answer to the next.
    pub inter_token: Duration,
}

impl Bounds {
    /// What a request with `kib` KiB of prompt may take, its answer being a stream or one piece.
    #[must_use]
    pub fn deadlines(&self, kib: u32, stream: bool) -> Deadlines {
        let factor = (1.0 + self.per_mib * f64::from(kib) / KIB_PER_MIB).min(LONGEST_PROMPT);
        let seconds = |s: f64| Duration::try_from_secs_f64(s * factor).unwrap_or(Duration::MAX);
        let whole = seconds(self.whole_s.max(self.first_byte_s));
        let first_byte = if stream { seconds(self.first_byte_s) } else { whole };
        Deadlines { first_byte, whole, inter_token: seconds(self.inter_token_s) }
    }

    /// Bytes of the largest answer.
    #[must_use]
    pub fn answer_bytes(&self) -> u64 {
        u64::from(self.answer_mib) * BYTES_PER_MIB
    }

    /// The field that makes no sense, if any.
    #[must_use]
    pub fn wrong(&self) -> Option<&'static str> {
        let seconds = |s: f64| s > 0.0 && s <= LONGEST_S;
        let fields = [
            ("first_byte_s", seconds(self.first_byte_s)),
            ("whole_s", seconds(self.whole_s)),
            ("inter_token_s", seconds(self.inter_token_s)),
            ("per_mib", (0.0..=LONGEST_S).contains(&self.per_mib)),
            ("answer_mib", (1..=LARGEST_MIB).contains(&self.answer_mib)),
        ];
        fields.into_iter().find(|(_, makes_sense)| !makes_sense).map(|(name, _)| name)
    }

    /// As the value of the header [`crate::hop::BOUNDS`].
    #[must_use]
    pub fn to_header(&self) -> String {
        let Self { first_byte_s, whole_s, inter_token_s, per_mib, answer_mib } = self;
        format!("{first_byte_s} {whole_s} {inter_token_s} {per_mib} {answer_mib}")
    }

    /// From the value of the header [`crate::hop::BOUNDS`]; what a later version adds behind is not read. `None` for what
    /// makes no sense.
    #[must_use]
    pub fn from_header(value: &str) -> Option<Self> {
        let mut fields = value.split(' ');
        let mut number = || fields.next()?.parse::<f64>().ok();
        let (first_byte_s, whole_s, inter_token_s, per_mib) = (number()?, number()?, number()?, number()?);
        let answer_mib = fields.next()?.parse().ok()?;
        let bounds = Self { first_byte_s, whole_s, inter_token_s, per_mib, answer_mib };
        bounds.wrong().is_none().then_some(bounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn long_prompts_get_more_time_and_no_prompt_gets_for_ever() {
        let bounds = Bounds::default();
        let first_byte = |kib| bounds.deadlines(kib, true).first_byte;
        assert_eq!((first_byte(0), first_byte(256), first_byte(1024)), (120 * S, 240 * S, 600 * S));
        assert_eq!(first_byte(u32::MAX), 600 * S);
        assert_eq!(bounds.deadlines(256, true).inter_token, 60 * S);
        assert_eq!(bounds.deadlines(0, false).first_byte, 600 * S);
        // Comments never make the deadline shorter.
        let patient = Bounds { first_byte_s: 900.0, ..bounds };
        assert_eq!(patient.deadlines(0, true).whole, 900 * S);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        assert_eq!(Bounds::default().wrong(), None);
        assert_eq!(Bounds { first_byte_s: 0.0, ..Bounds::default() }.wrong(), Some("first_byte_s"));
        assert_eq!(Bounds { inter_token_s: f64::NAN, ..Bounds::default() }.wrong(), Some("inter_token_s"));
        assert_eq!(Bounds { whole_s: 1e9, ..Bounds::default() }.wrong(), Some("whole_s"));
        assert_eq!(Bounds { per_mib: -1.0, ..Bounds::default() }.wrong(), Some("per_mib"));
        assert_eq!(Bounds { answer_mib: 0, ..Bounds::default() }.wrong(), Some("answer_mib"));
    }

    #[test]
    fn headers_are_read_with_what_later_versions_add_and_never_with_nonsense() {
        let bounds = Bounds { first_byte_s: 0.25, ..Bounds::default() };
        assert_eq!(Bounds::from_header(&format!("{} 7 x", bounds.to_header())), Some(bounds));
        for wrong in ["", "1 2 3", "1 2 3 4 x", "0 2 3 4 5", "NaN 2 3 4 5", "1 inf 3 4 5", "1  2 3 4 5"] {
            assert_eq!(Bounds::from_header(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn the_header_gives_back_what_was_set(
            (first_byte_s, whole_s, inter_token_s) in (0.001..LONGEST_S, 0.001..LONGEST_S, 0.001..LONGEST_S),
            per_mib in 0.0..100.0,
            answer_mib in 1..LARGEST_MIB,
        ) {
            let bounds = Bounds { first_byte_s, whole_s, inter_token_s, per_mib, answer_mib };
            prop_assert_eq!(Bounds::from_header(&bounds.to_header()), Some(bounds));
        }
    }
}
