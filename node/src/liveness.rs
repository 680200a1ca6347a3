//! Who has been silent for how long. Pure: the event loop says what it heard, and asks what follows.

use dunlin_protocol::id::PeerId;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Silence after which a peer is suspect: new requests go elsewhere, streams go on. A little under the 3 s that are
/// promised, so that the promise holds with the tick on top.
pub const SUSPECT: Duration = Duration::from_millis(2700);
/// Silence after which the connections to a peer are closed.
pub const DEAD: Duration = Duration::from_secs(10);
/// How often a connected peer is pinged: the longest silence of a healthy one.
pub const PING: Duration = Duration::from_secs(1);
/// How often silence is looked at.
pub const TICK: Duration = Duration::from_millis(200);

/// What a look at the clock found out about one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Silent for [`SUSPECT`].
    Suspect(PeerId),
    /// Silent for [`DEAD`].
    Dead(PeerId),
    /// A suspect that spoke in a way that only `last_report` of [`Liveness::check`] knows of.
    Back(PeerId),
}

/// When each connected peer was last heard.
#[derive(Debug, Default)]
pub struct Liveness {
    peers: HashMap<PeerId, Heard>,
}

#[derive(Debug)]
struct Heard {
    at: Instant,
    suspect: bool,
    /// Its connections were given up, and are closing: over a cut cable that takes a while.
    dead: bool,
}

impl Liveness {
    /// Notes that `peer` said anything at `now`. Returns whether it was suspect until then.
    pub fn heard(&mut self, peer: PeerId, now: Instant) -> bool {
        match self.peers.get_mut(&peer) {
            Some(heard) => {
                heard.at = heard.at.max(now);
                heard.dead = false;
                std::mem::take(&mut heard.suspect)
            }
            None => false,
        }
    }

    /// Starts to watch a peer that has just connected.
    pub fn connected(&mut self, peer: PeerId, now: Instant) {
        self.peers.insert(peer, Heard { at: now, suspect: false, dead: false });
    }

    /// Stops watching a peer whose last connection closed.
    pub fn disconnected(&mut self, peer: &PeerId) {
        self.peers.remove(peer);
    }

    /// Who has newly become suspect or dead. `last_report` says when a peer was heard in ways that this does not see.
    pub fn check(&mut self, last_report: impl Fn(&PeerId) -> Option<Instant>, now: Instant) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for (peer, heard) in &mut self.peers {
            if now.saturating_duration_since(heard.at) < SUSPECT {
                continue;
            }
            if let Some(report) = last_report(peer) {
                heard.at = heard.at.max(report);
            }
            let silence = now.saturating_duration_since(heard.at);
            if silence < SUSPECT && std::mem::take(&mut heard.suspect) {
                verdicts.push(Verdict::Back(*peer));
            } else if silence >= DEAD {
                if !std::mem::replace(&mut heard.dead, true) {
                    verdicts.push(Verdict::Dead(*peer));
                }
            } else if silence >= SUSPECT && !std::mem::replace(&mut heard.suspect, true) {
                verdicts.push(Verdict::Suspect(*peer));
            }
        }
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_makes_suspect_once_and_then_dead_and_a_word_clears_it() {
        let (mut liveness, peer, start) = (Liveness::default(), PeerId::random(), Instant::now());
        liveness.connected(peer, start);
        assert!(liveness.check(|_| None, start + Duration::from_secs(2)).is_empty());
        assert_eq!(liveness.check(|_| None, start + SUSPECT), [Verdict::Suspect(peer)]);
        assert!(liveness.check(|_| None, start + SUSPECT + TICK).is_empty());
        assert!(liveness.heard(peer, start + Duration::from_secs(4)));
        assert!(!liveness.heard(peer, start + Duration::from_secs(4)));
        assert_eq!(liveness.check(|_| None, start + Duration::from_secs(14)), [Verdict::Dead(peer)]);
        // While its connections close nothing more follows; another connection may go silent again.
        assert!(liveness.check(|_| None, start + Duration::from_secs(15)).is_empty());
        liveness.heard(peer, start + Duration::from_secs(16));
        assert_eq!(liveness.check(|_| None, start + Duration::from_secs(26)), [Verdict::Dead(peer)]);
    }

    #[test]
    fn a_load_report_counts_as_a_word() {
        let (mut liveness, peer, start) = (Liveness::default(), PeerId::random(), Instant::now());
        liveness.connected(peer, start);
        let at = start + Duration::from_secs(4);
        assert!(liveness.check(|_| Some(start + Duration::from_secs(3)), at).is_empty());
    }

    #[test]
    fn a_suspect_that_spoke_elsewhere_is_back() {
        let (mut liveness, peer, start) = (Liveness::default(), PeerId::random(), Instant::now());
        liveness.connected(peer, start);
        let at = start + Duration::from_secs(4);
        assert_eq!(liveness.check(|_| None, at), [Verdict::Suspect(peer)]);
        assert_eq!(liveness.check(|_| Some(at), at + TICK), [Verdict::Back(peer)]);
        assert!(liveness.check(|_| Some(at), at + TICK * 2).is_empty());
    }
}
