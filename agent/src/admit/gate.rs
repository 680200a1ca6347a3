//! The shell around [`Admission`]: requests wait here for their ticket, and a [`Pass`] gives its slot back when dropped.

use super::{Admission, Decision, InLine, Ticket};
use dunlin_protocol::{hop::Fault, load::EngineLoad};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Notify, futures::Notified, oneshot};

/// The way to one engine.
#[derive(Debug)]
pub(crate) struct Gate {
    inner: Mutex<Inner>,
    /// Told when a request comes or goes.
    moved: Notify,
}

#[derive(Debug)]
struct Inner {
    admission: Admission,
    calls: HashMap<Ticket, oneshot::Sender<()>>,
    /// Tickets that another has taken the place of, and whose holders have not noticed yet.
    displaced: HashSet<Ticket>,
}

/// What the gate holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) slots: u16,
    pub(crate) in_flight: u16,
    pub(crate) queued: u16,
    pub(crate) draining: bool,
}

impl Gate {
    pub(crate) fn new(slots: u16) -> Self {
        let inner = Inner { admission: Admission::new(slots), calls: HashMap::new(), displaced: HashSet::new() };
        Self { inner: Mutex::new(inner), moved: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot, at once or after a short wait.
    pub(crate) async fn enter(self: &Arc<Self>, line: InLine) -> Result<Pass, Fault> {
        let (ticket, called) = {
            let mut inner = self.lock();
            match inner.admission.ask(line) {
                Decision::Admitted => {
                    drop(inner);
                    self.moved.notify_waiters();
                    return Ok(Pass { gate: Arc::clone(self), kib: line.kib });
                }
                Decision::Refused(fault) => return Err(fault),
                Decision::Wait(ticket) => (ticket, inner.expect(ticket)),
                Decision::WaitInsteadOf(ticket, displaced) => {
                    inner.displaced.insert(displaced);
                    // Its holder notices that nobody will call any more.
                    inner.calls.remove(&displaced);
                    (ticket, inner.expect(ticket))
                }
            }
        };
        // The caller may hang up while it waits: this drop guard then does the same as the time-out.
        let waiting = Waiting { gate: self, ticket, kib: line.kib, done: false };
        match tokio::time::timeout(line.patience, called).await {
            Ok(Ok(())) => Ok(waiting.take_pass()),
            _ => Err(Fault::Full),
        }
    }

    fn leave(&self, kib: u32) {
        self.lock().leave(kib);
        self.moved.notify_waiters();
    }

    pub(crate) fn resize(&self, slots: u16) {
        let mut inner = self.lock();
        inner.admission.resize(slots);
        inner.call_all();
    }

    /// What the engine says of itself now.
    pub(crate) fn learn(&self, engine: Option<&EngineLoad>) {
        let mut inner = self.lock();
        inner.admission.learn(engine);
        inner.call_all();
    }

    pub(crate) fn drain(&self) {
        self.lock().admission.drain();
    }

    pub(crate) fn counts(&self) -> Counts {
        let inner = self.lock();
        let admission = &inner.admission;
        Counts {
            slots: admission.slots(),
            in_flight: admission.in_flight(),
            queued: admission.queued(),
            draining: admission.draining(),
        }
    }

    /// Ends when nothing is in flight and nothing waits.
    pub(crate) async fn empty(&self) {
        loop {
            let moved = self.moved.notified();
            let counts = self.counts();
            if counts.in_flight == 0 && counts.queued == 0 {
                return;
            }
            moved.await;
        }
    }

    /// Ends when a request comes or goes after this was called.
    pub(crate) fn moved(&self) -> Notified<'_> {
        self.moved.notified()
    }
}

impl Inner {
    fn expect(&mut self, ticket: Ticket) -> oneshot::Receiver<()> {
        let (call, called) = oneshot::channel();
        self.calls.insert(ticket, call);
        called
    }

    fn leave(&mut self, kib: u32) {
        self.admission.leave(kib);
        self.call_all();
    }

    /// Calls all that have a slot now.
    fn call_all(&mut self) {
        while let Some(ticket) = self.admission.call() {
            // Whose time is up in this moment gives the slot back itself: see `Waiting`.
            let _ = self.calls.remove(&ticket).map(|call| call.send(()));
        }
    }
}

/// A slot of the engine. Dropping it gives the slot to the next.
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Arc<Gate>,
    kib: u32,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.leave(self.kib);
    }
}

struct Waiting<'a> {
    gate: &'a Arc<Gate>,
    ticket: Ticket,
    kib: u32,
    done: bool,
}

impl Waiting<'_> {
    fn take_pass(mut self) -> Pass {
        self.done = true;
        Pass { gate: Arc::clone(self.gate), kib: self.kib }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut inner = self.gate.lock();
        inner.calls.remove(&self.ticket);
        if inner.displaced.remove(&self.ticket) {
            return;
        }
        // Called in the same moment in which it gave up: the slot goes on to the next.
        if !inner.admission.give_up(self.ticket) {
            inner.leave(self.kib);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::LONGEST_WAIT;
    use std::time::{Duration, Instant};

    fn now() -> InLine {
        InLine { since: Instant::now(), patience: LONGEST_WAIT, kib: 0 }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_displaced_is_refused_at_once_and_keeps_no_slot() {
        let gate = Arc::new(Gate::new(1));
        let pass = gate.enter(now()).await.unwrap();
        let later = gate.enter(now());
        tokio::pin!(later);
        assert!(futures::poll!(&mut later).is_pending());
        let earlier = gate.enter(InLine { since: Instant::now() - Duration::from_secs(1), ..now() });
        tokio::pin!(earlier);
        assert!(futures::poll!(&mut earlier).is_pending());
        assert_eq!(later.await.unwrap_err(), Fault::Full);
        assert_eq!((gate.counts().in_flight, gate.counts().queued), (1, 1));
        drop(pass);
        let pass = earlier.await.unwrap();
        assert_eq!((gate.counts().in_flight, gate.counts().queued), (1, 0));
        drop(pass);
        assert_eq!(gate.counts().in_flight, 0);
        assert!(gate.lock().calls.is_empty() && gate.lock().displaced.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn waits_a_little_then_says_full() {
        let gate = Arc::new(Gate::new(1));
        let pass = gate.enter(now()).await.unwrap();
        let started = tokio::time::Instant::now();
        assert_eq!(gate.enter(now()).await.unwrap_err(), Fault::Full);
        assert_eq!(started.elapsed(), LONGEST_WAIT);
        drop(pass);
        assert_eq!(gate.counts(), Counts { slots: 1, in_flight: 0, queued: 0, draining: false });
        gate.empty().await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_gets_the_slot_at_once() {
        let gate = Arc::new(Gate::new(1));
        let pass = gate.enter(now()).await.unwrap();
        let second = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.enter(now()).await }
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(gate.counts().queued, 1);
        drop(pass);
        let second = second.await.unwrap().unwrap();
        assert_eq!((gate.counts().in_flight, gate.counts().queued), (1, 0));
        drop(second);
        assert_eq!(gate.counts().in_flight, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_who_hangs_up_leaves_no_trace() {
        let gate = Arc::new(Gate::new(1));
        let pass = gate.enter(now()).await.unwrap();
        {
            let waiter = gate.enter(now());
            tokio::pin!(waiter);
            assert!(futures::poll!(&mut waiter).is_pending());
            // Called, and dropped before it could notice.
            drop(pass);
            assert_eq!(gate.counts().in_flight, 1);
        }
        assert_eq!(gate.counts().in_flight, 0);
        assert!(gate.lock().calls.is_empty());
    }
}
