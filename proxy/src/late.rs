//! Late binding, the pure part: who waits for a slot, in which order.
//!
//! One line per model. In it the tenants are served in turns (round robin; Nagle, RFC 970), each tenant's requests in
//! the order in which they came: one that sends a thousand requests at once delays the others by one request per round.
//! A request that a replica refused keeps the number under which it first came, and its tenant has the next turn. Across
//! models the longest wait is served first, since one replica's slots may serve several models.

use crate::fair;
use dunlin_protocol::id::ModelId;
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// Weight of the newest interval between two that were served.
const LATEST: f64 = 1.0 / 16.0;
/// Intervals after which their mean says how long the wait will be.
const KNOWN: u32 = 16;

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

/// Those who wait for one model.
#[derive(Debug)]
struct Turns<W> {
    /// In the order of their turns, lowest next.
    tenants: BTreeMap<i64, BTreeMap<Place, W>>,
    turn_of: HashMap<u64, i64>,
    waiting: usize,
    pace: Pace,
}

/// How fast those who wait are served.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    last: Option<Instant>,
    /// Seconds between two of them, a moving average.
    interval: f64,
    intervals: u32,
}

impl Pace {
    fn served(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let newest = now.saturating_duration_since(last).as_secs_f64();
            let weight = LATEST.max(1.0 / f64::from(self.intervals + 1));
            self.interval += (newest - self.interval) * weight;
            self.intervals = self.intervals.saturating_add(1).min(KNOWN);
        }
    }

    fn wait(&self, ahead: usize) -> Option<Duration> {
        (self.intervals >= KNOWN).then(|| Duration::from_secs_f64(self.interval * (ahead + 1) as f64))
    }
}

impl<W> Turns<W> {
    fn new() -> Self {
        Self { tenants: BTreeMap::new(), turn_of: HashMap::new(), waiting: 0, pace: Pace::default() }
    }

    /// Whether nobody waited there.
    fn insert(&mut self, place: Place, waiter: W, next_turn: bool) -> bool {
        let first = self.tenants.keys().next().copied();
        let turn = match self.turn_of.get(&place.tenant) {
            Some(turn) if !next_turn || Some(*turn) == first => *turn,
            known => {
                let waits = known.and_then(|turn| self.tenants.remove(turn)).unwrap_or_default();
                let turn = if next_turn { first.map_or(0, |first| first - 1) } else { self.last_turn() };
                self.tenants.insert(turn, waits);
                self.turn_of.insert(place.tenant, turn);
                turn
            }
        };
        let is_new = self.tenants.entry(turn).or_default().insert(place, waiter).is_none();
        self.waiting += usize::from(is_new);
        is_new
    }

    /// Who is served next.
    fn head(&self) -> Option<Place> {
        self.tenants.values().next()?.keys().next().copied()
    }

    /// After all others.
    fn last_turn(&self) -> i64 {
        self.tenants.keys().next_back().map_or(0, |last| last + 1)
    }

    fn take(&mut self, place: Place) -> Option<W> {
        let turn = *self.turn_of.get(&place.tenant)?;
        let waits = self.tenants.get_mut(&turn)?;
        let waiter = waits.remove(&place)?;
        if waits.is_empty() {
            self.tenants.remove(&turn);
            self.turn_of.remove(&place.tenant);
        }
        self.waiting -= 1;
        Some(waiter)
    }

    /// The tenant has had its turn.
    fn had_turn(&mut self, tenant: u64) {
        let last = self.last_turn();
        let Some(turn) = self.turn_of.get_mut(&tenant) else { return };
        if let Some(waits) = self.tenants.remove(turn) {
            self.tenants.insert(last, waits);
            *turn = last;
        }
    }

    fn of(&self, tenant: u64) -> Option<&BTreeMap<Place, W>> {
        self.tenants.get(self.turn_of.get(&tenant)?)
    }

    /// In the order in which they will be served if nobody comes.
    fn in_order(&self) -> impl Iterator<Item = (Place, &W)> {
        let rounds = self.tenants.values().map(BTreeMap::len).max().unwrap_or(0);
        let round = |nth: usize| self.tenants.values().filter_map(move |waits| waits.iter().nth(nth));
        (0..rounds).flat_map(round).map(|(place, waiter)| (*place, waiter))
    }

    /// How many will be served before one more of `tenant`.
    fn ahead_of_next(&self, tenant: u64) -> usize {
        let own = self.of(tenant).map_or(0, BTreeMap::len);
        // Of each tenant as many as there are rounds up to it, of its own all.
        self.tenants.values().map(|waits| waits.len().min(own + 1)).sum()
    }
}

impl<W> Line<W> {
    /// An empty line that takes at most `per_model` waiting requests for one model and `in_all` together.
    pub(crate) fn new(per_model: usize, in_all: usize) -> Self {
        Self { models: HashMap::new(), tenants: HashMap::new(), next: 0, waiting: 0, per_model, in_all }
    }

    /// Waits for the first time.
    ///
    /// # Errors
    /// The line is full.
    pub(crate) fn join(&mut self, model: &ModelId, place: Place, waiter: W) -> Result<(), Full> {
        let here = self.models.get(model).and_then(|turns| turns.of(place.tenant)).map_or(0, BTreeMap::len);
        let in_all = self.tenants.get(&place.tenant).copied().unwrap_or(0);
        if !has_room(here, self.waiting_for(model), self.per_model) || !has_room(in_all, self.waiting, self.in_all) {
            return Err(Full);
        }
        self.insert(model, place, waiter, false);
        Ok(())
    }

    /// Draws the number of a request of `tenant` when it comes, whether it will have to wait or not.
    pub(crate) fn number(&mut self, tenant: u64) -> Place {
        self.next += 1;
        Place { number: self.next, tenant }
    }

    /// Waits again under an earlier number, and is next. Never refused: who was let in once has its place.
    pub(crate) fn rejoin(&mut self, model: &ModelId, place: Place, waiter: W) {
        self.insert(model, place, waiter, true);
    }

    fn insert(&mut self, model: &ModelId, place: Place, waiter: W, next_turn: bool) {
        let turns = self.models.entry(model.clone()).or_insert_with(Turns::new);
        if turns.insert(place, waiter, next_turn) {
            self.waiting += 1;
            *self.tenants.entry(place.tenant).or_default() += 1;
        }
    }

    /// Leaves the line without having been served. Does nothing when the place is no longer taken.
    pub(crate) fn leave(&mut self, model: &ModelId, place: Place) -> Option<W> {
        let turns = self.models.get_mut(model)?;
        let waiter = turns.take(place)?;
        if turns.waiting == 0 {
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

    /// Leaves the line at `now` since it is served: the next turn is another tenant's.
    pub(crate) fn serve(&mut self, model: &ModelId, place: Place, now: Instant) -> Option<W> {
        let waiter = self.leave(model, place)?;
        if let Some(turns) = self.models.get_mut(model) {
            turns.had_turn(place.tenant);
            turns.pace.served(now);
        }
        Some(waiter)
    }

    /// How long one more request of `tenant` for `model` would wait. `None`: nothing is known of that.
    pub(crate) fn wait(&self, model: &ModelId, tenant: u64) -> Option<Duration> {
        let turns = self.models.get(model)?;
        turns.pace.wait(turns.ahead_of_next(tenant))
    }

    /// The models waited for, longest wait first.
    pub(crate) fn models(&self) -> Vec<ModelId> {
        let mut heads: Vec<_> = self.models.iter().filter_map(|(model, turns)| Some((turns.head()?, model))).collect();
        heads.sort_unstable_by_key(|(place, _)| *place);
        heads.into_iter().map(|(_, model)| model.clone()).collect()
    }

    /// Who waits at `place`.
    pub(crate) fn get_mut(&mut self, model: &ModelId, place: Place) -> Option<&mut W> {
        let turns = self.models.get_mut(model)?;
        turns.tenants.get_mut(turns.turn_of.get(&place.tenant)?)?.get_mut(&place)
    }

    /// Those who wait for `model`, in their order.
    pub(crate) fn waiters(&self, model: &ModelId) -> impl Iterator<Item = (Place, &W)> {
        self.models.get(model).into_iter().flat_map(Turns::in_order)
    }

    /// Whether nobody waits for `model` who would be served before `place`, should it come now.
    pub(crate) fn is_next(&self, model: &ModelId, place: Place) -> bool {
        let Some(turns) = self.models.get(model) else { return true };
        let earliest = turns.tenants.values().filter_map(|waits| waits.keys().next()).min();
        earliest.is_none_or(|earliest| place <= *earliest)
    }

    /// How many wait for `model`.
    pub(crate) fn waiting_for(&self, model: &ModelId) -> usize {
        self.models.get(model).map_or(0, |turns| turns.waiting)
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(name: &str) -> ModelId {
        ModelId::new(name).unwrap()
    }

    fn serve(line: &mut Line<u32>, model: &ModelId) -> Option<u32> {
        let (place, _) = line.waiters(model).next()?;
        line.serve(model, place, Instant::now())
    }

    fn join_as(line: &mut Line<u32>, tenant: u64, model: &ModelId, waiter: u32) -> Result<Place, Full> {
        let place = line.number(tenant);
        line.join(model, place, waiter).map(|()| place)
    }

    fn join(line: &mut Line<u32>, model: &ModelId, waiter: u32) -> Result<Place, Full> {
        join_as(line, 0, model, waiter)
    }

    #[test]
    fn tenants_take_turns() {
        let (mut line, m) = (Line::new(99, 99), model("m"));
        for n in 0..6 {
            join_as(&mut line, 1, &m, 10 + n).unwrap();
        }
        join_as(&mut line, 2, &m, 20).unwrap();
        join_as(&mut line, 2, &m, 21).unwrap();
        let foreseen: Vec<_> = line.waiters(&m).map(|(_, waiter)| *waiter).collect();
        assert_eq!(foreseen, [10, 20, 11, 21, 12, 13, 14, 15]);
        assert_eq!([serve(&mut line, &m), serve(&mut line, &m)], [Some(10), Some(20)]);
        // Whoever comes now has its turn in this round, and whoever was refused has the next.
        join_as(&mut line, 3, &m, 30).unwrap();
        let refused = Place { number: 0, tenant: 2 };
        line.rejoin(&m, refused, 29);
        let served: Vec<_> = std::iter::from_fn(|| serve(&mut line, &m)).collect();
        assert_eq!(served, [29, 11, 30, 21, 12, 13, 14, 15]);
    }

    #[test]
    fn one_tenant_does_not_take_the_whole_line() {
        let (mut line, m) = (Line::new(100, 1000), model("m"));
        let mut fill = |tenant| (0..200).filter(|n| join_as(&mut line, tenant, &m, *n).is_ok()).count();
        assert_eq!(fill(1), 76);
        assert!(fill(2) >= 18);
        assert!(fill(3) >= 4);
    }

    #[test]
    fn the_wait_is_as_long_as_those_ahead_take() {
        let (mut line, m, mut now) = (Line::new(99, 99), model("m"), Instant::now());
        for n in 0..40 {
            join_as(&mut line, 1, &m, n).unwrap();
        }
        assert_eq!(line.wait(&m, 1), None, "nobody was served yet");
        for _ in 0..20 {
            now += Duration::from_millis(500);
            let (place, _) = line.waiters(&m).next().unwrap();
            line.serve(&m, place, now).unwrap();
        }
        let seconds = |wait: Option<Duration>| wait.unwrap().as_secs_f64();
        assert!((seconds(line.wait(&m, 1)) - 10.5).abs() < 0.01);
        assert!((seconds(line.wait(&m, 2)) - 1.0).abs() < 0.01, "another tenant has the second turn");
    }

    #[test]
    fn first_come_first_served_and_the_refused_come_first_again() {
        let (mut line, m) = (Line::new(9, 9), model("m"));
        let refused = line.number(0);
        join(&mut line, &m, 1).unwrap();
        join(&mut line, &m, 2).unwrap();
        assert!(line.is_next(&m, refused));
        line.rejoin(&m, refused, 0);
        let late = line.number(0);
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
        fn the_count_is_right_and_order_is_kept(steps in proptest::collection::vec((0u8..3, 0u8..3, 0u64..3), 0..80)) {
            let (mut line, mut places) = (Line::new(8, 16), Vec::new());
            for (n, (step, which, tenant)) in steps.into_iter().enumerate() {
                let m = model(&which.to_string());
                match step {
                    0 => places.extend(join_as(&mut line, tenant, &m, n as u32).map(|place| (m, place))),
                    1 => { serve(&mut line, &m); }
                    _ => if let Some((m, place)) = places.pop() { line.leave(&m, place); },
                }
                let sum: usize = line.models().iter().map(|m| line.waiting_for(m)).sum();
                prop_assert_eq!(sum, line.len());
                prop_assert!(line.len() <= 16);
            }
            for m in line.models() {
                let foreseen: Vec<_> = line.waiters(&m).map(|(place, waiter)| (place.tenant, *waiter)).collect();
                let served: Vec<_> = std::iter::from_fn(|| serve(&mut line, &m)).collect();
                prop_assert_eq!(&served, &foreseen.iter().map(|(_, waiter)| *waiter).collect::<Vec<_>>());
                for tenant in 0..3 {
                    let own: Vec<_> = foreseen.iter().filter(|(whose, _)| *whose == tenant).map(|(_, n)| *n).collect();
                    prop_assert!(own.is_sorted(), "{:?}", served);
                    // Nobody is served twice while another waits who has not been served since.
                    for pair in foreseen.windows(2) {
                        let later = foreseen.iter().skip_while(|one| *one != &pair[1]).skip(1);
                        prop_assert!(pair[0].0 != pair[1].0 || later.clone().all(|one| one.0 == pair[0].0), "{:?}", foreseen);
                    }
                }
            }
            prop_assert_eq!(line.len(), 0);
            prop_assert!(line.tenants.is_empty() && line.models.is_empty());
        }
    }
}
