//! One look at the node: what it knows of the mesh, and what its proxy has counted.

use crate::commands::service::Process;
use anyhow::Result;
use dunlin_agent::metrics::text::{self, Labels};
use dunlin_node::{
    PeerInfo,
    control::{Client, Status},
};
use http_body_util::{BodyExt, Limited};
use hyper::Method;
use std::{collections::BTreeMap, time::Instant};

/// Largest page of the proxy's counters: 256 models with a histogram each are about 500 KiB.
const PAGE_BYTES: usize = 4 << 20;

/// What was seen at one moment.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) status: Status,
    pub(super) process: Process,
    pub(super) peers: Vec<PeerInfo>,
    /// `None` where no proxy runs.
    pub(super) proxy: Option<Counts>,
}

/// Counters and gauges of a proxy since its start.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Counts {
    /// Requests that wait for a slot now.
    pub(super) waiting: f64,
    /// Requests that a replica has now.
    pub(super) in_flight: f64,
    /// Clients connected now.
    pub(super) connections: f64,
    pub(super) retries: f64,
    pub(super) ejections: f64,
    /// Answers that broke off.
    pub(super) broken: f64,
    /// Answers by the step of the routing ladder that chose their replica.
    pub(super) routes: BTreeMap<String, f64>,
    /// Error answers that came from no replica.
    pub(super) refused: f64,
    pub(super) models: BTreeMap<String, OfModel>,
}

/// Counters of one model.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct OfModel {
    /// Answers of replicas.
    pub(super) answered: f64,
    /// Error answers, whoever gave them.
    pub(super) failed: f64,
    /// Time to an answer's first byte.
    pub(super) first_byte: Buckets,
}

/// A histogram as Prometheus counts it: upper bounds in seconds, each with all observations up to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Buckets(pub(super) Vec<(f64, f64)>);

/// Asks the node for everything.
pub(super) async fn take(client: &mut Client) -> Result<Sample> {
    let status = client.get("/status").await?;
    let process: Process = client.get("/process").await?;
    let peers = client.get("/peers").await?;
    let proxy = match process.endpoint {
        Some(_) => Some(Counts::parse(&page(client).await?)),
        None => None,
    };
    Ok(Sample { at: Instant::now(), status, process, peers, proxy })
}

async fn page(client: &mut Client) -> Result<bytes::Bytes> {
    let answer = client.stream(Method::GET, "/metrics", bytes::Bytes::new()).await?;
    let body = Limited::new(answer.into_body(), PAGE_BYTES).collect().await;
    Ok(body.map_err(|error| anyhow::anyhow!("the proxy's counters: {error}"))?.to_bytes())
}

impl Counts {
    /// The proxy's page for Prometheus. What is not known here is left out.
    pub(super) fn parse(page: &[u8]) -> Self {
        let mut counts = Self::default();
        for sample in text::samples(page) {
            let Some(name) = sample.name.strip_prefix(b"dunlin_proxy_") else { continue };
            let Some((labels, value)) = sample.split() else { continue };
            match name {
                b"waiting" => counts.waiting = value,
                b"requests_in_flight" => counts.in_flight = value,
                b"connections" => counts.connections = value,
                b"retries_total" => counts.retries += value,
                b"ejections_total" => counts.ejections = value,
                b"broken_answers_total" => counts.broken = value,
                b"requests_total" => counts.answers(labels, value),
                b"first_byte_seconds_bucket" => counts.first_byte(labels, value),
                _ => {}
            }
        }
        counts
    }

    fn answers(&mut self, labels: Labels<'_>, count: f64) {
        let route = label(labels, "route");
        let failed = label(labels, "status").parse::<u16>().is_ok_and(|status| status >= 400);
        let of_replica = route != "none";
        // Lists of models and pages like the one read here.
        if !of_replica && !failed {
            return;
        }
        let model = self.models.entry(label(labels, "model")).or_default();
        if failed {
            model.failed += count;
        }
        if of_replica {
            model.answered += count;
            *self.routes.entry(route).or_default() += count;
        } else {
            self.refused += count;
        }
    }

    fn first_byte(&mut self, labels: Labels<'_>, count: f64) {
        let Ok(bound) = label(labels, "le").parse::<f64>() else { return };
        self.models.entry(label(labels, "model")).or_default().first_byte.0.push((bound, count));
    }
}

fn label(labels: Labels<'_>, name: &str) -> String {
    labels.get(name).map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

impl Buckets {
    /// The observations since `before`.
    pub(super) fn since(&self, before: Option<&Self>) -> Self {
        let old = |bound: f64| {
            let known = before?.0.iter().find(|(other, _)| *other == bound);
            known.map(|(_, count)| *count)
        };
        Self(self.0.iter().map(|&(bound, count)| (bound, count - old(bound).unwrap_or(0.0))).collect())
    }

    /// Both together.
    pub(super) fn add(&mut self, other: &Self) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.1 += theirs.1;
        }
    }

    /// The value, seconds, that the share `quantile` of the observations does not exceed, by a straight line within its
    /// bucket, as Prometheus' `histogram_quantile` has it; `None` without observations.
    pub(super) fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = self.0.last().map(|(_, count)| *count).filter(|total| *total > 0.0)?;
        let wanted = quantile * total;
        let at = self.0.iter().position(|(_, count)| *count >= wanted)?;
        let (low, below) = if at == 0 { (0.0, 0.0) } else { self.0[at - 1] };
        let (high, count) = self.0[at];
        if !high.is_finite() {
            return Some(low);
        }
        Some(low + (high - low) * ((wanted - below) / (count - below).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# TYPE dunlin_proxy_requests counter
dunlin_proxy_requests_total{model="m",status="200",route="fresh"} 8
dunlin_proxy_requests_total{model="m",status="200",route="round-robin"} 2
dunlin_proxy_requests_total{model="m",status="500",route="fresh"} 1
dunlin_proxy_requests_total{model="other",status="200",route="none"} 50
dunlin_proxy_requests_total{model="other",status="404",route="none"} 3
dunlin_proxy_first_byte_seconds_bucket{le="0.1",model="m"} 6
dunlin_proxy_first_byte_seconds_bucket{le="0.2",model="m"} 10
dunlin_proxy_first_byte_seconds_bucket{le="+Inf",model="m"} 11
dunlin_proxy_retries_total{cause="timeout"} 1
dunlin_proxy_retries_total{cause="503"} 2
dunlin_proxy_waiting 4
dunlin_proxy_requests_in_flight 5
# EOF
"#;

    #[test]
    fn the_proxys_page_is_read() {
        let counts = Counts::parse(PAGE.as_bytes());
        assert_eq!((counts.waiting, counts.in_flight, counts.retries, counts.refused), (4.0, 5.0, 3.0, 3.0));
        assert_eq!(counts.routes, BTreeMap::from([("fresh".into(), 9.0), ("round-robin".into(), 2.0)]));
        let model = &counts.models["m"];
        assert_eq!((model.answered, model.failed), (11.0, 1.0));
        assert_eq!(model.first_byte.0.len(), 3);
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let buckets = Counts::parse(PAGE.as_bytes()).models["m"].first_byte.clone();
        let near = |quantile: f64, wanted: f64| {
            let value = buckets.quantile(quantile).unwrap();
            assert!((value - wanted).abs() < 1e-9, "{quantile}: {value}");
        };
        near(3.0 / 11.0, 0.05);
        near(8.0 / 11.0, 0.15);
        near(1.0, 0.2);
        assert_eq!(Buckets::default().quantile(0.5), None);
        assert_eq!(buckets.since(Some(&buckets)).quantile(0.5), None, "nothing new");
        assert_eq!(buckets.since(None), buckets);
        let mut twice = buckets.clone();
        twice.add(&buckets);
        assert_eq!(twice.quantile(0.5), buckets.quantile(0.5));
    }
}
