//! One request with a key: let in within its limits, and counted to its answer's end.

use crate::{
    errors::Error,
    keys::Grant,
    limits::{Left, Limits, Refused, Ticket},
    tally::Account,
    usage::{Spent, Usage},
};
use dunlin_protocol::{id::ModelId, usage::Usage as Used};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Why a request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Over {
    /// Its key may use no more for a while.
    #[error("this API key has reached its limit of {}; {}", kind(*.0), advice(.1))]
    Limit(usize, Duration),
    /// Its key may use no more this month.
    #[error("this API key has used up its budget for this month")]
    Budget(Duration),
}

fn kind(kind: usize) -> &'static str {
    ["requests in a minute", "tokens in a minute", "requests at the same time"].get(kind).copied().unwrap_or("requests")
}

fn advice(wait: &Duration) -> String {
    format!("retry after {} s", wait.as_secs_f64().ceil())
}

impl Over {
    /// How long until there may be room.
    pub(crate) fn wait(self) -> Duration {
        match self {
            Self::Limit(_, wait) | Self::Budget(wait) => wait,
        }
    }

    /// As OpenAI names it.
    pub(crate) fn kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Limit(1, _) => ("tokens", "rate_limit_exceeded"),
            Self::Limit(..) => ("requests", "rate_limit_exceeded"),
            Self::Budget(_) => ("insufficient_quota", "insufficient_quota"),
        }
    }
}

/// What it takes to let requests in and count them.
#[derive(Clone)]
pub(crate) struct Meters {
    pub(crate) limits: Limits,
    pub(crate) usage: Usage,
}

/// One request that was let in. It has ended when the last one who knows it drops it.
pub(crate) struct Meter {
    meters: Meters,
    ticket: Ticket,
    model: ModelId,
    since: Instant,
    used: Mutex<Option<Used>>,
    /// The name of the model is one that is served.
    served: AtomicBool,
    /// No replica has had it.
    undone: AtomicBool,
}

impl Meters {
    /// Lets a request in. `tokens`: an estimate of what it may use.
    ///
    /// # Errors
    /// A limit or a budget is reached.
    pub(crate) async fn admit(
        &self,
        grant: &Grant,
        model: &ModelId,
        tokens: impl FnOnce() -> i64,
        since: Instant,
    ) -> Result<Arc<Meter>, Error> {
        if let Err(Spent { seconds }) = self.usage.check_budget(grant) {
            return Err(Error::Over(Over::Budget(Duration::from_secs(seconds)), Box::default()));
        }
        // Reading the body once more is for those alone who have such a limit.
        let tokens = if grant.key.limits.tokens_per_minute.is_some() { tokens() } else { 0 };
        let ticket = match self.limits.admit(grant, tokens).await {
            Ok(ticket) => ticket,
            Err(Refused { kind, wait }) => {
                let mut headers = Box::<HeaderMap>::default();
                self.tell(&grant.key.id, &mut headers);
                return Err(Error::Over(Over::Limit(kind, wait), headers));
            }
        };
        Ok(Arc::new(Meter {
            meters: self.clone(),
            ticket,
            model: model.clone(),
            since,
            used: Mutex::default(),
            served: AtomicBool::new(true),
            undone: AtomicBool::new(false),
        }))
    }

    fn tell(&self, key: &str, headers: &mut HeaderMap) {
        tell(self.limits.left(key), headers);
    }
}

/// Says what is left of requests and of tokens, in OpenAI's headers.
pub(crate) fn tell(left: [Option<Left>; 2], headers: &mut HeaderMap) {
    const NAMES: [[&str; 3]; 2] = [
        ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
        ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
    ];
    for (left, names) in left.into_iter().zip(NAMES) {
        let Some(Left { limit, remaining, reset }) = left else { continue };
        for (name, value) in names.into_iter().zip([limit.to_string(), remaining.to_string(), span(reset)]) {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }
}

/// As OpenAI writes times: `350ms`, `8.64s`, `6m0s`.
fn span(time: Duration) -> String {
    match time.as_millis() {
        millis @ 0..1000 => format!("{millis}ms"),
        millis @ 1000..60_000 if millis % 1000 == 0 => format!("{}s", millis / 1000),
        millis @ 1000..60_000 => format!("{:.2}s", millis as f64 / 1000.0),
        millis => format!("{}m{}s", millis / 60_000, millis / 1000 % 60),
    }
}

impl Meter {
    /// For whoever learns what was used.
    pub(crate) fn account(self: &Arc<Self>) -> Account {
        let meter = Arc::clone(self);
        Arc::new(move |used| *meter.used.lock().unwrap_or_else(PoisonError::into_inner) = Some(used))
    }

    /// Says what is left, in OpenAI's headers.
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        self.meters.tell(&self.ticket.key, headers);
    }

    /// No replica could be had for it: it counts against no limit. `served`: whether its model is one that is served.
    pub(crate) fn unserved(&self, served: bool) {
        self.served.store(served, Ordering::Relaxed);
        self.undone.store(true, Ordering::Relaxed);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let Meters { limits, usage } = &self.meters;
        if self.undone.load(Ordering::Relaxed) {
            limits.undo(&self.ticket);
        } else {
            // An engine that answered with an error used none that anybody knows of.
            let tokens = used.map_or(0, |used| used.prompt.saturating_add(used.completion));
            limits.ended(&self.ticket, Some(i64::try_from(tokens).unwrap_or(i64::MAX / 2)));
        }
        let model = self.served.load(Ordering::Relaxed).then_some(&self.model);
        usage.record(&self.ticket.key, model, used, self.since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_does() {
        for (millis, text) in
            [(0, "0ms"), (350, "350ms"), (1000, "1s"), (8640, "8.64s"), (60_000, "1m0s"), (366_000, "6m6s")]
        {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn refusals_say_what_was_reached() {
        let said = Over::Limit(0, Duration::from_millis(1500)).to_string();
        assert_eq!(said, "this API key has reached its limit of requests in a minute; retry after 2 s");
        assert_eq!(Over::Limit(1, Duration::ZERO).kind().0, "tokens");
    }
}
