//! What this proxy remembers of one replica.

use super::affinity::Number;
use crate::{
    eject::Breaker,
    prompt,
    route::{Held, Own, Reported, Standing},
};
use dunlin_protocol::id::{ModelId, ReplicaId};
use http::HeaderValue;
use rand::{Rng, RngExt};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How long a replica that refused as `full` is taken for full, unless one of our own requests ends there; up to half of
/// it less by chance, so that proxies that were refused together don't come back together.
const REFUSED: Duration = Duration::from_millis(50);
/// How long a replica that refused a model as not served is left out for that model: its announcement is on its way.
const LACKING: Duration = Duration::from_secs(5);
/// Such models that are remembered per replica.
const LACKED: usize = 64;
/// How long a report may have been on its way, at usual rates.
const ON_ITS_WAY: Duration = Duration::from_millis(100);
/// Changes that are remembered per replica.
const HISTORY: usize = 256;

/// A request of which nothing has come.
#[derive(Debug, Clone, Copy)]
struct Unanswered {
    since: Instant,
    new_kib: u32,
}

/// What a replica had of ours until some moment.
#[derive(Debug, Clone, Copy)]
struct Past {
    until: Instant,
    had: Reported,
}

/// What is remembered of one replica.
#[derive(Debug)]
pub(super) struct Record {
    /// The replica, as a header's value: written once, not per request.
    pub(super) name: HeaderValue,
    /// Its number in the index of prompts.
    pub(super) number: Number,
    /// What it has of ours.
    has: Reported,
    /// What is its own in hashes that all proxies share.
    pub(super) hash: u64,
    /// Requests of which nothing has come, in order.
    unanswered: VecDeque<Unanswered>,
    /// What it had of ours, latest last: what a report that was on its way then may have counted.
    history: VecDeque<Past>,
    /// Until when it is taken for full.
    refused: Option<Instant>,
    lacked: VecDeque<(ModelId, Instant)>,
    /// Its failures.
    pub(super) breaker: Breaker,
}

impl Record {
    /// Nothing is known of `replica` yet.
    pub(super) fn new(replica: ReplicaId, number: Number) -> Self {
        Self {
            // A peer id and a number: always a header value.
            name: HeaderValue::try_from(replica.to_string()).unwrap_or(HeaderValue::from_static("?")),
            number,
            has: Reported::default(),
            hash: prompt::hash(replica.to_string()),
            unanswered: VecDeque::new(),
            history: VecDeque::new(),
            refused: None,
            lacked: VecDeque::new(),
            breaker: Breaker::default(),
        }
    }

    /// A request of `kib` goes there, of which `new_kib` are to be prefilled; `None` where its first token can't be seen.
    pub(super) fn start(&mut self, kib: u32, new_kib: Option<u32>, now: Instant) {
        self.note(now);
        self.has.in_flight += 1;
        self.has.in_flight_kib = self.has.in_flight_kib.saturating_add(kib);
        if let Some(new_kib) = new_kib {
            self.has.unstarted_kib = self.has.unstarted_kib.saturating_add(new_kib);
            self.unanswered.push_back(Unanswered { since: now, new_kib });
        }
    }

    /// Something has come of a request that started at `since` with `new_kib`, or it has ended without.
    pub(super) fn begin(&mut self, since: Instant, new_kib: Option<u32>, now: Instant) {
        let Some(new_kib) = new_kib else { return };
        let found = self.unanswered.iter().position(|one| one.since == since && one.new_kib == new_kib);
        if let Some(at) = found {
            self.note(now);
            self.unanswered.remove(at);
            self.has.unstarted_kib = self.has.unstarted_kib.saturating_sub(new_kib);
        }
    }

    /// A request of `kib` has ended, one way or the other.
    pub(super) fn end(&mut self, kib: u32, now: Instant) {
        self.note(now);
        self.has.in_flight = self.has.in_flight.saturating_sub(1);
        self.has.in_flight_kib = self.has.in_flight_kib.saturating_sub(kib);
        // There is a slot free now.
        self.refused = None;
    }

    /// Remembers what there was until now.
    fn note(&mut self, now: Instant) {
        if self.history.len() >= HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(Past { until: now, had: self.has });
    }

    /// It refused a request for being full.
    pub(super) fn refuse(&mut self, now: Instant, rng: &mut impl Rng) {
        self.refused = Some(now + REFUSED.mul_f64(1.0 - rng.random::<f64>() / 2.0));
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
        !self.is_busy() && self.breaker.is_clean()
    }

    /// Whether it has requests of ours.
    pub(super) fn is_busy(&self) -> bool {
        self.has.in_flight > 0
    }

    /// What is known at `now` of its serving `model`, when the newest report came at `received`.
    pub(super) fn own(&mut self, model: &ModelId, received: Option<Instant>, now: Instant) -> Own {
        let reported = self.most_since(received.and_then(|at| at.checked_sub(ON_ITS_WAY)), received);
        let oldest = self.unanswered.front().map(|one| now.saturating_duration_since(one.since));
        Own {
            in_flight: self.has.in_flight,
            in_flight_kib: self.has.in_flight_kib,
            unstarted_kib: self.has.unstarted_kib,
            reported,
            unanswered: oldest.unwrap_or_default(),
            cached_kib: 0.0,
            home_kib: 0.0,
            held: Held::Nothing,
            refused: self.refused.is_some_and(|until| now < until),
            standing: if self.lacked(model, now) { Standing::Ejected } else { self.breaker.standing(now) },
        }
    }

    /// What it had of ours at most between the two moments.
    fn most_since(&mut self, from: Option<Instant>, to: Option<Instant>) -> Reported {
        let (Some(from), Some(to)) = (from, to) else { return self.has };
        while self.history.front().is_some_and(|past| past.until < from) {
            self.history.pop_front();
        }
        // What it has now counts as well, if that was so before the report came.
        let changed_since = self.history.back().is_some_and(|past| past.until > to);
        let mut most = if changed_since { Reported::default() } else { self.has };
        let mut begins = None;
        for Past { until, had } in &self.history {
            if begins.is_none_or(|begins| begins <= to) {
                most.in_flight = most.in_flight.max(had.in_flight);
                most.in_flight_kib = most.in_flight_kib.max(had.in_flight_kib);
                most.unstarted_kib = most.unstarted_kib.max(had.unstarted_kib);
            }
            begins = Some(*until);
        }
        most
    }
}
