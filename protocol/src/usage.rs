//! What one request used, as its engine counts: what the hop's trailers say, and what a proxy writes down.

/// Tokens of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt, those included that a prefix cache held.
    pub prompt: u64,
    /// Tokens that were generated.
    pub completion: u64,
    /// Tokens of the prompt that a prefix cache held.
    pub cached: u64,
    /// Whether they are not the engine's own count.
    pub estimated: bool,
}

/// More tokens than any request has. What an engine or an agent says beyond is a mistake (`-1` read as unsigned, say), and
/// must not upset sums.
pub const MOST: u64 = 1 << 32;

/// How an estimate is marked.
const ESTIMATED: &str = "estimated";

impl Usage {
    /// The value of the header [`crate::hop::USAGE`]: prompt, completion and cached tokens, decimal with a space between,
    /// and `estimated` behind them where that is what they are.
    #[must_use]
    pub fn to_header(self) -> String {
        let Self { prompt, completion, cached, estimated } = self;
        let mark = if estimated { " estimated" } else { "" };
        format!("{prompt} {completion} {cached}{mark}")
    }

    /// Reads what [`Self::to_header`] writes; `None` of anything else. More words may follow: a later version's. No count
    /// is over [`MOST`].
    #[must_use]
    pub fn from_header(value: &str) -> Option<Self> {
        let mut words = value.split(' ');
        let mut count = || words.next()?.parse().ok();
        let (prompt, completion, cached): (u64, u64, u64) = (count()?, count()?, count()?);
        let [prompt, completion, cached] = [prompt, completion, cached].map(|count| count.min(MOST));
        Some(Self { prompt, completion, cached, estimated: words.next() == Some(ESTIMATED) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let usage = Usage { prompt: 31, completion: 12, cached: 30, estimated: false };
        assert_eq!(usage.to_header(), "31 12 30");
        let estimate = Usage { estimated: true, ..usage };
        assert_eq!(estimate.to_header(), "31 12 30 estimated");
        for usage in [usage, estimate] {
            assert_eq!(Usage::from_header(&usage.to_header()), Some(usage));
        }
        assert_eq!(Usage::from_header("1 2 3 estimated and-more").map(|usage| usage.estimated), Some(true));
        let absurd = Usage::from_header("18446744073709551615 18446744073709551615 0").unwrap();
        assert_eq!((absurd.prompt, absurd.completion), (MOST, MOST));
        for bad in ["", "1 2", "1 2 x", "-1 2 3", "1  2 3"] {
            assert_eq!(Usage::from_header(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_value_is_read_without_a_panic(value in ".*") {
            let _ = Usage::from_header(&value);
        }
    }
}
