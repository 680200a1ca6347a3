//! How often agents report their load, as the proxies that hear them all tell them. Pure.
//!
//! Agents are mostly connected with proxies alone, and learn from announcements and the DHT, within minutes, how many they
//! are. A proxy hears of each as it comes: whenever the interval that follows from their number has changed by some, it
//! says that number to all of them.

use crate::gossip;
use dunlin_protocol::id::PeerId;
use std::{collections::HashMap, time::Duration};

/// An interval that changed by less than this part is no news.
const STEP: u32 = 8;
/// Agents told in one round, a second.
const AT_ONCE: usize = 128;
/// Proxies whose word an agent remembers: more than a mesh has.
const PROXIES: usize = 256;

/// What a proxy has told its agents.
#[derive(Debug, Default)]
pub(crate) struct Told {
    intervals: HashMap<PeerId, Duration>,
}

impl Told {
    /// Those of the `connected` agents that are to be told now that there are so many `agents`. Each that isn't told again
    /// is taken to report at that rate.
    pub(crate) fn due(&mut self, connected: &[PeerId], agents: usize) -> Vec<PeerId> {
        self.intervals.retain(|peer, _| connected.contains(peer));
        let now = gossip::report_interval(agents);
        let is_news = |peer: &&PeerId| {
            let told = self.intervals.get(*peer).copied().unwrap_or(gossip::REPORT_INTERVAL);
            told.abs_diff(now) > told / STEP
        };
        let due: Vec<PeerId> = connected.iter().filter(is_news).take(AT_ONCE).copied().collect();
        self.intervals.extend(due.iter().map(|peer| (*peer, now)));
        due
    }

    /// It did not reach this agent, or the agent begins anew.
    pub(crate) fn forget(&mut self, peer: &PeerId) {
        self.intervals.remove(peer);
    }
}

/// What an agent was told by proxies.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    agents: HashMap<PeerId, usize>,
}

impl Heard {
    /// `proxy` hears so many agents.
    pub(crate) fn tell(&mut self, proxy: PeerId, agents: usize) {
        if self.agents.len() < PROXIES || self.agents.contains_key(&proxy) {
            self.agents.insert(proxy, agents);
        }
    }

    /// The most agents that a proxy hears which is still `connected`; 0 where none has said.
    pub(crate) fn most(&mut self, connected: impl Fn(&PeerId) -> bool) -> usize {
        self.agents.retain(|proxy, _| connected(proxy));
        self.agents.values().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(count: usize) -> Vec<PeerId> {
        (0..count).map(|_| PeerId::random()).collect()
    }

    #[test]
    fn agents_are_told_when_their_number_changes_the_interval_and_only_then() {
        let (mut told, agents) = (Told::default(), peers(60));
        assert!(told.due(&agents, 40).is_empty(), "the full rate needs no word");
        assert!(told.due(&agents, 44).is_empty(), "a little more is no news");
        assert_eq!(told.due(&agents, 60).len(), 60);
        assert!(told.due(&agents, 60).is_empty() && told.due(&agents, 65).is_empty());
        assert_eq!(told.due(&agents, 40).len(), 60, "back at the full rate");
    }

    #[test]
    fn a_round_is_bounded_and_the_next_tells_the_others() {
        let (mut told, agents) = (Told::default(), peers(200));
        let (first, second) = (told.due(&agents, 200), told.due(&agents, 200));
        assert_eq!((first.len(), second.len()), (AT_ONCE, 200 - AT_ONCE));
        assert!(first.iter().all(|peer| !second.contains(peer)) && told.due(&agents, 200).is_empty());
    }

    #[test]
    fn who_was_not_reached_or_comes_back_is_told_again() {
        let (mut told, agents) = (Told::default(), peers(3));
        assert_eq!(told.due(&agents, 100).len(), 3);
        told.forget(&agents[1]);
        assert_eq!(told.due(&agents, 100), [agents[1]]);
        assert!(told.due(&agents[1..], 100).is_empty());
        assert_eq!(told.due(&agents, 100), [agents[0]], "its connection had gone, and what it was told with it");
    }

    #[test]
    fn an_agent_goes_by_the_busiest_proxy_that_it_is_connected_with() {
        let (mut heard, proxies) = (Heard::default(), peers(2));
        assert_eq!(heard.most(|_| true), 0);
        heard.tell(proxies[0], 50);
        heard.tell(proxies[1], 200);
        assert_eq!(heard.most(|_| true), 200);
        assert_eq!(heard.most(|peer| *peer == proxies[0]), 50);
        assert_eq!(heard.most(|_| true), 50, "the word of one that went is forgotten");
        for peer in peers(PROXIES * 2) {
            heard.tell(peer, 1);
        }
        assert_eq!(heard.agents.len(), PROXIES);
    }
}
