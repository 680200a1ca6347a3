//! What the demo engine counts, and its Prometheus text under vLLM's names.

use super::config::Config;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Upper bounds of vLLM's histograms, seconds.
const FIRST_TOKEN_BOUNDS: [f64; 13] = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0];
const INTER_TOKEN_BOUNDS: [f64; 10] = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 5.0];
const WHOLE_BOUNDS: [f64; 11] = [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0];

/// Tokens in a block of the KV cache.
pub(super) const BLOCK_TOKENS: u32 = 16;

/// How a request ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Ending {
    /// By itself or at a stop string.
    Stop,
    /// At its limit of tokens.
    Length,
    /// The client went.
    #[default]
    Abort,
    /// A fault.
    Error,
}

impl Ending {
    const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

#[derive(Debug)]
struct Histogram<const N: usize> {
    bounds: &'static [f64; N],
    /// Per bound, not cumulative.
    counts: [AtomicU64; N],
    count: AtomicU64,
    sum_us: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    fn new(bounds: &'static [f64; N]) -> Self {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Self { bounds, counts, count: AtomicU64::new(0), sum_us: AtomicU64::new(0) }
    }

    fn observe(&self, value: Duration, times: u64) {
        let seconds = value.as_secs_f64();
        let bucket = self.bounds.iter().position(|&bound| seconds <= bound);
        if let Some(count) = bucket.and_then(|index| self.counts.get(index)) {
            count.fetch_add(times, Relaxed);
        }
        self.count.fetch_add(times, Relaxed);
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(micros.saturating_mul(times), Relaxed);
    }

    fn write(&self, text: &mut String, name: &str, help: &str, model: &str) {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut below = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            below += count.load(Relaxed);
            let _ = writeln!(text, "{name}_bucket{{engine=\"0\",le=\"{bound:?}\",model_name=\"{model}\"}} {below}.0");
        }
        let count = self.count.load(Relaxed);
        let sum = Duration::from_micros(self.sum_us.load(Relaxed)).as_secs_f64();
        let _ = writeln!(text, "{name}_bucket{{engine=\"0\",le=\"+Inf\",model_name=\"{model}\"}} {count}.0");
        let _ = writeln!(text, "{name}_count{{engine=\"0\",model_name=\"{model}\"}} {count}.0");
        let _ = writeln!(text, "{name}_sum{{engine=\"0\",model_name=\"{model}\"}} {sum:?}");
    }
}

/// Requests of one adapter.
#[derive(Debug, Default)]
struct AdapterLoad {
    running: u32,
    waiting: u32,
}

/// All counts of one engine.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) running: AtomicU64,
    pub(super) waiting: AtomicU64,
    /// Tokens of running requests, prompts and answers.
    pub(super) kv_tokens: AtomicU64,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) generated_tokens: AtomicU64,
    pub(super) prefix_queries: AtomicU64,
    pub(super) prefix_hits: AtomicU64,
    endings: [AtomicU64; 4],
    first_token: Histogram<13>,
    inter_token: Histogram<10>,
    whole: Histogram<11>,
    adapters: Mutex<BTreeMap<String, AdapterLoad>>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            running: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            kv_tokens: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            prefix_queries: AtomicU64::new(0),
            prefix_hits: AtomicU64::new(0),
            endings: std::array::from_fn(|_| AtomicU64::new(0)),
            first_token: Histogram::new(&FIRST_TOKEN_BOUNDS),
            inter_token: Histogram::new(&INTER_TOKEN_BOUNDS),
            whole: Histogram::new(&WHOLE_BOUNDS),
            adapters: Mutex::default(),
        }
    }

    pub(super) fn first_token(&self, after: Duration) {
        self.first_token.observe(after, 1);
    }

    /// A request's end: `decoding` is the time from its first to its last token.
    pub(super) fn end(&self, ending: Ending, whole: Duration, tokens: u32, decoding: Duration) {
        self.endings[ending as usize].fetch_add(1, Relaxed);
        self.whole.observe(whole, 1);
        let gaps = tokens.saturating_sub(1);
        if gaps > 0 {
            self.inter_token.observe(decoding / gaps, u64::from(gaps));
        }
    }

    pub(super) fn adapter(&self, name: &str, running: i32, waiting: i32) {
        let mut adapters = self.adapters.lock().unwrap_or_else(PoisonError::into_inner);
        let load = adapters.entry(name.to_owned()).or_default();
        load.running = load.running.saturating_add_signed(running);
        load.waiting = load.waiting.saturating_add_signed(waiting);
        // As in vLLM, an adapter with no request in flight is not seen here.
        adapters.retain(|_, load| load.running + load.waiting > 0);
    }

    /// The text of `/metrics`.
    pub(super) fn render(&self, config: &Config, model: &str, unix_s: u64) -> String {
        let model = escape(model);
        let model = model.as_str();
        let mut text = String::with_capacity(config.metrics_bytes.max(8192));
        let ranks = u64::from(config.ranks.max(1));
        self.loads(&mut text, config, model, ranks);
        self.totals(&mut text, model, ranks);
        self.first_token.write(&mut text, "vllm:time_to_first_token_seconds", "Time to first token in seconds.", model);
        self.inter_token.write(&mut text, "vllm:inter_token_latency_seconds", "Inter-token latency in seconds.", model);
        self.whole.write(&mut text, "vllm:e2e_request_latency_seconds", "End to end latency in seconds.", model);
        self.infos(&mut text, config, unix_s);
        pad(&mut text, config.metrics_bytes, model);
        text
    }

    fn loads(&self, text: &mut String, config: &Config, model: &str, ranks: u64) {
        let running = self.running.load(Relaxed);
        let waiting = self.waiting.load(Relaxed);
        ranked(
            text,
            "vllm:num_requests_running",
            "Requests in model execution batches.",
            "gauge",
            running,
            ranks,
            model,
        );
        ranked(text, "vllm:num_requests_waiting", "Requests waiting to be processed.", "gauge", waiting, ranks, model);
        let name = "vllm:kv_cache_usage_perc";
        let _ = writeln!(text, "# HELP {name} KV-cache usage. 1 means 100 percent usage.\n# TYPE {name} gauge");
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
        let usage = self.kv_tokens.load(Relaxed) as f64 / f64::from(config.kv_tokens.max(1));
        for rank in 0..ranks {
            let _ = writeln!(text, "{name}{{engine=\"{rank}\",model_name=\"{model}\"}} {:?}", usage.min(1.0));
        }
    }

    fn totals(&self, text: &mut String, model: &str, ranks: u64) {
        for (name, help, count) in [
            ("vllm:prompt_tokens_total", "Prefill tokens processed.", &self.prompt_tokens),
            ("vllm:generation_tokens_total", "Generation tokens processed.", &self.generated_tokens),
            ("vllm:prefix_cache_queries_total", "Prefix cache queries, in tokens.", &self.prefix_queries),
            ("vllm:prefix_cache_hits_total", "Prefix cache hits, in tokens.", &self.prefix_hits),
        ] {
            ranked(text, name, help, "counter", count.load(Relaxed), ranks, model);
        }
        let name = "vllm:request_success_total";
        let _ = writeln!(text, "# HELP {name} Finished requests.\n# TYPE {name} counter");
        for (ending, count) in Ending::ALL.iter().zip(&self.endings) {
            let (reason, count) = (ending.as_str(), count.load(Relaxed));
            let _ =
                writeln!(text, "{name}{{engine=\"0\",finished_reason=\"{reason}\",model_name=\"{model}\"}} {count}.0");
        }
    }

    fn infos(&self, text: &mut String, config: &Config, unix_s: u64) {
        let adapters = self.adapters.lock().unwrap_or_else(PoisonError::into_inner);
        let list = |wanted: fn(&AdapterLoad) -> bool| {
            let names = adapters.iter().filter(|(_, load)| wanted(load)).map(|(name, _)| escape(name));
            names.collect::<Vec<_>>().join(",")
        };
        let (running, waiting) = (list(|load| load.running > 0), list(|load| load.waiting > 0));
        let name = "vllm:lora_requests_info";
        let _ = writeln!(
            text,
            "# HELP {name} Running stats on lora requests.\n# TYPE {name} gauge\n\
             {name}{{max_lora=\"{}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} {unix_s}.0",
            config.adapters.len().max(1),
        );
        let name = "vllm:cache_config_info";
        let blocks = config.kv_tokens / BLOCK_TOKENS;
        let _ = writeln!(
            text,
            "# HELP {name} Information of the LLMEngine CacheConfig\n# TYPE {name} gauge\n\
             {name}{{block_size=\"{BLOCK_TOKENS}\",enable_prefix_caching=\"{}\",engine=\"0\",num_gpu_blocks=\"{blocks}\"}} 1.0",
            if config.prefix_cache { "True" } else { "False" },
        );
    }
}

/// One series per rank; together they give `value`.
fn ranked(text: &mut String, name: &str, help: &str, kind: &str, value: u64, ranks: u64, model: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for rank in 0..ranks {
        let share = value / ranks + u64::from(rank < value % ranks);
        let _ = writeln!(text, "{name}{{engine=\"{rank}\",model_name=\"{model}\"}} {share}.0");
    }
}

/// Further lines, as many as a real engine has.
fn pad(text: &mut String, bytes: usize, model: &str) {
    let mut number = 0;
    while text.len() < bytes {
        let _ = writeln!(text, "vllm:demo_padding_bucket{{engine=\"0\",le=\"{number}.0\",model_name=\"{model}\"}} 0.0");
        number += 1;
    }
}

/// A label's value.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
