//! How many tokens a request may use, before anybody knows. Pure.

use serde::Deserialize;

/// Bytes of a body for each token of its prompt: English text and JSON around it.
const BYTES_PER_TOKEN: usize = 4;
/// Of the longest answer that a request allows, so much is reserved at most: few answers get that long, and what they
/// are longer counts once it is there.
const RESERVED: u32 = 1024;

/// What bounds an answer, in OpenAI's and Anthropic's words.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Bounds {
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    max_output_tokens: Option<u32>,
}

/// Tokens to reserve for a request with this body; `generates`: whether its answer is tokens of a model's own.
pub(crate) fn tokens(body: &[u8], generates: bool) -> i64 {
    let prompt = i64::try_from(body.len() / BYTES_PER_TOKEN).unwrap_or(i64::MAX / 2);
    if !generates {
        return prompt;
    }
    // What can't be read is refused elsewhere, or is the engine's to judge.
    let bounds: Bounds = serde_json::from_slice(body).unwrap_or_default();
    let most = bounds.max_completion_tokens.or(bounds.max_tokens).or(bounds.max_output_tokens);
    prompt + i64::from(most.unwrap_or(RESERVED).min(RESERVED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_the_answer_counts_up_to_a_thousand() {
        let of = |body: &str| tokens(body.as_bytes(), true) - (body.len() / 4) as i64;
        assert_eq!(of(r#"{"model":"m","max_tokens":7}"#), 7);
        assert_eq!(of(r#"{"model":"m","max_completion_tokens":9,"max_tokens":7}"#), 9);
        assert_eq!(of(r#"{"model":"m","max_output_tokens":100000}"#), 1024);
        assert_eq!(of(r#"{"model":"m"}"#), 1024);
        assert_eq!(of(r#"{"max_tokens":"7"}"#), 1024);
        assert_eq!(tokens(b"{\"input\":\"abcdefg\"}", false), 4);
    }
}
