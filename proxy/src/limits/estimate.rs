//! How many tokens a request may use, before anybody knows. Pure.

/// Bytes of a body for each token of its prompt: English text and JSON around it.
const BYTES_PER_TOKEN: usize = 4;
/// Of the longest answer that a request allows, so much is reserved at most: few answers get that long, and what they
/// are longer counts once it is there.
const RESERVED: u32 = 1024;

/// Tokens to reserve for a request whose body has `bytes` and whose answer may have `most` tokens; `generates`: whether
/// its answer is tokens of a model's own.
pub(crate) fn tokens(bytes: usize, most: Option<u32>, generates: bool) -> i64 {
    let prompt = i64::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(i64::MAX / 2);
    let answer = if generates { most.unwrap_or(RESERVED).min(RESERVED) } else { 0 };
    prompt + i64::from(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_the_answer_counts_up_to_a_thousand() {
        assert_eq!(tokens(40, Some(7), true), 17);
        assert_eq!(tokens(40, Some(100_000), true), 1034);
        assert_eq!(tokens(40, None, true), 1034);
        assert_eq!(tokens(19, Some(7), false), 4);
    }
}
