//! The prefix cache: which beginnings of prompts are in the KV cache.

use super::{metrics::BLOCK_TOKENS, text::Context};
use std::collections::HashMap;

/// Bytes of a prompt that stand for one block of the KV cache.
const BLOCK_BYTES: usize = 4 * BLOCK_TOKENS as usize;

/// Blocks by the hash of the prompt up to their end; the least recently used go first.
#[derive(Debug)]
pub(super) struct PrefixCache {
    blocks: HashMap<u64, u64>,
    capacity: usize,
    clock: u64,
}

impl PrefixCache {
    /// A cache of so many blocks.
    pub(super) fn new(capacity: usize) -> Self {
        Self { blocks: HashMap::new(), capacity, clock: 0 }
    }

    /// How many of the prompt's `tokens` are here: whole blocks, and never all, because the last token is always
    /// worked on again.
    pub(super) fn look_up(&mut self, prompt: &str, tokens: usize) -> usize {
        self.clock += 1;
        let now = self.clock;
        let mut known = 0;
        for hash in hashes(prompt) {
            let Some(used) = self.blocks.get_mut(&hash) else { break };
            *used = now;
            known += 1;
        }
        let share = tokens * known * BLOCK_BYTES / prompt.len().max(1);
        share.min(tokens.saturating_sub(1)) / BLOCK_TOKENS as usize * BLOCK_TOKENS as usize
    }

    /// `text` was worked through.
    pub(super) fn insert(&mut self, text: &str) {
        self.clock += 1;
        let now = self.clock;
        self.blocks.extend(hashes(text).map(|hash| (hash, now)));
        if self.blocks.len() > self.capacity {
            self.evict();
        }
    }

    /// Makes room down to seven eighths, so that the next insertions needn't.
    fn evict(&mut self) {
        let keep = self.capacity - self.capacity / 8;
        let mut ages: Vec<u64> = self.blocks.values().copied().collect();
        ages.sort_unstable();
        let Some(&oldest_kept) = ages.get(ages.len().saturating_sub(keep)) else {
            self.blocks.clear();
            return;
        };
        self.blocks.retain(|_, used| *used >= oldest_kept);
    }
}

/// One hash per whole block, each over everything up to its end.
fn hashes(text: &str) -> impl Iterator<Item = u64> {
    text.as_bytes().chunks_exact(BLOCK_BYTES).scan(Context::EMPTY, |context, block| {
        *context = context.with_bytes(block);
        Some(context.number(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_seen_before_is_cached_but_for_its_last_block() {
        let mut cache = PrefixCache::new(100);
        let prompt = "a".repeat(640);
        assert_eq!(cache.look_up(&prompt, 160), 0);
        cache.insert(&prompt);
        assert_eq!(cache.look_up(&prompt, 160), 144);
        assert_eq!(cache.look_up(&(prompt.clone() + "and more of it"), 164), 160);
        assert_eq!(cache.look_up(&("b".to_owned() + &prompt), 160), 0);
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let mut cache = PrefixCache::new(16);
        let prompts: Vec<_> = (0..4).map(|n| n.to_string().repeat(256)).collect();
        for prompt in &prompts {
            cache.insert(prompt);
        }
        cache.look_up(&prompts[0], 64);
        cache.insert(&"x".repeat(256));
        assert!(cache.look_up(&prompts[0], 64) > 0);
        assert_eq!(cache.look_up(&prompts[1], 64), 0);
    }
}
