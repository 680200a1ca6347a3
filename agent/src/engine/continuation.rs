//! Whether an engine goes on with a partial answer to the letter: what it is asked, and what its answers are worth. Pure.
//!
//! It is asked for a few tokens, and then for the rest of what it said, cut in several places. No promise of a kind of
//! engine would do: its version, its chat template and the model's vocabulary all have a say.

use dunlin_protocol::{
    id::ModelId,
    runtime::{self, Catalogue, Runtime, continuation::Seam},
};
use serde_json::{Value, json};
use std::{ops::Range, sync::LazyLock};

/// Tokens that are asked for.
const TOKENS: u32 = 24;
/// Places in which the answer is cut.
pub(crate) const CUTS: usize = 3;
/// Something to say with several short words in it.
const PROMPT: &str = "Tell me in two sentences how the days of a week follow each other.";

/// The runtimes as proxies know them, who ask for the rest in the built-in way.
static BUILT_IN: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::built_in().unwrap_or_default());

/// How proxies will ask for the rest, if an engine of `runtime` can be asked that way: not where its user has changed
/// that, of which proxies know nothing.
pub(crate) fn way(runtime: &Runtime) -> Option<&runtime::Continuation> {
    let known = BUILT_IN.get(&runtime.name).ok()?;
    let same = known.continuation == runtime.continuation && known.tokenize == runtime.tokenize;
    runtime.continuation.as_ref().filter(|_| same)
}

/// The first question.
pub(crate) fn question(model: &ModelId) -> Value {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": true,
    })
}

/// A streamed answer, as a client sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    text: String,
    /// Where its pieces end, bytes.
    ends: Vec<usize>,
    /// It ended by itself and not at the limit.
    stopped: bool,
}

/// Why an answer can't be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    /// No stream of a chat.
    #[error("the answer is no stream of a chat")]
    NoStream,
    /// More than text: reasoning, calls of tools.
    #[error("the answer has more in it than text")]
    NotText,
    /// Fewer pieces than cuts.
    #[error("the answer is too short to be cut")]
    Short,
}

impl Said {
    /// Reads the events of a whole stream.
    ///
    /// # Errors
    /// It is not such a stream, or has more in it than text.
    pub(crate) fn read(stream: &[u8]) -> Result<Self, Unfit> {
        let stream = std::str::from_utf8(stream).map_err(|_| Unfit::NoStream)?;
        let mut said = Self::default();
        let mut finished = false;
        for data in stream.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim) {
            if data == "[DONE]" {
                break;
            }
            let event: Value = serde_json::from_str(data).map_err(|_| Unfit::NoStream)?;
            let Some(choice) = event.pointer("/choices/0") else { continue };
            for (name, value) in choice.get("delta").and_then(Value::as_object).into_iter().flatten() {
                match (name.as_str(), value) {
                    ("role", _) | (_, Value::Null) => {}
                    ("content", Value::String(piece)) => said.push(piece),
                    (_, Value::String(text)) if text.is_empty() => {}
                    (_, Value::Array(list)) if list.is_empty() => {}
                    _ => return Err(Unfit::NotText),
                }
            }
            if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
                (finished, said.stopped) = (true, reason == "stop");
            }
        }
        if finished { Ok(said) } else { Err(Unfit::NoStream) }
    }

    fn push(&mut self, piece: &str) {
        if !piece.is_empty() {
            self.text.push_str(piece);
            self.ends.push(self.text.len());
        }
    }

    /// Where to cut: between pieces, first where white space is next to the cut, then in the middle, then near the end.
    ///
    /// # Errors
    /// There are not as many places.
    pub(crate) fn cuts(&self) -> Result<[usize; CUTS], Unfit> {
        let inner: Range<usize> = 0..self.ends.len().saturating_sub(1);
        let places: Vec<usize> =
            self.ends[inner].iter().copied().filter(|&at| !self.text[..at].trim().is_empty()).collect();
        let spaced = |at: &usize| {
            let (before, after) = self.text.split_at(*at);
            before.ends_with(char::is_whitespace) || after.starts_with(char::is_whitespace)
        };
        let first = places.iter().copied().find(spaced).or(places.first().copied()).ok_or(Unfit::Short)?;
        let others: Vec<usize> = places.iter().copied().filter(|&at| at != first).collect();
        let middle = others.get(others.len() / 2).copied().ok_or(Unfit::Short)?;
        let late = others.iter().rev().copied().find(|&at| at != middle).ok_or(Unfit::Short)?;
        Ok([first, middle, late])
    }

    /// The question for the rest after `cut`.
    pub(crate) fn rest(&self, cut: usize, model: &ModelId, way: &runtime::Continuation) -> Value {
        let (given, _) = Seam::cut(&self.text[..cut]);
        let mut question = question(model);
        if let Some(messages) = question["messages"].as_array_mut() {
            messages.push(json!({"role": "assistant", "content": given}));
        }
        for (name, value) in &way.chat {
            question[name] = json!(value);
        }
        question
    }

    /// Whether `rest`, the answer after `cut`, goes on as this one did.
    pub(crate) fn is_continued_by(&self, cut: usize, rest: &Self) -> bool {
        let (written, expected) = self.text.split_at(cut);
        let (_, mut seam) = Seam::cut(written);
        let new: String = rest.pieces().map(|piece| seam.join(piece)).collect();
        // It may say as many tokens as the first answer had in all, so more than is missing.
        if self.stopped { new == expected } else { new.starts_with(expected) }
    }

    fn pieces(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.text[start..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(pieces: &[&str], finish: &str) -> Said {
        let mut text =
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n".to_owned();
        for piece in pieces {
            text += &format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"content": piece}}]}));
        }
        text += &format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}));
        Said::read((text + "data: [DONE]\n\n").as_bytes()).unwrap()
    }

    fn runtime(name: &str) -> Runtime {
        BUILT_IN.get(&name.parse().unwrap()).unwrap().clone()
    }

    #[test]
    fn one_cut_is_beside_white_space_and_all_are_between_pieces() {
        let said = stream(&["In", "deed", " it", " is", " so", "."], "length");
        let cuts = said.cuts().unwrap();
        assert_eq!(cuts, [6, 12, 15]);
        assert!(cuts.iter().all(|cut| said.ends.contains(cut)));
        assert_eq!(stream(&["a", "b", "c"], "length").cuts(), Err(Unfit::Short));
        assert_eq!(stream(&[], "length").cuts(), Err(Unfit::Short));
        // Nothing but white space is nothing to go on from.
        assert_eq!(stream(&["\n", "a", " b", " c", " d"], "length").cuts().unwrap(), [2, 6, 4]);
    }

    #[test]
    fn only_the_same_text_continues_an_answer() {
        let said = stream(&["one", " two", " three"], "length");
        assert!(said.is_continued_by(3, &stream(&[" two", " three", " four"], "length")));
        assert!(said.is_continued_by(3, &stream(&[" two three"], "stop")));
        assert!(!said.is_continued_by(3, &stream(&["two", " three"], "length")));
        assert!(!said.is_continued_by(3, &stream(&[" two"], "stop")), "less than there was");
        assert!(!said.is_continued_by(3, &stream(&["one", " two", " three"], "length")), "an echo");
        let ended = stream(&["one", " two", " three"], "stop");
        assert!(!ended.is_continued_by(3, &stream(&[" two", " three", " four"], "length")));
        // Cut after white space: it comes again, and is not said twice.
        let spaced = stream(&["one ", "two ", "three"], "stop");
        assert!(spaced.is_continued_by(4, &stream(&[" two", " three"], "stop")));
    }

    #[test]
    fn the_rest_is_asked_for_in_the_runtimes_way() {
        let (said, model) = (stream(&["one ", "two", " three"], "length"), "m".parse().unwrap());
        let llamacpp = runtime("llamacpp");
        let rest = said.rest(4, &model, way(&llamacpp).unwrap());
        assert_eq!(rest["messages"][1], json!({"role": "assistant", "content": "one"}));
        assert_eq!((&rest["continue_final_message"], &rest["add_generation_prompt"]), (&json!(true), &json!(false)));
    }

    #[test]
    fn a_way_that_proxies_do_not_know_is_none() {
        assert!(way(&runtime("vllm")).is_some() && way(&runtime("ollama")).is_none());
        let mut changed = runtime("vllm");
        changed.continuation.as_mut().unwrap().chat.clear();
        assert!(way(&changed).is_none());
        let mut unknown = runtime("vllm");
        unknown.name = "mine".parse().unwrap();
        assert!(way(&unknown).is_none());
    }

    #[test]
    fn reasoning_and_broken_streams_are_not_judged() {
        let read = |text: &str| Said::read(text.as_bytes());
        let reasoning =
            "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"},\"finish_reason\":\"stop\"}]}\n\n";
        assert_eq!(read(reasoning), Err(Unfit::NotText));
        assert_eq!(read("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"), Err(Unfit::NoStream));
        assert_eq!(read("{\"error\":{}}"), Err(Unfit::NoStream));
        assert_eq!(Said::read(b"data: \xff\n\n"), Err(Unfit::NoStream));
    }
}
