//! Dials: one at a time per peer, joined, bounded in number and time, with back-off after failures.
//!
//! Pure: says whether to dial; the event loop does it and tells how it went.

mod lost;
mod pause;

use crate::handle::ConnectError;
use dunlin_protocol::id::PeerId;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Longest time from asking for a connection to its end, one way or the other.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// Dials under way at once.
pub const DIALS: usize = 64;
/// Callers that wait for one dial.
const WAITERS: usize = 4096;
/// Wait after the first failure before a dial that nobody waits for; doubles up to [`BACK_OFF_CALM`], so that a mesh that
/// was cut in two is one again seconds after the cut is mended.
const BACK_OFF: Duration = Duration::from_millis(500);
const BACK_OFF_CALM: Duration = Duration::from_secs(2);
/// Who has been away for long is dialled less often: after this part of that time.
const BACK_OFF_PART: u32 = 200;
/// Where many are away each is dialled less often: each adds so much to the wait.
const BACK_OFF_EACH: Duration = Duration::from_millis(100);
/// The wait is never longer.
const BACK_OFF_MAX: Duration = Duration::from_secs(60);
/// How long a peer that refused this one, or isn't a member, is left alone.
pub const REFUSED: Duration = Duration::from_secs(600);
/// Peers of which failures are remembered.
const REMEMBERED: usize = 4096;

pub(crate) use lost::Lost;
pub(crate) use pause::Pause;

pub(crate) type Waiter = oneshot::Sender<Result<(), ConnectError>>;

/// Dials under way and lately failed.
#[derive(Default)]
pub(crate) struct Dials {
    running: HashMap<PeerId, Dial>,
    failed: HashMap<PeerId, Failed>,
}

struct Dial {
    waiters: Vec<Waiter>,
    deadline: Instant,
}

struct Failed {
    times: u32,
    /// The first time.
    since: Instant,
    until: Instant,
    refused: bool,
}

impl Dials {
    /// Asks for a dial of `peer`. Returns whether the caller must start one now and then tell how it went.
    ///
    /// With a waiter it is asked for by somebody who needs it: only a refusal holds it back, not the back-off.
    pub(crate) fn ask(&mut self, peer: PeerId, waiter: Option<Waiter>, now: Instant) -> bool {
        if let Some(dial) = self.running.get_mut(&peer) {
            if let Some(waiter) = waiter {
                dial.add(waiter);
            }
            return false;
        }
        let urgent = waiter.is_some();
        let held_back = self.failed.get(&peer).filter(|failed| failed.until > now);
        let refusal = match held_back {
            Some(failed) if failed.refused => Some(ConnectError::Refused(peer)),
            Some(_) if !urgent => return false,
            _ if self.running.len() >= DIALS => Some(ConnectError::Busy),
            _ => None,
        };
        if let Some(error) = refusal {
            if let Some(waiter) = waiter {
                // An error means that the caller has gone.
                let _ = waiter.send(Err(error));
            }
            return false;
        }
        self.running.insert(peer, Dial { waiters: waiter.into_iter().collect(), deadline: now + DEADLINE });
        true
    }

    /// Whether a dial that nobody waits for would not be started now because the last ones failed.
    pub(crate) fn is_held_back(&self, peer: &PeerId, now: Instant) -> bool {
        self.failed.get(peer).is_some_and(|failed| failed.until > now)
    }

    /// The peer is connected, by this dial or its own.
    pub(crate) fn connected(&mut self, peer: &PeerId) {
        self.failed.remove(peer);
        self.answer(peer, &Ok(()));
    }

    /// A dial failed. `refused`: by one side's admission, so that trying again is useless for a while.
    pub(crate) fn failed(&mut self, peer: PeerId, error: &ConnectError, refused: bool, now: Instant) {
        let (times, since) = self.failed.get(&peer).map_or((0, now), |failed| (failed.times, failed.since));
        let times = times.saturating_add(1);
        let wait = self.wait(times, now.saturating_duration_since(since), now);
        if self.failed.len() >= REMEMBERED {
            self.failed.retain(|_, failed| failed.until > now);
        }
        if self.failed.len() < REMEMBERED {
            self.failed
                .insert(peer, Failed { times, since, until: now + if refused { REFUSED } else { wait }, refused });
        }
        self.answer(&peer, &Err(error.clone()));
    }

    fn wait(&self, times: u32, away: Duration, now: Instant) -> Duration {
        // Of those that nobody wants any more the last failure is long ago.
        let others = self.failed.values().filter(|failed| failed.until + BACK_OFF_MAX > now).count();
        let others = BACK_OFF_EACH.saturating_mul(u32::try_from(others).unwrap_or(u32::MAX));
        let doubled = BACK_OFF.saturating_mul(1 << times.saturating_sub(1).min(8)).min(BACK_OFF_CALM);
        doubled.max(away / BACK_OFF_PART).max(others).min(BACK_OFF_MAX)
    }

    /// Lets a peer be dialled again whatever happened before: it has a new certificate, or this process has.
    pub(crate) fn forgive(&mut self, peer: &PeerId) {
        self.failed.remove(peer);
    }

    /// Whether a dial of `peer` is under way.
    pub(crate) fn is_running(&self, peer: &PeerId) -> bool {
        self.running.contains_key(peer)
    }

    /// Gives up on dials that are past their deadline.
    pub(crate) fn expire(&mut self, now: Instant) {
        let late: Vec<PeerId> =
            self.running.iter().filter(|(_, dial)| dial.deadline <= now).map(|(peer, _)| *peer).collect();
        for peer in late {
            let error = ConnectError::Failed { peer, cause: "no answer in time".to_owned() };
            self.failed(peer, &error, false, now);
        }
    }

    fn answer(&mut self, peer: &PeerId, result: &Result<(), ConnectError>) {
        let Some(dial) = self.running.remove(peer) else { return };
        for waiter in dial.waiters {
            // An error means that the caller has gone.
            let _ = waiter.send(result.clone());
        }
    }
}

impl Dial {
    fn add(&mut self, waiter: Waiter) {
        if self.waiters.len() >= WAITERS {
            let _ = waiter.send(Err(ConnectError::Busy));
            return;
        }
        self.waiters.push(waiter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dials_of_one_peer_are_joined() {
        let (mut dials, peer, now) = (Dials::default(), PeerId::random(), Instant::now());
        let (first, mut first_answer) = oneshot::channel();
        let (second, mut second_answer) = oneshot::channel();
        assert!(dials.ask(peer, Some(first), now));
        assert!(!dials.ask(peer, Some(second), now));
        dials.connected(&peer);
        assert_eq!(first_answer.try_recv().unwrap(), Ok(()));
        assert_eq!(second_answer.try_recv().unwrap(), Ok(()));
    }

    #[test]
    fn failures_hold_back_idle_dials_but_not_urgent_ones() {
        let (mut dials, peer, now) = (Dials::default(), PeerId::random(), Instant::now());
        assert!(dials.ask(peer, None, now));
        dials.failed(peer, &ConnectError::NoAddress(peer), false, now);
        assert!(!dials.ask(peer, None, now));
        let (waiter, _answer) = oneshot::channel();
        assert!(dials.ask(peer, Some(waiter), now));
        dials.failed(peer, &ConnectError::NoAddress(peer), false, now);
        assert!(!dials.ask(peer, None, now + BACK_OFF));
        assert!(dials.ask(peer, None, now + BACK_OFF * 2));
    }

    /// When a peer that is away is dialled, each dial failing after its deadline.
    fn dialled(dials: &mut Dials, peer: PeerId, start: Instant, length: Duration) -> Vec<Duration> {
        let (mut now, mut at) = (start, Vec::new());
        while now < start + length {
            if dials.ask(peer, None, now) {
                at.push(now - start);
                now += DEADLINE;
                dials.expire(now);
            }
            now += Duration::from_millis(100);
        }
        at
    }

    #[test]
    fn who_was_cut_off_is_found_within_seconds_and_who_stays_away_is_not_dialled_for_ever() {
        let longest = |dials: &mut Dials, from: u64, to: u64| {
            let at = dialled(dials, PeerId::random(), Instant::now(), Duration::from_secs(to));
            let pauses = at.windows(2).filter(|two| two[0].as_secs() > from).map(|two| two[1] - two[0] - DEADLINE);
            pauses.max().unwrap()
        };
        assert!(longest(&mut Dials::default(), 0, 300) <= Duration::from_secs(3));
        assert!(longest(&mut Dials::default(), 0, 3600) > Duration::from_secs(15));
        let late = longest(&mut Dials::default(), 20_000, 40_000);
        assert!(late > Duration::from_secs(55) && late <= BACK_OFF_MAX + Duration::from_millis(200), "{late:?}");
        let mut crowd = Dials::default();
        for _ in 0..200 {
            crowd.failed(PeerId::random(), &ConnectError::NoAddress(PeerId::random()), false, Instant::now());
        }
        let wait = crowd.wait(9, Duration::ZERO, Instant::now());
        assert_eq!(wait, Duration::from_secs(20), "two hundred are away: ten dials a second");
    }

    #[test]
    fn who_refused_is_left_alone() {
        let (mut dials, peer, now) = (Dials::default(), PeerId::random(), Instant::now());
        assert!(dials.ask(peer, None, now));
        dials.failed(peer, &ConnectError::Refused(peer), true, now);
        let (waiter, mut answer) = oneshot::channel();
        assert!(!dials.ask(peer, Some(waiter), now + Duration::from_secs(300)));
        assert_eq!(answer.try_recv().unwrap(), Err(ConnectError::Refused(peer)));
        assert!(dials.ask(peer, None, now + REFUSED));
    }

    #[test]
    fn a_dial_ends_at_its_deadline() {
        let (mut dials, peer, now) = (Dials::default(), PeerId::random(), Instant::now());
        let (waiter, mut answer) = oneshot::channel();
        dials.ask(peer, Some(waiter), now);
        dials.expire(now + DEADLINE);
        assert!(matches!(answer.try_recv().unwrap(), Err(ConnectError::Failed { .. })));
    }
}
