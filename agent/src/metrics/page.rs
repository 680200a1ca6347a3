//! From a page of metrics to an engine's load, by the series that the runtime's entry names.

pub use super::adapters::AdaptersInUse;

use super::{
    adapters::Latest,
    text::{Labels, samples},
};
use dunlin_protocol::{
    load::EngineLoad,
    runtime::metrics::{Metrics, Quantity, Series},
};

/// Ranks of one engine that are told apart. The largest deployments known have 256.
const RANKS: usize = 1024;

/// Reads pages of one engine. Keeps its buffers, so that reading allocates nothing once it has seen a page.
#[derive(Debug)]
pub struct Reader {
    wanted: Vec<Wanted>,
    sum_over: Vec<String>,
    adapters: Option<Latest>,
}

/// A series that is looked for, and what this page has of it.
#[derive(Debug)]
struct Wanted {
    quantity: Quantity,
    /// Without `_total`, which exposition formats add and take away.
    name: Box<[u8]>,
    labels: Vec<(String, String)>,
    /// Per rank, by a hash of the labels that tell ranks apart, the largest value.
    ranks: Vec<(u64, f64)>,
}

fn stem(name: &[u8]) -> &[u8] {
    name.strip_suffix(b"_total").unwrap_or(name)
}

impl Wanted {
    fn new(quantity: Quantity, series: &Series) -> Self {
        Self { quantity, name: stem(series.name.as_bytes()).into(), labels: series.labels.clone(), ranks: Vec::new() }
    }

    fn matches(&self, labels: Labels<'_>) -> bool {
        self.labels.iter().all(|(name, value)| labels.get(name) == Some(value.as_bytes()))
    }

    fn take(&mut self, rank: u64, value: f64) {
        if value < 0.0 {
            return;
        }
        if let Some((_, largest)) = self.ranks.iter_mut().find(|(known, _)| *known == rank) {
            *largest = largest.max(value);
        } else if self.ranks.len() < RANKS {
            self.ranks.push((rank, value));
        }
    }

    /// `None` when the page had no such series.
    fn value(&self) -> Option<f64> {
        if self.ranks.is_empty() {
            return None;
        }
        let sum: f64 = self.ranks.iter().map(|(_, value)| value).sum();
        Some(if self.quantity.is_share() { sum / self.ranks.len() as f64 } else { sum })
    }
}

impl Reader {
    /// A reader of the series that `metrics` names.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        let wanted = metrics
            .names
            .iter()
            .flat_map(|(&quantity, list)| list.iter().map(move |series| Wanted::new(quantity, series)))
            .collect();
        let adapters = metrics.adapters.clone().map(Latest::new);
        Self { wanted, sum_over: metrics.sum_over.clone(), adapters }
    }

    /// What the page says of the engine's load; `None` when it has no series of those wanted. Of several names for one
    /// quantity the first that the page has counts.
    pub fn read(&mut self, page: &[u8]) -> Option<EngineLoad> {
        self.wanted.iter_mut().for_each(|wanted| wanted.ranks.clear());
        self.adapters.iter_mut().for_each(Latest::begin);
        for sample in samples(page) {
            if let Some(adapters) = self.adapters.as_mut().filter(|adapters| adapters.is_of(sample.name)) {
                if let Some((labels, time)) = sample.split() {
                    adapters.take(labels, time);
                }
                continue;
            }
            let name = stem(sample.name);
            if !self.wanted.iter().any(|wanted| *wanted.name == *name) {
                continue;
            }
            let Some((labels, value)) = sample.split() else { continue };
            let rank = rank(labels, &self.sum_over);
            for wanted in self.wanted.iter_mut().filter(|wanted| *wanted.name == *name) {
                if wanted.matches(labels) {
                    wanted.take(rank, value);
                }
            }
        }
        self.load()
    }

    /// The adapters with requests as the last page told; `None` when it didn't.
    #[must_use]
    pub fn adapters(&self) -> Option<&AdaptersInUse> {
        self.adapters.as_ref()?.found()
    }

    fn get(&self, quantity: Quantity) -> Option<f64> {
        self.wanted.iter().filter(|wanted| wanted.quantity == quantity).find_map(Wanted::value)
    }

    fn ratio(&self, part: Quantity, whole: Quantity) -> Option<f64> {
        let whole = self.get(whole)?;
        (whole > 0.0).then_some(self.get(part)? / whole)
    }

    fn load(&self) -> Option<EngineLoad> {
        let kv = self.get(Quantity::KvUsage).or_else(|| self.ratio(Quantity::KvUsed, Quantity::KvCapacity));
        let hits =
            self.get(Quantity::PrefixHitRate).or_else(|| self.ratio(Quantity::PrefixHits, Quantity::PrefixQueries));
        let load = EngineLoad {
            running: self.get(Quantity::Running).map(count),
            waiting: self.get(Quantity::Waiting).map(count),
            kv_used_permille: kv.map(permille),
            prompt_tokens: self.get(Quantity::PromptTokens).map(|tokens| tokens as u64),
            generated_tokens: self.get(Quantity::GeneratedTokens).map(|tokens| tokens as u64),
            prefix_hit_permille: hits.map(permille),
        };
        (load != EngineLoad::default()).then_some(load)
    }
}

/// Casts from floating point saturate.
fn count(value: f64) -> u32 {
    value.round() as u32
}
fn permille(share: f64) -> u16 {
    (share.min(1.0) * 1000.0).round() as u16
}

/// FNV-1a over the labels that tell ranks apart, in the entry's order.
fn rank(labels: Labels<'_>, sum_over: &[String]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for name in sum_over {
        for &byte in labels.get(name).unwrap_or_default().iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{body, runtime};
    use proptest::prelude::*;

    fn reader(name: &str) -> Reader {
        Reader::new(runtime(name).metrics.as_ref().unwrap())
    }
    fn own(names: &[(Quantity, &str)], sum_over: &[&str]) -> Reader {
        let mut metrics = Metrics {
            path: "/metrics".to_owned().try_into().unwrap(),
            port: None,
            adapters: None,
            sum_over: sum_over.iter().map(|&label| label.to_owned()).collect(),
            names: Default::default(),
        };
        for (quantity, series) in names {
            metrics.names.entry(*quantity).or_default().push((*series).to_owned().try_into().unwrap());
        }
        Reader::new(&metrics)
    }

    #[test]
    fn llamacpp() {
        let mut reader = reader("llamacpp");
        let load = reader.read(&body("llamacpp/metrics.txt")).unwrap();
        let expected = EngineLoad {
            running: Some(0),
            waiting: Some(0),
            prompt_tokens: Some(37),
            generated_tokens: Some(20),
            ..EngineLoad::default()
        };
        assert_eq!(load, expected);
        // The series that builds before #13660 had.
        let load = reader.read(b"llamacpp:kv_cache_usage_ratio 0.25\nllamacpp:requests_deferred 3\n").unwrap();
        assert_eq!((load.kv_used_permille, load.waiting, load.running), (Some(250), Some(3), None));
    }

    #[test]
    fn vllm() {
        let mut reader = reader("vllm");
        let busy = reader.read(&body("vllm/metrics_during_lora.txt")).unwrap();
        let expected = EngineLoad {
            running: Some(1),
            waiting: Some(0),
            kv_used_permille: Some(3),
            prompt_tokens: Some(509),
            generated_tokens: Some(171),
            prefix_hit_permille: Some(0),
        };
        assert_eq!(busy, expected);
        let idle = reader.read(&body("vllm/metrics.txt")).unwrap();
        assert_eq!((idle.running, idle.kv_used_permille), (Some(0), Some(0)));
    }

    /// C4: four data-parallel ranks are one engine.
    #[test]
    fn data_parallel_ranks_are_added_up_and_shares_averaged() {
        let mut page = String::new();
        for rank in 0..4 {
            page += &format!("vllm:num_requests_waiting{{engine=\"{rank}\",model_name=\"m\"}} {rank}.0\n");
            page += &format!("vllm:kv_cache_usage_perc{{engine=\"{rank}\",model_name=\"m\"}} 0.{rank}\n");
        }
        let load = reader("vllm").read(page.as_bytes()).unwrap();
        assert_eq!((load.waiting, load.kv_used_permille), (Some(6), Some(150)));
    }

    /// A real engine with one adapter, before, while and after it had a request: old combinations stay on the page.
    #[test]
    fn adapters_are_those_of_the_latest_series() {
        let in_use = |running: &[&str], waiting: &[&str], most| {
            let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            Some(AdaptersInUse { running: list(running), waiting: list(waiting), most })
        };
        let mut reader = reader("vllm");
        reader.read(&body("vllm/metrics_during_lora.txt"));
        assert_eq!(reader.adapters().cloned(), in_use(&["my-lora"], &["my-lora"], Some(1)));
        reader.read(&body("vllm/metrics_after.txt"));
        assert_eq!(reader.adapters().cloned(), in_use(&[], &[], Some(1)));
        reader.read(b"vllm:num_requests_running 1\n");
        assert_eq!(reader.adapters(), None);
        let page = "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a,b\",waiting_lora_adapters=\"\"} 3\n\
                    vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"c\",waiting_lora_adapters=\"\"} 2\n";
        reader.read(page.as_bytes());
        assert_eq!(reader.adapters().cloned(), in_use(&["a", "b"], &[], Some(2)));
    }

    #[test]
    fn sglang() {
        let mut reader = reader("sglang");
        let load = reader.read(&body("sglang/metrics_after.txt")).unwrap();
        let expected = EngineLoad {
            running: Some(0),
            waiting: Some(0),
            kv_used_permille: Some(0),
            prompt_tokens: Some(308 + 232),
            generated_tokens: Some(121 + 48),
            prefix_hit_permille: Some(968),
        };
        assert_eq!(load, expected, "streamed or not, tokens are tokens");
        // What newer releases may call them; two data-parallel ranks of two tensor-parallel ranks each, and requests by
        // priority beside their total.
        let mut page = String::new();
        for (dp, tp) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            page += &format!("sglang_num_running_reqs{{dp_rank=\"{dp}\",tp_rank=\"{tp}\"}} {}\n", 3 + dp);
            page += &format!("sglang_num_queue_reqs{{dp_rank=\"{dp}\",tp_rank=\"{tp}\",priority=\"\"}} 5\n");
            page += &format!("sglang_num_queue_reqs{{dp_rank=\"{dp}\",tp_rank=\"{tp}\",priority=\"1\"}} 2\n");
        }
        let load = reader.read(page.as_bytes()).unwrap();
        assert_eq!((load.running, load.waiting), (Some(7), Some(10)));
    }

    #[test]
    fn tensor_parallel_ranks_repeat_and_do_not_add_up() {
        let page = "\
            sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 5\nsglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\"} 5\n\
            sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"0\"} 2\nsglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"1\"} 2\n";
        let load = own(&[(Quantity::Running, "sglang:num_running_reqs")], &["dp_rank"]).read(page.as_bytes()).unwrap();
        assert_eq!(load.running, Some(7));
    }

    #[test]
    fn of_two_names_the_first_counts_alone() {
        let page = b"vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.5\n";
        assert_eq!(reader("vllm").read(page).unwrap().kv_used_permille, Some(500));
        assert_eq!(reader("vllm").read(b"vllm:gpu_cache_usage_perc 0.9\n").unwrap().kv_used_permille, Some(900));
    }

    #[test]
    fn total_may_come_and_go() {
        let mut reader = own(&[(Quantity::PromptTokens, "x_tokens_total"), (Quantity::Running, "busy")], &[]);
        assert_eq!(reader.read(b"x_tokens 7\nbusy_total 2\n").unwrap().prompt_tokens, Some(7));
        assert_eq!(reader.read(b"x_tokens_total 8\n").unwrap().prompt_tokens, Some(8));
        assert_eq!(reader.read(b"busy_total 2\n").unwrap().running, Some(2));
    }

    #[test]
    fn labels_select() {
        let waiting = "nv_trt_llm_request_metrics{request_type=\"waiting\"}";
        let mut reader = own(&[(Quantity::Waiting, waiting)], &[]);
        let page = "nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\"} 4\n\
                    nv_trt_llm_request_metrics{model=\"m\",request_type=\"active\"} 9\n";
        assert_eq!(reader.read(page.as_bytes()).unwrap().waiting, Some(4));
    }

    #[test]
    fn used_and_capacity_stand_in_for_a_share() {
        let mut reader = own(&[(Quantity::KvUsed, "used"), (Quantity::KvCapacity, "all")], &[]);
        assert_eq!(reader.read(b"used 25\nall 100\n").unwrap().kv_used_permille, Some(250));
        assert_eq!(reader.read(b"used 25\nall 0\n"), None);
    }

    /// C20: what is missing, infinite or not a number costs only itself.
    #[test]
    fn every_metric_is_optional() {
        let mut reader = reader("vllm");
        assert_eq!(reader.read(b""), None);
        assert_eq!(reader.read(b"<html>it works</html>"), None);
        assert_eq!(reader.read(b"vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n"), None);
        let load = reader.read(b"vllm:num_requests_running -3\nvllm:num_requests_waiting 2\n").unwrap();
        assert_eq!((load.running, load.waiting), (None, Some(2)));
        let load = reader.read(b"vllm:num_requests_waiting 1e300\nvllm:kv_cache_usage_perc 55\n").unwrap();
        assert_eq!((load.waiting, load.kv_used_permille), (Some(u32::MAX), Some(1000)));
    }

    /// C3: reading 66 KB ten times a second keeps its memory.
    #[test]
    fn buffers_do_not_grow() {
        let mut reader = reader("vllm");
        let page = body("vllm/metrics_after.txt");
        reader.read(&page);
        let capacity = |reader: &Reader| reader.wanted.iter().map(|wanted| wanted.ranks.capacity()).sum::<usize>();
        let before = capacity(&reader);
        for _ in 0..1000 {
            reader.read(&page);
        }
        assert_eq!(capacity(&reader), before);
        // A page that makes up ranks without end is cut.
        let many: String = (0..5000).map(|n| format!("vllm:num_requests_running{{engine=\"{n}\"}} 1\n")).collect();
        assert_eq!(reader.read(many.as_bytes()).unwrap().running, Some(RANKS as u32));
    }

    proptest! {
        #[test]
        fn any_page_is_read(page: Vec<u8>) {
            reader("vllm").read(&page);
        }
    }
}
