//! The rounds of one target, together: what it did, and the processor time it took.

use crate::load::{self, Kind, Outcome};
use anyhow::Result;
use std::{net::SocketAddr, time::Duration};

/// One target's rounds together.
#[derive(Default)]
pub struct Sum {
    pub outcome: Outcome,
    /// Processor seconds of what stands between client and engine.
    cpu_s: f64,
    /// Per round, what is counted: requests or chunks a second.
    pub rates: Vec<f64>,
}

impl Sum {
    /// The median of the rounds.
    pub fn rate(&self) -> f64 {
        median(&self.rates)
    }

    /// Processor seconds per so many requests.
    pub fn cpu_s_per(&self, requests: f64) -> f64 {
        self.cpu_s / self.outcome.all_requests as f64 * requests
    }

    /// Runs one more round. `cpu` tells the processor seconds used so far.
    pub fn round(
        &mut self,
        target: SocketAddr,
        request: &[u8],
        kind: Kind,
        clients: usize,
        length: Duration,
        cpu: impl Fn() -> Result<f64>,
    ) -> Result<()> {
        let before = cpu()?;
        let outcome = load::run(target, request, clients, length)?;
        self.cpu_s += cpu()? - before;
        self.rates.push(match kind {
            Kind::Unary => outcome.per_second(),
            Kind::Stream => outcome.events_per_second(),
        });
        self.outcome.add(outcome);
        Ok(())
    }
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
