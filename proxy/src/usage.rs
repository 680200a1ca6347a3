//! What keys have used: counted here, kept by all proxies, summed for whoever asks.
//!
//! Each process of a proxy has rows of its own, by key, model and hour, which only grow. They are on its disk within half
//! a second and on all others within a second or two, merged by maximum there (`store`). Budgets look at the sums of the
//! month, in memory.

mod calendar;
pub mod report;
mod store;

use crate::keys::{Grant, Keys};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use dunlin_node::{Handle, clock, hop};
use dunlin_protocol::{
    id::{ModelId, PeerId},
    ledger::{Counter, Counts, UsageAnswer, UsageAsk, UsageRow},
    limits,
    usage::Usage as Used,
};
use futures::{StreamExt, stream};
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
pub use store::Error;
use store::Store;
use tokio::time::{self, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// Path on the hop.
pub(crate) const PATH: &str = "/mesh/usage";
/// How often is stored what was counted.
const STORE: Duration = Duration::from_millis(300);
/// How often others are asked for theirs, and how many of them at the same time.
const ASK: Duration = Duration::from_millis(900);
const AT_ONCE: usize = 8;
/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(3);
/// Answers of one proxy taken in a row: what is left comes the next time.
const IN_A_ROW: usize = 64;
/// Rows counted here that are not of this hour any more are forgotten in memory; while they are stored too slowly, so many
/// keep the rest out.
const ROWS: usize = 200_000;
/// Usage is kept for 13 months, so that a month can be held against the one a year ago.
const KEPT_HOURS: u64 = 24 * 400;

/// What one process counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Name {
    key: Box<str>,
    model: Box<str>,
    hour: u64,
}

/// What is in memory.
#[derive(Default)]
struct Counting {
    /// Of this process, in this hour and what was not stored yet.
    rows: HashMap<Name, (Counts, bool)>,
    rev: u64,
    /// Of all proxies.
    month: Month,
}

/// The sums of one calendar month, for budgets.
#[derive(Debug, Default)]
struct Month {
    /// Months since 1970.
    month: u64,
    keys: HashMap<Box<str>, (u64, u64)>,
}

impl Month {
    fn add(&mut self, key: &str, hour: u64, tokens: u64, cost: u64) {
        let month = calendar::month(hour * 3600);
        if month > self.month {
            *self = Self { month, keys: HashMap::new() };
        }
        if month == self.month {
            let sums = self.keys.entry(key.into()).or_default();
            sums.0 = sums.0.saturating_add(tokens);
            sums.1 = sums.1.saturating_add(cost);
        }
    }
}

/// The usage that one proxy knows. Cheap to clone.
#[derive(Clone)]
pub struct Usage(Arc<Inner>);

struct Inner {
    by: Counter,
    handle: Handle,
    keys: Keys,
    store: Mutex<Store>,
    counting: Mutex<Counting>,
}

/// A budget is used up: until when, seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) seconds: u64,
}

impl Usage {
    /// Opens the usage in `path`, made (mode 0600) when it is not there. Blocks on the disk.
    ///
    /// # Errors
    /// The file can't be opened or is no database of ours.
    pub fn open(path: &Path, handle: Handle, keys: Keys) -> Result<Self, Error> {
        let mut store = Store::open(path)?;
        let now = clock::unix_s();
        store.forget_before((now / 3600).saturating_sub(KEPT_HOURS))?;
        let by = Counter { origin: handle.peer_id(), epoch: handle.epoch() };
        let mut counting = Counting::default();
        counting.month.month = calendar::month(now);
        for sum in store.sums(calendar::month_start(now) / 3600, u64::MAX >> 1)? {
            let Counts { prompt, completion, cost_micros, .. } = sum.counts;
            counting.month.add(&sum.key, sum.hour, prompt.saturating_add(completion), cost_micros);
        }
        Ok(Self(Arc::new(Inner { by, handle, keys, store: Mutex::new(store), counting: Mutex::new(counting) })))
    }

    fn counting(&self) -> MutexGuard<'_, Counting> {
        self.0.counting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has ended. `used`: nothing when no engine answered it. `model`: one that is served, if it was.
    pub(crate) fn record(&self, key: &str, model: Option<&ModelId>, used: Option<Used>, took: Duration) {
        let name = model.map_or("", ModelId::as_str);
        let Used { prompt, completion, cached, estimated } = used.unwrap_or_default();
        let counts = Counts {
            requests: 1,
            errors: u64::from(used.is_none()),
            prompt,
            completion,
            cached,
            estimated: u64::from(estimated),
            millis: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            cost_micros: self.0.keys.cost_micros(name, prompt, completion, cached),
        };
        let hour = clock::unix_s() / 3600;
        let mut counting = self.counting();
        let known = Name { key: key.into(), model: name.into(), hour };
        if counting.rows.len() >= ROWS && !counting.rows.contains_key(&known) {
            tracing::error!("usage is not stored fast enough; some was not counted");
            return;
        }
        let (sum, dirty) = counting.rows.entry(known).or_default();
        (*sum, *dirty) = (sum.plus(counts), true);
        counting.month.add(key, hour, prompt.saturating_add(completion), counts.cost_micros);
    }

    /// Whether a key has something left of its budgets.
    ///
    /// # Errors
    /// A budget is used up.
    pub(crate) fn check_budget(&self, grant: &Grant) -> Result<(), Spent> {
        let limits = &grant.key.limits;
        if limits.monthly_tokens.is_none() && limits.monthly_cost_micros.is_none() {
            return Ok(());
        }
        let now = clock::unix_s();
        let counting = self.counting();
        if counting.month.month != calendar::month(now) {
            return Ok(());
        }
        let (tokens, cost) = counting.month.keys.get(grant.key.id.as_str()).copied().unwrap_or_default();
        let over = |limit: Option<u64>, used: u64| limit.is_some_and(|limit| used >= limit);
        if over(limits.monthly_tokens, tokens) || over(limits.monthly_cost_micros, cost) {
            return Err(Spent { seconds: calendar::next_month_start(now) - now });
        }
        Ok(())
    }

    /// Puts on disk what was counted since the last time. Blocks on the disk.
    fn flush(&self) -> Result<(), Error> {
        let this_hour = clock::unix_s() / 3600;
        let rows = {
            let mut counting = self.counting();
            let Counting { rows, rev, .. } = &mut *counting;
            let mut dirty = Vec::new();
            for (name, (counts, changed)) in rows.iter_mut().filter(|(_, (_, changed))| *changed) {
                *rev += 1;
                *changed = false;
                let (key, model) = (name.key.to_string(), name.model.to_string());
                dirty.push(UsageRow { by: self.0.by, key, model, hour: name.hour, rev: *rev, counts: *counts });
            }
            dirty
        };
        let stored = if rows.is_empty() { Ok(Vec::new()) } else { self.store().merge(&rows) };
        if let Err(error) = stored {
            // They are tried again with whatever comes.
            let mut counting = self.counting();
            for row in rows {
                let name = Name { key: row.key.into(), model: row.model.into(), hour: row.hour };
                if let Some((_, dirty)) = counting.rows.get_mut(&name) {
                    *dirty = true;
                }
            }
            return Err(error);
        }
        self.counting().rows.retain(|name, (_, dirty)| *dirty || name.hour + 1 >= this_hour);
        Ok(())
    }

    /// Takes in what another proxy knows. Returns whether there was anything.
    fn take(&self, answer: UsageAnswer) -> Result<bool, Error> {
        let own = self.0.by;
        // Nobody knows better what this process counts.
        let rows: Vec<UsageRow> = answer.rows.into_iter().filter(|row| row.by != own).collect();
        if rows.is_empty() {
            return Ok(false);
        }
        let grown = self.store().merge(&rows)?;
        let mut counting = self.counting();
        for sum in grown {
            let Counts { prompt, completion, cost_micros, .. } = sum.counts;
            counting.month.add(&sum.key, sum.hour, prompt.saturating_add(completion), cost_micros);
        }
        Ok(true)
    }

    /// What is newer here than what another proxy has seen.
    fn newer(&self, ask: &UsageAsk) -> Result<UsageAnswer, Error> {
        let theirs: BTreeMap<Counter, u64> = ask.seen.iter().copied().collect();
        let mut store = self.store();
        let mut rows = Vec::new();
        for (by, rev) in store.seen()? {
            let seen = theirs.get(&by).copied().unwrap_or(0);
            if rev > seen && rows.len() < limits::USAGE_ROWS {
                rows.extend(store.after(by, seen, limits::USAGE_ROWS - rows.len())?);
            }
        }
        Ok(UsageAnswer { rows })
    }

    /// Another proxy asks.
    pub(crate) async fn answer(&self, body: Bytes) -> Response {
        let Ok(ask) = UsageAsk::decode(&body) else { return StatusCode::BAD_REQUEST.into_response() };
        let usage = self.clone();
        let newer = tokio::task::spawn_blocking(move || usage.newer(&ask)).await;
        match newer.map(|newer| newer.map(|newer| newer.encode())) {
            Ok(Ok(Ok(bytes))) => bytes.into_response(),
            Ok(Ok(Err(error))) => failed(&error),
            Ok(Err(error)) => failed(&error),
            Err(error) => failed(&error),
        }
    }

    /// Stores what is counted, and asks `others` for theirs, until `shutdown`. What is left then is stored.
    pub(crate) async fn run(&self, others: impl Fn() -> Vec<PeerId>, shutdown: CancellationToken) {
        // Side by side: another one that hangs must not keep what is counted here from the disk.
        let asking = async {
            let mut tick = time::interval(ASK);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                let asked = others().into_iter().map(|peer| async move {
                    if let Err(error) = self.fetch(peer).await {
                        tracing::debug!(%peer, %error, "usage was not fetched");
                    }
                });
                stream::iter(asked).buffer_unordered(AT_ONCE).collect::<()>().await;
            }
        };
        tokio::select! {
            () = self.store_on_and_on(shutdown) => {}
            () = asking => {}
        }
    }

    async fn store_on_and_on(&self, shutdown: CancellationToken) {
        let mut tick = time::interval(STORE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let over = tokio::select! {
                () = shutdown.cancelled() => true,
                _ = tick.tick() => false,
            };
            let usage = self.clone();
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || usage.flush()).await {
                tracing::error!(%error, "usage was not stored");
            }
            if over {
                return;
            }
        }
    }

    async fn fetch(&self, peer: PeerId) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for _ in 0..IN_A_ROW {
            let usage = self.clone();
            let seen = tokio::task::spawn_blocking(move || usage.store().seen()).await??;
            let body = hop::Body::from(Bytes::from(UsageAsk { seen }.encode()?));
            let request = http::Request::post(PATH).body(body)?;
            let exchange = async {
                let sent = self.0.handle.hop().send(peer, request).await;
                let response = sent.map_err(|error| error.to_string())?;
                if response.status() != StatusCode::OK {
                    return Err(format!("answered {}", response.status()).into());
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(
                    Limited::new(response.into_body(), limits::USAGE_BYTES).collect().await?.to_bytes(),
                )
            };
            let answer = UsageAnswer::decode(&time::timeout(ANSWER, exchange).await??)?;
            let whole = answer.rows.len() < limits::USAGE_ROWS;
            let usage = self.clone();
            let any = tokio::task::spawn_blocking(move || usage.take(answer)).await??;
            if whole || !any {
                break;
            }
        }
        Ok(())
    }
}

fn failed(error: &dyn std::fmt::Display) -> Response {
    tracing::error!(%error, "usage could not be answered");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

#[cfg(test)]
mod tests;
