//! Whether an engine may be sent requests. Pure.
//!
//! Slow is not dead: an engine that streams, or is at work on a long prompt, may miss probes (C11). Well is not alive: an
//! engine whose `/health` is fine leaves when requests fail (C12). Since clients can provoke errors too (llama.cpp answers
//! 500 to an image that it can't read), a run of failures only raises suspicion, and a small request of the agent's own,
//! the *trial*, decides.

use std::time::{Duration, Instant};

/// Refused connections in a row after which an engine is gone.
const ABSENCES: u32 = 2;
/// Missed probes in a row after which an idle engine is out.
const MISSES_IDLE: u32 = 3;
/// The same while it has requests: a prefill of a minute is possible.
const MISSES_BUSY: u32 = 12;
/// Failed requests in a row that call for a trial.
const SUSPICIONS: u32 = 3;
/// First and longest pause between trials of an engine that failed one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What a probe saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// It answers as it should.
    Well,
    /// Nobody listens.
    Absent,
    /// No answer in time, or not a good one.
    Unwell,
}

/// What the engine is doing while a probe goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Nothing for this agent.
    Idle,
    /// It has requests and has said nothing lately.
    Busy,
    /// It answers requests or streams.
    Streaming,
}

/// How a client's request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Answered, be it with a client's error.
    Answered,
    /// No connection, a lost one, a status of 500 and above, or nothing until the client gave up.
    Failed,
}

/// How a trial went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// Answered.
    Passed,
    /// A server error, no connection, or nothing in time while nobody else got anything either.
    Failed,
    /// Nothing came in time, but the engine did other work, as a busy one does.
    Unclear,
}

/// What is known of an engine's health.
#[derive(Debug, Clone, Default)]
pub struct Health {
    well: bool,
    absences: u32,
    misses: u32,
    suspicions: u32,
    suspended: Option<Suspension>,
}

#[derive(Debug, Clone, Copy)]
struct Suspension {
    until: Instant,
    pause: Duration,
}

impl Health {
    /// Whether requests may go there.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.well && self.suspended.is_none()
    }

    /// Whether it is kept out because a trial failed.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspended.is_some()
    }

    /// A probe came to its end.
    pub fn probed(&mut self, probe: Probe, work: Work) {
        match probe {
            Probe::Well => (self.well, self.absences, self.misses) = (true, 0, 0),
            Probe::Absent => {
                self.absences += 1;
                self.well &= self.absences < ABSENCES;
            }
            Probe::Unwell if work == Work::Streaming => self.misses = 0,
            Probe::Unwell => {
                self.misses += 1;
                self.well &= self.misses < if work == Work::Busy { MISSES_BUSY } else { MISSES_IDLE };
            }
        }
    }

    /// A client's request came to its end.
    pub fn saw(&mut self, traffic: Traffic) {
        self.suspicions = match traffic {
            Traffic::Answered => 0,
            Traffic::Failed => self.suspicions.saturating_add(1),
        };
    }

    /// Whether a trial should be made now.
    #[must_use]
    pub fn trial_due(&self, now: Instant) -> bool {
        self.well && self.suspended.map_or(self.suspicions >= SUSPICIONS, |suspension| now >= suspension.until)
    }

    /// A trial came to its end.
    pub fn tried(&mut self, trial: Trial, now: Instant) {
        self.suspicions = 0;
        let pause = match (trial, self.suspended) {
            (Trial::Passed, _) | (Trial::Unclear, None) => {
                self.suspended = None;
                return;
            }
            (Trial::Unclear, Some(suspension)) => suspension.pause,
            (Trial::Failed, Some(suspension)) => (suspension.pause * 2).min(LONGEST_PAUSE),
            (Trial::Failed, None) => FIRST_PAUSE,
        };
        self.suspended = Some(Suspension { until: now + pause, pause });
    }

    /// The engine's process has ended; what comes next is another one.
    pub fn ended(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Health {
        let mut health = Health::default();
        health.probed(Probe::Well, Work::Idle);
        assert!(health.is_ready());
        health
    }
    fn probes_until_out(probe: Probe, work: Work) -> Option<usize> {
        let mut health = ready();
        (1..100).find(|_| {
            health.probed(probe, work);
            !health.is_ready()
        })
    }

    #[test]
    fn nothing_is_ready_before_it_answered() {
        let mut health = Health::default();
        assert!(!health.is_ready());
        health.probed(Probe::Unwell, Work::Idle);
        assert!(!health.is_ready());
    }

    /// C11
    #[test]
    fn slow_is_not_dead() {
        assert_eq!(probes_until_out(Probe::Unwell, Work::Streaming), None);
        assert_eq!(probes_until_out(Probe::Unwell, Work::Busy), Some(12));
        assert_eq!(probes_until_out(Probe::Unwell, Work::Idle), Some(3));
    }

    #[test]
    fn a_refused_connection_is_another_matter() {
        assert_eq!(probes_until_out(Probe::Absent, Work::Busy), Some(2));
    }

    /// C12
    #[test]
    fn failing_requests_lead_to_a_trial_and_out() {
        let (mut health, now) = (ready(), Instant::now());
        for failures in 0..3 {
            assert!(!health.trial_due(now), "{failures}");
            health.saw(Traffic::Failed);
        }
        assert!(health.trial_due(now) && health.is_ready());
        health.tried(Trial::Failed, now);
        health.probed(Probe::Well, Work::Idle);
        assert!(!health.is_ready());
        // Tried again after one second, two, four, ...
        assert!(!health.trial_due(now + Duration::from_millis(900)));
        assert!(health.trial_due(now + FIRST_PAUSE));
        health.tried(Trial::Failed, now);
        assert!(!health.trial_due(now + FIRST_PAUSE) && health.trial_due(now + 2 * FIRST_PAUSE));
        health.tried(Trial::Passed, now);
        assert!(health.is_ready());
    }

    #[test]
    fn a_client_cannot_throw_an_engine_out() {
        let (mut health, now) = (ready(), Instant::now());
        (0..50).for_each(|_| health.saw(Traffic::Failed));
        health.tried(Trial::Passed, now);
        assert!(health.is_ready() && !health.trial_due(now));
        // A busy engine does not answer a trial in time: that decides nothing.
        (0..3).for_each(|_| health.saw(Traffic::Failed));
        health.tried(Trial::Unclear, now);
        assert!(health.is_ready());
        (0..2).for_each(|_| health.saw(Traffic::Failed));
        health.saw(Traffic::Answered);
        health.saw(Traffic::Failed);
        assert!(!health.trial_due(now));
    }

    #[test]
    fn pauses_end_at_a_minute() {
        let (mut health, now) = (ready(), Instant::now());
        (0..40).for_each(|_| health.tried(Trial::Failed, now));
        assert!(health.trial_due(now + LONGEST_PAUSE));
        health.ended();
        assert!(!health.is_ready() && !health.is_suspended());
    }
}
