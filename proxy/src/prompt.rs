//! What routing reads of a prompt: its size, and hashes by which its beginning is recognised. Nothing of it is kept.
//!
//! The bytes are cut into blocks and each hash covers everything up to its block's end, so that two prompts share as many
//! hashes as they share of their beginnings. Blocks grow with their distance from the start, which bounds their number:
//! 27 for 4 KiB, under 150 for 64 MiB.

use foldhash::quality::FixedState;
use std::hash::{BuildHasher, Hash, Hasher};

/// Bytes of the first blocks: about 32 tokens, and two blocks of an engine's own prefix cache.
const BLOCK: u64 = 128;
/// Further on a block is this fraction of what lies before it.
const GROWTH: u64 = 16;
/// Bytes that are looked at. What follows is as good as new to any engine anyway, or comes with what precedes it.
const LONGEST: u64 = 4 << 20;
/// Of all hashes. Who finds two prompts with one hash gains a slower answer.
const SEED: u64 = 0x6475_6e6c_696e;

/// A prompt's outline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Size, bytes.
    pub bytes: u64,
    /// Its blocks, in order.
    pub blocks: Vec<Block>,
    /// The session that it belongs to.
    pub session: Option<u64>,
    /// The earlier response that it builds on.
    pub previous: Option<u64>,
}

/// One block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Of everything up to its end.
    pub hash: u64,
    /// Where it ends, bytes from the start.
    pub end: u64,
}

impl Prompt {
    /// The outline of what `parts` make one after the other. Only prompts with equal `seed`, for instance of one model,
    /// have anything in common.
    #[must_use]
    pub fn of<'a>(seed: impl Hash, parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut cutter = Cutter::new(hash(seed));
        for part in parts {
            cutter.take(part);
        }
        Self { bytes: cutter.bytes, blocks: cutter.blocks, ..Self::default() }
    }

    /// Size in whole KiB, rounded up.
    #[must_use]
    pub fn kib(&self) -> u32 {
        kib(self.bytes)
    }
}

/// `bytes` in whole KiB, rounded up.
pub(crate) fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

/// The hash of a name, such as a session's.
#[must_use]
pub fn hash(name: impl Hash) -> u64 {
    FixedState::with_seed(SEED).hash_one(name)
}

struct Cutter {
    state: FixedState,
    blocks: Vec<Block>,
    /// Of all blocks so far.
    chain: u64,
    bytes: u64,
    /// Where the block under way ends.
    next: u64,
    /// What came of it with earlier parts.
    begun: Vec<u8>,
}

impl Cutter {
    fn new(seed: u64) -> Self {
        let state = FixedState::with_seed(SEED);
        Self { state, blocks: Vec::with_capacity(32), chain: seed, bytes: 0, next: BLOCK, begun: Vec::new() }
    }

    fn take(&mut self, mut part: &[u8]) {
        while self.bytes < LONGEST {
            let missing = usize::try_from(self.next - self.bytes).unwrap_or(usize::MAX);
            let Some((block, rest)) = part.split_at_checked(missing) else { break };
            if self.begun.is_empty() {
                self.close(block);
            } else {
                self.begun.extend_from_slice(block);
                let whole = std::mem::take(&mut self.begun);
                self.close(&whole);
            }
            part = rest;
        }
        self.bytes += part.len() as u64;
        if self.next <= LONGEST {
            self.begun.extend_from_slice(part);
        }
    }

    fn close(&mut self, block: &[u8]) {
        let mut hasher = self.state.build_hasher();
        hasher.write_u64(self.chain);
        hasher.write(block);
        self.chain = hasher.finish();
        self.bytes = self.next;
        self.blocks.push(Block { hash: self.chain, end: self.bytes });
        let step = (self.bytes / GROWTH).max(BLOCK);
        self.next = self.bytes + step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn common(a: &Prompt, b: &Prompt) -> u64 {
        let shared = a.blocks.iter().zip(&b.blocks).take_while(|(a, b)| a == b);
        shared.last().map_or(0, |(block, _)| block.end)
    }

    #[test]
    fn prompts_share_what_they_begin_with() {
        let text: Vec<u8> = (0..5000u32).flat_map(u32::to_le_bytes).collect();
        let one = Prompt::of("m", [&text[..10_000]]);
        let mut other = text[..9_000].to_vec();
        other.extend([7; 4000]);
        let shared = common(&one, &Prompt::of("m", [&other[..]]));
        assert!((8_400..=9_000).contains(&shared), "{shared}");
        assert_eq!(common(&one, &Prompt::of("n", [&text[..10_000]])), 0, "another model");
        assert_eq!(common(&one, &Prompt::of("m", [&text[1..10_000]])), 0, "shifted");
    }

    #[test]
    fn the_outline_stays_small() {
        let blocks = |bytes: usize| Prompt::of("m", [&vec![0; bytes][..]]).blocks.len();
        assert_eq!((blocks(100), blocks(128), blocks(4096)), (0, 1, 27));
        assert!(blocks(64 << 20) < 150);
        assert_eq!(Prompt::of("m", [&vec![0; 64 << 20][..]]).bytes, 64 << 20);
    }

    proptest! {
        #[test]
        fn where_parts_meet_makes_no_difference(text in proptest::collection::vec(any::<u8>(), 0..3000), cuts: [u16; 2]) {
            let mut at = cuts.map(|cut| usize::from(cut) % (text.len() + 1));
            at.sort_unstable();
            let parts = [&text[..at[0]], &text[at[0]..at[1]], &text[at[1]..]];
            prop_assert_eq!(Prompt::of(1, parts), Prompt::of(1, [&text[..]]));
        }
    }
}
