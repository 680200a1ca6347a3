//! How an engine is asked for the rest of a partial answer, and where such an answer is cut.

use super::text::{HttpPath, Pointer};
use serde::{Deserialize, Serialize};

/// How to ask for the rest of a partial answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Continuation {
    /// Fields that a chat request needs beside a last message of role `assistant` with the text so far, without which
    /// the engine repeats that text or takes it for a finished turn.
    #[serde(default)]
    pub chat: toml::Table,
}

/// How to count the tokens of a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokenize {
    /// What to post to.
    pub path: HttpPath,
    /// Field of the request that holds the text.
    pub text: String,
    /// Further fields, such as those by which the tokens that begin a prompt are left out.
    #[serde(default)]
    pub fields: toml::Table,
    /// Where the answer says how many: a number, or a list to be counted.
    pub count: Pointer,
}

/// Where the second part of an answer meets the first.
///
/// Engines are given the first part without the white space at its end, and write that anew: with it, a tokenizer would
/// see other tokens than were generated, since white space is mostly one token with the word behind it (seen with
/// llama.cpp: 3 of 48 cuts after white space went on differently, none of those cut before it).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seam {
    /// What was written already and is due to come again.
    due: String,
}

impl Seam {
    /// Cuts `written`: what the engine is to be given of it, and what to make of its answer.
    #[must_use]
    pub fn cut(written: &str) -> (&str, Self) {
        let given = written.trim_end();
        (given, Self { due: written[given.len()..].to_owned() })
    }

    /// The new part of the next `piece` of the second part: all of it once the white space has come again, or when
    /// something else came in its place.
    pub fn join<'a>(&mut self, piece: &'a str) -> &'a str {
        let again = piece.chars().zip(self.due.chars()).take_while(|(new, due)| new == due);
        let again: usize = again.map(|(new, _)| new.len_utf8()).sum();
        if again < piece.len() {
            self.due.clear();
        } else {
            self.due.drain(..again);
        }
        &piece[again..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(written: &str, pieces: &[&str]) -> String {
        let (_, mut seam) = Seam::cut(written);
        pieces.iter().fold(written.to_owned(), |text, piece| text + seam.join(piece))
    }

    #[test]
    fn white_space_that_comes_again_is_swallowed() {
        assert_eq!(Seam::cut("one \n").0, "one");
        assert_eq!(joined("one ", &[" two", " three"]), "one two three");
        assert_eq!(joined("one \n", &[" ", "\n", " two"]), "one \n two");
        assert_eq!(joined("one", &[" two"]), "one two");
        assert_eq!(joined("one\u{3000}", &["\u{3000}two"]), "one\u{3000}two");
    }

    #[test]
    fn what_comes_in_its_place_is_kept() {
        assert_eq!(joined("one  ", &[" two"]), "one  two");
        assert_eq!(joined("one ", &["two", " three"]), "one two three");
        assert_eq!(joined("one \n", &[" ", "two", "\n"]), "one \ntwo\n");
    }

    proptest! {
        #[test]
        fn a_text_cut_anywhere_is_joined_again(
            text in "[ab\u{3000} \n]{0,30}",
            share in 0.0..1.0f64,
            sizes in prop::collection::vec(1usize..4, 0..30),
        ) {
            let at = |share: f64| text.char_indices().map(|(at, _)| at).nth((share * text.chars().count() as f64) as usize);
            let written = &text[..at(share).unwrap_or(0)];
            let (given, mut seam) = Seam::cut(written);
            let mut rest = text[given.len()..].chars();
            let mut whole = written.to_owned();
            for size in sizes.into_iter().chain(std::iter::once(99)) {
                whole += seam.join(&rest.by_ref().take(size).collect::<String>());
            }
            prop_assert_eq!(whole, text);
        }
    }
}
