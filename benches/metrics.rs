//! What reading an engine's metrics costs the agent, and the engine.
//!
//! `cargo bench --bench metrics` prints Markdown: the parsing of real pages, then polls over HTTP of a demo engine that
//! serves a page as long as vLLM's, an hour's worth of them in one go for the memory, and 20 seconds at the agent's pace.
//! Processor time, not wall-clock time, so that a busy machine changes little. With Python's `prometheus_client`
//! installed it also measures what such a page costs an engine that makes it with that library, as vLLM and SGLang do.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

#[path = "hop/child.rs"]
#[allow(dead_code)]
mod child;

use anyhow::{Context as _, Result};
use child::Child;
use dunlin_agent::{
    engine::{Client, EngineUrl},
    metrics::{Reader, fetch::fetch},
};
use dunlin_protocol::runtime::Catalogue;
use rustix::time::{ClockId, clock_gettime};
use std::{process::Command, time::Duration};

/// Readings in an hour of work.
const HOUR: u32 = 36_000;
const INTERVAL: Duration = Duration::from_millis(100);
const PACED: Duration = Duration::from_secs(20);
const PARSES: u32 = 2_000;

const PAGES: [(&str, &str, &[u8]); 4] = [
    ("vLLM 0.32 with one adapter", "vllm", include_bytes!("../agent/tests/data/vllm/metrics_during_lora.txt")),
    ("vLLM 0.32, Whisper", "vllm", include_bytes!("../agent/tests/data/vllm_whisper/metrics.txt")),
    ("SGLang", "sglang", include_bytes!("../agent/tests/data/sglang/metrics_after.txt")),
    ("llama.cpp b10068", "llamacpp", include_bytes!("../agent/tests/data/llamacpp/metrics.txt")),
];

fn main() -> Result<()> {
    println!("## Parsing a page\n\n| page | bytes | us | share of a core at 10/s |\n|---|---|---|---|");
    for (name, runtime, page) in PAGES {
        let mut reader = reader(runtime)?;
        let parse = |_| {
            std::hint::black_box(reader.read(page));
        };
        let micros = cpu_of(|| (0..PARSES).for_each(parse)) / f64::from(PARSES);
        println!("| {name} | {} | {micros:.1} | {:.3} % |", page.len(), micros * 10.0 / 1e4);
    }
    polls()?;
    engine()
}

fn reader(runtime: &str) -> Result<Reader> {
    let catalogue = Catalogue::built_in()?;
    let metrics = catalogue.get(&runtime.parse()?)?.metrics.clone();
    Ok(Reader::new(&metrics.context("it has metrics")?))
}

/// Processor time of this thread so far, microseconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn cpu_of(work: impl FnOnce()) -> f64 {
    let before = cpu();
    work();
    cpu() - before
}

/// Resident memory of this process, kB.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn polls() -> Result<()> {
    let address = child::free_address()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
    command.args(["demo-engine", "--metrics-bytes", "66000", "--http", &address.to_string()]);
    let mut engine = Child::start("the demo engine", &mut command)?;
    engine.listens(address)?;
    let url: EngineUrl = format!("http://{address}").parse()?;
    // One thread, as a node has.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (client, mut reader, mut page) = (Client::new(), reader("demo")?, Vec::new());
    runtime.block_on(async {
        let mut poll = async || -> Result<()> {
            fetch(&client, &url, "/metrics", &mut page).await?;
            reader.read(&page).context("a page without load")?;
            Ok(())
        };
        // Buffers grow to their size at first.
        for _ in 0..1_000 {
            poll().await?;
        }
        let (memory, before, engine_before) = (resident()?, cpu(), engine.cpu_s()?);
        for _ in 0..HOUR {
            poll().await?;
        }
        let micros = (cpu() - before) / f64::from(HOUR);
        let engine_micros = (engine.cpu_s()? - engine_before) * 1e6 / f64::from(HOUR);
        println!("\n## Polls of a page of 66 KB over HTTP\n\n| | agent us per poll | share of a core at 10/s | demo engine us |");
        println!("|---|---|---|---|");
        println!("| {HOUR} in one go | {micros:.0} | {:.2} % | {engine_micros:.0} |", micros * 10.0 / 1e4);
        let grown = i64::try_from(resident()?)? - i64::try_from(memory)?;
        let mut ticks = tokio::time::interval(INTERVAL);
        let (before, engine_before, count) = (cpu(), engine.cpu_s()?, (PACED.as_millis() / INTERVAL.as_millis()) as u32);
        for _ in 0..count {
            ticks.tick().await;
            poll().await?;
        }
        let micros = (cpu() - before) / f64::from(count);
        let engine_micros = (engine.cpu_s()? - engine_before) * 1e6 / f64::from(count);
        println!("| at the agent's pace | {micros:.0} | {:.2} % | {engine_micros:.0} |", micros * 10.0 / 1e4);
        println!("\nResident memory after {HOUR} more polls: {grown:+} kB.");
        Ok(())
    })
}

/// Gives the library the families of a real page, and has it write them out again and again.
const PYTHON: &str = r#"
import sys, time
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
text = open(sys.argv[1]).read()
text = text[text.index('# HELP'):]
families = list(text_string_to_metric_families(text))
class Page:
    def collect(self):
        return families
registry = CollectorRegistry()
registry.register(Page())
generate_latest(registry)
started = time.process_time()
for _ in range(100):
    page = generate_latest(registry)
print(len(page), (time.process_time() - started) / 100 * 1e6)
"#;

fn engine() -> Result<()> {
    println!("\n## What a page costs the engine\n");
    for name in ["vllm/metrics_during_lora.txt", "sglang/metrics_after.txt"] {
        let path = format!("{}/agent/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
        let output = Command::new("python3").args(["-c", PYTHON, &path]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some((bytes, micros)) = text.trim().split_once(' ').filter(|_| output.status.success()) else {
            println!("{name}: not measured; `pip install prometheus_client` makes it possible.");
            continue;
        };
        let micros: f64 = micros.parse()?;
        println!(
            "{name}: prometheus_client writes {bytes} bytes in {micros:.0} us: {:.1} % of a core at 10/s.\n",
            micros * 10.0 / 1e4
        );
    }
    Ok(())
}
