//! What the agent measures on its own traffic: latencies as moving averages, and chunks per second.
//!
//! Time comes in as an argument. One chunk of a stream costs one addition and a comparison; the averages are touched once
//! per request and once per 16 chunks.

use dunlin_protocol::load::Measured;
use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Weight of the newest value in an average: about the last ten requests count.
const WEIGHT: f64 = 0.2;
/// Chunks between two looks at a stream's inter-token latency.
const STRIDE: u32 = 16;
/// A client that hangs up sooner without having got anything says nothing about the engine.
const PATIENCE: Duration = Duration::from_secs(5);
/// Window of the chunk rate.
const WINDOW: Duration = Duration::from_secs(1);
/// Samples in the window; the reporter takes one each 100 ms.
const SAMPLES: usize = 16;

/// Counts and averages of one replica.
#[derive(Debug, Default)]
pub struct Counters {
    chunks: AtomicU64,
    answers: AtomicU64,
    chunks_per_s: AtomicU32,
    averages: Mutex<Averages>,
}

#[derive(Debug, Default)]
struct Averages {
    ttft: Average,
    itl: Average,
    service: Average,
    rate: VecDeque<(Instant, u64)>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Average(Option<f64>);

impl Average {
    fn add(&mut self, value: Duration) {
        let value = value.as_secs_f64() * 1e6;
        self.0 = Some(self.0.map_or(value, |old| old + WEIGHT * (value - old)));
    }
    fn micros(self) -> Option<u32> {
        // Saturates.
        self.0.map(|micros| micros.round() as u32)
    }
}

impl Counters {
    fn averages(&self) -> std::sync::MutexGuard<'_, Averages> {
        self.averages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a load report says.
    #[must_use]
    pub fn measured(&self) -> Measured {
        let averages = self.averages();
        Measured {
            ttft_us: averages.ttft.micros(),
            itl_us: averages.itl.micros(),
            service_us: averages.service.micros(),
            chunks_per_s: self.chunks_per_s.load(Ordering::Relaxed),
        }
    }

    /// Streamed chunks since the start.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed)
    }

    /// Streamed chunks and whole answers since the start: grows while the engine does anything for a client.
    #[must_use]
    pub fn signs_of_life(&self) -> u64 {
        self.chunks() + self.answers.load(Ordering::Relaxed)
    }

    /// Brings the chunk rate up to date. Called regularly, each 100 ms.
    pub fn sample(&self, now: Instant) {
        let total = self.chunks();
        let mut averages = self.averages();
        let rate = &mut averages.rate;
        // One sample older than the window stays: the rate is counted from it.
        while rate.len() >= 2 && rate.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            rate.pop_front();
        }
        if rate.len() == SAMPLES {
            rate.pop_front();
        }
        let per_second = rate.front().map_or(0.0, |(since, count)| {
            // A first moment alone makes no rate: counted as if it had lasted the window.
            (total - count) as f64 / now.duration_since(*since).max(WINDOW).as_secs_f64()
        });
        rate.push_back((now, total));
        drop(averages);
        self.chunks_per_s.store(per_second.round() as u32, Ordering::Relaxed);
    }
}

/// The measuring of one request.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    chunks: u32,
    /// Start of the stride.
    mark: Instant,
    marked: u32,
}

impl Meter {
    /// The request goes to the engine.
    #[must_use]
    pub fn start(now: Instant) -> Self {
        Self { started: now, chunks: 0, mark: now, marked: 0 }
    }

    /// A chunk of a stream passes.
    pub fn chunk(&mut self, counters: &Counters, now: Instant) {
        counters.chunks.fetch_add(1, Ordering::Relaxed);
        self.chunks = self.chunks.saturating_add(1);
        if self.chunks == 1 {
            counters.averages().ttft.add(now.duration_since(self.started));
            (self.mark, self.marked) = (now, 1);
        } else if self.chunks - self.marked == STRIDE {
            self.inter_token(counters, now);
        }
    }

    /// Whether the client waited in vain, and so long that the engine is to blame: to be asked when a client hangs up.
    #[must_use]
    pub fn was_abandoned(&self, now: Instant) -> bool {
        self.chunks == 0 && now.duration_since(self.started) >= PATIENCE
    }

    fn inter_token(&mut self, counters: &Counters, now: Instant) {
        let gaps = self.chunks - self.marked;
        if gaps > 0 {
            counters.averages().itl.add(now.duration_since(self.mark) / gaps);
            (self.mark, self.marked) = (now, self.chunks);
        }
    }

    /// The answer ended as it should.
    pub fn finish(&mut self, counters: &Counters, now: Instant) {
        // The stream's end comes with its last chunk; a short stream has no stride to tell.
        if self.chunks > 1 && self.marked == 1 {
            self.inter_token(counters, now);
        }
        counters.answers.fetch_add(1, Ordering::Relaxed);
        counters.averages().service.add(now.duration_since(self.started));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_stream_tells_all_three() {
        let (counters, start) = (Counters::default(), Instant::now());
        assert_eq!(counters.measured(), Measured::default());
        let mut meter = Meter::start(start);
        for n in 0..40 {
            meter.chunk(&counters, start + 50 * MS + n * 10 * MS);
        }
        // Long streams tell before they end.
        assert_eq!(counters.measured().itl_us, Some(10_000));
        meter.finish(&counters, start + 440 * MS);
        let measured = counters.measured();
        assert_eq!((measured.ttft_us, measured.itl_us), (Some(50_000), Some(10_000)));
        assert_eq!(measured.service_us, Some(440_000));
        assert_eq!((counters.chunks(), counters.signs_of_life()), (40, 41));
    }

    #[test]
    fn a_unary_answer_has_no_time_to_first_token() {
        let (counters, start) = (Counters::default(), Instant::now());
        Meter::start(start).finish(&counters, start + 7 * MS);
        let measured = counters.measured();
        assert_eq!((measured.ttft_us, measured.itl_us, measured.service_us), (None, None, Some(7_000)));
    }

    #[test]
    fn who_gives_up_after_a_while_tells_of_a_hanging_engine() {
        let (counters, start) = (Counters::default(), Instant::now());
        let mut meter = Meter::start(start);
        assert!(!meter.was_abandoned(start + PATIENCE - MS) && meter.was_abandoned(start + PATIENCE));
        meter.chunk(&counters, start + MS);
        assert!(!meter.was_abandoned(start + PATIENCE));
    }

    #[test]
    fn averages_follow() {
        let (counters, start) = (Counters::default(), Instant::now());
        for duration in [100, 100, 200] {
            Meter::start(start).finish(&counters, start + duration * MS);
        }
        assert_eq!(counters.measured().service_us, Some(120_000));
    }

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        let (counters, start) = (Counters::default(), Instant::now());
        let mut meter = Meter::start(start);
        for tenth in 0..30 {
            counters.sample(start + 100 * MS * tenth);
            for _ in 0..5 {
                meter.chunk(&counters, start);
            }
        }
        assert_eq!(counters.measured().chunks_per_s, 50);
        for tenth in 30..60 {
            counters.sample(start + 100 * MS * tenth);
        }
        assert_eq!(counters.measured().chunks_per_s, 0);
        assert!(counters.averages().rate.capacity() <= SAMPLES * 2);
    }
}
