//! Finds one field of the top level in a JSON object that passes in pieces, and keeps nothing else of it.

use std::mem;

/// Longest value that is kept, bytes; usages have some hundred.
const VALUE_BYTES: usize = 8 * 1024;

/// The search for one field.
#[derive(Debug)]
pub(super) struct TopLevel {
    wanted: &'static [u8],
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// The last string of the top level, as far as it may be the wanted name.
    name: Vec<u8>,
    value: Kept,
}

#[derive(Debug)]
enum Kept {
    No,
    Begun(Vec<u8>),
    Done(Vec<u8>),
}

impl TopLevel {
    pub(super) fn new(wanted: &'static [u8]) -> Self {
        Self { wanted, depth: 0, in_string: false, escaped: false, name: Vec::new(), value: Kept::No }
    }

    /// Looks at the next piece. The field's value, once, when its end has been seen.
    pub(super) fn push(&mut self, piece: &[u8]) -> Option<&[u8]> {
        if matches!(self.value, Kept::Done(_)) {
            return None;
        }
        let mut at = 0;
        while at < piece.len() {
            // Most bytes of an answer are inside of strings, or digits of embeddings.
            let next = if self.escaped {
                at
            } else if self.in_string {
                at + memchr::memchr2(b'"', b'\\', &piece[at..]).unwrap_or(piece.len() - at)
            } else {
                let structural = |byte: &u8| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']' | b':' | b',');
                at + piece[at..].iter().position(structural).unwrap_or(piece.len() - at)
            };
            self.keep(&piece[at..next]);
            let Some(&byte) = piece.get(next) else { break };
            if self.step(byte) {
                let Kept::Begun(value) = mem::replace(&mut self.value, Kept::No) else { return None };
                self.value = Kept::Done(value);
                let Kept::Done(value) = &self.value else { return None };
                return Some(value);
            }
            at = next + 1;
        }
        None
    }

    /// Whether the wanted value ends before `byte`.
    fn step(&mut self, byte: u8) -> bool {
        if self.in_string {
            self.keep(&[byte]);
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        let at_top = self.depth == 1;
        let kept = matches!(self.value, Kept::Begun(_));
        match byte {
            b',' | b'}' if at_top && kept => return true,
            b':' if at_top && !kept && self.name == self.wanted => {
                self.value = Kept::Begun(Vec::new());
                return false;
            }
            b'"' => {
                self.in_string = true;
                if at_top {
                    self.name.clear();
                }
            }
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        if kept {
            self.keep(&[byte]);
        }
        false
    }

    fn keep(&mut self, bytes: &[u8]) {
        if let Kept::Begun(value) = &mut self.value {
            let room = VALUE_BYTES.saturating_sub(value.len());
            value.extend_from_slice(&bytes[..bytes.len().min(room)]);
        } else if self.in_string && self.depth == 1 && bytes != b"\"" {
            // One byte more than is wanted tells it apart.
            let room = (self.wanted.len() + 1).saturating_sub(self.name.len());
            self.name.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }
}
