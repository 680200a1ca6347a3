//! Late binding, the pure part: who waits for a slot, in which order.
//!
//! One line per model, first come first served; a request that a replica refused keeps the number under which it first
//! came and so goes back to the front. Across models the longest wait is served first, since one replica's slots may
//! serve several models.

use dunlin_protocol::id::ModelId;
use std::collections::{BTreeMap, HashMap};

/// A place in the line: lower is earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

/// The line is as long as it may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many requests wait")]
pub struct Full;

/// All waiting requests, each with whatever wakes it.
#[derive(Debug)]
pub(crate) struct Line<W> {
    models: HashMap<ModelId, BTreeMap<Place, W>>,
    next: u64,
    waiting: usize,
    per_model: usize,
    in_all: usize,
}

impl<W> Line<W> {
    /// An empty line that takes at most `per_model` waiting requests for one model and `in_all` together.
    pub(crate) fn new(per_model: usize, in_all: usize) -> Self {
        Self { models: HashMap::new(), next: 0, waiting: 0, per_model, in_all }
    }

    /// Waits for the first time.
    ///
    /// # Errors
    /// The line is full.
    pub(crate) fn join(&mut self, model: &ModelId, place: Place, waiter: W) -> Result<(), Full> {
        if self.waiting >= self.in_all || self.waiting_for(model) >= self.per_model {
            return Err(Full);
        }
        self.insert(model, place, waiter);
        Ok(())
    }

    /// Draws the number of a request when it comes, whether it will have to wait or not.
    pub(crate) fn number(&mut self) -> Place {
        self.next += 1;
        Place(self.next)
    }

    /// Waits again under an earlier number. Never refused: who was let in once has its place.
    pub(crate) fn rejoin(&mut self, model: &ModelId, place: Place, waiter: W) {
        self.insert(model, place, waiter);
    }

    fn insert(&mut self, model: &ModelId, place: Place, waiter: W) {
        if self.models.entry(model.clone()).or_default().insert(place, waiter).is_none() {
            self.waiting += 1;
        }
    }

    /// Leaves the line without having been served. Does nothing when the place is no longer taken.
    pub(crate) fn leave(&mut self, model: &ModelId, place: Place) -> Option<W> {
        let line = self.models.get_mut(model)?;
        let waiter = line.remove(&place)?;
        if line.is_empty() {
            self.models.remove(model);
        }
        self.waiting -= 1;
        Some(waiter)
    }

    /// The models waited for, longest wait first.
    pub(crate) fn models(&self) -> Vec<ModelId> {
        let mut heads: Vec<_> =
            self.models.iter().filter_map(|(model, line)| Some((*line.keys().next()?, model))).collect();
        heads.sort_unstable_by_key(|(place, _)| *place);
        heads.into_iter().map(|(_, model)| model.clone()).collect()
    }

    /// Who waits at `place`.
    pub(crate) fn get_mut(&mut self, model: &ModelId, place: Place) -> Option<&mut W> {
        self.models.get_mut(model)?.get_mut(&place)
    }

    /// Those who wait for `model`, in their order.
    pub(crate) fn waiters(&self, model: &ModelId) -> impl Iterator<Item = (Place, &W)> {
        self.models.get(model).into_iter().flatten().map(|(place, waiter)| (*place, waiter))
    }

    /// Whether nobody who came earlier waits for `model`.
    pub(crate) fn is_next(&self, model: &ModelId, place: Place) -> bool {
        self.waiters(model).next().is_none_or(|(first, _)| place <= first)
    }

    /// How many wait for `model`.
    pub(crate) fn waiting_for(&self, model: &ModelId) -> usize {
        self.models.get(model).map_or(0, BTreeMap::len)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(name: &str) -> ModelId {
        ModelId::new(name).unwrap()
    }

    fn serve(line: &mut Line<u32>, model: &ModelId) -> Option<u32> {
        let (place, _) = line.waiters(model).next()?;
        line.leave(model, place)
    }

    fn join(line: &mut Line<u32>, model: &ModelId, waiter: u32) -> Result<Place, Full> {
        let place = line.number();
        line.join(model, place, waiter).map(|()| place)
    }

    #[test]
    fn first_come_first_served_and_the_refused_come_first_again() {
        let (mut line, m) = (Line::new(9, 9), model("m"));
        let refused = line.number();
        join(&mut line, &m, 1).unwrap();
        join(&mut line, &m, 2).unwrap();
        assert!(line.is_next(&m, refused));
        line.rejoin(&m, refused, 0);
        let late = line.number();
        assert!(!line.is_next(&m, late));
        let served: Vec<_> = std::iter::from_fn(|| serve(&mut line, &m)).collect();
        assert_eq!(served, [0, 1, 2]);
    }

    #[test]
    fn the_longest_wait_goes_first_across_models() {
        let mut line = Line::new(9, 9);
        for name in ["b", "a", "b", "c"] {
            join(&mut line, &model(name), 0).unwrap();
        }
        assert_eq!(line.models(), [model("b"), model("a"), model("c")]);
    }

    #[test]
    fn one_model_does_not_take_the_whole_line() {
        let mut line = Line::new(2, 3);
        assert!(join(&mut line, &model("a"), 0).is_ok() && join(&mut line, &model("a"), 0).is_ok());
        assert_eq!(join(&mut line, &model("a"), 0), Err(Full));
        assert!(join(&mut line, &model("b"), 0).is_ok());
        assert_eq!(join(&mut line, &model("b"), 0), Err(Full));
    }

    proptest! {
        #[test]
        fn the_count_is_right_and_order_is_kept(steps in proptest::collection::vec((0u8..3, 0u8..3), 0..80)) {
            let (mut line, mut places) = (Line::new(8, 16), Vec::new());
            for (n, (step, which)) in steps.into_iter().enumerate() {
                let m = model(&which.to_string());
                match step {
                    0 => places.extend(join(&mut line, &m, n as u32).map(|place| (m, place))),
                    1 => { serve(&mut line, &m); }
                    _ => if let Some((m, place)) = places.pop() { line.leave(&m, place); },
                }
                let sum: usize = line.models().iter().map(|m| line.waiting_for(m)).sum();
                prop_assert_eq!(sum, line.len());
                prop_assert!(line.len() <= 16);
            }
            for m in line.models() {
                let served: Vec<_> = std::iter::from_fn(|| serve(&mut line, &m)).collect();
                prop_assert!(served.is_sorted(), "{:?}", served);
            }
            prop_assert_eq!(line.len(), 0);
        }
    }
}
