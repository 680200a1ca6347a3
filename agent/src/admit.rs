//! Who may go to the engine now: slots and a short queue. Pure.
//!
//! The real queue is in the proxies, which bind late; this one only covers the moments in which a report travels, and
//! refuses beyond that, so that several proxies stay honest with one another. Who has waited longest, at whichever proxy,
//! goes first, and takes the place of another when the queue is full.

pub(crate) mod gate;

use dunlin_protocol::hop::Fault;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Longest wait in the agent's queue.
pub const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// Identifies a request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// Where a request stands among those who wait.
#[derive(Debug, Clone, Copy)]
pub struct InLine {
    /// Since when, by this machine's clock, it has been waiting at its proxy.
    pub since: Instant,
    /// How long it may wait here, [`LONGEST_WAIT`] at most; not at all where its proxy knows another replica that is free.
    pub patience: Duration,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It has a slot.
    Admitted,
    /// It waits until its ticket is called.
    Wait(Ticket),
    /// It waits instead of another that has come later, which is refused.
    WaitInsteadOf(Ticket, Ticket),
    /// It is refused: [`Fault::Full`] or [`Fault::Draining`].
    Refused(Fault),
}

/// Slots and queue of one engine.
#[derive(Debug)]
pub struct Admission {
    slots: u16,
    in_flight: u16,
    /// Longest wait first.
    waiting: VecDeque<(Instant, Ticket)>,
    next: u64,
    draining: bool,
}

impl Admission {
    /// Nothing in flight.
    #[must_use]
    pub fn new(slots: u16) -> Self {
        Self { slots: slots.max(1), in_flight: 0, waiting: VecDeque::new(), next: 0, draining: false }
    }

    /// A request comes in.
    pub fn ask(&mut self, line: InLine) -> Decision {
        if self.draining {
            return Decision::Refused(Fault::Draining);
        }
        if self.in_flight < self.slots && self.waiting.is_empty() {
            self.in_flight += 1;
            return Decision::Admitted;
        }
        let place = self.waiting.partition_point(|(since, _)| *since <= line.since);
        if line.patience.is_zero() || place >= usize::from(self.queue_length()) {
            return Decision::Refused(Fault::Full);
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting.insert(place, (line.since, ticket));
        if self.waiting.len() <= usize::from(self.queue_length()) {
            return Decision::Wait(ticket);
        }
        match self.waiting.pop_back() {
            Some((_, displaced)) => Decision::WaitInsteadOf(ticket, displaced),
            None => Decision::Wait(ticket),
        }
    }

    /// A request with a slot has ended. Returns the one that has a slot now.
    pub fn leave(&mut self) -> Option<Ticket> {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.call_next()
    }

    /// A waiting request gives up. `false` when its ticket had been called already: then it holds a slot, to be given
    /// back by [`Admission::leave`].
    pub fn give_up(&mut self, ticket: Ticket) -> bool {
        let found = self.waiting.iter().position(|(_, waiting)| *waiting == ticket);
        found.is_some_and(|at| self.waiting.remove(at).is_some())
    }

    /// Changes the number of slots. Returns one that has a slot now; to be called again until there is none.
    pub fn resize(&mut self, slots: u16) -> Option<Ticket> {
        self.slots = slots.max(1);
        self.call_next()
    }

    fn call_next(&mut self) -> Option<Ticket> {
        if self.in_flight >= self.slots {
            return None;
        }
        let (_, ticket) = self.waiting.pop_front()?;
        self.in_flight += 1;
        Some(ticket)
    }

    /// From now on everything new is refused. Those who wait already still get their turn.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether nothing new is taken.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.draining
    }
    /// Requests that the engine has.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }
    /// Requests that wait here.
    #[must_use]
    pub fn queued(&self) -> u16 {
        u16::try_from(self.waiting.len()).unwrap_or(u16::MAX)
    }
    /// Requests that the engine works on at once.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.slots
    }
    fn queue_length(&self) -> u16 {
        (self.slots / 8).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn now() -> InLine {
        InLine { since: Instant::now(), patience: LONGEST_WAIT }
    }

    #[test]
    fn who_has_waited_longest_goes_first_and_takes_the_place_of_the_latest() {
        let (mut admission, start) = (Admission::new(16), Instant::now());
        let waited = |ms| InLine { since: start - Duration::from_millis(ms), patience: LONGEST_WAIT };
        for _ in 0..16 {
            admission.ask(waited(0));
        }
        let Decision::Wait(ten) = admission.ask(waited(10)) else { panic!() };
        let Decision::Wait(thirty) = admission.ask(waited(30)) else { panic!() };
        assert_eq!(admission.ask(waited(5)), Decision::Refused(Fault::Full));
        let Decision::WaitInsteadOf(twenty, displaced) = admission.ask(waited(20)) else { panic!() };
        assert_eq!((displaced, admission.queued()), (ten, 2));
        assert_eq!((admission.leave(), admission.leave(), admission.leave()), (Some(thirty), Some(twenty), None));
    }

    #[test]
    fn who_may_not_wait_is_refused_at_once() {
        let mut admission = Admission::new(1);
        let hurry = InLine { patience: Duration::ZERO, ..now() };
        assert_eq!(admission.ask(hurry), Decision::Admitted);
        assert_eq!(admission.ask(hurry), Decision::Refused(Fault::Full));
        assert!(matches!(admission.ask(now()), Decision::Wait(_)));
    }

    #[test]
    fn slots_then_queue_then_full() {
        let mut admission = Admission::new(16);
        for _ in 0..16 {
            assert_eq!(admission.ask(now()), Decision::Admitted);
        }
        let (Decision::Wait(first), Decision::Wait(second)) = (admission.ask(now()), admission.ask(now())) else {
            panic!("queue of slots/8");
        };
        assert_eq!(admission.ask(now()), Decision::Refused(Fault::Full));
        assert_eq!(admission.leave(), Some(first));
        assert_eq!((admission.in_flight(), admission.queued()), (16, 1));
        assert_eq!(admission.leave(), Some(second));
        assert_eq!(admission.leave(), None);
        assert_eq!(admission.in_flight(), 15);
    }

    #[test]
    fn a_single_slot_has_a_queue_of_one() {
        let mut admission = Admission::new(1);
        admission.ask(now());
        assert!(matches!(admission.ask(now()), Decision::Wait(_)));
        assert_eq!(admission.ask(now()), Decision::Refused(Fault::Full));
    }

    #[test]
    fn giving_up_after_being_called_keeps_the_slot() {
        let mut admission = Admission::new(1);
        admission.ask(now());
        let Decision::Wait(ticket) = admission.ask(now()) else { panic!() };
        assert_eq!(admission.leave(), Some(ticket));
        assert!(!admission.give_up(ticket));
        assert_eq!(admission.in_flight(), 1);
        assert_eq!(admission.leave(), None);
        assert_eq!(admission.in_flight(), 0);
    }

    #[test]
    fn draining_refuses_the_new_and_serves_the_waiting() {
        let mut admission = Admission::new(1);
        admission.ask(now());
        let Decision::Wait(ticket) = admission.ask(now()) else { panic!() };
        admission.drain();
        assert_eq!(admission.ask(now()), Decision::Refused(Fault::Draining));
        assert_eq!(admission.leave(), Some(ticket));
    }

    #[test]
    fn more_slots_call_those_who_wait() {
        let mut admission = Admission::new(1);
        admission.ask(now());
        let Decision::Wait(ticket) = admission.ask(now()) else { panic!() };
        assert_eq!(admission.resize(2), Some(ticket));
        assert_eq!(admission.resize(2), None);
    }

    proptest! {
        /// Whatever happens in whatever order: never more in flight than slots, nobody waits beside a free slot, and
        /// at the end every slot has come back.
        #[test]
        fn accounts_stay_right(slots in 1_u16..20, steps in prop::collection::vec((0_u8..3, 0_u64..50), 0..200)) {
            let (mut admission, start) = (Admission::new(slots), Instant::now());
            let mut holders = 0_u16;
            let mut waiting = Vec::new();
            for (step, since) in steps {
                let line = InLine { since: start + Duration::from_millis(since), patience: LONGEST_WAIT };
                match step {
                    0 => match admission.ask(line) {
                        Decision::Admitted => holders += 1,
                        Decision::Wait(ticket) => waiting.push((since, ticket)),
                        Decision::WaitInsteadOf(ticket, displaced) => {
                            waiting.retain(|(_, waiting)| *waiting != displaced);
                            waiting.push((since, ticket));
                        }
                        Decision::Refused(fault) => prop_assert_eq!(fault, Fault::Full),
                    },
                    1 if holders > 0 => {
                        holders -= 1;
                        waiting.sort_by_key(|(since, _)| *since);
                        if let Some(called) = admission.leave() {
                            prop_assert_eq!(waiting.remove(0).1, called);
                            holders += 1;
                        }
                    }
                    2 if !waiting.is_empty() => prop_assert!(admission.give_up(waiting.remove(waiting.len() / 2).1)),
                    _ => {}
                }
                prop_assert_eq!(admission.in_flight(), holders);
                prop_assert_eq!(usize::from(admission.queued()), waiting.len());
                prop_assert!(holders <= slots && (waiting.is_empty() || holders == slots));
            }
        }
    }
}
