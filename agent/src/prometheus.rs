//! The agent's page for Prometheus: what its engines do, read from the replicas at each scrape.

use crate::{
    replica::Replica,
    replicas::Replicas,
    small_http::{self, Answer},
};
use dunlin_protocol::announcement::ReplicaState;
use http::StatusCode;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use std::fmt;
use tokio::net::TcpListener;

/// Room for the text of a few engines.
const PAGE_BYTES: usize = 8 * 1024;

/// Answers `GET /metrics` until dropped.
pub(crate) async fn serve(listener: TcpListener, page: Page) {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let answer = move || Answer { status: StatusCode::OK, kind, text: page.text() };
    small_http::serve(listener, "/metrics", answer).await;
}

/// The page of one agent.
#[derive(Debug)]
pub(crate) struct Page(Registry);

impl Page {
    pub(crate) fn new(replicas: Replicas) -> Self {
        let mut registry = Registry::with_prefix("dunlin_agent");
        registry.register_collector(Box::new(Engines(replicas)));
        Self(registry)
    }

    /// The text as of now.
    pub(crate) fn text(&self) -> String {
        let mut page = String::with_capacity(PAGE_BYTES);
        // Writing to a String fails only where an encoder of ours does, and none does.
        let _ = text::encode(&mut page, &self.0);
        page
    }
}

/// Engines are told apart by their number, which their order in the configuration gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EngineLabels {
    engine: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    engine: u16,
    outcome: &'static str,
}

#[derive(Debug)]
struct Engines(Replicas);

impl Engines {
    fn gauge(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&Replica) -> Option<i64>,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for replica in self.0.all().iter() {
            if let Some(value) = value(replica) {
                ConstGauge::new(value).encode(family.encode_family(&EngineLabels { engine: replica.index })?)?;
            }
        }
        Ok(())
    }

    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests by how they ended";
        let mut family = encoder.encode_descriptor("requests", help, None, MetricType::Counter)?;
        for replica in self.0.all().iter() {
            for (outcome, count) in replica.outcomes.all() {
                let labels = OutcomeLabels { engine: replica.index, outcome: outcome.as_str() };
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn restarts(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Starts of a launched engine after its first";
        let mut family = encoder.encode_descriptor("restarts", help, None, MetricType::Counter)?;
        for replica in self.0.all().iter().filter(|replica| replica.process().is_some()) {
            let labels = EngineLabels { engine: replica.index };
            ConstCounter::new(u64::from(replica.restarts())).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn probes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "How long the engine took to say that it is well, and what it serves; failed probes included";
        let mut family = encoder.encode_descriptor("probe", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for replica in self.0.all().iter() {
            replica.probes.encode(family.encode_family(&EngineLabels { engine: replica.index })?)?;
        }
        Ok(())
    }
}

impl Collector for Engines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let count = |count: u16| Some(i64::from(count));
        self.gauge(encoder, "engine_up", "1 while the engine serves", |replica| {
            Some(i64::from(replica.view().state == ReplicaState::Ready))
        })?;
        self.gauge(encoder, "slots", "Requests that the engine works on at once", |replica| {
            count(replica.gate.counts().slots)
        })?;
        self.gauge(encoder, "requests_running", "Requests of this agent that the engine has", |replica| {
            count(replica.gate.counts().in_flight)
        })?;
        self.gauge(encoder, "requests_waiting", "Requests that wait in this agent", |replica| {
            count(replica.gate.counts().queued)
        })?;
        self.requests(encoder)?;
        self.restarts(encoder)?;
        self.probes(encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{outcomes::Outcome, replica::tests::replica};
    use std::sync::Arc;

    #[test]
    fn the_page_tells_of_every_engine() {
        let replica = Arc::new(replica(&["tiny"]));
        replica.outcomes.count(Outcome::Full);
        replica.set_slots(Some(3));
        replica.probes.observe(0.02);
        let replicas = Replicas::default();
        replicas.push(Arc::clone(&replica));
        let page = Page::new(replicas);
        let text = page.text();
        for line in [
            r#"dunlin_agent_engine_up{engine="0"} 0"#,
            r#"dunlin_agent_slots{engine="0"} 3"#,
            r#"dunlin_agent_requests_running{engine="0"} 0"#,
            r#"dunlin_agent_requests_waiting{engine="0"} 0"#,
            r#"dunlin_agent_requests_total{engine="0",outcome="full"} 1"#,
            r#"dunlin_agent_requests_total{engine="0",outcome="answered"} 0"#,
            r#"dunlin_agent_probe_seconds_count{engine="0"} 1"#,
            "# EOF",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} in {text}");
        }
        // It was not launched.
        assert!(!text.contains("restarts_total{"), "{text}");
        replica.set_serving(Ok(Vec::new()));
        assert!(page.text().contains(r#"dunlin_agent_engine_up{engine="0"} 1"#));
    }
}
