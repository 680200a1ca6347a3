//! Late binding, the pure part: who waits for a slot, in which order.
//!
//! One line per model. In it the tenants are served in turns (round robin; Nagle, RFC 970), each tenant's requests in
//! the order in which they came: one that sends a thousand requests at once delays the others by one request per round.
//! Tenants with a higher [`Priority`] come before those with a lower one, until seven turns in a row have passed over the
//! one that has waited for its turn for longest: the next is its, and so nobody starves. A request that a replica refused keeps the number under which it first
//! came, and its tenant has the next turn. Across models the longest wait is served first, since one replica's slots may
//! serve several models.

mod pace;
mod turns;

use crate::fair;
use dunlin_protocol::id::ModelId;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use turns::Turns;

/// How early a tenant is served: higher comes first. 0 unless something else was said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub i8);

/// A place in the line: lower came earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    number: u64,
    tenant: u64,
}

/// The line is as long as it may get, or has as many of this tenant as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many requests wait")]
pub struct Full;

/// All waiting requests, each with whatever wakes it.
#[derive(Debug)]
pub(crate) struct Line<W> {
    models: HashMap<ModelId, Turns<W>>,
    /// How many wait of each tenant that has any.
    tenants: HashMap<u64, usize>,
    next: u64,
    waiting: usize,
    per_model: usize,
    in_all: usize,
}

impl<W> Line<W> {
    /// An empty line that takes at most `per_model` waiting requests for one model and `in_all` together.
    pub(crate) fn new(per_model: usize, in_all: usize) -> Self {
        Self { models: HashMap::new(), tenants: HashMap::new(), next: 0, waiting: 0, per_model, in_all }
    }

    /// Waits for the first time. All requests of a tenant have the `priority` that was given last.
    ///
    /// # Errors
    /// The line is full.
    pub(crate) fn join(&mut self, model: &ModelId, place: Place, priority: Priority, waiter: W) -> Result<(), Full> {
        let here = self.models.get(model).map_or(0, |turns| turns.len_of(place.tenant));
        let in_all = self.tenants.get(&place.tenant).copied().unwrap_or(0);
        if !has_room(here, self.waiting_for(model), self.per_model) || !has_room(in_all, self.waiting, self.in_all) {
            return Err(Full);
        }
        self.insert(model, place, priority, waiter, false);
        Ok(())
    }

    /// Draws the number of a request of `tenant` when it comes, whether it will have to wait or not.
    pub(crate) fn number(&mut self, tenant: u64) -> Place {
        self.next += 1;
        Place { number: self.next, tenant }
    }

    /// Waits again under an earlier number, and is next. Never refused: who was let in once has its place.
    pub(crate) fn rejoin(&mut self, model: &ModelId, place: Place, priority: Priority, waiter: W) {
        self.insert(model, place, priority, waiter, true);
    }

    fn insert(&mut self, model: &ModelId, place: Place, priority: Priority, waiter: W, refused: bool) {
        let turns = self.models.entry(model.clone()).or_insert_with(Turns::new);
        if turns.insert(place, priority, waiter, refused) {
            self.waiting += 1;
            *self.tenants.entry(place.tenant).or_default() += 1;
        }
    }

    /// Leaves the line without having been served. Does nothing when the place is no longer taken.
    pub(crate) fn leave(&mut self, model: &ModelId, place: Place) -> Option<W> {
        self.part(model, place, Turns::take)
    }

    /// Leaves the line at `now` since it is served: the next turn is another tenant's.
    pub(crate) fn serve(&mut self, model: &ModelId, place: Place, now: Instant) -> Option<W> {
        self.part(model, place, |turns, place| turns.serve(place, now))
    }

    fn part(
        &mut self,
        model: &ModelId,
        place: Place,
        take: impl FnOnce(&mut Turns<W>, Place) -> Option<W>,
    ) -> Option<W> {
        let turns = self.models.get_mut(model)?;
        let waiter = take(turns, place)?;
        if turns.len() == 0 {
            self.models.remove(model);
        }
        self.waiting -= 1;
        if let Some(count) = self.tenants.get_mut(&place.tenant) {
            *count -= 1;
            if *count == 0 {
                self.tenants.remove(&place.tenant);
            }
        }
        Some(waiter)
    }

    /// About how long one more request of `tenant` for `model` would wait. `None`: nothing is known of that.
    pub(crate) fn wait(&self, model: &ModelId, tenant: u64, priority: Priority) -> Option<Duration> {
        self.models.get(model)?.wait(tenant, priority)
    }

    /// About how many will be served before one more of `tenant`.
    pub(crate) fn ahead(&self, model: &ModelId, tenant: u64, priority: Priority) -> usize {
        self.models.get(model).map_or(0, |turns| turns.ahead_of_next(tenant, priority))
    }

    /// The models waited for, longest wait first.
    pub(crate) fn models(&self) -> Vec<ModelId> {
        let mut heads: Vec<_> = self.models.iter().filter_map(|(model, turns)| Some((turns.head()?, model))).collect();
        heads.sort_unstable_by_key(|(place, _)| *place);
        heads.into_iter().map(|(_, model)| model.clone()).collect()
    }

    /// Who waits at `place`.
    pub(crate) fn get_mut(&mut self, model: &ModelId, place: Place) -> Option<&mut W> {
        self.models.get_mut(model)?.get_mut(place)
    }

    /// The first `at_most` of those who wait for `model`, in their order.
    pub(crate) fn waiters(&self, model: &ModelId, at_most: usize) -> impl Iterator<Item = (Place, &W)> {
        self.models.get(model).into_iter().flat_map(move |turns| turns.in_order(at_most))
    }

    /// Whether nobody waits for `model` that came before `place`, should it come now.
    pub(crate) fn is_next(&self, model: &ModelId, place: Place) -> bool {
        let earliest = self.models.get(model).and_then(Turns::earliest);
        earliest.is_none_or(|earliest| place <= earliest)
    }

    /// How many wait for `model`.
    pub(crate) fn waiting_for(&self, model: &ModelId) -> usize {
        self.models.get(model).map_or(0, Turns::len)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }
}

/// Whether one more may wait where `waiting` do, `own` of them of the same tenant.
fn has_room(own: usize, waiting: usize, limit: usize) -> bool {
    let free = limit.saturating_sub(waiting);
    free > 0 && fair::may_hold(own, free)
}

#[cfg(test)]
mod tests;
