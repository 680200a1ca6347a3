//! What this proxy remembers of one replica.

use crate::{
    eject::Breaker,
    route::{Own, Standing},
};
use dunlin_protocol::id::{ModelId, ReplicaId};
use http::HeaderValue;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How long a replica that refused as `full` is taken for full, unless one of our own requests ends there.
const REFUSED: Duration = Duration::from_millis(50);
/// How long a replica that refused a model as not served is left out for that model: its announcement is on its way.
const LACKING: Duration = Duration::from_secs(5);
/// Such models that are remembered per replica.
const LACKED: usize = 64;
/// Sends and ends that are remembered per replica while no report comes.
const SINCE_REPORT: usize = 1024;

/// What is remembered of one replica.
#[derive(Debug)]
pub(super) struct Record {
    /// The replica, as a header's value: written once, not per request.
    pub(super) name: HeaderValue,
    in_flight: u32,
    /// When requests were sent and ended, as far as the newest report can't count them.
    sent: VecDeque<Instant>,
    ended: VecDeque<Instant>,
    refused: Option<Instant>,
    lacked: VecDeque<(ModelId, Instant)>,
    /// Its failures.
    pub(super) breaker: Breaker,
}

impl Record {
    /// Nothing is known of `replica` yet.
    pub(super) fn new(replica: ReplicaId) -> Self {
        Self {
            // A peer id and a number: always a header value.
            name: HeaderValue::try_from(replica.to_string()).unwrap_or(HeaderValue::from_static("?")),
            in_flight: 0,
            sent: VecDeque::new(),
            ended: VecDeque::new(),
            refused: None,
            lacked: VecDeque::new(),
            breaker: Breaker::default(),
        }
    }

    /// A request goes there.
    pub(super) fn start(&mut self, now: Instant) {
        self.in_flight += 1;
        note(&mut self.sent, now);
    }

    /// A request has ended, one way or the other.
    pub(super) fn end(&mut self, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        note(&mut self.ended, now);
        // There is a slot free now.
        self.refused = None;
    }

    /// It refused a request for being full.
    pub(super) fn refuse(&mut self, now: Instant) {
        self.refused = Some(now);
    }

    /// It refused a request for not serving `model`.
    pub(super) fn lacks(&mut self, model: &ModelId, now: Instant) {
        self.lacked.retain(|(lacked, since)| lacked != model && now.saturating_duration_since(*since) < LACKING);
        if self.lacked.len() >= LACKED {
            self.lacked.pop_front();
        }
        self.lacked.push_back((model.clone(), now));
    }

    fn lacked(&self, model: &ModelId, now: Instant) -> bool {
        self.lacked.iter().any(|(lacked, since)| lacked == model && now.saturating_duration_since(*since) < LACKING)
    }

    /// Whether little is lost by forgetting it.
    pub(super) fn is_forgettable(&self) -> bool {
        self.in_flight == 0 && self.breaker.is_clean()
    }

    /// What is known at `now` of its serving `model`, when the newest report came at `received`.
    pub(super) fn own(&mut self, model: &ModelId, received: Option<Instant>, now: Instant) -> Own {
        if let Some(received) = received {
            forget(&mut self.sent, received);
            forget(&mut self.ended, received);
        }
        Own {
            in_flight: self.in_flight,
            sent_since: u32::try_from(self.sent.len()).unwrap_or(u32::MAX),
            ended_since: u32::try_from(self.ended.len()).unwrap_or(u32::MAX),
            refused: self.refused.is_some_and(|at| now.saturating_duration_since(at) < REFUSED),
            standing: if self.lacked(model, now) { Standing::Ejected } else { self.breaker.standing(now) },
        }
    }
}

fn note(times: &mut VecDeque<Instant>, now: Instant) {
    if times.len() >= SINCE_REPORT {
        times.pop_front();
    }
    times.push_back(now);
}

fn forget(times: &mut VecDeque<Instant>, until: Instant) {
    while times.front().is_some_and(|time| *time <= until) {
        times.pop_front();
    }
}
