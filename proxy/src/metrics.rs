//! What the proxy counts, for `/metrics`.
//!
//! Labels are bounded: models only once a replica was found for them, and at most [`MODELS`] of them.

use crate::route::Step;
use dunlin_protocol::{announcement::ReplicaState, id::ModelId, usage::Usage};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};
use std::{
    collections::HashSet,
    fmt::{self, Write},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Models with series of their own; further ones are counted together as `other`.
const MODELS: usize = 256;

/// One series of answered requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    model: ModelLabel,
    status: u16,
    route: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    model: ModelLabel,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabels {
    model: ModelLabel,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

/// A model's name without a copy per request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ModelLabel(Option<ModelId>);

impl EncodeLabelValue for ModelLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(self.0.as_ref().map_or("other", ModelId::as_str))
    }
}

/// All counters of one proxy.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    first_byte: Family<ModelLabels, Histogram, fn() -> Histogram>,
    waited: Histogram,
    retries: Family<CauseLabels, Counter>,
    lost_streams: Family<OutcomeLabels, Counter>,
    tokens: Family<TokenLabels, Counter>,
    auth_failures: Family<CauseLabels, Counter>,
    replicas: Family<StateLabels, Gauge>,
    waiting: Gauge,
    /// Requests that some replica has now.
    pub(crate) in_flight: Gauge,
    /// Clients connected.
    pub(crate) connections: Gauge,
    /// Connections refused because there were too many.
    pub(crate) refused_connections: Counter,
    /// Replicas taken out of rotation.
    pub(crate) ejections: Counter,
    /// Answers that broke off after their first byte.
    pub(crate) broken: Counter,
    models: Mutex<HashSet<ModelId>>,
}

fn first_byte_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.002, 2.0, 17))
}

impl Metrics {
    /// All at zero.
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("dunlin_proxy"),
            requests: Family::default(),
            first_byte: Family::new_with_constructor(first_byte_histogram),
            waited: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            retries: Family::default(),
            lost_streams: Family::default(),
            tokens: Family::default(),
            auth_failures: Family::default(),
            replicas: Family::default(),
            waiting: Gauge::default(),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            refused_connections: Counter::default(),
            ejections: Counter::default(),
            broken: Counter::default(),
            models: Mutex::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        let seconds = Unit::Seconds;
        registry.register("requests", "Answered, by step of the routing ladder", self.requests.clone());
        let help = "From a request's head to its answer's first byte";
        registry.register_with_unit("first_byte", help, seconds.clone(), self.first_byte.clone());
        registry.register_with_unit("slot_wait", "Waited for a free slot", seconds, self.waited.clone());
        registry.register("retries", "Tries after the first, by what ended the one before", self.retries.clone());
        let help = "Streams whose replica was lost in the middle, by what became of them";
        registry.register("lost_streams", help, self.lost_streams.clone());
        let help = "Used, as engines count or, of answers of which none told, estimated";
        registry.register("tokens", help, self.tokens.clone());
        registry.register("auth_failures", "Requests refused for their key", self.auth_failures.clone());
        registry.register("replicas", "Known, by state", self.replicas.clone());
        registry.register("waiting", "Requests that wait for a slot", self.waiting.clone());
        registry.register("requests_in_flight", "Requests that a replica has", self.in_flight.clone());
        registry.register("connections", "Clients connected", self.connections.clone());
        registry.register("refused_connections", "Over the limit", self.refused_connections.clone());
        registry.register("ejections", "Replicas taken out of rotation", self.ejections.clone());
        registry.register("broken_answers", "Broke off after the first byte", self.broken.clone());
    }

    /// A request was answered. `step` is `None` when no replica answered it.
    pub(crate) fn answered(&self, model: Option<&ModelId>, status: http::StatusCode, step: Option<Step>) {
        let labels = RequestLabels {
            model: self.label(model, step.is_some()),
            status: status.as_u16(),
            route: step.map_or("none", Step::as_str),
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// The first byte of an answer is there.
    pub(crate) fn first_byte(&self, model: &ModelId, after: Duration) {
        let labels = ModelLabels { model: self.label(Some(model), true) };
        self.first_byte.get_or_create(&labels).observe(after.as_secs_f64());
    }

    /// A request got the slot that it waited for.
    pub(crate) fn waited(&self, time: Duration) {
        self.waited.observe(time.as_secs_f64());
    }

    /// A request goes to another replica.
    pub(crate) fn retried(&self, cause: &'static str) {
        self.retries.get_or_create(&CauseLabels { cause }).inc();
    }

    /// A stream's replica was lost in the middle of it.
    pub(crate) fn lost_stream(&self, outcome: &'static str) {
        self.lost_streams.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// What a request used.
    pub(crate) fn used(&self, model: &ModelId, usage: Usage) {
        let model = self.label(Some(model), true);
        for (kind, count) in [("prompt", usage.prompt), ("completion", usage.completion), ("cached", usage.cached)] {
            self.tokens.get_or_create(&TokenLabels { model: model.clone(), kind }).inc_by(count);
        }
    }

    /// A request was refused for its key.
    pub(crate) fn auth_failure(&self, cause: &'static str) {
        self.auth_failures.get_or_create(&CauseLabels { cause }).inc();
    }

    /// How many wait for a slot.
    pub(crate) fn set_waiting(&self, count: usize) {
        self.waiting.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The text for Prometheus. `replicas` are the states of all that are known.
    pub(crate) fn encode(&self, replicas: impl Iterator<Item = ReplicaState>) -> String {
        let mut counts = [("ready", 0), ("starting", 0), ("draining", 0), ("unhealthy", 0)];
        for state in replicas {
            let index = match state {
                ReplicaState::Ready => 0,
                ReplicaState::Starting => 1,
                ReplicaState::Draining => 2,
                ReplicaState::Unhealthy => 3,
                ReplicaState::Gone => continue,
            };
            counts[index].1 += 1;
        }
        for (state, count) in counts {
            self.replicas.get_or_create(&StateLabels { state }).set(count);
        }
        let mut page = String::with_capacity(8 * 1024);
        // Writing to a String fails only where an encoder of ours does, and none does.
        let _ = text::encode(&mut page, &self.registry);
        page
    }

    /// The model's own label if it may have one.
    fn label(&self, model: Option<&ModelId>, served: bool) -> ModelLabel {
        let Some(model) = model else { return ModelLabel(None) };
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if models.contains(model) {
            return ModelLabel(Some(model.clone()));
        }
        let room = served && models.len() < MODELS;
        if room {
            models.insert(model.clone());
        }
        ModelLabel(room.then(|| model.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    #[test]
    fn names_that_clients_invent_make_no_series() {
        let metrics = Metrics::new();
        for n in 0..1000 {
            let model = ModelId::new(&format!("invented-{n}")).unwrap();
            metrics.answered(Some(&model), StatusCode::NOT_FOUND, None);
        }
        let served = ModelId::new("served").unwrap();
        metrics.answered(Some(&served), StatusCode::OK, Some(Step::Fresh));
        let page = metrics.encode([ReplicaState::Ready, ReplicaState::Ready].into_iter());
        assert!(!page.contains("invented"));
        assert!(
            page.contains(r#"dunlin_proxy_requests_total{model="other",status="404",route="none"} 1000"#),
            "{page}"
        );
        assert!(page.contains(r#"dunlin_proxy_requests_total{model="served",status="200",route="fresh"} 1"#), "{page}");
        assert!(page.contains(r#"dunlin_proxy_replicas{state="ready"} 2"#), "{page}");
    }
}
