//! What a request used: as the engine counted, or, where nothing told, as the proxy saw it go by.

use crate::metrics::Metrics;
use dunlin_protocol::{hop, id::ModelId, usage::Usage};
use http::HeaderMap;
use std::{fmt, sync::Arc};

/// Bytes of a prompt that count as a token in an estimate: about what English takes.
const BYTES_PER_TOKEN: u64 = 4;

/// Who wants to know what a request used. Called once for each request that an engine has begun to answer.
pub(crate) type Account = Arc<dyn Fn(Usage) + Send + Sync>;

/// Counts one answer. When it is dropped, at the end of the answer or when the client hangs up, what was used is told.
pub(crate) struct Tally {
    model: ModelId,
    /// Bytes of the prompt.
    prompt: u64,
    /// Events that went out: engines send a token in each, and one or two around them.
    events: u64,
    told: Option<Usage>,
    /// Of the replicas from which the stream was taken over.
    before: u64,
    metrics: Arc<Metrics>,
    account: Option<Account>,
    /// Errors use nothing.
    counts: bool,
}

impl Tally {
    /// Of an answer to a request with a `prompt` of so many bytes.
    pub(crate) fn new(model: ModelId, prompt: u64, metrics: Arc<Metrics>, account: Option<Account>) -> Self {
        Self { model, prompt, events: 0, told: None, before: 0, metrics, account, counts: true }
    }

    /// The answer is an error, or another one takes its place: nothing is told.
    pub(crate) fn cancel(&mut self) {
        self.counts = false;
    }

    /// Whole events went out.
    pub(crate) fn saw(&mut self, events: &[u8]) {
        self.events += memchr::memmem::find_iter(events, b"data:").count() as u64;
    }

    /// Takes what the agent tells behind the answer.
    pub(crate) fn take(&mut self, trailers: &HeaderMap) {
        let told = trailers.get(hop::USAGE).and_then(|value| value.to_str().ok()).and_then(Usage::from_header);
        self.told = told.or(self.told);
    }

    /// The stream goes on at another replica, whose tally `next` is: what was said before is prompt to that one.
    pub(crate) fn goes_on_in(mut self, next: &mut Self) {
        next.before = self.before + self.events;
        next.prompt = self.prompt;
        self.cancel();
    }

    /// What was used so far.
    pub(crate) fn usage(&self) -> Usage {
        let Self { prompt, events, told, before, .. } = *self;
        match told {
            Some(told) if before == 0 => told,
            Some(told) => Usage {
                prompt: told.prompt.saturating_sub(before),
                completion: told.completion + before,
                cached: told.cached.min(told.prompt.saturating_sub(before)),
                estimated: true,
            },
            None => Usage {
                prompt: prompt.div_ceil(BYTES_PER_TOKEN),
                completion: events + before,
                cached: 0,
                estimated: true,
            },
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if !self.counts {
            return;
        }
        let usage = self.usage();
        self.metrics.used(&self.model, usage);
        if let Some(account) = &self.account {
            account(usage);
        }
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally").field("model", &self.model).field("usage", &self.usage()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use std::sync::Mutex;

    fn tally() -> (Tally, Arc<Mutex<Vec<Usage>>>) {
        let told: Arc<Mutex<Vec<Usage>>> = Arc::default();
        let account: Account = Arc::new({
            let told = told.clone();
            move |usage| told.lock().unwrap().push(usage)
        });
        (Tally::new(ModelId::new("m").unwrap(), 10, Arc::new(Metrics::new()), Some(account)), told)
    }

    fn trailers(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(hop::USAGE), HeaderValue::from_static(value))])
    }

    #[test]
    fn the_engines_count_goes_before_an_estimate() {
        let (mut tally, told) = tally();
        tally.saw(b"data: 1\n\ndata: 2\n\n");
        tally.take(&trailers("31 12 30"));
        tally.take(&HeaderMap::new());
        drop(tally);
        assert_eq!(*told.lock().unwrap(), [Usage { prompt: 31, completion: 12, cached: 30, estimated: false }]);
    }

    #[test]
    fn who_hangs_up_is_charged_for_what_was_seen() {
        let (mut tally, told) = tally();
        tally.saw(b"data: 1\n\ndata: 2\n\n: nothing\n\n");
        tally.take(&trailers("what is this"));
        drop(tally);
        assert_eq!(*told.lock().unwrap(), [Usage { prompt: 3, completion: 2, cached: 0, estimated: true }]);
    }

    #[test]
    fn errors_use_nothing_and_streams_that_go_on_are_one_request() {
        let (mut failed, told) = tally();
        failed.cancel();
        drop(failed);
        assert!(told.lock().unwrap().is_empty());
        let ((mut first, told), (mut second, again)) = (tally(), tally());
        first.saw(b"data: 1\n\ndata: 2\n\n");
        first.goes_on_in(&mut second);
        second.take(&trailers("33 10 40"));
        drop(second);
        assert!(told.lock().unwrap().is_empty());
        assert_eq!(*again.lock().unwrap(), [Usage { prompt: 31, completion: 12, cached: 31, estimated: true }]);
    }
}
