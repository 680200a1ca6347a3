//! When the engine is started and ended. Pure.
//!
//! The agent decides. Where there is none for a while, the shim does as an agent would: an engine that runs is of use
//! again as soon as its agent is back.

use crate::supervise::backoff::{self, Backoff};
use dunlin_protocol::{
    pod::{EngineProcess, EngineState, Stop, ToShim, bounded},
    runtime::{Drain, StopSignal},
};
use rand::Rng;
use rustix::process::Signal;
use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// An agent that is there says within a minute and some when the engine is started: silence is its fault.
const SILENT_AFTER: Duration = Duration::from_secs(120);
/// What an agent gets beyond its own time to finish requests.
const DRAIN_LEEWAY: Duration = Duration::from_secs(2);

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Start the engine.
    Start,
    /// Send this to its process group.
    Signal(Signal),
    /// End the shim.
    End,
}

#[derive(Debug, Clone)]
enum Process {
    Waiting { since: Instant },
    Running { pid: u32, since: Instant },
    Ended { how: String, at: Instant, pause: Duration },
}

/// The state of a shim.
#[derive(Debug)]
pub(super) struct Life {
    alone_after: Duration,
    run: u32,
    process: Process,
    backoff: Backoff,
    /// `None` while an agent is connected.
    alone_since: Option<Instant>,
    manners: Stop,
    drain: Duration,
    /// The run that the agent wants started.
    wanted: Option<u32>,
    /// Until when the agent may finish requests, once the shim was told to end.
    stopping: Option<Instant>,
    /// When the engine is killed that was asked to end.
    kill_at: Option<Instant>,
    acts: VecDeque<Act>,
}

impl Life {
    pub(super) fn new(alone_after: Duration, now: Instant) -> Self {
        let drain = Drain::default();
        Self {
            alone_after,
            run: 0,
            process: Process::Waiting { since: now },
            backoff: Backoff::default(),
            alone_since: Some(now),
            manners: Stop { signal: drain.signal, grace_ms: drain.grace_s * 1000 },
            drain: Duration::ZERO,
            wanted: None,
            stopping: None,
            kill_at: None,
            acts: VecDeque::new(),
        }
    }

    /// As the agent is told.
    pub(super) fn state(&self, now: Instant) -> EngineState {
        let process = match &self.process {
            Process::Waiting { .. } => EngineProcess::Waiting,
            Process::Running { pid, .. } => EngineProcess::Running { pid: *pid },
            Process::Ended { how, at, .. } => EngineProcess::Ended {
                how: bounded(how),
                failures: self.backoff.failures(),
                // Whole seconds, so that the same end looks the same for a while.
                ago_ms: now.duration_since(*at).as_secs() * 1000,
            },
        };
        EngineState { run: self.run, process, stopping: self.stopping.is_some() }
    }

    pub(super) fn connected(&mut self, _now: Instant) {
        self.alone_since = None;
    }

    pub(super) fn lost(&mut self, now: Instant) {
        self.alone_since = Some(now);
        self.wanted = None;
        if self.stopping.is_some() {
            // With the agent went its requests.
            self.end_engine(self.manners, now);
        }
    }

    pub(super) fn heard(&mut self, message: ToShim, now: Instant) {
        match message {
            ToShim::Manners { stop, drain_ms } => {
                (self.manners, self.drain) = (stop, Duration::from_millis(drain_ms));
            }
            ToShim::Kept(_) => {}
            ToShim::Start(run) => self.wanted = Some(run),
            ToShim::Stop { run, stop } if run == self.run => self.end_engine(stop, now),
            ToShim::Stop { .. } => {}
            ToShim::Drained(stop) if self.stopping.is_some() => self.end_engine(stop, now),
            ToShim::Drained(_) => {}
        }
    }

    /// The shim is told to end; told twice, it doesn't wait for requests.
    pub(super) fn stop(&mut self, now: Instant) {
        let is_first = self.stopping.is_none();
        let until = now + self.drain.saturating_add(DRAIN_LEEWAY).min(LONGEST_DRAIN);
        self.stopping.get_or_insert(until);
        if !is_first || self.alone_since.is_some() {
            self.end_engine(self.manners, now);
        }
    }

    pub(super) fn started(&mut self, pid: u32, now: Instant) {
        self.process = Process::Running { pid, since: now };
    }

    /// The engine ended, or could not be started.
    pub(super) fn ended(&mut self, how: String, rng: &mut impl Rng, now: Instant) {
        let ran = match self.process {
            Process::Running { since, .. } => now.duration_since(since),
            _ => Duration::ZERO,
        };
        self.backoff.count(ran);
        let pause = backoff::pause(self.backoff.failures(), rng);
        self.process = Process::Ended { how, at: now, pause };
        self.kill_at = None;
    }

    fn end_engine(&mut self, stop: Stop, now: Instant) {
        if !matches!(self.process, Process::Running { .. }) || self.kill_at.is_some() {
            return;
        }
        self.acts.push_back(Act::Signal(match stop.signal {
            StopSignal::Term => Signal::TERM,
            StopSignal::Int => Signal::INT,
        }));
        self.kill_at = Some(now + Duration::from_millis(stop.grace_ms).min(LONGEST_DRAIN));
    }

    /// What is to be done now, one after the other.
    pub(super) fn act(&mut self, now: Instant) -> Option<Act> {
        if let Some(act) = self.acts.pop_front() {
            return Some(act);
        }
        if let Process::Running { .. } = self.process {
            if self.kill_at.is_some_and(|at| now >= at) {
                // Should even that not end it, again in a while.
                self.kill_at = Some(now + KILL_AGAIN);
                return Some(Act::Signal(Signal::KILL));
            }
            if self.kill_at.is_none() && self.stopping.is_some_and(|until| now >= until) {
                self.end_engine(self.manners, now);
                return self.acts.pop_front();
            }
            return None;
        }
        if self.stopping.is_some() {
            return Some(Act::End);
        }
        let next = self.run.saturating_add(1);
        let wanted = self.wanted.take_if(|run| *run == next).is_some();
        if wanted || self.alone_start().is_some_and(|at| now >= at) {
            self.run = next;
            // Should it fail to start, it has ended at once.
            self.process = Process::Waiting { since: now };
            return Some(Act::Start);
        }
        None
    }

    /// When it is started without anybody saying so.
    fn alone_start(&self) -> Option<Instant> {
        let (since, pause) = match &self.process {
            Process::Running { .. } => return None,
            Process::Waiting { since } => (*since, Duration::ZERO),
            Process::Ended { at, pause, .. } => (*at, *pause),
        };
        Some(match self.alone_since {
            Some(alone) => (since + pause).max(alone + self.alone_after),
            None => since + SILENT_AFTER,
        })
    }

    /// When something is to be done that nobody asks for.
    pub(super) fn next(&self) -> Option<Instant> {
        match self.process {
            Process::Running { .. } => self.kill_at.or(self.stopping),
            _ => self.alone_start(),
        }
    }
}

/// Longest that anybody may make a pod wait.
const LONGEST_DRAIN: Duration = Duration::from_secs(86_400);
/// Between two SIGKILLs.
const KILL_AGAIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::SmallRng};

    const SECOND: Duration = Duration::from_secs(1);
    const STOP: Stop = Stop { signal: StopSignal::Int, grace_ms: 3_000 };

    struct Case {
        life: Life,
        now: Instant,
        rng: SmallRng,
    }

    impl Case {
        /// A shim whose agent wants at most ten seconds for its requests.
        fn with_agent() -> Self {
            let mut case = Self::alone();
            case.life.connected(case.now);
            case.life.heard(ToShim::Manners { stop: STOP, drain_ms: 10_000 }, case.now);
            case
        }

        fn alone() -> Self {
            let now = Instant::now();
            Self { life: Life::new(SECOND * 10, now), now, rng: SmallRng::seed_from_u64(1) }
        }

        fn after(&mut self, time: Duration) -> Vec<Act> {
            self.now += time;
            std::iter::from_fn(|| self.life.act(self.now)).take(5).collect()
        }

        fn hears(&mut self, message: ToShim) -> Vec<Act> {
            self.life.heard(message, self.now);
            self.after(Duration::ZERO)
        }

        fn running() -> Self {
            let mut case = Self::with_agent();
            assert_eq!(case.hears(ToShim::Start(1)), [Act::Start]);
            case.life.started(7, case.now);
            case
        }

        fn ends(&mut self) {
            self.life.ended("exit status: 1".to_owned(), &mut self.rng, self.now);
        }
    }

    #[tokio::test]
    async fn the_agent_says_when_to_start() {
        let mut case = Case::with_agent();
        assert_eq!(case.after(SECOND * 60), []);
        assert_eq!(case.hears(ToShim::Start(2)), [], "there is no second run before the first");
        assert_eq!(case.hears(ToShim::Start(1)), [Act::Start]);
        case.life.started(7, case.now);
        assert_eq!(case.hears(ToShim::Start(1)), [], "once");
        case.ends();
        assert_eq!(case.hears(ToShim::Start(1)), []);
        assert_eq!(case.hears(ToShim::Start(2)), [Act::Start]);
    }

    #[tokio::test]
    async fn without_an_agent_the_engine_is_started_all_the_same() {
        let mut case = Case::alone();
        assert_eq!(case.after(SECOND * 9), []);
        assert_eq!(case.life.next(), Some(case.now + SECOND));
        assert_eq!(case.after(SECOND)[..1], [Act::Start]);
        case.life.started(7, case.now);
        // An agent that comes and goes changes nothing for an engine that runs.
        case.life.connected(case.now);
        case.life.lost(case.now);
        assert_eq!(case.after(SECOND * 100), []);
        case.ends();
        assert_eq!(case.after(SECOND)[..1], [Act::Start], "alone for long, it waits for the back-off only");
    }

    #[tokio::test]
    async fn an_agent_that_is_there_and_silent_is_not_waited_for_for_ever() {
        let mut case = Case::running();
        case.ends();
        assert_eq!(case.after(SECOND * 119), []);
        assert_eq!(case.after(SECOND), [Act::Start]);
    }

    #[tokio::test]
    async fn ends_in_a_row_are_counted_and_told() {
        let mut case = Case::running();
        for failures in 1..=6 {
            case.ends();
            let state = case.life.state(case.now);
            let EngineProcess::Ended { failures: told, .. } = state.process else { panic!("{state:?}") };
            assert_eq!(told, failures);
            assert_eq!(case.hears(ToShim::Start(state.run + 1)), [Act::Start]);
            case.life.started(7, case.now);
        }
        case.now += SECOND * 61;
        case.ends();
        assert!(matches!(case.life.state(case.now).process, EngineProcess::Ended { failures: 1, .. }));
    }

    #[tokio::test]
    async fn the_last_requests_are_answered_before_the_engine_ends() {
        let mut case = Case::running();
        case.life.stop(case.now);
        assert!(case.life.state(case.now).stopping);
        assert_eq!(case.after(SECOND * 9), []);
        assert_eq!(case.hears(ToShim::Drained(STOP)), [Act::Signal(Signal::INT)]);
        assert_eq!(case.after(SECOND), []);
        case.ends();
        assert_eq!(case.after(Duration::ZERO)[..1], [Act::End]);
    }

    #[tokio::test]
    async fn an_agent_that_does_not_finish_is_not_waited_for_and_neither_is_the_engine() {
        let mut case = Case::running();
        case.life.stop(case.now);
        assert_eq!(case.after(SECOND * 11), []);
        assert_eq!(case.after(SECOND), [Act::Signal(Signal::INT)]);
        assert_eq!(case.after(SECOND * 2), []);
        assert_eq!(case.after(SECOND), [Act::Signal(Signal::KILL)]);
    }

    #[tokio::test]
    async fn told_twice_or_alone_it_ends_the_engine_at_once() {
        let mut twice = Case::running();
        twice.life.stop(twice.now);
        twice.life.stop(twice.now);
        assert_eq!(twice.after(Duration::ZERO), [Act::Signal(Signal::INT)]);
        let mut alone = Case::running();
        alone.life.lost(alone.now);
        alone.life.stop(alone.now);
        assert_eq!(alone.after(Duration::ZERO), [Act::Signal(Signal::INT)]);
        let mut lost = Case::running();
        lost.life.stop(lost.now);
        lost.life.lost(lost.now);
        assert_eq!(lost.after(Duration::ZERO), [Act::Signal(Signal::INT)]);
    }

    #[tokio::test]
    async fn nothing_is_started_once_it_ends() {
        let mut case = Case::with_agent();
        case.life.stop(case.now);
        assert_eq!(case.hears(ToShim::Start(1))[..1], [Act::End]);
    }

    #[tokio::test]
    async fn a_run_that_hangs_is_ended_and_another_left_alone() {
        let mut case = Case::running();
        assert_eq!(case.hears(ToShim::Stop { run: 2, stop: STOP }), []);
        assert_eq!(case.hears(ToShim::Stop { run: 1, stop: STOP }), [Act::Signal(Signal::INT)]);
        case.ends();
        assert_eq!(case.hears(ToShim::Drained(STOP)), [], "it was not told to end");
    }
}
