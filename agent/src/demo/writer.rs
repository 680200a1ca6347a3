//! Writes one answer within its limits: how many tokens, which stop strings.

use super::{
    request::Job,
    text::{Generator, Piece},
};
use std::borrow::Cow;

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finish {
    /// By itself, or at the stop string named.
    Stop(Option<String>),
    /// At its limit of tokens.
    Length,
}

/// What one step gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// Text for the client; may be empty while it could still turn out to be a stop string.
    pub(super) text: Cow<'static, str>,
    /// The same inside a JSON string.
    pub(super) json: Cow<'static, str>,
    /// Whether a token was generated: an end by itself takes none.
    pub(super) token: bool,
    /// Set on the last step.
    pub(super) finish: Option<Finish>,
}

/// An answer being written.
#[derive(Debug)]
pub(super) struct Writer {
    generator: Generator,
    /// The rest of the token that the answer so far was cut in.
    missing: Option<Piece>,
    tokens: u32,
    max_tokens: u32,
    min_tokens: u32,
    ignore_end: bool,
    short: bool,
    stops: Vec<String>,
    /// Generated and not given out, because a stop string may begin in it.
    held: String,
}

impl Writer {
    pub(super) fn new(job: &Job) -> Self {
        let (generator, missing) = Generator::resume(job.context, &job.written);
        Self {
            generator,
            missing,
            tokens: 0,
            max_tokens: job.max_tokens,
            min_tokens: job.min_tokens,
            ignore_end: job.ignore_end,
            short: job.short,
            stops: job.stops.clone(),
            held: String::new(),
        }
    }

    /// One step further. Not to be called after the last.
    pub(super) fn step(&mut self) -> Step {
        if self.ends_here() {
            return self.give(Piece { text: "", json: "" }, false, Some(Finish::Stop(None)));
        }
        let piece = self.missing.take().unwrap_or_else(|| {
            let token = self.generator.next();
            Piece { text: token.text, json: token.json }
        });
        self.tokens += 1;
        let finish = (self.tokens >= self.max_tokens).then_some(Finish::Length);
        self.give(piece, true, finish)
    }

    fn ends_here(&self) -> bool {
        let may_end = self.missing.is_none() && !self.ignore_end && self.tokens >= self.min_tokens;
        may_end && if self.short { self.generator.is_enough() } else { self.generator.at_end() }
    }

    fn give(&mut self, piece: Piece, token: bool, finish: Option<Finish>) -> Step {
        if self.stops.is_empty() {
            return Step { text: Cow::Borrowed(piece.text), json: Cow::Borrowed(piece.json), token, finish };
        }
        self.held.push_str(piece.text);
        let first = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = first.min_by_key(|&(at, _)| at) {
            let finish = Some(Finish::Stop(Some(stop.clone())));
            let text = self.held[..at].to_owned();
            self.held.clear();
            return step(text, token, finish);
        }
        let keep = if finish.is_some() { 0 } else { self.undecided() };
        let rest = self.held.split_off(self.held.len() - keep);
        let text = std::mem::replace(&mut self.held, rest);
        step(text, token, finish)
    }

    /// Bytes at the end of what is held that a stop string may begin with.
    fn undecided(&self) -> usize {
        let longest = |stop: &String| {
            let cuts = stop.char_indices().map(|(at, _)| at).skip(1).collect::<Vec<_>>();
            cuts.into_iter().rev().find(|&cut| self.held.ends_with(&stop[..cut])).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

fn step(text: String, token: bool, finish: Option<Finish>) -> Step {
    // The vocabulary has no quotes, backslashes, or control characters but this.
    let json = text.replace('\n', "\\n");
    Step { text: Cow::Owned(text), json: Cow::Owned(json), token, finish }
}
