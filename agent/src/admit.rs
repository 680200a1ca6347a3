//! Who may go to the engine now: slots, room in its KV cache, and a short queue. Pure.
//!
//! The real queue is in the proxies, which bind late; this one only covers the moments in which a report travels, and
//! refuses beyond that, so that several proxies stay honest with one another. Who has waited longest, at whichever proxy,
//! goes first, and takes the place of another when the queue is full.
//!
//! What doesn't fit into the KV cache would wait inside the engine, or push others out, while another replica may have
//! room. Only the agent sees what all proxies together have sent there.

pub(crate) mod gate;

use dunlin_protocol::{hop::Fault, load::EngineLoad};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Longest wait in the agent's queue.
pub const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// A KV cache that is used less than this, thousandths, tells too little of its size, and has room enough.
const TELLS_PERMILLE: u16 = 300;
/// Weight of the newest estimate of that size.
const WEIGHT: f64 = 0.3;

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
    /// Size of its prompt, KiB; 0 where that isn't known.
    pub kib: u32,
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

#[derive(Debug, Clone, Copy)]
struct Waiter {
    since: Instant,
    ticket: Ticket,
    kib: u32,
}

/// Slots and queue of one engine.
#[derive(Debug)]
pub struct Admission {
    slots: u16,
    in_flight: u16,
    /// KiB of the prompts in flight.
    in_flight_kib: u32,
    /// How many of these the KV cache holds, as far as it tells.
    room_kib: Option<f64>,
    /// Longest wait first.
    waiting: VecDeque<Waiter>,
    next: u64,
    draining: bool,
}

impl Admission {
    /// Nothing in flight.
    #[must_use]
    pub fn new(slots: u16) -> Self {
        let slots = slots.max(1);
        Self {
            slots,
            in_flight: 0,
            in_flight_kib: 0,
            room_kib: None,
            waiting: VecDeque::new(),
            next: 0,
            draining: false,
        }
    }

    /// A request comes in.
    pub fn ask(&mut self, line: InLine) -> Decision {
        if self.draining {
            return Decision::Refused(Fault::Draining);
        }
        if self.has_room(line.kib) && self.waiting.is_empty() {
            self.enter(line.kib);
            return Decision::Admitted;
        }
        let place = self.waiting.partition_point(|waiter| waiter.since <= line.since);
        if line.patience.is_zero() || place >= usize::from(self.queue_length()) {
            return Decision::Refused(Fault::Full);
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting.insert(place, Waiter { since: line.since, ticket, kib: line.kib });
        if self.waiting.len() <= usize::from(self.queue_length()) {
            return Decision::Wait(ticket);
        }
        match self.waiting.pop_back() {
            Some(displaced) => Decision::WaitInsteadOf(ticket, displaced.ticket),
            None => Decision::Wait(ticket),
        }
    }

    /// A request with a slot has ended, whose prompt had so many KiB. [`Self::call`] is to be asked who has a slot now.
    pub fn leave(&mut self, kib: u32) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.in_flight_kib = self.in_flight_kib.saturating_sub(kib);
    }

    /// A waiting request gives up. `false` when its ticket had been called already: then it holds a slot, to be given
    /// back by [`Admission::leave`].
    pub fn give_up(&mut self, ticket: Ticket) -> bool {
        let found = self.waiting.iter().position(|waiter| waiter.ticket == ticket);
        found.is_some_and(|at| self.waiting.remove(at).is_some())
    }

    /// Changes the number of slots. [`Self::call`] is to be asked who has a slot now.
    pub fn resize(&mut self, slots: u16) {
        self.slots = slots.max(1);
    }

    /// What the engine says of itself now, if it does: how much of its KV cache the prompts in flight take tells how many
    /// have room. [`Self::call`] is to be asked who has a slot now.
    pub fn learn(&mut self, engine: Option<&EngineLoad>) {
        let used = f64::from(self.in_flight_kib);
        let permille = engine.and_then(|engine| engine.kv_used_permille).filter(|permille| *permille >= TELLS_PERMILLE);
        let (running, waiting) = engine.map_or((None, 0), |engine| (engine.running, engine.waiting.unwrap_or(0)));
        self.room_kib = match permille {
            None => None,
            Some(_) if used == 0.0 => self.room_kib,
            // It is full, whatever part of it that is.
            Some(_) if waiting > 0 => {
                let running = f64::from(running.unwrap_or(0));
                let fits = used * running / (running + f64::from(waiting));
                Some(self.room_kib.map_or(fits, |known| known.min(fits)))
            }
            Some(permille) => {
                let fits = used * 1000.0 / f64::from(permille);
                Some(self.room_kib.map_or(fits, |known| known + WEIGHT * (fits - known)))
            }
        };
    }

    /// One of those who wait that has a slot now; to be asked until there is none.
    pub fn call(&mut self) -> Option<Ticket> {
        let Waiter { ticket, kib, .. } = *self.waiting.front().filter(|first| self.has_room(first.kib))?;
        self.waiting.pop_front();
        self.enter(kib);
        Some(ticket)
    }

    fn has_room(&self, kib: u32) -> bool {
        let fits = |room: f64| f64::from(self.in_flight_kib) + f64::from(kib) <= room;
        // With nothing in it, the engine takes whatever it ever can.
        self.in_flight < self.slots && (self.in_flight == 0 || self.room_kib.is_none_or(fits))
    }

    fn enter(&mut self, kib: u32) {
        self.in_flight += 1;
        self.in_flight_kib = self.in_flight_kib.saturating_add(kib);
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

    impl Admission {
        /// A request without a prompt has ended; who has its slot.
        fn left(&mut self) -> Option<Ticket> {
            self.leave(0);
            self.call()
        }
    }

    fn now() -> InLine {
        InLine { since: Instant::now(), patience: LONGEST_WAIT, kib: 0 }
    }

    #[test]
    fn who_has_waited_longest_goes_first_and_takes_the_place_of_the_latest() {
        let (mut admission, start) = (Admission::new(16), Instant::now());
        let waited = |ms| InLine { since: start - Duration::from_millis(ms), ..now() };
        for _ in 0..16 {
            admission.ask(waited(0));
        }
        let Decision::Wait(ten) = admission.ask(waited(10)) else { panic!() };
        let Decision::Wait(thirty) = admission.ask(waited(30)) else { panic!() };
        assert_eq!(admission.ask(waited(5)), Decision::Refused(Fault::Full));
        let Decision::WaitInsteadOf(twenty, displaced) = admission.ask(waited(20)) else { panic!() };
        assert_eq!((displaced, admission.queued()), (ten, 2));
        assert_eq!(std::array::from_fn(|_| admission.left()), [Some(thirty), Some(twenty), None]);
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
        assert_eq!(admission.left(), Some(first));
        assert_eq!((admission.in_flight(), admission.queued()), (16, 1));
        assert_eq!(admission.left(), Some(second));
        assert_eq!(admission.left(), None);
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
        assert_eq!(admission.left(), Some(ticket));
        assert!(!admission.give_up(ticket));
        assert_eq!(admission.in_flight(), 1);
        assert_eq!(admission.left(), None);
        assert_eq!(admission.in_flight(), 0);
    }

    #[test]
    fn draining_refuses_the_new_and_serves_the_waiting() {
        let mut admission = Admission::new(1);
        admission.ask(now());
        let Decision::Wait(ticket) = admission.ask(now()) else { panic!() };
        admission.drain();
        assert_eq!(admission.ask(now()), Decision::Refused(Fault::Draining));
        assert_eq!(admission.left(), Some(ticket));
    }

    #[test]
    fn more_slots_call_those_who_wait() {
        let mut admission = Admission::new(1);
        admission.ask(now());
        let Decision::Wait(ticket) = admission.ask(now()) else { panic!() };
        admission.resize(2);
        assert_eq!((admission.call(), admission.call()), (Some(ticket), None));
    }

    fn engine(running: u32, waiting: u32, kv_used_permille: u16) -> EngineLoad {
        let (running, waiting) = (Some(running), Some(waiting));
        EngineLoad { running, waiting, kv_used_permille: Some(kv_used_permille), ..EngineLoad::default() }
    }

    #[test]
    fn what_the_kv_cache_has_no_room_for_waits_here() {
        let mut admission = Admission::new(16);
        let of = |kib| InLine { kib, ..now() };
        assert_eq!([admission.ask(of(4)), admission.ask(of(4))], [Decision::Admitted; 2]);
        // Eight KiB are half of it.
        admission.learn(Some(&engine(2, 0, 500)));
        let Decision::Wait(large) = admission.ask(of(9)) else { panic!() };
        let Decision::Wait(small) = admission.ask(of(1)) else { panic!("nobody passes who has waited for longer") };
        assert_eq!(admission.call(), None);
        admission.leave(4);
        assert_eq!([admission.call(), admission.call(), admission.call()], [Some(large), Some(small), None]);
        // Alone, it may try whatever its size.
        [4, 9, 1].into_iter().for_each(|kib| admission.leave(kib));
        assert_eq!(admission.ask(of(100)), Decision::Admitted);
    }

    #[test]
    fn a_cache_that_is_hardly_used_or_says_nothing_holds_up_nobody() {
        let of = |kib| InLine { kib, ..now() };
        for last in [Some(engine(1, 0, 100)), Some(EngineLoad::default()), None] {
            let mut admission = Admission::new(16);
            admission.ask(of(4));
            admission.learn(Some(&engine(1, 0, 900)));
            assert!(matches!(admission.ask(of(4)), Decision::Wait(_)));
            admission.learn(last.as_ref());
            assert!(admission.call().is_some(), "{last:?}");
            assert_eq!(admission.ask(of(4)), Decision::Admitted);
        }
    }

    #[test]
    fn an_engine_that_lets_requests_wait_is_full() {
        let of = |kib| InLine { kib, ..now() };
        let mut admission = Admission::new(16);
        for _ in 0..4 {
            admission.ask(of(4));
        }
        admission.learn(Some(&engine(3, 1, 700)));
        assert!(matches!(admission.ask(of(1)), Decision::Wait(_)));
        admission.leave(4);
        assert_eq!(admission.call(), None, "the one that waited in the engine takes its place");
        admission.leave(4);
        assert!(admission.call().is_some());
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
                let line = InLine { since: start + Duration::from_millis(since), ..now() };
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
                        if let Some(called) = admission.left() {
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
