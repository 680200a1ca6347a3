//! What each replica holds of a request's prompt, session and earlier responses, as far as one proxy can know.

use super::Balancer;
use crate::{
    prompt::{self, Prompt},
    route::{Candidate, Held},
};
use dunlin_protocol::id::ReplicaId;

/// Chance that a beginning is where all proxies agree to send it, as far as requests come from others at all.
const AT_HOME: f64 = 0.9;
/// The same at the second place that all agree on, where it goes while the first is busy.
const AT_SECOND_HOME: f64 = 0.4;
/// Chance that it is not any more where we sent it, as far as requests come from others: most that begin so go home.
const AWAY: f64 = 0.9;
/// A smaller share of others' requests is none.
const ALONE: f64 = 0.1;

impl<W> Balancer<W> {
    /// Adds to the candidates what each of them has of this prompt already.
    pub(super) fn fill_held(&self, prompt: &Prompt, candidates: &mut [Candidate]) {
        let others = self.others;
        let held = self.affinity.look_up(&prompt.blocks, candidates.len(), others);
        let holder = |name: Option<u64>| name.and_then(|name| self.affinity.holder(name));
        let (session, response) = (holder(prompt.session), holder(prompt.previous));
        let homes = held.own.filter(|_| others > ALONE).map(|own| self.homes(own, candidates)).unwrap_or_default();
        for candidate in candidates {
            let Some(record) = self.records.get(&candidate.replica) else { continue };
            let cached = held.by(record.number);
            let more = |chance: f64| (prompt.bytes as f64 - cached).max(0.0) * chance * others / 1024.0;
            let away = cached * (1.0 - AWAY * others) / 1024.0;
            (candidate.own.cached_kib, candidate.own.home_kib) = match Some(candidate.replica) {
                here if here == homes[0] => (cached / 1024.0, more(AT_HOME)),
                here if here == homes[1] => (away, more(AT_SECOND_HOME)),
                _ => (away, 0.0),
            };
            candidate.own.held = match Some(record.number) {
                known if known == response => Held::Response,
                known if known == session => Held::Session,
                _ => Held::Nothing,
            };
        }
    }

    /// The replicas on which all proxies agree for a prompt that goes on with the block of this hash, without a word
    /// between them: the one with the highest hash of both (rendezvous hashing), and the second, for when that is busy.
    fn homes(&self, block: u64, candidates: &[Candidate]) -> [Option<ReplicaId>; 2] {
        let mut highest = [(0, None); 2];
        for candidate in candidates {
            let Some(record) = self.records.get(&candidate.replica) else { continue };
            let one = (prompt::hash((record.hash, block)), Some(candidate.replica));
            if one.0 > highest[0].0 {
                highest = [one, highest[0]];
            } else if one.0 > highest[1].0 {
                highest[1] = one;
            }
        }
        highest.map(|(_, replica)| replica)
    }
}
