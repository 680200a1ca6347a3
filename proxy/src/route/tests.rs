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
    Candidate {
        replica: replica(n),
        reach: Reach::Direct,
        rtt: None,
        slots: 4,
        loads: Loads::Never,
        load: None,
        own: Own::default(),
    }
}

fn load(received: Instant, admitted: u32) -> Load {
    Load {
        received,
        slots: 4,
        admitted,
        running: None,
        waiting: 0,
        speed: Speed::default(),
        in_flight_kib: 0,
        unstarted_kib: 0,
        silent: Duration::ZERO,
        recent: [0; RECENT_MODELS],
        kv_permille: None,
        draining: false,
        flavor: 0,
    }
}

fn ask() -> Ask<'static> {
    Ask { tried: &[], turn: 0, fresh: FRESH, kib: 2.0, tag: 7 }
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
        assert_eq!((best.replica, best.step, best.room), (replica(2), Step::Fresh, Room::Free));
    }
}

#[test]
fn a_slow_replica_gets_less_than_a_fast_one() {
    let now = Instant::now();
    let measured = |n, us, admitted| {
        let mut one = candidate(n);
        let speed = Speed { first_token_us: Some(us), per_kib_us: Some(us / 4.0), decode_us: Some(us * 10.0) };
        one.load = Some(Load { speed, ..load(now, admitted) });
        one
    };
    let best = |fast_has| first(&[measured(1, 50e3, fast_has), measured(2, 150e3, 0)], &ask(), now, 1).replica;
    assert_eq!((best(0), best(3), best(4)), (replica(1), replica(1), replica(2)));
    // Prompts ahead of it make the fast one slow.
    let mut fast = measured(1, 50e3, 1);
    fast.own.unstarted_kib = 20;
    assert_eq!(first(&[fast, measured(2, 150e3, 0)], &ask(), now, 1).replica, replica(2));
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

#[test]
fn of_near_equals_the_better_flavor_is_taken_and_a_busier_one_is_not() {
    let now = Instant::now();
    let with = |n, flavor, in_flight| {
        let mut one = candidate(n);
        let speed = Speed { first_token_us: Some(20e3), per_kib_us: Some(5e3), decode_us: Some(500e3) };
        one.load = Some(Load { flavor, speed, ..load(now, in_flight) });
        one.own = Own { in_flight, reported: Reported { in_flight, ..Reported::default() }, ..Own::default() };
        one
    };
    for seed in 0..20 {
        let best = |pool: &[Candidate]| first(pool, &ask(), now, seed).replica;
        assert_eq!(best(&[with(1, 2, 0), with(2, 0, 0), with(3, 1, 0)]), replica(2));
        assert_eq!(best(&[with(1, 1, 0), with(2, 0, 1)]), replica(2), "a little busier is as good as equal");
        assert_eq!(best(&[with(1, 1, 0), with(2, 0, 3)]), replica(1), "three of four slots taken are not");
        assert_eq!(best(&[with(1, 1, 0), with(2, 0, 4)]), replica(1), "and a full one still less");
    }
}

/// Short prompts are prefilled so soon that their cache makes no difference of 15 %.
#[test]
fn of_near_equals_the_one_that_holds_the_prompt_is_taken() {
    let now = Instant::now();
    let with = |n, cached_kib, in_flight| {
        let mut one = candidate(n);
        let speed = Speed { first_token_us: Some(20e3), per_kib_us: Some(5e3), decode_us: Some(500e3) };
        one.load = Some(Load { speed, ..load(now, in_flight) });
        let reported = Reported { in_flight, ..Reported::default() };
        one.own = Own { in_flight, reported, cached_kib, ..Own::default() };
        one
    };
    let ask = Ask { kib: 0.5, ..ask() };
    for seed in 0..20 {
        let best = |pool: &[Candidate]| first(pool, &ask, now, seed).replica;
        assert_eq!(best(&[with(1, 0.0, 0), with(2, 0.4, 1)]), replica(2));
        assert_eq!(best(&[with(1, 0.3, 0), with(2, 0.35, 1)]), replica(1), "hardly more");
        assert_eq!(best(&[with(1, 0.0, 0), with(2, 0.5, 3)]), replica(1), "never the slower one");
    }
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
    assert_eq!((best.replica, best.step, best.room), (replica(1), Step::Stale, Room::Free));
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
    assert_eq!((best.replica, best.step, best.room), (replica(2), Step::Stale, Room::Free));
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
    let mut room = |in_flight, reported| {
        let reported = Reported { in_flight: reported, ..Reported::default() };
        one.own = Own { in_flight, reported, ..Own::default() };
        first(std::slice::from_ref(&one), &ask(), now, 1).room
    };
    assert_eq!(room(2, 0), Room::Maybe, "2 of others and 2 of ours fill 4 slots, as far as is known");
    assert_eq!(room(3, 2), Room::Free, "2 reported that were ours, and one more");
    assert_eq!(room(4, 2), Room::Full, "ours alone");
    assert_eq!(room(1, 2), Room::Free);
}

#[test]
fn a_refusal_makes_it_full_whatever_the_report_says() {
    let now = Instant::now();
    let mut one = candidate(1);
    one.load = Some(load(now, 0));
    one.own.refused = true;
    assert_eq!(first(&[one], &ask(), now, 1).room, Room::Full);
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
        flavor: 0,
        measured: Measured {
            ttft_us: Some(u32::MAX),
            service_us: Some(0),
            first_token_us: Some(u32::MAX),
            prefill_us_per_kib: Some(u32::MAX),
            in_flight_kib: u32::MAX,
            unstarted_kib: u32::MAX,
            ..Measured::default()
        },
        engine: Some(EngineLoad { running: Some(u32::MAX), waiting: Some(u32::MAX), ..EngineLoad::default() }),
    };
    let now = Instant::now();
    let mut absurd = candidate(1);
    absurd.load = Some(Load::new(&report, now));
    absurd.own.in_flight = u32::MAX;
    absurd.own.unstarted_kib = u32::MAX;
    absurd.own.cached_kib = f64::MAX;
    absurd.own.home_kib = f64::MAX;
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
    assert!(order.iter().all(|one| one.room != Room::Free), "{order:?}");
}

#[test]
fn ejection_never_empties_the_pool() {
    let now = Instant::now();
    let mut ejected = candidate(2);
    ejected.own.standing = Standing::Ejected;
    assert_eq!(first(&[ejected.clone()], &ask(), now, 1).room, Room::Free);
    let mut suspect = candidate(3);
    suspect.reach = Reach::Suspect;
    let best = first(&[ejected, suspect], &ask(), now, 1);
    assert_eq!((best.replica, best.room), (replica(3), Room::Free));
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
            rtt: load.map(|(age, ..)| Duration::from_millis(age)),
            slots,
            loads: [Loads::Never, Loads::Adapter, Loads::Model][usize::from(own.4)],
            load: load.map(|(age, slots, admitted, draining, us)| Load {
                received: now - Duration::from_millis(age),
                slots,
                admitted,
                running: us.map(|us| us % 9),
                waiting: us.map_or(0, |us| us % 2),
                speed: Speed {
                    first_token_us: us.map(f64::from),
                    per_kib_us: us.map(|us| f64::from(us % 1000)),
                    decode_us: us.map(|us| f64::from(us / 3)),
                },
                in_flight_kib: us.unwrap_or(0) % 100,
                unstarted_kib: us.unwrap_or(0) % 50,
                silent: Duration::from_millis(us.unwrap_or(0).into()),
                recent: [us.unwrap_or(0) % 9; RECENT_MODELS],
                kv_permille: us.map(|us| (us % 1200) as u16),
                draining,
                flavor: own.4,
            }),
            own: Own {
                in_flight: own.0,
                reported: Reported { in_flight: own.1, ..Reported::default() },
                unstarted_kib: own.2,
                unanswered: Duration::from_secs(own.1.into()),
                cached_kib: own.2.into(),
                refused: own.3,
                standing,
                ..Own::default()
            },
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
        let ask = Ask { tried: &tried, turn, ..ask() };
        let order = rank(&pool, &ask, now, &mut StdRng::seed_from_u64(seed));
        let usable: HashSet<_> = pool
            .iter()
            .filter(|one| !one.load.is_some_and(|l| l.draining && now - l.received <= FRESH))
            .map(|one| one.replica)
            .collect();
        prop_assert_eq!(order.len(), usable.len());
        prop_assert_eq!(order.iter().map(|one| one.replica).collect::<HashSet<_>>(), usable);
        let rooms: Vec<Room> = order.iter().map(|one| one.room).collect();
        prop_assert!(rooms.is_sorted(), "the free come first: {:?}", rooms);
        prop_assert!(order.iter().all(|one| one.cost.is_finite() && one.cost >= 0.0), "{:?}", order);
    }

    #[test]
    fn without_reports_a_slot_of_ours_is_enough(mut pool in pools(), seed: u64) {
        for one in &mut pool {
            one.load = one.load.map(|load| Load { received: base() - Duration::from_secs(3), ..load });
            one.own = Own::default();
        }
        prop_assume!(!pool.is_empty());
        prop_assert_eq!(rank(&pool, &ask(), base(), &mut StdRng::seed_from_u64(seed))[0].room, Room::Free);
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
        }
        let counts: Vec<u32> = pool.iter().map(|one| one.own.in_flight).collect();
        prop_assert!(counts.iter().all(|&n| (25..=55).contains(&n)), "{:?}", counts);
    }
}

#[test]
fn what_is_cached_decides_unless_it_is_slower_all_the_same() {
    let now = Instant::now();
    let ask = Ask { kib: 16.0, ..ask() };
    let speed = Speed { first_token_us: Some(20e3), per_kib_us: Some(5e3), decode_us: Some(500e3) };
    let with = |n, cached_kib: u32, unstarted_kib| {
        let mut one = candidate(n);
        one.load = Some(Load { speed, ..load(now, 0) });
        one.own = Own { cached_kib: cached_kib.into(), unstarted_kib, in_flight: 1, ..Own::default() };
        one
    };
    let best = |one: Candidate, other: Candidate| first(&[one, other], &ask, now, 1);
    assert_eq!(best(with(1, 0, 0), with(2, 14, 0)).replica, replica(2));
    assert_eq!(best(with(1, 0, 0), with(2, 14, 0)).new_kib, 2.0);
    assert_eq!(best(with(1, 0, 0), with(2, 14, 40)).replica, replica(1), "never the slower one");
}

#[test]
fn the_slot_of_a_replica_that_holds_the_prompt_is_worth_waiting_for() {
    let now = Instant::now();
    let speed = Speed { first_token_us: Some(20e3), per_kib_us: Some(5e3), decode_us: Some(500e3) };
    let mut holds = candidate(1);
    holds.load = Some(Load { speed, ..load(now, 4) });
    holds.own = Own { in_flight: 4, reported: Reported { in_flight: 4, ..Reported::default() }, ..Own::default() };
    holds.own.cached_kib = 200.0;
    let mut free = candidate(2);
    free.load = Some(Load { speed, ..load(now, 0) });
    let better = |kib: u32| {
        let ask = Ask { kib: f64::from(kib), ..ask() };
        worth_waiting_for(&rank(&[holds.clone(), free.clone()], &ask, now, &mut StdRng::seed_from_u64(1)))
    };
    assert_eq!(better(200).map(|better| better.replica), Some(replica(1)), "a second of prefill saved");
    assert_eq!(better(4), None);
}

#[test]
fn an_adapter_goes_where_it_is_loaded_and_is_loaded_elsewhere_when_that_is_faster() {
    let now = Instant::now();
    let with = |n, recent, in_flight, slots| {
        let mut one = candidate(n);
        one.loads = Loads::Adapter;
        one.load = Some(Load { recent: [recent, 0, 0, 0], slots, ..load(now, in_flight) });
        one.own = Own { in_flight, reported: Reported { in_flight, ..Reported::default() }, ..Own::default() };
        one
    };
    assert_eq!(first(&[with(1, 5, 0, 4), with(2, 7, 3, 4)], &ask(), now, 1).replica, replica(2));
    let full = first(&[with(1, 5, 0, 4), with(2, 7, 4, 4)], &ask(), now, 1);
    assert_eq!((full.replica, full.room), (replica(1), Room::Free));
}

#[test]
fn near_replicas_come_before_far_ones_and_direct_before_relayed() {
    let now = Instant::now();
    let at = |n, ms, reach| Candidate { rtt: Some(Duration::from_millis(ms)), reach, ..candidate(n) };
    let mut pool =
        [at(1, 80, Reach::Direct), at(2, 2, Reach::Direct), at(3, 1, Reach::Relayed), at(4, 40, Reach::Relayed)];
    for one in &mut pool {
        one.load = Some(load(now, 0));
    }
    let order = rank(&pool, &ask(), now, &mut StdRng::seed_from_u64(1));
    let order: Vec<_> = order.iter().map(|one| one.replica).collect();
    assert_eq!(order, [replica(2), replica(1), replica(3), replica(4)]);
}

#[test]
fn an_engine_that_says_nothing_to_anybody_is_the_last_choice() {
    let now = Instant::now();
    let mut silent = candidate(1);
    silent.load = Some(Load { silent: Duration::from_secs(2), ..load(now, 0) });
    let mut full = candidate(2);
    full.load = Some(load(now, 4));
    let order = rank(&[silent.clone(), full], &ask(), now, &mut StdRng::seed_from_u64(1));
    assert!(order.iter().all(|one| one.room != Room::Free), "{order:?}");
    assert_eq!(first(&[silent], &ask(), now, 1).room, Room::Free, "but a choice");
    // The same by our own requests, whatever the report says.
    let mut late = candidate(3);
    late.load = Some(Load { speed: Speed { first_token_us: Some(20e3), ..Speed::default() }, ..load(now, 0) });
    let mut idle = late.clone();
    idle.replica = replica(4);
    idle.own.in_flight = 3;
    late.own = Own { in_flight: 1, unanswered: Duration::from_secs(2), ..Own::default() };
    assert_eq!(first(&[late.clone(), idle.clone()], &ask(), now, 1).replica, replica(4));
    for one in [&mut late, &mut idle] {
        one.load.as_mut().unwrap().speed.first_token_us = Some(1e6);
    }
    assert_eq!(first(&[late, idle], &ask(), now, 1).replica, replica(3), "slow is not silent");
}

#[test]
fn a_prompt_waits_for_room_in_the_kv_cache() {
    let now = Instant::now();
    let mut one = candidate(1);
    // 60 KiB of prompts fill six tenths: there is room for 40 more.
    one.load = Some(Load { kv_permille: Some(600), in_flight_kib: 60, ..load(now, 2) });
    let room =
        |one: &Candidate, kib: u32| first(std::slice::from_ref(one), &Ask { kib: kib.into(), ..ask() }, now, 1).room;
    assert_eq!((room(&one, 40), room(&one, 41)), (Room::Free, Room::Full));
    one.own = Own { in_flight: 1, in_flight_kib: 20, ..Own::default() };
    assert_eq!((room(&one, 20), room(&one, 21)), (Room::Free, Room::Full), "what was sent since counts");
    one.load = Some(Load { kv_permille: Some(600), in_flight_kib: 60, ..load(now, 2) });
    one.own = Own { reported: Reported { in_flight: 2, in_flight_kib: 60, unstarted_kib: 0 }, ..Own::default() };
    assert_eq!(room(&one, 500), Room::Free, "an empty engine takes what it ever can");
}

/// Its agent has slots: a request that waited for the engine to be idle would wait for ever.
#[test]
fn an_engine_that_others_keep_busy_is_avoided_and_asked_all_the_same() {
    let now = Instant::now();
    let mut crowded = candidate(1);
    crowded.load = Some(Load { running: Some(4), waiting: 3, ..load(now, 0) });
    assert_eq!(first(&[crowded.clone()], &ask(), now, 1).room, Room::Free);
    let mut idle = candidate(2);
    idle.load = Some(Load { running: Some(0), ..load(now, 0) });
    assert_eq!(first(&[crowded, idle], &ask(), now, 1).replica, replica(2));
}

#[test]
fn an_engine_that_lets_requests_of_its_agent_wait_has_no_more_slots_than_run() {
    let now = Instant::now();
    let mut one = candidate(1);
    one.load = Some(Load { running: Some(2), waiting: 1, ..load(now, 3) });
    assert_eq!(first(&[one], &ask(), now, 1).room, Room::Maybe);
}
