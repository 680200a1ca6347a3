//! The mesh key as text, to be kept away from any machine. Whoever has it decides over the whole mesh.

use crate::invitation::{CHECKSUM_BYTES, checksum, is_pasted_noise};
use data_encoding::BASE32_NOPAD;

/// What the text starts with; the digit is the version of the format.
pub const PREFIX: &str = "dunlinkey1";
/// An Ed25519 seed.
const KEY_BYTES: usize = 32;
/// Longest text looked at: room for any amount of wrapping.
const TEXT_BYTES: usize = 1024;

/// Why a text is no mesh key. Never quotes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Something else.
    #[error("this is no mesh key: one starts with {PREFIX}")]
    NotAKey,
    /// A character is missing, changed, or too many.
    #[error("the mesh key is damaged (a character was changed, or is missing); copy it again")]
    Damaged,
}

/// The key as text: [`PREFIX`], then seed and checksum in lower-case base32.
#[must_use]
pub fn to_text(seed: &[u8; KEY_BYTES]) -> String {
    let bytes = [seed.as_slice(), checksum(seed).as_slice()].concat();
    PREFIX.to_owned() + &BASE32_NOPAD.encode(&bytes).to_lowercase()
}

/// The seed in a text. White space and quotes are skipped, case is not looked at.
///
/// # Errors
/// Not a mesh key, or a damaged one.
pub fn parse(text: &str) -> Result<[u8; KEY_BYTES], Error> {
    if text.len() > TEXT_BYTES {
        return Err(Error::NotAKey);
    }
    let clean: String = text.chars().filter(|&c| !is_pasted_noise(c)).map(|c| c.to_ascii_lowercase()).collect();
    let encoded = clean.strip_prefix(PREFIX).ok_or(Error::NotAKey)?.to_ascii_uppercase();
    let bytes = BASE32_NOPAD.decode(encoded.as_bytes()).map_err(|_| Error::Damaged)?;
    let (seed, sum) = bytes.split_first_chunk::<KEY_BYTES>().ok_or(Error::Damaged)?;
    let sum: [u8; CHECKSUM_BYTES] = sum.try_into().map_err(|_| Error::Damaged)?;
    if sum != checksum(seed) {
        return Err(Error::Damaged);
    }
    Ok(*seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_being_pasted_and_nothing_else_does() {
        let seed = std::array::from_fn(|i| i as u8);
        let text = to_text(&seed);
        assert_eq!(parse(&text), Ok(seed));
        assert_eq!(parse(&format!("  \"{}\n{}\" ", &text[..20], text[20..].to_uppercase())), Ok(seed));
        assert_eq!(parse("dunlin1abc"), Err(Error::NotAKey));
        assert_eq!(parse(&text[..text.len() - 1]), Err(Error::Damaged));
        assert_eq!(parse(&format!("{text}a")), Err(Error::Damaged));
        for at in PREFIX.len()..text.len() {
            let other = if &text[at..=at] == "a" { "b" } else { "a" };
            let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            assert_eq!(parse(&changed), Err(Error::Damaged), "at {at}");
        }
    }
}
