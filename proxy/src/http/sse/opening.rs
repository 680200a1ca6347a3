//! How a stream of events begins: pure.

use super::{ends_line, lines};

/// The fields of an event (HTML standard, 9.2.6).
const FIELDS: [&[u8]; 4] = [b"data", b"event", b"id", b"retry"];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What a stream has said so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// An event, or the beginning of one.
    Event,
    /// Comments only: its end is alive.
    Comments,
    /// Not enough to tell.
    Unclear,
    /// Something else: a page, or an answer in one piece.
    Nonsense,
}

/// What the beginning of a stream of events says.
pub(crate) fn opening(bytes: &[u8]) -> Opening {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let mut said = Opening::Unclear;
    let whole = comments(bytes);
    for (start, line) in lines(bytes).scan(0, |at, line| Some((std::mem::replace(at, *at + line.len() + 1), line))) {
        let is_whole = start < whole;
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        let is_field = FIELDS.contains(&name) && (is_whole || name.len() < line.len());
        match line.first() {
            _ if is_field => return Opening::Event,
            Some(b':') if is_whole => said = Opening::Comments,
            Some(b':') | None => {}
            Some(_) if is_whole => return Opening::Nonsense,
            Some(_) => {}
        }
    }
    said
}

/// Where the lines that are whole end, which are comments if the stream says nothing else.
pub(crate) fn comments(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| ends_line(*byte)).map_or(0, |last| last + 1)
}

/// Whether a piece of a stream is whole comments and nothing else.
pub(crate) fn is_comment(piece: &[u8]) -> bool {
    piece.first() == Some(&b':') && comments(piece) == piece.len() && opening(piece) == Opening::Comments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_comments_and_nonsense_are_told_apart() {
        for (bytes, said) in [
            ("", Opening::Unclear),
            ("dat", Opening::Unclear),
            ("data", Opening::Unclear),
            ("data:", Opening::Event),
            ("data\n", Opening::Event),
            ("\u{feff}data: x", Opening::Event),
            (": ping", Opening::Unclear),
            (": ping\n", Opening::Comments),
            (": data: no\r\n\r\n", Opening::Comments),
            (": ping\n\n: ping\n\nda", Opening::Comments),
            (": ping\r\n\r\nevent: message\r\n", Opening::Event),
            ("\n\nid: 1\n", Opening::Event),
            ("<html>", Opening::Unclear),
            ("<html>\n", Opening::Nonsense),
            ("{\"error\":\n", Opening::Nonsense),
            ("database: x\n", Opening::Nonsense),
        ] {
            assert_eq!(opening(bytes.as_bytes()), said, "{bytes:?}");
        }
        assert!(is_comment(b": ping\n\n") && !is_comment(b": ping") && !is_comment(b": ping\n\ndata: x\n\n"));
        assert!(!is_comment(b"\n\n") && !is_comment(b""));
        assert_eq!(comments(b": a\n\n: b"), 5);
    }
}
