//! Which of an engine's Prometheus series mean what.

use super::text::HttpPath;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// Where an engine's load can be read. Every quantity is optional: an engine that lacks one is balanced without it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Path of the Prometheus text.
    pub path: HttpPath,
    /// Port of the page, where it isn't that of the engine's API.
    #[serde(default)]
    pub port: Option<u16>,
    /// Labels that tell data-parallel ranks apart. Series that differ in these are added up (shares: averaged); of
    /// series that differ only in others the largest counts, because tensor-parallel ranks repeat the same number.
    #[serde(default)]
    pub sum_over: Vec<String>,
    /// Per quantity the series to look for, in order: the first that exists counts.
    #[serde(default)]
    pub names: BTreeMap<Quantity, Vec<Series>>,
    /// Where it tells which LoRA adapters have requests; `None` when it doesn't.
    #[serde(default)]
    pub adapters: Option<Adapters>,
}

/// vLLM's way of telling which adapters have requests: a series for each combination there ever was, the adapters' names
/// in its labels, the time at which it was set as its value. The latest one counts. An adapter without requests is in
/// none; it is loaded all the same (vllm-project/vllm#45325).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapters {
    /// The metric.
    pub series: Series,
    /// Label with the adapters that have running requests, comma-separated.
    pub running: String,
    /// Label with the adapters that have waiting requests, comma-separated.
    pub waiting: String,
    /// Label with the number of adapters that can be in use at once.
    pub most: String,
}

/// What can be read of an engine's load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Requests being worked on.
    Running,
    /// Requests waiting inside the engine.
    Waiting,
    /// Share of the KV cache in use, 0 to 1.
    KvUsage,
    /// Tokens in the KV cache; with [`Quantity::KvCapacity`] stands in for [`Quantity::KvUsage`].
    KvUsed,
    /// Tokens that the KV cache holds.
    KvCapacity,
    /// Prompt tokens since the engine started.
    PromptTokens,
    /// Generated tokens since the engine started.
    GeneratedTokens,
    /// Prompt tokens looked up in the prefix cache since the engine started.
    PrefixQueries,
    /// Prompt tokens found in the prefix cache since the engine started.
    PrefixHits,
    /// Share of prompt tokens found in the prefix cache, 0 to 1; stands in for hits and queries.
    PrefixHitRate,
}

impl Quantity {
    /// Whether the quantity is a share, so that ranks are averaged instead of added up.
    #[must_use]
    pub fn is_share(self) -> bool {
        matches!(self, Self::KvUsage | Self::PrefixHitRate)
    }
}

/// Series of one name, if wanted only those with certain labels: `name` or `name{label="value",...}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Series {
    /// The metric's name, as in the text: a counter's with its `_total`.
    pub name: String,
    /// Labels that must have these values.
    pub labels: Vec<(String, String)>,
}

/// A text that selects no series.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a series; write `name` or `name{{label=\"value\"}}`")]
pub struct NotASeries(String);

fn is_metric_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

impl Series {
    fn parse(text: &str) -> Option<Self> {
        let Some((name, rest)) = text.split_once('{') else {
            return is_metric_name(text).then(|| Self { name: text.to_owned(), labels: Vec::new() });
        };
        let selectors = rest.strip_suffix('}')?;
        let labels = selectors.split(',').map(parse_label).collect::<Option<Vec<_>>>()?;
        is_metric_name(name).then(|| Self { name: name.to_owned(), labels })
    }
}

fn parse_label(selector: &str) -> Option<(String, String)> {
    let (label, quoted) = selector.split_once('=')?;
    let value = quoted.strip_prefix('"')?.strip_suffix('"')?;
    let plain = is_metric_name(label) && !value.contains(['"', '\\']);
    plain.then(|| (label.to_owned(), value.to_owned()))
}

impl TryFrom<String> for Series {
    type Error = NotASeries;
    fn try_from(text: String) -> Result<Self, NotASeries> {
        Self::parse(&text).ok_or(NotASeries(text))
    }
}
impl From<Series> for String {
    fn from(series: Series) -> String {
        series.to_string()
    }
}
impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (index, (label, value)) in self.labels.iter().enumerate() {
            write!(f, "{}{label}=\"{value}\"", if index == 0 { '{' } else { ',' })?;
        }
        f.write_str(if self.labels.is_empty() { "" } else { "}" })
    }
}
