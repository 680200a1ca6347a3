//! A model server: so many requests at once, first come, first served; prompts are prefilled one after the other, answers
//! are decoded side by side; a KV cache with room for so much; a prefix cache; adapters that must be loaded.

use super::{Micros, cache::Cache, events::Id, workload::Request};
use std::{collections::VecDeque, sync::Arc};

/// What an engine can do.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Requests at once.
    pub slots: u16,
    /// To the first token of an empty prompt.
    pub first_token: Micros,
    /// Per 1,000 tokens of prompt.
    pub prefill: Micros,
    /// Between two tokens of an answer that is alone.
    pub inter_token: Micros,
    /// Room in the KV cache, tokens.
    pub kv_tokens: u64,
    /// Room in the prefix cache, tokens.
    pub cache_tokens: u64,
    /// Adapters that fit in at once.
    pub adapters: usize,
    /// The way to it.
    pub way: Micros,
    /// It turns slower by the factor at the moment.
    pub turns_slow: Option<(Micros, f64)>,
    /// It does nothing from the one moment to the other.
    pub hangs: Option<(Micros, Micros)>,
}

/// Loading an adapter.
const LOAD: Micros = 250_000;
/// By how much each other answer slows one down.
const CROWD: f64 = 0.01;

/// What a started request will take.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    /// Which.
    pub id: Id,
    /// When its first token comes.
    pub first: Micros,
    /// When its last token comes.
    pub last: Micros,
}

/// A request inside an engine.
#[derive(Debug, Clone)]
struct Job {
    id: Id,
    blocks: Arc<[u64]>,
    tokens: u64,
    answer: u64,
    adapter: Option<usize>,
}

/// One engine.
#[derive(Debug)]
pub struct Engine {
    /// What it can do.
    pub spec: Spec,
    waiting: VecDeque<Job>,
    running: u16,
    kv_used: u64,
    /// When all prompts that it has are prefilled.
    prefilled: Micros,
    cache: Cache,
    loaded: VecDeque<usize>,
    /// Prompt tokens in all, and those that the prefix cache held.
    pub prompt_tokens: (u64, u64),
}

impl Engine {
    pub fn new(spec: Spec) -> Self {
        let cache = Cache::new(spec.cache_tokens);
        Self {
            spec,
            waiting: VecDeque::new(),
            running: 0,
            kv_used: 0,
            prefilled: 0,
            cache,
            loaded: VecDeque::new(),
            prompt_tokens: (0, 0),
        }
    }

    /// A request comes in. What starts is to be asked of [`Self::start`].
    pub fn submit(&mut self, id: Id, request: &Request) {
        let Request { blocks, tokens, answer, adapter, .. } = request.clone();
        self.waiting.push_back(Job { id, blocks, tokens, answer, adapter });
    }

    /// The next request that starts now, if one can.
    pub fn start(&mut self, now: Micros) -> Option<Started> {
        if self.is_hanging(now) {
            return None;
        }
        let next = self.waiting.front()?;
        if !self.has_room(next.tokens + next.answer) {
            return None;
        }
        let job = self.waiting.pop_front()?;
        self.running += 1;
        self.kv_used += job.tokens + job.answer;
        let cached = self.cache.look_up(&job.blocks);
        self.prompt_tokens.0 += job.tokens;
        self.prompt_tokens.1 += cached;
        self.cache.insert(&job.blocks);
        let factor = self.factor(now);
        let work = self.loading(job.adapter) + self.prefill(job.tokens - cached, factor);
        self.use_adapter(job.adapter);
        let begin = self.prefilled.max(now);
        self.prefilled = self.delayed(begin, begin + work);
        let first = self.delayed(self.prefilled, self.prefilled + scaled(self.spec.first_token, factor));
        let crowd = 1.0 + CROWD * f64::from(self.running - 1);
        let decoding = scaled(self.spec.inter_token * job.answer.saturating_sub(1), factor * crowd);
        Some(Started { id: job.id, first, last: self.delayed(first, first + decoding) })
    }

    /// A request has got its last token.
    pub fn end(&mut self, request: &Request) {
        self.running -= 1;
        self.kv_used -= request.tokens + request.answer;
    }

    /// Time to first token of `request` if it came now and had a slot.
    pub fn foresee(&self, request: &Request, now: Micros) -> Micros {
        let factor = self.factor(now);
        let cached = self.cache.look_up(&request.blocks);
        let work = self.loading(request.adapter) + self.prefill(request.tokens - cached, factor);
        self.prefilled.max(now) - now + work + scaled(self.spec.first_token, factor)
    }

    /// Whether `request` would start at once.
    pub fn is_free(&self, request: &Request, now: Micros) -> bool {
        self.waiting.is_empty() && self.has_room(request.tokens + request.answer) && !self.is_hanging(now)
    }

    /// Whether it does nothing.
    pub fn is_hanging(&self, now: Micros) -> bool {
        self.spec.hangs.is_some_and(|(from, to)| (from..to).contains(&now))
    }

    /// Requests that run, and that wait.
    pub fn counts(&self) -> (u32, u32) {
        (self.running.into(), self.waiting.len() as u32)
    }

    /// Share of the KV cache in use, thousandths.
    pub fn kv_permille(&self) -> u16 {
        (self.kv_used * 1000 / self.spec.kv_tokens.max(1)).min(1000) as u16
    }

    fn has_room(&self, tokens: u64) -> bool {
        self.running < self.spec.slots && (self.running == 0 || self.kv_used + tokens <= self.spec.kv_tokens)
    }

    fn prefill(&self, tokens: u64, factor: f64) -> Micros {
        scaled(self.spec.prefill * tokens / 1000, factor)
    }

    fn loading(&self, adapter: Option<usize>) -> Micros {
        adapter.filter(|adapter| !self.loaded.contains(adapter)).map_or(0, |_| LOAD)
    }

    fn use_adapter(&mut self, adapter: Option<usize>) {
        let Some(adapter) = adapter else { return };
        self.loaded.retain(|loaded| *loaded != adapter);
        self.loaded.push_front(adapter);
        self.loaded.truncate(self.spec.adapters);
    }

    fn factor(&self, now: Micros) -> f64 {
        self.spec.turns_slow.filter(|(from, _)| now >= *from).map_or(1.0, |(_, factor)| factor)
    }

    /// When what was to take from `begin` to `end` ends, since the engine may hang in between.
    fn delayed(&self, begin: Micros, end: Micros) -> Micros {
        match self.spec.hangs {
            Some((from, to)) if begin < to && end > from => end + to - begin.max(from),
            _ => end,
        }
    }
}

fn scaled(time: Micros, factor: f64) -> Micros {
    (time as f64 * factor) as Micros
}
