//! What is broken when: a function of a seed. Pure.

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{collections::BTreeMap, ops::Range, time::Duration};

/// What happens to a replica: to its agent, to the engine beside it, or to its host's cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// `kill -9` of the engine, started again later.
    KillEngine,
    /// The engine hangs: accepts, holds its connections, says nothing.
    StopEngine,
    /// Others take all of the engine's slots, past the mesh.
    FillEngine,
    /// `kill -9` of the agent, started again later.
    KillAgent,
    /// The agent hangs.
    StopAgent,
    /// The agent is told to end, and is started again later.
    DrainAgent,
    /// No packet passes, in silence, until it heals.
    Cut,
    /// Many packets are lost.
    Slow,
    /// A replica that was not there before comes, and is drained later.
    Add,
}

/// What needs no network of our own.
const ANYWHERE: [Fault; 7] = [
    Fault::KillEngine,
    Fault::StopEngine,
    Fault::FillEngine,
    Fault::KillAgent,
    Fault::StopAgent,
    Fault::DrainAgent,
    Fault::Add,
];
const NETWORK: [Fault; 2] = [Fault::Cut, Fault::Slow];

impl Fault {
    /// How long it lasts, ms.
    fn lasts(self) -> Range<u64> {
        match self {
            // Some are over before anybody has noticed, some end with the connection given up (after 10 s).
            Self::Cut => 300..13_000,
            Self::Slow | Self::Add => 2000..8000,
            _ => 200..4000,
        }
    }
}

/// One thing that is broken, and how long for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Since the start.
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    pub(super) replica: usize,
    pub(super) fault: Fault,
}

/// Pause between two faults, ms.
const PAUSE: Range<u64> = 300..1500;
/// After its fault a replica needs this long to be known as healthy again: its agent may have to join the mesh anew, and to
/// test its engine.
const RECOVERS: Duration = Duration::from_secs(8);

/// Faults for so many replicas, and for one more that is added now and then, up to the end at `length`. At any time one of
/// the former has been well for [`RECOVERS`]. With `network` their hosts' cables are among what breaks.
pub(super) fn script(seed: u64, replicas: usize, network: bool, length: Duration) -> Vec<Step> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let faults: Vec<Fault> = ANYWHERE.into_iter().chain(NETWORK.into_iter().filter(|_| network)).collect();
    // The last is the added one.
    let mut well_from = vec![Duration::ZERO; replicas + 1];
    let (mut steps, mut at) = (Vec::new(), Duration::ZERO);
    while at < length {
        at += Duration::from_millis(rng.random_range(PAUSE));
        let fault = faults[rng.random_range(0..faults.len())];
        let well: Vec<usize> = (0..replicas).filter(|n| well_from[*n] <= at).collect();
        let replica = match fault {
            Fault::Add if well_from[replicas] <= at => replicas,
            Fault::Add => continue,
            _ if well.len() < 2 => continue,
            _ => well[rng.random_range(0..well.len())],
        };
        let lasts = Duration::from_millis(rng.random_range(fault.lasts()));
        // Everything is well again at the end.
        if at + lasts + RECOVERS <= length {
            well_from[replica] = at + lasts + RECOVERS;
            steps.push(Step { at, lasts, replica, fault });
        }
    }
    steps
}

/// How many of each.
pub(super) fn kinds(steps: &[Step]) -> BTreeMap<Fault, usize> {
    let mut kinds = BTreeMap::new();
    for step in steps {
        *kinds.entry(step.fault).or_default() += 1;
    }
    kinds
}

#[test]
fn one_replica_is_well_at_any_time_and_every_fault_comes() {
    const REPLICAS: usize = 3;
    let length = Duration::from_secs(600);
    let steps = script(7, REPLICAS, true, length);
    assert_eq!(steps, script(7, REPLICAS, true, length));
    assert_ne!(steps, script(8, REPLICAS, true, length));
    assert_eq!(kinds(&steps).len(), ANYWHERE.len() + NETWORK.len(), "{:?}", kinds(&steps));
    let without = kinds(&script(7, REPLICAS, false, length));
    assert!(NETWORK.iter().all(|fault| !without.contains_key(fault)), "{without:?}");
    for step in &steps {
        let ill = |replica| {
            steps.iter().any(|other| {
                other.replica == replica && other.at <= step.at && step.at < other.at + other.lasts + RECOVERS
            })
        };
        assert!((0..REPLICAS).any(|replica| !ill(replica)), "{step:?}");
        assert_eq!(step.replica == REPLICAS, step.fault == Fault::Add, "{step:?}");
    }
}
