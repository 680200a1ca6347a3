//! Those who wait for one model: whose turn it is.

use super::{Place, Priority, pace::Pace};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

/// How many turns in a row may pass over the tenant that has waited for its turn for longest, because others come before
/// it by their priority: the next is its.
const PASSES: u32 = 7;

/// Those who wait for one model, lowest [`Rank`] next.
#[derive(Debug)]
pub(super) struct Turns<W> {
    tenants: HashMap<u64, Tenant<W>>,
    ranks: BTreeMap<Rank, u64>,
    /// The same tenants by their turns alone.
    turns: BTreeMap<i64, u64>,
    /// All of them in the order in which they came.
    places: BTreeSet<Place>,
    /// Turns that have passed over the first of `turns`.
    passes: u32,
    /// How fast they are served.
    pace: Pace,
}

/// One tenant's waiting requests.
#[derive(Debug)]
struct Tenant<W> {
    waits: BTreeMap<Place, W>,
    rank: Rank,
    /// How fast its own are served.
    pace: Pace,
}

/// Where a tenant stands. No two stand at one place: each turn is given once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// It had its turn, and a replica refused its request.
    refused: Reverse<bool>,
    priority: Reverse<Priority>,
    turn: i64,
}

impl<W> Turns<W> {
    /// Nobody waits.
    pub(super) fn new() -> Self {
        Self {
            tenants: HashMap::new(),
            ranks: BTreeMap::new(),
            turns: BTreeMap::new(),
            places: BTreeSet::new(),
            passes: 0,
            pace: Pace::default(),
        }
    }

    /// Waits at `place`, with the next turn if it was refused. Returns whether nobody waited there.
    pub(super) fn insert(&mut self, place: Place, priority: Priority, waiter: W, refused: bool) -> bool {
        let known = self.tenants.remove(&place.tenant);
        if let Some(Tenant { rank, .. }) = &known {
            self.unfile(*rank);
        }
        let rank = known.as_ref().map(|known| known.rank);
        let (mut waits, pace) = known.map(|known| (known.waits, known.pace)).unwrap_or_default();
        let turn = match rank {
            _ if refused => self.turns.keys().next().map_or(0, |first| first - 1),
            Some(rank) => rank.turn,
            None => self.last_turn(),
        };
        let refused = refused || rank.is_some_and(|rank| rank.refused.0);
        waits.insert(place, waiter);
        let rank = Rank { refused: Reverse(refused), priority: Reverse(priority), turn };
        self.file(place.tenant, Tenant { waits, rank, pace });
        self.places.insert(place)
    }

    fn file(&mut self, name: u64, tenant: Tenant<W>) {
        self.ranks.insert(tenant.rank, name);
        self.turns.insert(tenant.rank.turn, name);
        self.tenants.insert(name, tenant);
    }

    fn unfile(&mut self, rank: Rank) {
        self.ranks.remove(&rank);
        self.turns.remove(&rank.turn);
    }

    /// After all others.
    fn last_turn(&self) -> i64 {
        self.turns.keys().next_back().map_or(0, |last| last + 1)
    }

    /// Leaves without a turn.
    pub(super) fn take(&mut self, place: Place) -> Option<W> {
        let tenant = self.tenants.get_mut(&place.tenant)?;
        let waiter = tenant.waits.remove(&place)?;
        self.places.remove(&place);
        if tenant.waits.is_empty() {
            let rank = tenant.rank;
            self.unfile(rank);
            self.tenants.remove(&place.tenant);
        }
        Some(waiter)
    }

    /// Leaves since it is served at `now`: the tenant has had its turn.
    pub(super) fn serve(&mut self, place: Place, now: Instant) -> Option<W> {
        let rank = self.tenants.get(&place.tenant)?.rank;
        let longest = self.longest().map(|(rank, _)| rank);
        let waiter = self.take(place)?;
        self.passes = match longest {
            Some(longest) if rank.priority < longest.priority => self.passes.saturating_add(1),
            Some(longest) if rank != longest => self.passes,
            _ => 0,
        };
        self.pace.served(now);
        if let Some(Tenant { waits, mut pace, .. }) = self.tenants.remove(&place.tenant) {
            self.unfile(rank);
            pace.served(now);
            let rank = Rank { refused: Reverse(false), turn: self.last_turn(), ..rank };
            self.file(place.tenant, Tenant { waits, rank, pace });
        }
        Some(waiter)
    }

    /// Who has waited for a turn for longest.
    fn longest(&self) -> Option<(Rank, u64)> {
        let (_, tenant) = self.turns.first_key_value()?;
        Some((self.tenants.get(tenant)?.rank, *tenant))
    }

    /// Who is served next.
    pub(super) fn head(&self) -> Option<Place> {
        self.in_order(1).next().map(|(place, _)| place)
    }

    /// Who came first.
    pub(super) fn earliest(&self) -> Option<Place> {
        self.places.first().copied()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// How many wait of one tenant.
    pub(super) fn len_of(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.waits.len())
    }

    /// Who waits at `place`.
    pub(super) fn get_mut(&mut self, place: Place) -> Option<&mut W> {
        self.tenants.get_mut(&place.tenant)?.waits.get_mut(&place)
    }

    /// The first `at_most`, in the order in which they will be served if nobody comes.
    pub(super) fn in_order(&self, at_most: usize) -> impl Iterator<Item = (Place, &W)> {
        let mut foreseen = Foreseen::new(self, at_most);
        std::iter::from_fn(move || foreseen.next()).take(at_most)
    }

    /// About how long one more of `tenant` would wait: as long as those take who are before it now, or as its own take,
    /// which tell of those who come in between. `None`: nothing is known of that.
    pub(super) fn wait(&self, tenant: u64, priority: Priority) -> Option<Duration> {
        let own = self.tenants.get(&tenant).and_then(|tenant| tenant.pace.wait(tenant.waits.len()));
        self.pace.wait(self.ahead_of_next(tenant, priority)).max(own)
    }

    /// About how many will be served before one more of `tenant`.
    pub(super) fn ahead_of_next(&self, tenant: u64, priority: Priority) -> usize {
        let own = self.len_of(tenant);
        let (mut ahead, mut behind) = (own, 0_usize);
        for (whose, Tenant { waits, rank, .. }) in &self.tenants {
            match rank.priority.0.cmp(&priority) {
                _ if *whose == tenant => {}
                std::cmp::Ordering::Greater => ahead += waits.len(),
                // Of each as many as there are rounds up to it.
                std::cmp::Ordering::Equal => ahead += waits.len().min(own + 1),
                std::cmp::Ordering::Less => behind += waits.len(),
            }
        }
        // Turns that go to those whom others have passed over.
        let passes = PASSES as usize;
        ahead += (ahead / passes).min(behind);
        ahead.min((passes + 1).saturating_mul(self.tenants.len() + 1).saturating_mul(own + 1))
    }
}

/// What would be served, were nobody to come: the first of the line, played on a copy of its heads.
///
/// So many heads as turns are looked at are enough: each turn takes one head away at most, and who goes to the end of its
/// like comes after all that were left out.
struct Foreseen<'a, W> {
    line: &'a Turns<W>,
    ranks: BTreeMap<Rank, u64>,
    turns: BTreeMap<i64, Rank>,
    taken: HashMap<u64, usize>,
    last_turn: i64,
    passes: u32,
}

impl<'a, W> Foreseen<'a, W> {
    fn new(line: &'a Turns<W>, at_most: usize) -> Self {
        let ranks = line.ranks.iter().take(at_most).map(|(rank, tenant)| (*rank, *tenant)).collect();
        let rank = |(turn, tenant): (&i64, &u64)| Some((*turn, line.tenants.get(tenant)?.rank));
        let turns = line.turns.iter().take(at_most).filter_map(rank).collect();
        Self { line, ranks, turns, taken: HashMap::new(), last_turn: line.last_turn(), passes: line.passes }
    }

    fn next(&mut self) -> Option<(Place, &'a W)> {
        let best = self.ranks.first_key_value().map(|(rank, _)| *rank);
        let longest = self.turns.first_key_value().map(|(_, rank)| *rank)?;
        let rank = match best {
            Some(best) if best.refused.0 || self.passes < PASSES => best,
            _ => longest,
        };
        self.passes = match rank {
            _ if rank.priority < longest.priority => self.passes.saturating_add(1),
            _ if rank != longest => self.passes,
            _ => 0,
        };
        let tenant = self.ranks.remove(&rank).or_else(|| self.line.ranks.get(&rank).copied())?;
        self.turns.remove(&rank.turn);
        let waits = &self.line.tenants.get(&tenant)?.waits;
        let taken = self.taken.entry(tenant).or_default();
        let next = waits.iter().nth(*taken);
        *taken += 1;
        if waits.len() > *taken {
            let again = Rank { refused: Reverse(false), turn: self.last_turn, ..rank };
            self.last_turn += 1;
            self.ranks.insert(again, tenant);
            self.turns.insert(again.turn, again);
        }
        next.map(|(place, waiter)| (*place, waiter))
    }
}
