//! All limits of one proxy, and the accounts that it owns: what it does when a request comes, when others report, and
//! with time. Pure; `limits` does what it says.

use super::{
    Caps,
    account::{Account, Asker},
    slot::Slot,
    view::{DETACHED, View},
};
use dunlin_protocol::{
    id::PeerId,
    lease::{Granted, Held, KINDS, KeyGranted, KeyHeld, LeaseReply, LeaseReport},
    limits,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

/// How often proxies tell each other what they hold while nothing is short.
const SELDOM: Duration = Duration::from_millis(500);

/// What a request uses: itself, its tokens, its place among those that run.
pub(crate) type Cost = [i64; KINDS];

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It may go on.
    Yes,
    /// There is no room here: the owner may have some.
    Ask,
    /// There is none.
    No(Refused),
}

/// Which limit is reached, and how long until there may be room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) kind: usize,
    pub(crate) wait: Duration,
}

/// What is left of the limits of a key, for the headers of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) limit: i64,
    pub(crate) remaining: i64,
    pub(crate) reset: Duration,
}

/// A report to be sent, and what was asked in it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outgoing {
    pub(crate) to: PeerId,
    pub(crate) report: LeaseReport,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Limiter {
    me: PeerId,
    epoch: u64,
    seq: u64,
    next: Instant,
    view: View,
    heard: HashMap<PeerId, Instant>,
    /// Who has told all that it holds, seeing what this proxy sees.
    attached: BTreeSet<PeerId>,
    /// Owners that have agreed on who is there, and when last.
    agreed: BTreeMap<PeerId, Instant>,
    /// Owners that grant nothing because they don't know all that is held here, or see others than this proxy does: they are
    /// told all before they are asked for more.
    unsure: BTreeSet<PeerId>,
    slots: foldhash::HashMap<Box<str>, Slot>,
    accounts: foldhash::HashMap<Box<str>, Account>,
}

impl Limiter {
    /// `known`: other proxies of before; `epoch`: of this process.
    pub(crate) fn new(me: PeerId, epoch: u64, known: impl IntoIterator<Item = PeerId>, now: Instant) -> Self {
        let view = View::new(me, known, now);
        Self {
            me,
            epoch,
            seq: 0,
            next: now,
            view,
            heard: HashMap::new(),
            attached: BTreeSet::new(),
            agreed: BTreeMap::new(),
            unsure: BTreeSet::new(),
            slots: foldhash::HashMap::default(),
            accounts: foldhash::HashMap::default(),
        }
    }

    /// Takes in which proxies are connected now. Returns whether any came or went.
    pub(crate) fn connected(&mut self, connected: &BTreeSet<PeerId>, now: Instant) -> bool {
        let heard = &self.heard;
        let changed = self.view.update(connected, |peer| heard.get(peer).copied(), now);
        if changed {
            // What was asked before is void: others may own what was asked for.
            self.attached.clear();
            self.agreed.clear();
            self.unsure.clear();
            self.next = now;
            self.slots.values_mut().for_each(|slot| (slot.busy, slot.dry) = (false, None));
            let view = &self.view;
            self.heard.retain(|peer, _| view.contains(peer) || view.ghosts().contains_key(peer));
        }
        changed
    }

    /// A proxy that will not come back.
    pub(crate) fn forget(&mut self, peer: &PeerId) {
        self.view.forget(peer);
    }

    /// All other proxies that count, whether or not they are there.
    pub(crate) fn known(&self) -> Vec<PeerId> {
        self.view.known().filter(|peer| *peer != self.me).collect()
    }

    /// A client asks for `cost` with a key that has the limits `caps`. `again`: it has asked already.
    pub(crate) fn take(&mut self, key: &str, caps: &Caps, cost: &Cost, again: bool, now: Instant) -> Taken {
        if caps.iter().all(Option::is_none) {
            return Taken::Yes;
        }
        if !self.slots.contains_key(key) {
            self.slots.insert(key.into(), Slot::new(*caps, now));
        }
        let Some(slot) = self.slots.get_mut(key) else { return Taken::Yes };
        slot.caps = *caps;
        slot.expire(now);
        if !again {
            slot.asks(cost, now);
        }
        if slot.lacks(cost, |_, _| 0).is_none() {
            slot.take(cost, now);
            return Taken::Yes;
        }
        let owner = self.view.owner(key);
        if owner == self.me {
            self.ask_self(key, cost, now);
            let taken = self.take_or_refuse(key, cost, false, now);
            let waits = matches!(taken, Taken::No(_)) && self.is_unsure(key, now);
            return if waits { Taken::Ask } else { taken };
        }
        let Some(slot) = self.slots.get_mut(key) else { return Taken::Yes };
        let dry = slot.dry.is_some_and(|until| until > now);
        match self.agreed.get(&owner).copied() {
            Some(_) if dry => self.take_or_refuse(key, cost, false, now),
            Some(at) if now.saturating_duration_since(at) < DETACHED => Taken::Ask,
            // Somebody came or went a moment ago: the owner will soon see that too.
            None if now.saturating_duration_since(self.view.since) < DETACHED => Taken::Ask,
            // Cut off, or alone in what it sees: everybody goes by its share then.
            _ => self.take_or_refuse(key, cost, true, now),
        }
    }

    /// The end of asking: it fits now or it is refused. `by_share`: as much as this proxy's share may be used, whatever it
    /// holds.
    fn take_or_refuse(&mut self, key: &str, cost: &Cost, by_share: bool, now: Instant) -> Taken {
        let (view, me) = (&self.view, self.me);
        let Some(slot) = self.slots.get_mut(key) else { return Taken::Yes };
        let share = |_: usize, cap: i64| if by_share { view.share(&me, key, cap) } else { 0 };
        match slot.lacks(cost, share) {
            None => {
                slot.take(cost, now);
                Taken::Yes
            }
            Some(kind) => Taken::No(Refused { kind, wait: slot.wait(kind, cost[kind], now) }),
        }
    }

    /// The same for a request that has waited for the owner's answer, or for this proxy to know what the others hold.
    pub(crate) fn take_now(&mut self, key: &str, cost: &Cost, now: Instant) -> Taken {
        let Some(slot) = self.slots.get_mut(key) else { return Taken::Yes };
        slot.expire(now);
        if self.view.owner(key) == self.me && slot.lacks(cost, |_, _| 0).is_some() {
            self.ask_self(key, cost, now);
        }
        self.take_or_refuse(key, cost, false, now)
    }

    /// A request has ended that had taken `cost` at `at`; `used`: of each kind in truth, where that is known by now.
    pub(crate) fn ended(&mut self, key: &str, cost: &Cost, at: Instant, tokens: Option<i64>, now: Instant) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        slot.ended();
        if let Some(tokens) = tokens {
            slot.settle(1, at, cost[1], tokens, now);
        }
    }

    /// A request that took its part goes to nobody: all of it comes back.
    pub(crate) fn undo(&mut self, key: &str, cost: &Cost, at: Instant, now: Instant) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        slot.ended();
        for (kind, taken) in cost.iter().enumerate().take(2) {
            slot.settle(kind, at, *taken, 0, now);
        }
    }

    /// What is left of a key's limit of a kind.
    pub(crate) fn left(&self, key: &str, kind: usize, now: Instant) -> Option<Left> {
        let slot = self.slots.get(key)?;
        let (limit, remaining) = (slot.caps[kind]?, slot.remaining(kind)?);
        Some(Left { limit, remaining, reset: slot.reset(kind, now) })
    }

    fn ask_self(&mut self, key: &str, waiting: &Cost, now: Instant) {
        self.seq += 1;
        let asker = Asker { peer: self.me, epoch: self.epoch, seq: self.seq };
        let may_grant = self.may_grant();
        self.view.listen(|peer| self.heard.get(peer).copied(), now);
        let Some(slot) = self.slots.get_mut(key) else { return };
        let of = slot.report(waiting, false, now);
        let account = self.accounts.entry(key.into()).or_default();
        if let Some(granted) = account.report(asker, &of, (key, &slot.caps), &self.view, may_grant, now) {
            slot.granted(&granted, &of, now);
        }
    }

    /// Whether this proxy knows what everybody holds of what it owns.
    fn may_grant(&self) -> bool {
        self.view.others().all(|peer| self.attached.contains(&peer))
    }

    /// Asks the owner of a key for what `waiting` need; `None` while an answer is awaited already, or there is nobody to
    /// ask.
    pub(crate) fn borrow(&mut self, key: &str, waiting: &Cost, now: Instant) -> Option<Outgoing> {
        let to = self.view.owner(key);
        if self.unsure.contains(&to) {
            return None;
        }
        let slot = self.slots.get_mut(key).filter(|slot| !slot.busy && to != self.me)?;
        slot.busy = true;
        let keys = vec![KeyHeld { key: key.to_owned(), of: slot.report(waiting, true, now) }];
        Some(self.outgoing(to, keys, false))
    }

    fn outgoing(&mut self, to: PeerId, keys: Vec<KeyHeld>, whole: bool) -> Outgoing {
        self.seq += 1;
        let report = LeaseReport { view: self.view.hash(), epoch: self.epoch, seq: self.seq, whole, keys };
        Outgoing { to, report }
    }

    /// Whether it is time for [`Self::reports`]: now and then, and more often while limits are used up.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let urgent = !self.unsure.is_empty() || self.slots.values().any(|slot| slot.is_pressed(now));
        let due = now >= self.next || urgent;
        if due {
            self.next = now + SELDOM;
        }
        due
    }

    /// What is to be told to all others, from time to time: what is held, which renews it, and what is wanted. Idle keys
    /// are forgotten.
    pub(crate) fn reports(&mut self, now: Instant) -> Vec<Outgoing> {
        let mut told: BTreeMap<PeerId, Vec<KeyHeld>> = self.view.others().map(|peer| (peer, Vec::new())).collect();
        let mut own = Vec::new();
        // Those who are about to be told more by another message.
        let mut partly = BTreeSet::new();
        self.slots.retain(|key, slot| {
            slot.expire(now);
            if slot.is_idle(now) {
                return false;
            }
            let owner = self.view.owner(key);
            if owner == self.me {
                own.push(key.clone());
            } else if slot.busy {
                partly.insert(owner);
            } else if let Some(keys) = told.get_mut(&owner) {
                slot.busy = true;
                keys.push(KeyHeld { key: key.to_string(), of: slot.report(&[0; KINDS], true, now) });
            }
            true
        });
        for key in own {
            self.ask_self(&key, &[0; KINDS], now);
        }
        let (view, me) = (&self.view, self.me);
        self.accounts.retain(|key, account| view.owner(key) == me && !account.is_empty(view, now));
        let mut all = Vec::new();
        for (to, keys) in told {
            let parts = keys.len().div_ceil(limits::LEASES).max(1);
            let mut keys = keys.into_iter();
            for part in 1..=parts {
                let these = keys.by_ref().take(limits::LEASES).collect();
                let whole = part == parts && !partly.contains(&to);
                if whole {
                    self.unsure.remove(&to);
                }
                all.push(self.outgoing(to, these, whole));
            }
        }
        all
    }

    /// Another proxy reports. `caps`: the limits of a key.
    pub(crate) fn report(
        &mut self,
        from: PeerId,
        report: &LeaseReport,
        caps: impl Fn(&str) -> Option<Caps>,
        now: Instant,
    ) -> LeaseReply {
        self.heard.insert(from, now);
        if report.view != self.view.hash() || !self.view.contains(&from) {
            self.attached.remove(&from);
            return LeaseReply { agrees: false, keys: Vec::new() };
        }
        let mut keys = Vec::with_capacity(report.keys.len());
        let asker = Asker { peer: from, epoch: report.epoch, seq: report.seq };
        let may_grant = self.may_grant();
        self.view.listen(|peer| self.heard.get(peer).copied(), now);
        for told in &report.keys {
            let Some(caps) = caps(&told.key).filter(|_| self.view.owner(&told.key) == self.me) else { continue };
            let account = self.accounts.entry(told.key.as_str().into()).or_default();
            let key = told.key.as_str();
            if let Some(of) = account.report(asker, &told.of, (key, &caps), &self.view, may_grant, now) {
                keys.push(KeyGranted { key: told.key.clone(), of });
            }
        }
        if report.whole {
            self.attached.insert(from);
        }
        LeaseReply { agrees: true, keys }
    }

    /// The owner has answered.
    pub(crate) fn answered(&mut self, sent: &Outgoing, reply: &LeaseReply, now: Instant) {
        self.heard.insert(sent.to, now);
        // Who is there has changed since: what it grants was for somebody else's account.
        if sent.report.view != self.view.hash() {
            return;
        }
        self.free(sent);
        if !reply.agrees {
            self.agreed.remove(&sent.to);
            self.unsure.insert(sent.to);
            return;
        }
        self.agreed.insert(sent.to, now);
        let asked: HashMap<&str, &[Held; KINDS]> =
            sent.report.keys.iter().map(|told| (told.key.as_str(), &told.of)).collect();
        for granted in &reply.keys {
            let asked = asked.get(granted.key.as_str());
            if let (Some(slot), Some(asked)) = (self.slots.get_mut(granted.key.as_str()), asked) {
                slot.granted(&granted.of, asked, now);
                if !sent.report.whole && granted.of.iter().zip(asked.iter()).any(is_withheld) {
                    self.unsure.insert(sent.to);
                }
            }
        }
    }

    /// Whether a request that got nothing from the owner of its key should wait until that one was told all by everybody.
    /// Nobody says when that is.
    pub(crate) fn is_unsure(&self, key: &str, now: Instant) -> bool {
        let owner = self.view.owner(key);
        match owner == self.me {
            true => !self.may_grant() && now.saturating_duration_since(self.view.since) < DETACHED,
            false => self.unsure.contains(&owner),
        }
    }

    /// The owner has not answered: what it may have granted is void, which the next report tells it.
    pub(crate) fn lost(&mut self, sent: &Outgoing) {
        if sent.report.view == self.view.hash() {
            self.free(sent);
        }
    }

    fn free(&mut self, sent: &Outgoing) {
        for told in &sent.report.keys {
            if let Some(slot) = self.slots.get_mut(told.key.as_str()) {
                slot.busy = false;
            }
        }
    }
}

/// Whether an owner has some left, gives none of it, and needs none of it for others: it saw others than these for a moment,
/// and waits to be told all again. With many keys some question is always under way, and no report would be whole.
fn is_withheld((of, asked): (&Granted, &Held)) -> bool {
    asked.want > 0 && of.granted == 0 && of.left > 0 && of.target == i64::MAX
}

#[cfg(test)]
mod tests;
