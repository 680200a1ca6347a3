//! Continuous batching as seen from outside: so many requests at once, the others wait first come, first served.

use super::{
    config::Config,
    metrics::{BLOCK_TOKENS, Ending, Metrics},
    prefix::PrefixCache,
};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine's queue is full")]
pub(super) struct QueueFull;

/// Hands out places in the batch.
#[derive(Debug)]
pub(super) struct Scheduler {
    slots: Arc<Semaphore>,
    kv: Arc<Semaphore>,
    kv_tokens: u32,
    queue: u64,
    cache: Option<Mutex<PrefixCache>>,
    pub(super) metrics: Arc<Metrics>,
}

/// What a request needs of the engine.
#[derive(Debug, Clone, Default)]
pub(super) struct Need {
    /// Tokens of the prompt.
    pub(super) prompt_tokens: usize,
    /// The prompt itself, for the prefix cache.
    pub(super) prompt: String,
    /// The adapter asked for.
    pub(super) adapter: Option<String>,
}

impl Scheduler {
    pub(super) fn new(config: &Config, metrics: Arc<Metrics>) -> Self {
        let cache = config.prefix_cache.then(|| PrefixCache::new((config.kv_tokens / BLOCK_TOKENS) as usize));
        Self {
            slots: Arc::new(Semaphore::new(usize::from(config.slots.max(1)))),
            kv: Arc::new(Semaphore::new(config.kv_tokens as usize)),
            kv_tokens: config.kv_tokens,
            queue: u64::from(config.queue),
            cache: cache.map(Mutex::new),
            metrics,
        }
    }

    /// A place in the queue.
    ///
    /// # Errors
    /// As many wait as may.
    pub(super) fn queue(self: &Arc<Self>, need: Need) -> Result<Waiting, QueueFull> {
        // A free slot is taken without queueing, so the queue's bound counts only those that wait.
        if self.slots.available_permits() == 0 && self.metrics.waiting.load(Relaxed) >= self.queue {
            return Err(QueueFull);
        }
        Ok(Waiting::new(Arc::clone(self), need))
    }

    fn kv_need(&self, prompt_tokens: usize) -> u32 {
        u32::try_from(prompt_tokens).unwrap_or(u32::MAX).min(self.kv_tokens)
    }
}

/// A request that waits. Dropped, it leaves the queue.
#[derive(Debug)]
pub(super) struct Waiting {
    scheduler: Arc<Scheduler>,
    need: Need,
    since: Instant,
}

impl Waiting {
    fn new(scheduler: Arc<Scheduler>, need: Need) -> Self {
        scheduler.metrics.waiting.fetch_add(1, Relaxed);
        if let Some(adapter) = &need.adapter {
            scheduler.metrics.adapter(adapter, 0, 1);
        }
        Self { scheduler, need, since: Instant::now() }
    }

    /// Whether there is a prefix cache that wants the text.
    pub(super) fn caches(&self) -> bool {
        self.scheduler.cache.is_some()
    }

    /// The place at once, if there is one.
    pub(super) fn try_begin(self) -> Result<Work, Self> {
        let kv_need = self.scheduler.kv_need(self.need.prompt_tokens);
        let Ok(slot) = Arc::clone(&self.scheduler.slots).try_acquire_owned() else { return Err(self) };
        match Arc::clone(&self.scheduler.kv).try_acquire_many_owned(kv_need) {
            Ok(kv) => Ok(Work::new(self, slot, kv)),
            Err(_) => Err(self),
        }
    }

    /// Waits for a slot, then for room in the KV cache. `None` never happens: the semaphores are not closed.
    pub(super) async fn begin(self) -> Option<Work> {
        let slot = Arc::clone(&self.scheduler.slots).acquire_owned().await.ok()?;
        let kv_need = self.scheduler.kv_need(self.need.prompt_tokens);
        let kv = Arc::clone(&self.scheduler.kv).acquire_many_owned(kv_need).await.ok()?;
        Some(Work::new(self, slot, kv))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.scheduler.metrics.waiting.fetch_sub(1, Relaxed);
        if let Some(adapter) = &self.need.adapter {
            self.scheduler.metrics.adapter(adapter, 0, -1);
        }
    }
}

/// A request in the batch. Dropped before it was finished, it counts as aborted.
#[derive(Debug)]
pub(super) struct Work {
    scheduler: Arc<Scheduler>,
    need: Need,
    /// Tokens of the prompt that the prefix cache held.
    pub(super) cached_tokens: usize,
    /// When it came into the batch.
    pub(super) started: Instant,
    queued: Instant,
    first: Option<Instant>,
    tokens: u32,
    ending: Ending,
    _slot: OwnedSemaphorePermit,
    _kv: OwnedSemaphorePermit,
}

impl Work {
    fn new(mut waiting: Waiting, slot: OwnedSemaphorePermit, kv: OwnedSemaphorePermit) -> Self {
        let scheduler = Arc::clone(&waiting.scheduler);
        let need = Need {
            prompt_tokens: waiting.need.prompt_tokens,
            prompt: std::mem::take(&mut waiting.need.prompt),
            adapter: waiting.need.adapter.clone(),
        };
        let metrics = &scheduler.metrics;
        let add = |counter: &AtomicU64, count: usize| counter.fetch_add(count as u64, Relaxed);
        metrics.running.fetch_add(1, Relaxed);
        if let Some(adapter) = &need.adapter {
            metrics.adapter(adapter, 1, 0);
        }
        let cached_tokens = scheduler.cache.as_ref().map_or(0, |cache| {
            let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
            let cached = cache.look_up(&need.prompt, need.prompt_tokens);
            cache.insert(&need.prompt);
            cached
        });
        add(&metrics.kv_tokens, need.prompt_tokens);
        add(&metrics.prompt_tokens, need.prompt_tokens);
        if scheduler.cache.is_some() {
            add(&metrics.prefix_queries, need.prompt_tokens);
            add(&metrics.prefix_hits, cached_tokens);
        }
        let queued = waiting.since;
        drop(waiting);
        Self {
            scheduler,
            need,
            cached_tokens,
            started: Instant::now(),
            queued,
            first: None,
            tokens: 0,
            ending: Ending::Abort,
            _slot: slot,
            _kv: kv,
        }
    }

    /// Tokens of the prompt that have to be worked through.
    pub(super) fn prefill_tokens(&self) -> usize {
        self.need.prompt_tokens - self.cached_tokens
    }

    /// `count` tokens were generated.
    pub(super) fn generated(&mut self, count: u32) {
        if self.first.is_none() && count > 0 {
            let now = Instant::now();
            self.first = Some(now);
            self.scheduler.metrics.first_token(now - self.queued);
        }
        self.tokens += count;
        self.scheduler.metrics.generated_tokens.fetch_add(u64::from(count), Relaxed);
        self.scheduler.metrics.kv_tokens.fetch_add(u64::from(count), Relaxed);
    }

    /// The request came to its end; `answer` is what the prefix cache shall know beside the prompt.
    pub(super) fn finish(&mut self, ending: Ending, answer: &str) {
        self.ending = ending;
        if let Some(cache) = &self.scheduler.cache {
            self.need.prompt.push_str(answer);
            cache.lock().unwrap_or_else(PoisonError::into_inner).insert(&self.need.prompt);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let metrics = &self.scheduler.metrics;
        metrics.running.fetch_sub(1, Relaxed);
        let tokens = self.need.prompt_tokens as u64 + u64::from(self.tokens);
        metrics.kv_tokens.fetch_sub(tokens, Relaxed);
        if let Some(adapter) = &self.need.adapter {
            metrics.adapter(adapter, -1, 0);
        }
        let now = Instant::now();
        let decoding = self.first.map_or_else(Default::default, |first| now - first);
        metrics.end(self.ending, now - self.queued, self.tokens, decoding);
    }
}
