//! What clients ask, and when: made once for a seed, so that all policies get the same.

use super::{
    Micros,
    cache::{BLOCK_TOKENS, TOKEN_BYTES},
    random::{between, until_next},
    scenario::{Arrivals, Prompts, Scenario},
};
use dunlin_protocol::id::ModelId;
use dunlin_proxy::{balance::Want, late::Priority, prompt::Prompt};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{collections::HashMap, sync::Arc};

/// One request of a client.
#[derive(Debug, Clone)]
pub struct Request {
    /// When.
    pub at: Micros,
    /// As the proxy reads it.
    pub want: Want,
    /// Which adapter, if any.
    pub adapter: Option<usize>,
    /// As the engine caches it.
    pub blocks: Arc<[u64]>,
    /// Tokens of the prompt.
    pub tokens: u64,
    /// Tokens of the answer.
    pub answer: u64,
}

/// The requests of one run, in order.
pub fn make(scenario: &Scenario, seed: u64) -> Vec<Request> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut maker = Maker { scenario, prefixes: HashMap::new() };
    let mut at = 0;
    let mut requests = Vec::with_capacity(scenario.requests);
    while requests.len() < scenario.requests {
        let burst = match scenario.arrivals {
            Arrivals::Steady { per_s } => {
                at += until_next(per_s, &mut rng);
                1
            }
            Arrivals::Bursts { size, per_s } => {
                at += until_next(per_s / size as f64, &mut rng);
                size
            }
        };
        for _ in 0..burst {
            let spread = if burst > 1 { between(0, 10_000, &mut rng) } else { 0 };
            requests.push(maker.request(at + spread, &mut rng));
        }
    }
    requests.sort_by_key(|request| request.at);
    requests.truncate(scenario.requests);
    requests
}

struct Maker<'a> {
    scenario: &'a Scenario,
    prefixes: HashMap<u64, Arc<[u8]>>,
}

impl Maker<'_> {
    fn request(&mut self, at: Micros, rng: &mut SmallRng) -> Request {
        let adapter = (self.scenario.adapters > 0).then(|| zipf(self.scenario.adapters, rng));
        let name = adapter.map_or("model".to_owned(), |n| format!("adapter-{n}"));
        let Prompts { shared, prefix_tokens, tokens } = self.scenario.prompts;
        let own = between(tokens.0, tokens.1, rng);
        let mut text: Vec<u8> = Vec::new();
        if shared > 0 {
            let which = rng.random_range(0..shared);
            let prefix = self.prefixes.entry(which).or_insert_with(|| noise(which + 1, prefix_tokens).into());
            text.extend_from_slice(prefix);
        }
        text.extend(noise(rng.random(), own));
        let prompt = Prompt::of(&name, [&text[..]]);
        Request {
            at,
            adapter,
            blocks: blocks(&name, &text),
            tokens: text.len() as u64 / TOKEN_BYTES,
            answer: between(self.scenario.answer.0, self.scenario.answer.1, rng),
            want: Want {
                tenant: 0,
                priority: Priority::default(),
                model: ModelId::new(&name).expect("a plain name"),
                prompt: Arc::new(prompt),
                stream: true,
            },
        }
    }
}

/// The first is asked for most.
fn zipf(count: usize, rng: &mut SmallRng) -> usize {
    let weights = (1..=count).map(|rank| 1.0 / rank as f64);
    let mut left = rng.random::<f64>() * weights.clone().sum::<f64>();
    for (n, weight) in weights.enumerate() {
        left -= weight;
        if left <= 0.0 {
            return n;
        }
    }
    count - 1
}

fn noise(seed: u64, tokens: u64) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(seed);
    (0..tokens).flat_map(|_| rng.random::<u32>().to_le_bytes()).collect()
}

fn blocks(model: &str, text: &[u8]) -> Arc<[u64]> {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let start = model.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| mix(hash, &byte));
    let whole = text.chunks_exact((BLOCK_TOKENS * TOKEN_BYTES) as usize);
    whole
        .scan(start, |hash, block| {
            *hash = block.iter().fold(*hash, mix);
            Some(*hash)
        })
        .collect()
}
