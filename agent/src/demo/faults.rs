//! Faults on demand: what engines do when they break, settable at start and, through `POST /demo/faults`, at run time.

use super::text::mix;
use serde::{Deserialize, Serialize};
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// What goes wrong. The default is nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Requests are accepted and never answered: no headers.
    pub hang_before_headers: bool,
    /// Streams begin with headers, and nothing follows.
    pub hang_after_headers: bool,
    /// Answers stop after so many tokens of their own; requests that aren't streams die without headers.
    pub die_after_tokens: Option<u32>,
    /// How they stop.
    pub death: Death,
    /// Share of inference requests, 0 to 1, that fail with `error_status`.
    pub error_rate: f64,
    /// A status of 500 to 599.
    pub error_status: u16,
    /// Which requests fail follows from this number and their order.
    pub seed: u64,
    /// Inference requests that a fault may still strike, `None` for any number.
    pub times: Option<u32>,
    /// Added to each read of `/metrics`, milliseconds.
    pub metrics_delay_ms: u64,
    /// `/metrics` answers 404.
    pub no_metrics: bool,
    /// `/health` answers 503.
    pub unhealthy: bool,
}

/// How an answer stops in the middle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Death {
    /// The connection is reset.
    #[default]
    Reset,
    /// The connection is closed, the body unfinished.
    Close,
    /// The body ends as if it were whole, with no terminal event.
    CleanEnd,
    /// The stream stays open, and nothing more comes.
    Hang,
    /// The process exits with status 1. Only where an engine has its own.
    Exit,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            hang_before_headers: false,
            hang_after_headers: false,
            die_after_tokens: None,
            death: Death::Reset,
            error_rate: 0.0,
            error_status: 500,
            seed: 0,
            times: None,
            metrics_delay_ms: 0,
            no_metrics: false,
            unhealthy: false,
        }
    }
}

/// Why faults can't be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a share.
    #[error("`error_rate` must be between 0 and 1")]
    Rate,
    /// A status that isn't a server's error.
    #[error("`error_status` must be between 500 and 599")]
    Status,
    /// Ending the process would end more than the engine.
    #[error("`death: exit` needs an engine with a process of its own: `dunlin demo-engine`")]
    MayNotExit,
}

impl Faults {
    /// Checks the values.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn check(&self, may_exit: bool) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&self.error_rate) {
            return Err(Error::Rate);
        }
        if !(500..=599).contains(&self.error_status) {
            return Err(Error::Status);
        }
        if self.death == Death::Exit && !may_exit {
            return Err(Error::MayNotExit);
        }
        Ok(())
    }

    /// What strikes request number `number`.
    fn strike(&self, number: u64) -> Option<Strike> {
        // 53 bits: as many as a double holds exactly.
        #[expect(clippy::cast_precision_loss, reason = "both numbers are at most 2^53")]
        let draw = (mix(self.seed ^ mix(number)) >> 11) as f64 / (1u64 << 53) as f64;
        if draw < self.error_rate {
            return Some(Strike::Status(self.error_status));
        }
        if self.hang_before_headers {
            return Some(Strike::HangBeforeHeaders);
        }
        if self.hang_after_headers {
            return Some(Strike::Die { after: 0, death: Death::Hang, before_role: true });
        }
        self.die_after_tokens.map(|after| Strike::Die { after, death: self.death, before_role: false })
    }
}

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strike {
    /// An error from the engine.
    Status(u16),
    /// Silence.
    HangBeforeHeaders,
    /// An answer that stops.
    Die {
        /// Own tokens before it.
        after: u32,
        /// How.
        death: Death,
        /// Whether not even a stream's first, empty chunk is sent.
        before_role: bool,
    },
}

/// The faults of a running engine.
#[derive(Debug, Default)]
pub(super) struct Switch {
    faults: Mutex<Faults>,
    requests: AtomicU64,
}

impl Switch {
    pub(super) fn new(faults: Faults) -> Self {
        Self { faults: Mutex::new(faults), requests: AtomicU64::new(0) }
    }

    pub(super) fn get(&self) -> Faults {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the faults; the seeded order starts again.
    pub(super) fn set(&self, faults: Faults) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
        self.requests.store(0, Relaxed);
    }

    /// What strikes the next inference request.
    pub(super) fn strike(&self) -> Option<Strike> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.times == Some(0) {
            return None;
        }
        let strike = faults.strike(self.requests.fetch_add(1, Relaxed))?;
        faults.times = faults.times.map(|times| times.saturating_sub(1));
        Some(strike)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_met_and_the_seed_decides_which() {
        let run = |seed| {
            let faults = Faults { error_rate: 0.2, seed, ..Faults::default() };
            let switch = Switch::new(faults);
            (0..1000).map(|_| switch.strike().is_some()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let failed = run(3).into_iter().filter(|&failed| failed).count();
        assert!((150..250).contains(&failed), "{failed} of 1000 failed at a rate of 0.2");
    }

    #[test]
    fn a_fault_strikes_so_many_times() {
        let switch = Switch::new(Faults { hang_before_headers: true, times: Some(2), ..Faults::default() });
        let strikes = (0..5).filter(|_| switch.strike().is_some()).count();
        assert_eq!(strikes, 2);
    }

    #[test]
    fn an_embedded_engine_does_not_end_the_process() {
        let faults = Faults { death: Death::Exit, ..Faults::default() };
        assert_eq!(faults.check(false), Err(Error::MayNotExit));
        assert_eq!(faults.check(true), Ok(()));
    }
}
