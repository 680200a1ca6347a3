//! How long a replica is waited for: what its agent says, else what its kind of engine is known for, unless this proxy's
//! user has said otherwise.

use super::Dispatcher;
use crate::config::Config;
use dunlin_protocol::{
    hop,
    id::ReplicaId,
    runtime::{Bounds, Deadlines},
};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::{
    collections::HashMap,
    future::Future,
    pin::pin,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time;

/// Replicas of which other bounds than their runtime's are remembered; when there are more, all start over.
const HEARD: usize = 4096;
/// An answer in one piece may take so many times what the user gives a stream's first byte.
const WHOLE: f64 = 5.0;
/// How much longer than an agent a proxy waits, as a part and at least: an agent that gives its engine up says why.
const PART: u32 = 16;
const LEAST: Duration = Duration::from_millis(100);

/// What is known of the bounds of all replicas.
pub(super) struct Patience {
    /// [`Config::first_byte`].
    first_byte: Option<Duration>,
    /// [`Config::inter_token`].
    inter_token: Option<Duration>,
    /// Of those whose agents said something else than is known of the runtime.
    heard: Mutex<HashMap<ReplicaId, Bounds>>,
}

impl Patience {
    pub(super) fn new(config: &Config) -> Self {
        Self { first_byte: config.first_byte, inter_token: config.inter_token, heard: Mutex::default() }
    }

    fn heard(&self) -> MutexGuard<'_, HashMap<ReplicaId, Bounds>> {
        // Values only: nothing that a panic elsewhere could leave half done.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, replica: ReplicaId, runtime: Bounds) -> Bounds {
        let mut bounds = self.heard().get(&replica).copied().unwrap_or(runtime);
        if let Some(first_byte) = self.first_byte {
            bounds.first_byte_s = first_byte.as_secs_f64();
            bounds.whole_s = bounds.first_byte_s * WHOLE;
        }
        if let Some(inter_token) = self.inter_token {
            bounds.inter_token_s = inter_token.as_secs_f64();
        }
        bounds
    }

    fn hear(&self, replica: ReplicaId, runtime: Bounds, headers: &HeaderMap) {
        let said = headers.get(hop::BOUNDS).and_then(|value| value.to_str().ok()).and_then(Bounds::from_header);
        let Some(said) = said else { return };
        let mut heard = self.heard();
        if said == runtime {
            heard.remove(&replica);
            return;
        }
        if heard.len() >= HEARD && !heard.contains_key(&replica) {
            heard.clear();
        }
        heard.insert(replica, said);
    }

    /// What an agent is to know of it: nothing, unless this proxy's user has said something.
    fn header(&self, bounds: &Bounds) -> Option<(HeaderName, HeaderValue)> {
        (self.first_byte.is_some() || self.inter_token.is_some()).then_some(())?;
        Some((HeaderName::from_static(hop::BOUNDS), HeaderValue::try_from(bounds.to_header()).ok()?))
    }
}

impl Dispatcher {
    fn bounds_of_runtime(&self, replica: &ReplicaId) -> Bounds {
        let bounds = self.handle.directory().read(|directory| {
            let known = directory.replica(replica).and_then(|it| self.runtimes.get(it.runtime.as_ref()?).ok());
            known.map(|runtime| runtime.bounds)
        });
        bounds.unwrap_or_default()
    }

    /// How long `replica` may take over a request of `kib` KiB, and what its agent is to know of that.
    pub(super) fn deadlines(
        &self,
        replica: ReplicaId,
        kib: u32,
        stream: bool,
    ) -> (Deadlines, Option<(HeaderName, HeaderValue)>) {
        let bounds = self.patience.of(replica, self.bounds_of_runtime(&replica));
        let Deadlines { first_byte, whole, inter_token } = bounds.deadlines(kib, stream);
        let [first_byte, whole, inter_token] = [first_byte, whole, inter_token].map(a_little_longer);
        (Deadlines { first_byte, whole, inter_token }, self.patience.header(&bounds))
    }

    /// Notes what the agent of `replica` says with an answer.
    pub(super) fn hear_bounds(&self, replica: ReplicaId, headers: &HeaderMap) {
        if headers.contains_key(hop::BOUNDS) {
            self.patience.hear(replica, self.bounds_of_runtime(&replica), headers);
        }
    }
}

fn a_little_longer(time: Duration) -> Duration {
    time.saturating_add((time / PART).max(LEAST))
}

/// What comes of `answer` within the first of two times; within the second if it `murmurs` meanwhile.
pub(super) async fn within<T>(
    deadlines: &Deadlines,
    murmurs: &AtomicBool,
    answer: impl Future<Output = T>,
) -> Option<T> {
    let mut answer = pin!(answer);
    if let Ok(answered) = time::timeout(deadlines.first_byte, answer.as_mut()).await {
        return Some(answered);
    }
    if !murmurs.load(Ordering::Relaxed) {
        return None;
    }
    time::timeout(deadlines.whole.saturating_sub(deadlines.first_byte), answer).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::id::PeerId;

    const S: Duration = Duration::from_secs(1);

    fn patience(first_byte: Option<Duration>, inter_token: Option<Duration>) -> Patience {
        Patience::new(&Config { first_byte, inter_token, ..Config::default() })
    }

    fn said(bounds: &Bounds) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(hop::BOUNDS), bounds.to_header().parse().unwrap())])
    }

    #[test]
    fn the_agents_word_counts_more_than_the_catalogue_and_the_users_most() {
        let replica = ReplicaId { peer: PeerId::random(), index: 0 };
        let runtime = Bounds::default();
        let agents = Bounds { first_byte_s: 900.0, inter_token_s: 90.0, ..runtime };
        let of = |patience: &Patience| {
            let bounds = patience.of(replica, runtime);
            (bounds.first_byte_s, bounds.whole_s, bounds.inter_token_s)
        };
        let none = patience(None, None);
        assert_eq!(of(&none), (120.0, 600.0, 30.0));
        none.hear(replica, runtime, &said(&agents));
        assert_eq!(of(&none), (900.0, 600.0, 90.0));
        assert!(none.header(&runtime).is_none());
        let users = patience(Some(3 * S), None);
        users.hear(replica, runtime, &said(&agents));
        assert_eq!(of(&users), (3.0, 15.0, 90.0));
        let (_, told) = users.header(&users.of(replica, runtime)).unwrap();
        assert_eq!(Bounds::from_header(told.to_str().unwrap()).unwrap().first_byte_s, 3.0);
    }

    #[test]
    fn what_is_no_news_takes_no_memory() {
        let (patience, runtime) = (patience(None, None), Bounds::default());
        let other = Bounds { per_mib: 1.0, ..runtime };
        let one = || ReplicaId { peer: PeerId::random(), index: 0 };
        let replica = one();
        patience.hear(replica, runtime, &said(&other));
        patience.hear(replica, runtime, &said(&runtime));
        patience.hear(one(), runtime, &HeaderMap::new());
        assert!(patience.heard().is_empty());
        for _ in 0..=HEARD {
            patience.hear(one(), runtime, &said(&other));
        }
        assert!(patience.heard().len() <= HEARD);
    }

    #[tokio::test(start_paused = true)]
    async fn murmurs_buy_time_and_not_for_ever() {
        let deadlines = Deadlines { first_byte: 10 * S, whole: 60 * S, inter_token: S };
        let murmurs = AtomicBool::new(false);
        assert_eq!(within(&deadlines, &murmurs, time::sleep(9 * S)).await, Some(()));
        assert_eq!(within(&deadlines, &murmurs, time::sleep(11 * S)).await, None);
        murmurs.store(true, Ordering::Relaxed);
        assert_eq!(within(&deadlines, &murmurs, time::sleep(59 * S)).await, Some(()));
        assert_eq!(within(&deadlines, &murmurs, time::sleep(61 * S)).await, None);
    }
}
