//! What a key costs each request: read, found and compared; its limits taken on a warm lease, told and settled.
//!
//! `cargo bench --bench limits`. Processor time of the thread, not time of the clock.

use criterion::{
    BenchmarkId, Criterion, Throughput,
    measurement::{Measurement, ValueFormatter},
};
use dunlin_node::{clock, mesh, state::StateDir};
use dunlin_protocol::id::Roles;
use dunlin_proxy::{
    Cost,
    keys::{Keys, Limits, NewKey},
};
use http::{HeaderMap, header::AUTHORIZATION};
use rustix::time::{ClockId, clock_gettime};
use std::{hint::black_box, time::Duration};

/// Keys of the mesh, asked for in turns: so many that they miss the processor's nearest caches.
const KEYS: usize = 1_000;
/// From one key to the next one asked for: no neighbour of it, and all of them in turn.
const STEP: usize = 389;
const MEASURED: Duration = Duration::from_secs(10);

/// Time that this thread had a processor.
struct ProcessorTime;

impl ProcessorTime {
    fn now() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

impl Measurement for ProcessorTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        Self::now()
    }

    fn end(&self, start: Duration) -> Duration {
        Self::now().saturating_sub(start)
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_secs_f64() * 1e9
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        self
    }
}

/// Nanoseconds, all of them: what is compared is a few hundred to a few thousand.
impl ValueFormatter for ProcessorTime {
    fn scale_values(&self, _: f64, _: &mut [f64]) -> &'static str {
        "ns of processor"
    }

    fn scale_throughputs(&self, _: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        if let Throughput::Elements(count) = throughput {
            values.iter_mut().for_each(|value| *value = *count as f64 * 1e9 / *value);
        }
        "a second"
    }

    fn scale_for_machines(&self, _: &mut [f64]) -> &'static str {
        "ns"
    }
}

/// Keys with every limit, none of which is ever reached.
fn make(keys: &Keys) -> Result<Vec<HeaderMap>, Box<dyn std::error::Error>> {
    let most = Some(u32::MAX);
    let limits =
        Limits { requests_per_minute: most, tokens_per_minute: most, concurrent_requests: most, ..Limits::default() };
    let one = || {
        let (created, _) = keys.make(NewKey { limits: limits.clone(), ..NewKey::default() })?;
        let mut head = HeaderMap::new();
        head.insert(AUTHORIZATION, format!("Bearer {}", created.key).parse()?);
        Ok(head)
    };
    (0..KEYS).map(|_| one()).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("dunlin-bench-limits-{}", std::process::id()));
    let state = StateDir::open(folder.join("home"))?;
    mesh::create(&state, Roles::NONE, None, clock::unix_s())?;
    let keys = Keys::open(&folder.join("keys.db"))?;
    keys.belong_to_state(mesh::load(&state, clock::unix_s())?)?;
    let heads = make(&keys)?;
    let cost = Cost::new(keys);
    let mut turn = 0;
    let mut next = || {
        turn = (turn + STEP) % heads.len();
        &heads[turn]
    };

    let mut criterion =
        Criterion::default().with_measurement(ProcessorTime).measurement_time(MEASURED).configure_from_args();
    let mut group = criterion.benchmark_group("a request");
    group.bench_function(BenchmarkId::new("key found and compared", KEYS), |bencher| {
        bencher.iter(|| assert!(cost.key(black_box(next()))));
    });
    group.bench_function(BenchmarkId::new("key and limits on a warm lease", KEYS), |bencher| {
        let mut answer = HeaderMap::new();
        bencher.iter(|| assert!(cost.request(black_box(next()), black_box(&mut answer)), "a limit is out of reach"));
    });
    group.finish();
    criterion.final_summary();
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
