//! An engine's prefix cache: blocks by the hash of the prompt up to their end, the least recently used go first.

use std::collections::{BTreeMap, HashMap};

/// Tokens of a block.
pub const BLOCK_TOKENS: u64 = 64;
/// Bytes that are taken for a token.
pub const TOKEN_BYTES: u64 = 4;

/// The blocks of one engine.
#[derive(Debug, Default)]
pub struct Cache {
    blocks: HashMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
    capacity: usize,
}

impl Cache {
    /// Room for so many tokens.
    pub fn new(tokens: u64) -> Self {
        Self { capacity: (tokens / BLOCK_TOKENS) as usize, ..Self::default() }
    }

    /// Tokens of a prompt of these blocks that are here.
    pub fn look_up(&self, blocks: &[u64]) -> u64 {
        blocks.iter().take_while(|block| self.blocks.contains_key(block)).count() as u64 * BLOCK_TOKENS
    }

    /// The prompt is worked through.
    pub fn insert(&mut self, blocks: &[u64]) {
        // Its beginning is used last, so that it stays longest.
        for &block in blocks.iter().rev() {
            self.clock += 1;
            if let Some(before) = self.blocks.insert(block, self.clock) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.clock, block);
        }
        while self.blocks.len() > self.capacity {
            let Some((_, block)) = self.by_use.pop_first() else { break };
            self.blocks.remove(&block);
        }
    }
}
