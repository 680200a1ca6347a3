//! The demo engine's tokenizer: splits any text into tokens, and back without loss.
//!
//! Words of the vocabulary are one token each, so an answer has as many tokens as were generated; other words fall into
//! pieces of up to three letters, any other character is a token of its own.

use super::vocabulary::VOCABULARY;

/// Ids from here on are pieces of ASCII, seven bits a byte, first byte lowest.
const PIECES: u32 = 0x0080_0000;
/// Bytes in a piece.
const PIECE_BYTES: usize = 3;
/// Ids from here on are single characters, by code point.
const CHARACTERS: u32 = 0x0100_0000;
/// Added when a space stands before the character.
const SPACED: u32 = 0x0020_0000;

/// Calls `each` with every token id of `text`, in order.
fn for_each(text: &str, mut each: impl FnMut(u32)) {
    let vocabulary = &*VOCABULARY;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let run = run_length(rest);
        if run == 0 {
            let (id, taken) = character(rest, first);
            each(vocabulary.id(&rest[..taken]).unwrap_or(id));
            rest = &rest[taken..];
            continue;
        }
        match vocabulary.id(&rest[..run]) {
            Some(id) => each(id),
            None => rest.as_bytes()[..run].chunks(PIECE_BYTES).for_each(|piece| each(pack(piece))),
        }
        rest = &rest[run..];
    }
}

/// Bytes of the word that `text` begins with, a space before it included.
fn run_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let space = usize::from(bytes.first() == Some(&b' '));
    let letters = bytes[space..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    if letters == 0 { 0 } else { space + letters }
}

/// The token of one character, or of a space and a character beyond ASCII, and its bytes.
fn character(text: &str, first: char) -> (u32, usize) {
    let second = text[first.len_utf8()..].chars().next();
    match (first, second) {
        (' ', Some(second)) if !second.is_ascii() => (CHARACTERS + SPACED + u32::from(second), 1 + second.len_utf8()),
        _ => (CHARACTERS + u32::from(first), first.len_utf8()),
    }
}

fn pack(piece: &[u8]) -> u32 {
    piece.iter().rev().fold(0, |packed, &byte| packed << 7 | u32::from(byte & 0x7f)) + PIECES
}

/// How many tokens `text` has.
pub(super) fn count(text: &str) -> usize {
    let mut count = 0;
    for_each(text, |_| count += 1);
    count
}

/// The tokens of `text`.
pub(super) fn encode(text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    for_each(text, |id| ids.push(id));
    ids
}

/// The text of `ids`; `None` when one of them is no token.
pub(super) fn decode(ids: &[u32]) -> Option<String> {
    let mut text = String::new();
    for &id in ids {
        if let Some(token) = VOCABULARY.token(id) {
            text.push_str(token.text);
        } else if (PIECES..CHARACTERS).contains(&id) {
            unpack(id - PIECES, &mut text)?;
        } else {
            let code = id.checked_sub(CHARACTERS)?;
            if code >= SPACED {
                text.push(' ');
            }
            text.push(char::from_u32(code % SPACED)?);
        }
    }
    Some(text)
}

fn unpack(mut packed: u32, text: &mut String) -> Option<()> {
    if packed == 0 || packed >> (7 * PIECE_BYTES) != 0 {
        return None;
    }
    while packed != 0 {
        text.push(char::from(u8::try_from(packed & 0x7f).ok()?));
        packed >>= 7;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_of_the_vocabulary_are_one_token_each() {
        assert_eq!(count("This is a demo: the dunlin demo engine is no model."), 13);
        assert_eq!(count(" dunlin 鳥, 🐦"), 4);
        assert_eq!(encode("\n"), encode("\n\n")[1..]);
    }

    #[test]
    fn unknown_words_take_a_token_per_three_letters() {
        assert_eq!(count(" antidisestablishmentarianism"), 10);
    }

    proptest! {
        #[test]
        fn any_text_survives(text in "\\PC{0,60}|[ a-z.\n鳥🐦é]{0,60}") {
            let ids = encode(&text);
            prop_assert_eq!(ids.len(), count(&text));
            prop_assert_eq!(decode(&ids), Some(text));
        }

        #[test]
        fn any_ids_are_refused_or_decoded(ids in prop::collection::vec(any::<u32>(), 0..20)) {
            let _ = decode(&ids);
        }
    }
}
