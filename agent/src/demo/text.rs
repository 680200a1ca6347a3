//! The demo engine's text: every token is a function of the whole text before it, so that a continued answer can be
//! checked character by character against an uninterrupted one.

use super::{
    tokenizer,
    vocabulary::{Kind, Token, VOCABULARY, Vocabulary},
};

/// FNV-1a, 64 bit. Absorbing two texts one after the other gives what absorbing them joined gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Context(u64);

impl Context {
    /// Before anything was said.
    pub(super) const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    /// With `text` said.
    #[must_use]
    pub(super) fn with(self, text: &str) -> Self {
        self.with_bytes(text.as_bytes())
    }

    /// With `bytes` said.
    #[must_use]
    pub(super) fn with_bytes(self, bytes: &[u8]) -> Self {
        let absorb = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(bytes.iter().fold(self.0, absorb))
    }

    /// A number that looks random, another one for each `purpose`.
    pub(super) fn number(self, purpose: u64) -> u64 {
        mix(self.0 ^ mix(purpose))
    }
}

/// Finaliser of splitmix64.
pub(super) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// One sentence in so many is the last.
const SENTENCES: u64 = 8;
/// Tokens after which a short answer ends with its sentence, and at the latest.
const SHORT: usize = 30;
const SHORT_AT_MOST: usize = 80;
/// One token in so many ends a sentence, stands before a comma, or is rare.
const SENTENCE_TOKENS: u64 = 9;
const COMMA_TOKENS: u64 = 12;
const RARE_TOKENS: u64 = 20;
/// One sentence in so many ends its line.
const LINE_SENTENCES: u64 = 3;

const CHOOSE: u64 = 1;
const END: u64 = 2;
const BREAK: u64 = 3;
const WHAT: u64 = 4;

/// Writes an answer, token by token.
#[derive(Debug, Clone)]
pub(super) struct Generator {
    context: Context,
    /// Tokens written so far.
    written: usize,
    /// The character before the next token.
    last: char,
}

/// What to write next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// The text.
    pub(super) text: &'static str,
    /// The same inside a JSON string.
    pub(super) json: &'static str,
}

impl Generator {
    /// Begins an answer to `prompt`.
    pub(super) fn new(prompt: Context) -> Self {
        Self { context: prompt, written: 0, last: '\n' }
    }

    /// Goes on with an answer of which `written` is there already, and what is missing of its last token.
    ///
    /// An answer cut anywhere goes on as if it had not been; an answer that this engine would not have given goes on
    /// somehow, but always the same way.
    pub(super) fn resume(prompt: Context, written: &str) -> (Self, Option<Piece>) {
        let mut generator = Self::new(prompt);
        let mut rest = written;
        while !rest.is_empty() {
            let token = generator.next();
            if let Some(after) = rest.strip_prefix(token.text) {
                rest = after;
                continue;
            }
            let Some(missing) = token.text.strip_prefix(rest) else {
                return (Self::elsewhere(prompt, written), None);
            };
            let json = &token.json[token.json.len() - missing.len()..];
            return (generator, Some(Piece { text: missing, json }));
        }
        (generator, None)
    }

    /// After a text that is not of this engine's making.
    fn elsewhere(prompt: Context, written: &str) -> Self {
        let last = written.chars().next_back().unwrap_or('\n');
        let tokens = tokenizer::count(written).max(VOCABULARY.opening().len() + 1);
        Self { context: prompt.with(written), written: tokens, last }
    }

    /// Whether the answer would end here by itself.
    pub(super) fn at_end(&self) -> bool {
        self.past_opening() && self.last == '.' && self.context.number(END).is_multiple_of(SENTENCES)
    }

    /// Whether a short answer ends here.
    pub(super) fn is_enough(&self) -> bool {
        (self.written >= SHORT && self.last == '.') || self.written >= SHORT_AT_MOST
    }

    /// The next token; there is always one, also past the end.
    pub(super) fn next(&mut self) -> &'static Token {
        let vocabulary = &*VOCABULARY;
        let id = match vocabulary.opening().get(self.written) {
            Some(&id) => id,
            None => self.choose(vocabulary),
        };
        self.written += 1;
        let token = vocabulary.token(id).unwrap_or(&Token::NOTHING);
        self.context = self.context.with(token.text);
        self.last = token.text.chars().next_back().unwrap_or(self.last);
        token
    }

    /// The opening itself never counts as the last sentence.
    fn past_opening(&self) -> bool {
        self.written > VOCABULARY.opening().len()
    }

    fn choose(&self, vocabulary: &Vocabulary) -> u32 {
        let number = self.context.number(CHOOSE);
        let one_in = |share: u64, purpose: u64| self.context.number(purpose).is_multiple_of(share);
        match self.last {
            '\n' => vocabulary.pick(Kind::LineStarter, number),
            '.' if one_in(LINE_SENTENCES, BREAK) => vocabulary.new_line(),
            '.' => vocabulary.pick(Kind::Starter, number),
            ',' | ':' => vocabulary.pick(Kind::Word, number),
            _ => match self.context.number(WHAT) % (SENTENCE_TOKENS * COMMA_TOKENS * RARE_TOKENS) {
                what if what.is_multiple_of(SENTENCE_TOKENS) => vocabulary.full_stop(),
                what if what.is_multiple_of(COMMA_TOKENS) => vocabulary.comma(),
                what if what.is_multiple_of(RARE_TOKENS) => vocabulary.pick(Kind::Rare, number),
                _ => vocabulary.pick(Kind::Word, number),
            },
        }
    }
}

/// Where in a plain prompt an answer of this engine begins: a completion's prompt is continued by appending to it, so
/// the prompt alone must tell. `(prompt, written)`.
pub(super) fn split_prompt(text: &str) -> (&str, &str) {
    let opening = VOCABULARY.opening_text();
    let at = text.find(opening).unwrap_or_else(|| {
        let longest = (1..opening.len()).rev().find(|&length| text.ends_with(&opening[..length]));
        text.len() - longest.unwrap_or(0)
    });
    text.split_at(at)
}

#[cfg(test)]
mod tests;
