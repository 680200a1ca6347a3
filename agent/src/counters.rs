//! What the agent measures on its own traffic: latencies as moving averages, and chunks per second.
//!
//! Time comes in as an argument. One chunk of a stream costs one addition and a comparison; the averages are touched once
//! per request and once per 16 chunks.

mod prefill;

use dunlin_protocol::load::{Measured, RECENT_MODELS};
use prefill::Prefill;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Weight of the newest value in an average: about the last ten requests count.
const WEIGHT: f64 = 0.2;
/// A value this many times the average counts as no more: one request that hung is not the engine's speed. A speed that
/// has really changed gets through all the same, a few requests later.
const OUTLIER: f64 = 4.0;
/// Chunks between two looks at a stream's inter-token latency.
const STRIDE: u32 = 16;
/// A client that hangs up sooner without having got anything says nothing about the engine.
const PATIENCE: Duration = Duration::from_secs(5);
/// Window of the chunk rate.
const WINDOW: Duration = Duration::from_secs(1);
/// Samples in the window; the reporter takes one each 100 ms.
const SAMPLES: usize = 16;
/// Averages without a new value for so long are forgotten. A replica that was slow once, and so gets no requests any
/// more, counts as unmeasured then, and is tried again.
const MEMORY: Duration = Duration::from_secs(60);

/// Counts and averages of one replica.
#[derive(Debug, Default)]
pub struct Counters {
    chunks: AtomicU64,
    answers: AtomicU64,
    chunks_per_s: AtomicU32,
    /// Streams that have begun and not ended.
    streams: AtomicU32,
    /// Requests of which nothing has come, and the KiB that are to be prefilled for them.
    unstarted: AtomicU32,
    unstarted_kib: AtomicU32,
    in_flight_kib: AtomicU32,
    averages: Mutex<Averages>,
}

#[derive(Debug, Default)]
struct Averages {
    ttft: Average,
    itl: Average,
    service: Average,
    prefill: Prefill,
    /// When the last value came.
    newest: Option<Instant>,
    rate: VecDeque<(Instant, u64)>,
    /// Since when the streams that have begun say nothing.
    silent_since: Option<Instant>,
    silent: Duration,
    recent: [u32; RECENT_MODELS],
}

#[derive(Debug, Default, Clone, Copy)]
struct Average(Option<f64>);

impl Average {
    fn add(&mut self, value: Duration) {
        let value = value.as_secs_f64() * 1e6;
        self.0 = Some(self.0.map_or(value, |old| old + WEIGHT * (value.min(old * OUTLIER) - old)));
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
            first_token_us: averages.prefill.first_token().map(micros),
            prefill_us_per_kib: averages.prefill.per_kib().map(micros),
            in_flight_kib: self.in_flight_kib.load(Ordering::Relaxed),
            unstarted_kib: self.unstarted_kib.load(Ordering::Relaxed),
            silent_ms: u16::try_from(averages.silent.as_millis()).unwrap_or(u16::MAX),
            recent: averages.recent,
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

    /// Brings the chunk rate and the silence up to date. Called regularly, each 100 ms.
    pub fn sample(&self, now: Instant) {
        let total = self.chunks();
        let mut averages = self.averages();
        averages.listen(total, self.streams.load(Ordering::Relaxed), now);
        averages.forget(now);
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

impl Averages {
    /// Streams that have begun and say nothing are the sign of an engine that hangs.
    fn listen(&mut self, total: u64, streams: u32, now: Instant) {
        let spoke = self.rate.back().is_none_or(|(_, before)| *before != total);
        if streams == 0 || spoke {
            self.silent_since = None;
        }
        let since = self.rate.back().map_or(now, |(at, _)| *at);
        self.silent = match self.silent_since {
            _ if streams == 0 || spoke => Duration::ZERO,
            known => now.duration_since(*self.silent_since.insert(known.unwrap_or(since))),
        };
    }

    fn forget(&mut self, now: Instant) {
        if self.newest.take_if(|newest| now.saturating_duration_since(*newest) > MEMORY).is_some() {
            (self.ttft, self.itl, self.service) = Default::default();
            self.prefill = Prefill::default();
        }
    }
}

/// Saturates.
fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// What is measured of one request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request {
    /// Size of the prompt, KiB.
    pub kib: u32,
    /// KiB of it that are new to the engine, as far as the proxy knows; `None` where it can't be seen when they are
    /// prefilled, because the answer comes in one piece.
    pub new_kib: Option<u32>,
    /// Whether that is too uncertain to measure by.
    pub guess: bool,
    /// Whether it tells how fast the engine is: what takes no slot, such as `/tokenize`, does not.
    pub measures: bool,
    /// [`dunlin_protocol::load::model_tag`] of the model asked for; 0 where there is none.
    pub model: u32,
}

/// The measuring of one request.
#[derive(Debug)]
pub struct Meter {
    counters: Arc<Counters>,
    request: Request,
    started: Instant,
    /// Whether no other request was being prefilled when this one came.
    alone: bool,
    ended: bool,
    chunks: u32,
    /// Start of the stride.
    mark: Instant,
    marked: u32,
}

impl Meter {
    /// The request goes to the engine.
    #[must_use]
    pub fn start(counters: Arc<Counters>, request: Request, now: Instant) -> Self {
        let alone = counters.unstarted.fetch_add(1, Ordering::Relaxed) == 0;
        counters.unstarted_kib.fetch_add(request.new_kib.unwrap_or(0), Ordering::Relaxed);
        counters.in_flight_kib.fetch_add(request.kib, Ordering::Relaxed);
        counters.averages().served(request.model);
        Self { counters, request, started: now, alone, ended: false, chunks: 0, mark: now, marked: 0 }
    }

    /// A chunk of a stream passes.
    pub fn chunk(&mut self, now: Instant) {
        self.counters.chunks.fetch_add(1, Ordering::Relaxed);
        self.chunks = self.chunks.saturating_add(1);
        if self.chunks == 1 {
            self.first_chunk(now);
        } else if self.chunks - self.marked == STRIDE {
            self.inter_token(now);
        }
    }

    fn first_chunk(&mut self, now: Instant) {
        self.begin();
        self.counters.streams.fetch_add(1, Ordering::Relaxed);
        let ttft = now.duration_since(self.started);
        (self.mark, self.marked) = (now, 1);
        if !self.request.measures {
            return;
        }
        let mut averages = self.counters.averages();
        averages.ttft.add(ttft);
        if let Some(kib) = self.request.new_kib.filter(|_| !self.request.guess) {
            averages.prefill.add(kib, ttft, self.alone);
        }
        averages.newest = Some(now);
    }

    /// The engine answers with an error: that tells nothing of how fast it is either.
    pub fn failed(&mut self) {
        self.request.measures = false;
    }

    /// It isn't waited for any more.
    fn begin(&self) {
        self.counters.unstarted.fetch_sub(1, Ordering::Relaxed);
        self.counters.unstarted_kib.fetch_sub(self.request.new_kib.unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether the client waited in vain, and so long that the engine is to blame: to be asked when a client hangs up.
    #[must_use]
    pub fn was_abandoned(&self, now: Instant) -> bool {
        self.chunks == 0 && now.duration_since(self.started) >= PATIENCE
    }

    fn inter_token(&mut self, now: Instant) {
        let gaps = self.chunks - self.marked;
        if gaps > 0 && self.request.measures {
            self.counters.averages().itl.add(now.duration_since(self.mark) / gaps);
            (self.mark, self.marked) = (now, self.chunks);
        }
    }

    /// The answer ended as it should.
    pub fn finish(&mut self, now: Instant) {
        // The stream's end comes with its last chunk; a short stream has no stride to tell.
        if self.chunks > 1 && self.marked == 1 {
            self.inter_token(now);
        }
        self.counters.answers.fetch_add(1, Ordering::Relaxed);
        if self.request.measures {
            let mut averages = self.counters.averages();
            averages.service.add(now.duration_since(self.started));
            averages.newest = Some(now);
        }
        self.end();
    }

    fn end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.counters.in_flight_kib.fetch_sub(self.request.kib, Ordering::Relaxed);
        if self.chunks == 0 {
            self.begin();
        } else {
            self.counters.streams.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.end();
    }
}

impl Averages {
    fn served(&mut self, model: u32) {
        if model == 0 || self.recent[0] == model {
            return;
        }
        let last = RECENT_MODELS - 1;
        let at = self.recent.iter().position(|known| *known == model).unwrap_or(last);
        self.recent[..=at].rotate_right(1);
        self.recent[0] = model;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const MS: Duration = Duration::from_millis(1);

    fn start_at(counters: &Arc<Counters>, now: Instant) -> Meter {
        Meter::start(counters.clone(), Request { kib: 6, new_kib: Some(4), measures: true, ..Request::default() }, now)
    }

    #[test]
    fn a_stream_tells_all_three() {
        let (counters, start) = (Arc::<Counters>::default(), Instant::now());
        assert_eq!(counters.measured(), Measured::default());
        let mut meter = start_at(&counters, start);
        for n in 0..40 {
            meter.chunk(start + 50 * MS + n * 10 * MS);
        }
        // Long streams tell before they end.
        assert_eq!(counters.measured().itl_us, Some(10_000));
        meter.finish(start + 440 * MS);
        let measured = counters.measured();
        assert_eq!((measured.ttft_us, measured.itl_us), (Some(50_000), Some(10_000)));
        assert_eq!(measured.service_us, Some(440_000));
        assert_eq!((counters.chunks(), counters.signs_of_life()), (40, 41));
    }

    #[test]
    fn a_unary_answer_has_no_time_to_first_token() {
        let (counters, start) = (Arc::<Counters>::default(), Instant::now());
        start_at(&counters, start).finish(start + 7 * MS);
        let measured = counters.measured();
        assert_eq!((measured.ttft_us, measured.itl_us, measured.service_us), (None, None, Some(7_000)));
    }

    #[test]
    fn what_has_no_slot_and_what_fails_tells_nothing_of_the_engines_speed() {
        let (counters, start) = (Arc::<Counters>::default(), Instant::now());
        Meter::start(counters.clone(), Request::default(), start).finish(start + MS);
        for chunks in 0..3 {
            let mut meter = start_at(&counters, start);
            meter.failed();
            (0..chunks).for_each(|_| meter.chunk(start + MS));
            meter.finish(start + MS);
        }
        let measured = counters.measured();
        assert_eq!((measured.ttft_us, measured.itl_us, measured.service_us), (None, None, None));
        assert_eq!(counters.signs_of_life(), 7, "it lives, though");
    }

    #[test]
    fn who_gives_up_after_a_while_tells_of_a_hanging_engine() {
        let (counters, start) = (Arc::<Counters>::default(), Instant::now());
        let mut meter = start_at(&counters, start);
        assert!(!meter.was_abandoned(start + PATIENCE - MS) && meter.was_abandoned(start + PATIENCE));
        meter.chunk(start + MS);
        assert!(!meter.was_abandoned(start + PATIENCE));
    }

    #[test]
    fn averages_follow() {
        let (counters, start) = (Arc::<Counters>::default(), Instant::now());
        for duration in [100, 100, 200] {
            start_at(&counters, start).finish(start + duration * MS);
        }
        assert_eq!(counters.measured().service_us, Some(120_000));
    }

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        let (counters, start) = (Arc::<Counters>::default(), Instant::now());
        let mut meter = start_at(&counters, start);
        for tenth in 0..30 {
            counters.sample(start + 100 * MS * tenth);
            for _ in 0..5 {
                meter.chunk(start);
            }
        }
        assert_eq!(counters.measured().chunks_per_s, 50);
        for tenth in 30..60 {
            counters.sample(start + 100 * MS * tenth);
        }
        assert_eq!(counters.measured().chunks_per_s, 0);
        assert!(counters.averages().rate.capacity() <= SAMPLES * 2);
    }

    #[test]
    fn streams_that_have_begun_and_say_nothing_are_noticed() {
        let (counters, start) = (Arc::<Counters>::default(), Instant::now());
        let mut meter = start_at(&counters, start);
        let silent = |counters: &Counters, at| {
            counters.sample(start + at * MS);
            counters.measured().silent_ms
        };
        assert_eq!((silent(&counters, 0), silent(&counters, 100)), (0, 0), "a prompt may take its time");
        meter.chunk(start + 150 * MS);
        assert_eq!((silent(&counters, 200), silent(&counters, 300), silent(&counters, 900)), (0, 100, 700));
        meter.chunk(start + 950 * MS);
        assert_eq!(silent(&counters, 1000), 0);
        assert_eq!(silent(&counters, 1100), 100);
        drop(meter);
        assert_eq!(silent(&counters, 1200), 0, "nobody listens");
    }

    #[test]
    fn what_waits_for_its_first_token_is_known() {
        let (counters, start) = (Arc::<Counters>::default(), Instant::now());
        let (mut one, two) = (start_at(&counters, start), start_at(&counters, start));
        assert_eq!((counters.measured().unstarted_kib, counters.measured().in_flight_kib), (8, 12));
        one.chunk(start);
        assert_eq!((counters.measured().unstarted_kib, counters.measured().in_flight_kib), (4, 12));
        one.finish(start);
        drop((one, two));
        assert_eq!((counters.measured().unstarted_kib, counters.measured().in_flight_kib), (0, 0));
        assert_eq!((counters.streams.load(Ordering::Relaxed), counters.unstarted.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn the_models_served_last_are_known_latest_first() {
        let counters = Arc::<Counters>::default();
        for model in [1, 2, 3, 2, 4, 5, 0] {
            drop(Meter::start(counters.clone(), Request { model, ..Request::default() }, Instant::now()));
        }
        assert_eq!(counters.measured().recent, [5, 4, 2, 3]);
    }

    /// Else one bad measurement would keep requests away for ever, and with them any better one.
    #[test]
    fn old_measurements_are_forgotten() {
        let (counters, start) = (Arc::<Counters>::default(), Instant::now());
        start_at(&counters, start).finish(start + 7 * MS);
        counters.sample(start + MEMORY);
        assert!(counters.measured().service_us.is_some());
        counters.sample(start + MEMORY + 8 * MS);
        assert_eq!(counters.measured(), Measured::default());
    }
}
