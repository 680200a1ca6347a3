//! A replica that is late is not waited for alone: another is asked beside it, and the first to answer is heard.
//!
//! A machine that hangs, or whose cable is cut, says so by nothing but silence, and the deadline for a first byte has to
//! bear with the slowest engine. What the replica itself is known for tells much sooner that something is wrong. It is not
//! given up for that: slow is not dead, and it may be the first after all. Only slots that nobody waits for are used, and a
//! budget (`crate::budget`) bounds what all this may cost.

use super::{Ask, Dispatcher, attempt::Failure};
use crate::{http::answer::Relay, pool::Lease};
use dunlin_node::directory::Reachability;
use dunlin_protocol::id::ReplicaId;
use futures::{FutureExt, StreamExt, future::Either, stream::FuturesUnordered};
use http::Response;
use std::{
    pin::pin,
    time::{Duration, Instant},
};
use tokio::time;

/// Nothing is late before.
pub(crate) const SOONEST: Duration = Duration::from_millis(250);
/// Where nothing was measured, what takes this part of its deadline is late.
pub(crate) const PART: u32 = 8;
/// A first token is late when it takes so many times as long as expected.
const TIMES: u32 = 4;
/// Replicas that one request is with at most.
const TOGETHER: usize = 5;
/// How often it is looked whether the connections under a request have fallen silent, or a slot has become free.
const LOOK: Duration = Duration::from_millis(250);

/// What came of all that were asked.
pub(super) struct Outcome {
    /// Who answered, or failed last.
    pub(super) replica: ReplicaId,
    pub(super) answer: Result<Response<Relay>, Failure>,
    /// Others that were asked in vain.
    pub(super) others: usize,
}

/// One that was asked.
struct Asked {
    replica: ReplicaId,
    /// From when on it is late; `None` while its connection is alive, since of an answer that comes in one piece nothing
    /// can be expected.
    due: Option<Instant>,
}

impl Asked {
    fn by(lease: &Lease, stream: bool, deadline: Duration) -> Self {
        let patience = lease.expected().map_or(deadline / PART, |expected| expected * TIMES);
        let due = stream.then(|| Instant::now() + patience.max(SOONEST));
        Self { replica: lease.replica(), due }
    }
}

/// When to look whether all of `asked` are late, at `now`.
fn next_look(asked: &[Asked], now: Instant) -> Instant {
    let soon = now + LOOK;
    let due = asked.iter().filter_map(|one| one.due).max();
    due.filter(|due| now < *due && asked.iter().all(|one| one.due.is_some())).map_or(soon, |due| due.min(soon))
}

impl Dispatcher {
    /// Asks the leased replica, and while that is late others that `may` be asked and are not in `tried`. Those that fail
    /// meanwhile are added there.
    pub(super) async fn ask_beside(
        &self,
        ask: &Ask,
        lease: Lease,
        tried: &mut Vec<ReplicaId>,
        may: &(dyn Fn(&ReplicaId) -> bool + Sync),
    ) -> Outcome {
        let first = lease.replica();
        // Only one has what it needs, or the client has not said all of it.
        if ask.pinned.is_some() || ask.body.whole().is_none() {
            return Outcome { replica: first, answer: self.attempt(ask, lease).await, others: 0 };
        }
        let mut asked = vec![self.asked(ask, &lease)];
        let mut attempt = pin!(self.attempt(ask, lease));
        // Nearly always the first answers in time.
        let second = loop {
            let look = time::sleep_until(next_look(&asked, Instant::now()).into());
            tokio::select! {
                biased;
                answer = attempt.as_mut() => return Outcome { replica: first, answer, others: 0 },
                () = look => {}
            }
            if let Some(second) = self.second(ask, &asked, tried, may) {
                break second;
            }
        };
        let named = |replica| move |answer| (replica, answer);
        let mut running = FuturesUnordered::from_iter([Either::Left(attempt.map(named(first)))]);
        let (mut another, mut others) = (Some(second), 0);
        loop {
            if let Some(lease) = another.take() {
                let replica = lease.replica();
                self.metrics.retried("late");
                tracing::debug!(%first, %replica, request_id = ask.id.to_str().ok(), "another is asked beside");
                asked.push(self.asked(ask, &lease));
                running.push(Either::Right(Box::pin(self.attempt(ask, lease)).map(named(replica))));
            }
            let look = time::sleep_until(next_look(&asked, Instant::now()).into());
            let done = tokio::select! {
                biased;
                done = running.next() => done,
                () = look => None,
            };
            match done {
                Some((replica, Ok(answer))) => {
                    let later = asked.iter().position(|one| one.replica == replica).unwrap_or(0);
                    asked[..later].iter().for_each(|one| self.pool.outrun(&one.replica));
                    return Outcome { replica, answer: Ok(answer), others: others + asked.len() - 1 };
                }
                Some((replica, answer)) if running.is_empty() => return Outcome { replica, answer, others },
                Some((replica, Err(failure))) => {
                    asked.retain(|one| one.replica != replica);
                    // Bad timing is no failure.
                    if !matches!(failure, Failure::Full) {
                        tried.push(replica);
                    }
                    others += usize::from(!matches!(failure, Failure::Full | Failure::Draining));
                }
                None => {}
            }
            another = self.second(ask, &asked, tried, may);
        }
    }

    fn asked(&self, ask: &Ask, lease: &Lease) -> Asked {
        let (deadlines, _) = self.deadlines(lease.replica(), ask.want.prompt.kib(), ask.want.stream);
        Asked::by(lease, ask.want.stream, deadlines.first_byte)
    }

    /// One more, if all of `asked` are late.
    fn second(
        &self,
        ask: &Ask,
        asked: &[Asked],
        tried: &[ReplicaId],
        may: &(dyn Fn(&ReplicaId) -> bool + Sync),
    ) -> Option<Lease> {
        let now = Instant::now();
        let late = |one: &Asked| one.due.is_some_and(|due| due <= now) || self.is_silent(&one.replica);
        if asked.len() >= TOGETHER || !asked.iter().all(late) {
            return None;
        }
        let taken: Vec<_> = asked.iter().map(|one| one.replica).chain(tried.iter().copied()).collect();
        self.pool.second(&ask.want, &taken).filter(|lease| may(&lease.replica()))
    }

    /// Whether nothing has been heard on its connection for some time, or that has gone.
    fn is_silent(&self, replica: &ReplicaId) -> bool {
        self.handle.directory().read(|directory| {
            directory
                .replica(replica)
                .is_none_or(|it| matches!(it.reachability, Reachability::Suspect | Reachability::Disconnected))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::id::PeerId;

    #[test]
    fn it_is_looked_when_the_last_is_due_and_now_and_then() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let one = |due: Option<u64>| Asked {
            replica: ReplicaId { peer: PeerId::random(), index: 0 },
            due: due.map(|due| now + ms(due)),
        };
        assert_eq!(next_look(&[one(Some(100))], now), now + ms(100));
        assert_eq!(next_look(&[one(Some(100)), one(Some(200))], now), now + ms(200));
        assert_eq!(next_look(&[one(Some(100)), one(Some(900))], now), now + LOOK);
        assert_eq!(next_look(&[one(None)], now), now + LOOK);
        assert_eq!(next_look(&[one(Some(100))], now + ms(100)), now + ms(100) + LOOK);
    }
}
