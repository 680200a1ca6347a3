use super::*;
use dunlin_protocol::{
    id::{PeerId, Version},
    load::{EngineLoad, Measured},
};
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use std::collections::{HashMap, HashSet};

const FRESH: Duration = Duration::from_millis(1500);

fn replica(n: u8) -> ReplicaId {
    let key = libp2p_identity(n);
    ReplicaId { peer: key, index: u16::from(n) }
}

/// A peer id that depends on `n` only: an identity multihash over bytes.
fn libp2p_identity(n: u8) -> PeerId {
    let mut bytes = vec![0x12, 0x20];
    bytes.extend([n; 32]);
    PeerId::from_bytes(&bytes).unwrap()
}

fn candidate(n: u8) -> Candidate {
    Candidate { replica: replica(n), reach: Reach::Direct, slots: 4, load: None, own: Own::default() }
}

fn load(received: Instant, admitted: u32) -> Load {
    Load { received, slots: 4, admitted, engine: None, speed_us: None, kv_permille: None, draining: false }
}

fn ask() -> Ask<'static> {
    Ask { tried: &[], turn: 0, fresh: FRESH }
}

fn first(candidates: &[Candidate], ask: &Ask<'_>, now: Instant, seed: u64) -> Ranked {
    rank(candidates, ask, now, &mut StdRng::seed_from_u64(seed))[0]
}

#[test]
fn fresh_reports_send_to_the_lowest_expected_wait() {
    let now = Instant::now();
    let mut busy = candidate(1);
    busy.load = Some(load(now, 3));
    let mut idle = candidate(2);
    idle.load = Some(load(now, 0));
    for seed in 0..20 {
        let best = first(&[busy.clone(), idle.clone()], &ask(), now, seed);
        assert_eq!(best, Ranked { replica: replica(2), step: Step::Fresh, free: true });
    }
}

#[test]
fn a_slow_replica_gets_less_than_a_fast_one() {
    let now = Instant::now();
    let measured = |n, us, admitted| {
        let mut one = candidate(n);
        one.load = Some(Load { speed_us: Some(us), ..load(now, admitted) });
        one
    };
    let best = |fast_has| first(&[measured(1, 100_000, fast_has), measured(2, 300_000, 0)], &ask(), now, 1).replica;
    assert_eq!(best(0), replica(1));
    assert_eq!(best(1), replica(1));
    assert_eq!(best(3), replica(2));
}

#[test]
fn kv_pressure_turns_the_choice() {
    let now = Instant::now();
    let mut full = candidate(1);
    full.load = Some(Load { kv_permille: Some(990), ..load(now, 0) });
    let mut roomy = candidate(2);
    roomy.load = Some(Load { kv_permille: Some(300), ..load(now, 1) });
    assert_eq!(first(&[full, roomy], &ask(), now, 1).replica, replica(2));
}

/// C1: it stopped reporting while idle. Its last words must not win every pick.
#[test]
fn a_replica_last_seen_idle_does_not_win_for_ever() {
    let now = Instant::now();
    let mut silent = candidate(1);
    silent.load = Some(load(now - Duration::from_secs(60), 0));
    silent.own.in_flight = 3;
    let mut fresh = candidate(2);
    fresh.load = Some(load(now, 1));
    for seed in 0..20 {
        assert_eq!(first(&[silent.clone(), fresh.clone()], &ask(), now, seed).replica, replica(2));
    }
}

/// C2: one replica, its report a little too old, and full when it was made: served at once.
#[test]
fn a_single_replica_with_a_stale_report_is_served_at_once() {
    let now = Instant::now();
    let mut only = candidate(1);
    only.load = Some(load(now - FRESH - Duration::from_millis(1), 4));
    let best = first(&[only], &ask(), now, 1);
    assert_eq!(best, Ranked { replica: replica(1), step: Step::Stale, free: true });
}

#[test]
fn stale_pools_go_by_own_requests_in_flight() {
    let now = Instant::now();
    let stale = |n, own| {
        let mut one = candidate(n);
        one.load = Some(load(now - Duration::from_secs(9), 0));
        one.own.in_flight = own;
        one
    };
    let best = first(&[stale(1, 2), stale(2, 1), stale(3, 3)], &ask(), now, 1);
    assert_eq!(best, Ranked { replica: replica(2), step: Step::Stale, free: true });
}

#[test]
fn nothing_known_means_each_in_its_turn() {
    let now = Instant::now();
    let pool = [candidate(1), candidate(2), candidate(3)];
    let mut seen = HashMap::new();
    for turn in 0..9 {
        let best = first(&pool, &Ask { turn, ..ask() }, now, turn);
        assert_eq!(best.step, Step::RoundRobin);
        *seen.entry(best.replica).or_insert(0) += 1;
    }
    assert!(seen.len() == 3 && seen.values().all(|&n| n == 3), "{seen:?}");
}

#[test]
fn what_was_sent_since_the_report_counts() {
    let now = Instant::now();
    let mut one = candidate(1);
    one.load = Some(load(now, 2));
    one.own = Own { in_flight: 2, sent_since: 2, ..Own::default() };
    assert!(!first(&[one.clone()], &ask(), now, 1).free, "2 reported and 2 sent since fill 4 slots");
    one.own = Own { in_flight: 1, sent_since: 2, ended_since: 1, ..Own::default() };
    assert!(first(&[one], &ask(), now, 1).free);
}

#[test]
fn a_refusal_makes_it_full_whatever_the_report_says() {
    let now = Instant::now();
    let mut one = candidate(1);
    one.load = Some(load(now, 0));
    one.own.refused = true;
    assert!(!first(&[one], &ask(), now, 1).free);
}

/// A peer may say anything: sums of what it says must not overflow.
#[test]
fn absurd_numbers_of_a_peer_only_make_it_busy() {
    let report = LoadReport {
        replica: replica(1),
        version: Version { epoch: 1, seq: 1 },
        slots: u16::MAX,
        in_flight: u16::MAX,
        queued: u16::MAX,
        draining: false,
        measured: Measured::default(),
        engine: Some(EngineLoad { running: Some(u32::MAX), waiting: Some(u32::MAX), ..EngineLoad::default() }),
    };
    let now = Instant::now();
    let mut absurd = candidate(1);
    absurd.load = Some(Load::new(&report, now));
    absurd.own.sent_since = u32::MAX;
    let idle = candidate(2);
    for seed in 0..9 {
        assert_eq!(first(&[absurd.clone(), idle.clone()], &ask(), now, seed).replica, replica(2));
    }
}

#[test]
fn draining_is_left_out_and_relayed_comes_last() {
    let now = Instant::now();
    let mut draining = candidate(1);
    draining.load = Some(Load { draining: true, ..load(now, 0) });
    let mut relayed = candidate(2);
    relayed.reach = Reach::Relayed;
    let mut direct = candidate(3);
    direct.load = Some(load(now, 3));
    let order = rank(&[draining, relayed, direct], &ask(), now, &mut StdRng::seed_from_u64(1));
    assert_eq!(order.iter().map(|one| one.replica).collect::<Vec<_>>(), [replica(3), replica(2)]);
}

#[test]
fn ejected_suspect_and_tried_wait_while_another_is_merely_full() {
    let now = Instant::now();
    let mut full = candidate(1);
    full.load = Some(load(now, 4));
    let mut ejected = candidate(2);
    ejected.own.standing = Standing::Ejected;
    let mut suspect = candidate(3);
    suspect.reach = Reach::Suspect;
    let tried = candidate(4);
    let ask = Ask { tried: &[replica(4)], ..ask() };
    let order = rank(&[ejected, suspect, tried, full], &ask, now, &mut StdRng::seed_from_u64(1));
    assert!(order.iter().all(|one| !one.free), "{order:?}");
}

#[test]
fn ejection_never_empties_the_pool() {
    let now = Instant::now();
    let mut ejected = candidate(2);
    ejected.own.standing = Standing::Ejected;
    assert!(first(&[ejected.clone()], &ask(), now, 1).free);
    let mut suspect = candidate(3);
    suspect.reach = Reach::Suspect;
    let best = first(&[ejected, suspect], &ask(), now, 1);
    assert_eq!((best.replica, best.free), (replica(3), true));
}

fn any_candidate() -> impl Strategy<Value = Candidate> {
    let load = proptest::option::of((0u64..4000, 0u16..6, 0u32..8, any::<bool>(), proptest::option::of(any::<u32>())));
    let own = (0u32..8, 0u32..8, 0u32..8, any::<bool>(), 0u8..3);
    (0u8..5, 0u16..6, load, own).prop_map(|(reach, slots, load, own)| {
        let reach = [Reach::Direct, Reach::Unknown, Reach::Relayed, Reach::Suspect, Reach::Gone][usize::from(reach)];
        let standing = [Standing::Good, Standing::Probation, Standing::Ejected][usize::from(own.4)];
        let now = base();
        Candidate {
            replica: replica(0),
            reach,
            slots,
            load: load.map(|(age, slots, admitted, draining, speed_us)| Load {
                received: now - Duration::from_millis(age),
                slots,
                admitted,
                engine: speed_us.map(|us| us % 9),
                speed_us,
                kv_permille: speed_us.map(|us| (us % 1200) as u16),
                draining,
            }),
            own: Own { in_flight: own.0, sent_since: own.1, ended_since: own.2, refused: own.3, standing },
        }
    })
}

/// One moment for all cases, far enough from the clock's start to subtract from.
fn base() -> Instant {
    static BASE: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *BASE.get_or_init(|| Instant::now() + Duration::from_secs(10))
}

fn pools() -> impl Strategy<Value = Vec<Candidate>> {
    proptest::collection::vec(any_candidate(), 0..12).prop_map(|mut pool| {
        for (n, one) in pool.iter_mut().enumerate() {
            one.replica = replica(n as u8);
        }
        pool
    })
}

proptest! {
    #[test]
    fn the_order_is_a_permutation_of_the_usable(pool in pools(), seed: u64, turn: u64, tried in 0u8..12) {
        let now = base();
        let tried = [replica(tried)];
        let ask = Ask { tried: &tried, turn, fresh: FRESH };
        let order = rank(&pool, &ask, now, &mut StdRng::seed_from_u64(seed));
        let usable: HashSet<_> = pool
            .iter()
            .filter(|one| !one.load.is_some_and(|l| l.draining && now - l.received <= FRESH))
            .map(|one| one.replica)
            .collect();
        prop_assert_eq!(order.len(), usable.len());
        prop_assert_eq!(order.iter().map(|one| one.replica).collect::<HashSet<_>>(), usable);
        let frees: Vec<bool> = order.iter().map(|one| one.free).collect();
        prop_assert!(frees.is_sorted_by(|a, b| a >= b), "the free come first: {:?}", frees);
    }

    #[test]
    fn without_reports_a_slot_of_ours_is_enough(mut pool in pools(), seed: u64) {
        for one in &mut pool {
            one.load = one.load.map(|load| Load { received: base() - Duration::from_secs(3), ..load });
            one.own = Own::default();
        }
        prop_assume!(!pool.is_empty());
        prop_assert!(rank(&pool, &ask(), base(), &mut StdRng::seed_from_u64(seed))[0].free);
    }

    #[test]
    fn equal_replicas_share_the_load(seed: u64, count in 2u8..6, known: bool) {
        let now = base();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut pool: Vec<_> = (0..count).map(candidate).collect();
        for one in &mut pool {
            one.slots = 200;
            one.load = known.then(|| Load { slots: 200, ..load(now, 0) });
        }
        for turn in 0..u64::from(count) * 40 {
            let best = rank(&pool, &Ask { turn, ..ask() }, now, &mut rng)[0].replica;
            let chosen = pool.iter_mut().find(|one| one.replica == best).unwrap();
            chosen.own.in_flight += 1;
            chosen.own.sent_since += 1;
        }
        let counts: Vec<u32> = pool.iter().map(|one| one.own.in_flight).collect();
        prop_assert!(counts.iter().all(|&n| (25..=55).contains(&n)), "{:?}", counts);
    }
}
