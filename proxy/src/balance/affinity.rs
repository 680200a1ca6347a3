//! Which replica has seen which beginnings of prompts, sessions and responses: what engines keep in their prefix caches,
//! as far as this proxy knows. Bounded: what was not used for longest is forgotten first.
//!
//! How much an engine keeps nobody says, so the older a use the less it counts; age is told not in time but in the
//! prompts sent since, which is what pushes others out of a cache.

use crate::prompt::{Block, Prompt};
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// Entries of one generation; there are two. About 4 MB when both are full: just what a table of 32,768 places takes in.
const ENTRIES: usize = 28 * 1024;
/// Replicas that are remembered with one entry: those that saw it last.
const HOLDERS: usize = 8;
/// KiB of prompts sent to a replica after which it is as likely as not to have pushed an earlier one out.
const HALF_LIFE_KIB: f64 = 512.0;

/// So many prompts are too few to tell what share of them begins alike.
const FEW: f64 = 32.0;

/// A replica's number within one proxy; 0 is none.
pub(super) type Number = u16;

/// The index. Two generations stand in for an exact order of use: new and used entries are in the young one; when that
/// is full it becomes the old one, whose unused entries go.
#[derive(Debug, Default)]
pub(super) struct Affinity {
    young: HashMap<u64, Holders, RandomState>,
    old: HashMap<u64, Holders, RandomState>,
    /// KiB of prompts sent to anybody so far.
    sent_kib: u32,
    /// Prompts sent so far.
    sent: u32,
}

/// Who has seen one beginning, and how much had been sent when it was seen last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Holders {
    /// Prompts sent before the first that began so, and those since that did.
    first: u32,
    count: u32,
    numbers: [Number; HOLDERS],
    sent_kib: [u32; HOLDERS],
}

/// KiB sent between two moments, whose counts wrap; none where the second is before the first, because what came between
/// was taken back.
fn between(before: u32, after: u32) -> u32 {
    u32::try_from(after.wrapping_sub(before).cast_signed()).unwrap_or(0)
}

impl Holders {
    fn add(&mut self, number: Number, sent_kib: u32) {
        let known = self.numbers.iter().position(|held| *held == number || *held == 0);
        let oldest = || (0..HOLDERS).max_by_key(|&at| between(self.sent_kib[at], sent_kib));
        if let Some(at) = known.or_else(oldest) {
            (self.numbers[at], self.sent_kib[at]) = (number, sent_kib);
        }
    }

    fn remove(&mut self, number: Number) {
        let last = self.numbers.iter().rposition(|held| *held != 0);
        let at = self.numbers.iter().position(|held| *held == number);
        if let (Some(at), Some(last)) = (at, last) {
            self.numbers.swap(at, last);
            self.sent_kib.swap(at, last);
            (self.numbers[last], self.sent_kib[last]) = (0, 0);
        }
        self.count = self.count.saturating_sub(1);
    }

    fn has(&self, number: Number) -> bool {
        self.numbers.contains(&number)
    }

    fn iter(&self) -> impl Iterator<Item = (Number, u32)> {
        self.numbers.into_iter().zip(self.sent_kib).take_while(|(number, _)| *number != 0)
    }
}

/// What a prompt changed, to be taken back if the replica refuses it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sent {
    number: Number,
    new_kib: u32,
    /// Blocks at its beginning that were known of the replica before.
    known: usize,
    /// Who had its session before; 0 for nobody.
    session_was: Number,
}

/// How much of a prompt replicas hold.
#[derive(Debug, Default)]
pub(super) struct Held {
    some: Vec<Holding>,
    /// The hash of the first block that few prompts share.
    pub(super) own: Option<u64>,
}

#[derive(Debug)]
struct Holding {
    number: Number,
    /// Where the last block ends that it has seen without a gap.
    end: u64,
    /// Bytes that it is likely to hold.
    bytes: f64,
}

impl Held {
    /// Bytes that the replica of `number` is likely to hold.
    pub(super) fn by(&self, number: Number) -> f64 {
        self.some.iter().find(|holding| holding.number == number).map_or(0.0, |holding| holding.bytes)
    }
}

impl Affinity {
    /// Who holds how much of a prompt's beginning, where prompts are spread over `replicas`, and a share of them comes from
    /// `others`, 0 to 1.
    pub(super) fn look_up(&self, blocks: &[Block], replicas: usize, others: f64) -> Held {
        // What we send is a share of what pushes others out, which is spread over all.
        let spread = replicas.max(1) as f64 * (1.0 - others).max(0.05);
        let mut held = Held::default();
        let mut before = 0;
        for block in blocks {
            let Some(holders) = self.get(block.hash) else {
                held.own = held.own.or(Some(block.hash));
                break;
            };
            if held.own.is_none() && self.share(holders) * (2 * replicas) as f64 <= 1.0 {
                held.own = Some(block.hash);
            }
            let size = (block.end - before) as f64;
            for (number, sent_kib) in holders.iter() {
                let bytes = size * self.likelihood(sent_kib, spread);
                match held.some.iter_mut().find(|holding| holding.number == number) {
                    // Only without a gap: what follows one that it has lost is lost as well.
                    Some(holding) if holding.end == before => {
                        holding.end = block.end;
                        holding.bytes += bytes;
                    }
                    None if before == 0 => held.some.push(Holding { number, end: block.end, bytes }),
                    Some(_) | None => {}
                }
            }
            before = block.end;
        }
        held
    }

    fn likelihood(&self, sent_kib: u32, spread: f64) -> f64 {
        let since = f64::from(between(sent_kib, self.sent_kib)) * spread.recip();
        1.0 / (1.0 + since / HALF_LIFE_KIB)
    }

    /// Share of the prompts that begin so.
    fn share(&self, holders: &Holders) -> f64 {
        let since = self.sent.wrapping_sub(holders.first);
        f64::from(holders.count) / (f64::from(since) + FEW)
    }

    /// The replica of `number` gets `prompt`, of which `new_kib` are new to it, and its session.
    pub(super) fn send(&mut self, prompt: &Prompt, new_kib: u32, number: Number) -> Sent {
        let known = self.add(&prompt.blocks, new_kib, number);
        let session_was = prompt.session.and_then(|session| self.holder(session)).unwrap_or(0);
        if let Some(session) = prompt.session {
            self.hold(session, number);
        }
        Sent { number, new_kib, known, session_was }
    }

    /// It has refused that.
    pub(super) fn take_back(&mut self, prompt: &Prompt, sent: Sent) {
        let Sent { number, new_kib, known, session_was } = sent;
        self.sent_kib = self.sent_kib.wrapping_sub(new_kib);
        for block in prompt.blocks.iter().skip(known) {
            if let Some(holders) = self.get_mut(block.hash) {
                holders.remove(number);
            }
        }
        if let Some(session) = prompt.session.filter(|session| self.holder(*session) == Some(number)) {
            self.hold(session, session_was);
        }
    }

    /// The replica of `number` gets a prompt of these blocks, of which `new_kib` are new to it. Returns how many blocks of its
    /// beginning were known of it.
    fn add(&mut self, blocks: &[Block], new_kib: u32, number: Number) -> usize {
        let mut known = 0;
        self.sent_kib = self.sent_kib.wrapping_add(new_kib);
        self.sent = self.sent.wrapping_add(1);
        let (sent_kib, sent) = (self.sent_kib, self.sent);
        for (at, block) in blocks.iter().enumerate() {
            let holders = self.entry(block.hash);
            known += usize::from(known == at && holders.has(number));
            if holders.count == 0 {
                holders.first = sent;
            }
            holders.count = holders.count.saturating_add(1);
            holders.add(number, sent_kib);
        }
        known
    }

    /// Who had the session or gave the response of this hash.
    pub(super) fn holder(&self, name: u64) -> Option<Number> {
        self.get(name).map(|holders| holders.numbers[0]).filter(|number| *number != 0)
    }

    /// The replica of `number` has it now, and no other.
    pub(super) fn hold(&mut self, name: u64, number: Number) {
        let mut only = Holders::default();
        only.add(number, 0);
        *self.entry(name) = only;
    }

    /// Forgets all, for instance because numbers are given anew.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn get(&self, hash: u64) -> Option<&Holders> {
        self.young.get(&hash).or_else(|| self.old.get(&hash))
    }

    fn get_mut(&mut self, hash: u64) -> Option<&mut Holders> {
        self.young.get_mut(&hash).or_else(|| self.old.get_mut(&hash))
    }

    fn entry(&mut self, hash: u64) -> &mut Holders {
        if self.young.len() >= ENTRIES && !self.young.contains_key(&hash) {
            self.old = std::mem::take(&mut self.young);
        }
        let old = &mut self.old;
        self.young.entry(hash).or_insert_with(|| old.remove(&hash).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(hashes: &[u64]) -> Vec<Block> {
        hashes.iter().zip(1..).map(|(&hash, n)| Block { hash, end: n * 100 }).collect()
    }

    #[test]
    fn the_longest_beginning_of_each_replica_is_found() {
        let mut affinity = Affinity::default();
        affinity.add(&blocks(&[1, 2, 3]), 0, 1);
        affinity.add(&blocks(&[1, 2, 9, 10]), 0, 2);
        let held = affinity.look_up(&blocks(&[1, 2, 3, 4]), 2, 0.0);
        assert_eq!((held.by(1), held.by(2), held.by(3), held.own), (300.0, 200.0, 0.0, Some(1)));
        let other = affinity.look_up(&blocks(&[7, 2, 3]), 2, 0.0);
        assert_eq!((other.by(1), other.own), (0.0, Some(7)));
    }

    #[test]
    fn what_was_pushed_out_by_other_prompts_counts_less() {
        let mut affinity = Affinity::default();
        affinity.add(&blocks(&[1, 2]), 1, 1);
        affinity.add(&blocks(&[5, 6]), 1024, 2);
        affinity.add(&blocks(&[1, 2]), 1, 3);
        let held = affinity.look_up(&blocks(&[1, 2]), 2, 0.0);
        assert!((held.by(1) - 100.0).abs() < 1.0 && held.by(3) > 199.0, "{held:?}");
        affinity.add(&blocks(&[1, 2]), 0, 1);
        assert!(affinity.look_up(&blocks(&[1, 2]), 2, 0.0).by(1) > 199.0, "used again");
    }

    #[test]
    fn what_was_refused_was_not_sent() {
        let mut affinity = Affinity::default();
        let prompt = |hashes: &[u64]| Prompt { blocks: blocks(hashes), session: Some(77), ..Prompt::default() };
        let kept = affinity.send(&prompt(&[1, 2]), 1, 1);
        let refused = affinity.send(&prompt(&[1, 2, 3]), 9, 2);
        assert_eq!(affinity.look_up(&blocks(&[1, 2, 3]), 2, 0.0).by(2), 300.0);
        affinity.take_back(&prompt(&[1, 2, 3]), refused);
        let held = affinity.look_up(&blocks(&[1, 2, 3]), 2, 0.0);
        assert_eq!((held.by(1), held.by(2), affinity.holder(77)), (200.0, 0.0, Some(1)));
        // What it held before it still holds.
        let more = affinity.send(&prompt(&[1, 2, 3]), 1, 1);
        affinity.take_back(&prompt(&[1, 2, 3]), more);
        assert_eq!(affinity.look_up(&blocks(&[1, 2, 3]), 2, 0.0).by(1), 200.0);
        affinity.take_back(&prompt(&[1, 2]), kept);
        assert_eq!((affinity.look_up(&blocks(&[1, 2]), 2, 0.0).by(1), affinity.holder(77)), (0.0, None));
    }

    #[test]
    fn what_all_prompts_share_is_nobodys_own() {
        let mut affinity = Affinity::default();
        for n in 0..1000 {
            affinity.add(&blocks(&[1, 2, 100 + n % 50, 10_000 + n]), 1, 1);
        }
        let own = |hashes: &[u64]| affinity.look_up(&blocks(hashes), 4, 0.5).own;
        assert_eq!(own(&[1, 2, 103, 7]), Some(103), "a document that one of fifty asks about");
        assert_eq!(own(&[1, 2, 8, 9]), Some(8), "a new conversation");
        assert_eq!(own(&[1, 2]), None);
    }

    #[test]
    fn of_many_holders_the_latest_are_remembered() {
        let mut affinity = Affinity::default();
        for number in 1..=20 {
            affinity.add(&blocks(&[1]), 1, number);
        }
        let held = affinity.look_up(&blocks(&[1]), 20, 0.0);
        assert_eq!((1..=20).filter(|&number| held.by(number) > 0.0).collect::<Vec<_>>(), (13..=20).collect::<Vec<_>>());
    }

    #[test]
    fn a_session_is_where_it_was_last() {
        let mut affinity = Affinity::default();
        affinity.hold(5, 1);
        affinity.hold(5, 2);
        assert_eq!((affinity.holder(5), affinity.holder(6)), (Some(2), None));
    }

    #[test]
    fn it_stays_small_and_keeps_what_is_used() {
        let mut affinity = Affinity::default();
        let used = blocks(&[u64::MAX, u64::MAX - 1]);
        for n in 0..10 * ENTRIES as u64 {
            if n % 1000 == 0 {
                affinity.add(&used, 0, 7);
            }
            affinity.hold(n, 1);
            assert!(affinity.young.len() <= ENTRIES && affinity.old.len() <= ENTRIES);
        }
        assert!(affinity.look_up(&used, 1, 0.0).by(7) > 199.0);
        assert_eq!(affinity.holder(0), None);
    }
}
