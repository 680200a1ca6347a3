//! What is broken when: a function of a seed. Pure.

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::time::Duration;

/// What happens to a replica: its agent, or the engine beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// `kill -9` of the engine, started again later.
    KillEngine,
    /// The engine hangs: accepts, holds its connections, says nothing.
    StopEngine,
    /// `kill -9` of the agent, started again later.
    KillAgent,
    /// The agent hangs.
    StopAgent,
    /// The agent is told to end, and is started again later.
    DrainAgent,
}

const FAULTS: [Fault; 5] =
    [Fault::KillEngine, Fault::StopEngine, Fault::KillAgent, Fault::StopAgent, Fault::DrainAgent];

/// One thing that is broken, and how long for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Since the start.
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    pub(super) replica: usize,
    pub(super) fault: Fault,
}

/// Pause between two faults.
const PAUSE_MS: std::ops::Range<u64> = 300..1500;
/// How long a fault lasts.
const LASTS_MS: std::ops::Range<u64> = 200..4000;
/// After its fault a replica needs this long to be known as healthy again: its agent may have to join the mesh anew.
const RECOVERS: Duration = Duration::from_secs(6);

/// Faults for so many replicas, up to the end at `length`. At any time one replica has been well for [`RECOVERS`].
pub(super) fn script(seed: u64, replicas: usize, length: Duration) -> Vec<Step> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut well_from = vec![Duration::ZERO; replicas];
    let (mut steps, mut at) = (Vec::new(), Duration::ZERO);
    loop {
        at += Duration::from_millis(rng.random_range(PAUSE_MS));
        let well: Vec<usize> = (0..replicas).filter(|n| well_from[*n] <= at).collect();
        if well.len() < 2 {
            continue;
        }
        let step = Step {
            at,
            lasts: Duration::from_millis(rng.random_range(LASTS_MS)),
            replica: well[rng.random_range(0..well.len())],
            fault: FAULTS[rng.random_range(0..FAULTS.len())],
        };
        well_from[step.replica] = step.at + step.lasts + RECOVERS;
        // Everything is well again at the end.
        if well_from[step.replica] > length {
            return steps;
        }
        steps.push(step);
    }
}

#[test]
fn one_replica_is_well_at_any_time_and_every_fault_comes() {
    let steps = script(7, 3, Duration::from_secs(600));
    assert_eq!(steps, script(7, 3, Duration::from_secs(600)));
    assert_ne!(steps, script(8, 3, Duration::from_secs(600)));
    assert!(steps.len() > 60, "{}", steps.len());
    for fault in FAULTS {
        assert!(steps.iter().any(|step| step.fault == fault), "{fault:?}");
    }
    for step in &steps {
        let ill = |replica| {
            steps.iter().any(|other| {
                other.replica == replica && other.at <= step.at && step.at < other.at + other.lasts + RECOVERS
            })
        };
        assert!((0..3).any(|replica| !ill(replica)), "{step:?}");
    }
}
