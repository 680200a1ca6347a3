//! Which LoRA adapters have requests, as vLLM tells it: a series for each combination that there ever was, with the
//! adapters' names in its labels and the time at which it was set as its value. The latest one counts.

use super::text::Labels;
use dunlin_protocol::runtime::metrics::Adapters;
use serde::Serialize;

/// LoRA adapters with requests. Others may be loaded too: the engine does not name them here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AdaptersInUse {
    /// With running requests.
    pub running: Vec<String>,
    /// With waiting requests.
    pub waiting: Vec<String>,
    /// How many can be in use at once.
    pub most: Option<u32>,
}

/// Finds the latest series of a page. Its buffers and its result are kept from page to page.
#[derive(Debug)]
pub(super) struct Latest {
    entry: Adapters,
    time: f64,
    /// The labels as written, to see whether anything has changed.
    labels: Vec<u8>,
    found: Option<AdaptersInUse>,
}

impl Latest {
    pub(super) fn new(entry: Adapters) -> Self {
        Self { entry, time: f64::NEG_INFINITY, labels: Vec::new(), found: None }
    }

    pub(super) fn is_of(&self, name: &[u8]) -> bool {
        self.entry.series.name.as_bytes() == name
    }

    /// Before each page.
    pub(super) fn begin(&mut self) {
        self.time = f64::NEG_INFINITY;
    }

    pub(super) fn take(&mut self, labels: Labels<'_>, time: f64) {
        let selected = self.entry.series.labels.iter().all(|(name, value)| labels.get(name) == Some(value.as_bytes()));
        if !selected || time < self.time {
            return;
        }
        self.time = time;
        if self.labels == labels.as_bytes() && self.found.is_some() {
            return;
        }
        self.labels.clear();
        self.labels.extend_from_slice(labels.as_bytes());
        let list = |label: &str| names(labels.get(label).unwrap_or_default());
        let most = labels.get(&self.entry.most).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        self.found =
            Some(AdaptersInUse { running: list(&self.entry.running), waiting: list(&self.entry.waiting), most });
    }

    /// After a page: nothing when it had no such series.
    pub(super) fn found(&self) -> Option<&AdaptersInUse> {
        self.found.as_ref().filter(|_| self.time > f64::NEG_INFINITY)
    }
}

/// A comma-separated label, its escapes undone.
fn names(label: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(label).replace("\\\"", "\"").replace("\\n", "\n").replace("\\\\", "\\");
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}
