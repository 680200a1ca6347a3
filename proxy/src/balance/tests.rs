use super::*;
use crate::{
    late::Priority,
    prompt::Prompt,
    route::{Load, Loads, Own, Reach, Speed},
};
use dunlin_protocol::{id::PeerId, load::RECENT_MODELS};
use rand::{RngExt, SeedableRng};
use std::sync::Arc;

fn settings() -> Settings {
    Settings {
        fresh: Duration::from_millis(1500),
        waiting_per_model: 9,
        waiting: 9,
        starting_per_model: 9,
        starting: 9,
        hold: Duration::from_secs(30),
        hedged_percent: 10,
    }
}

fn balancer() -> Balancer<u32> {
    Balancer::new(settings(), SmallRng::seed_from_u64(1))
}

fn want(text: &[u8], stream: bool) -> Want {
    let model = ModelId::new("m").unwrap();
    Want { tenant: 0, priority: Priority::default(), prompt: Arc::new(Prompt::of("m", [text])), model, stream }
}

fn pool(count: usize, now: Instant) -> Vec<Candidate> {
    let speed = Speed { first_token_us: Some(20e3), per_kib_us: Some(10e3), decode_us: Some(500e3) };
    let load = Load {
        received: now,
        slots: 8,
        admitted: 0,
        running: Some(0),
        waiting: 0,
        speed,
        in_flight_kib: 0,
        unstarted_kib: 0,
        silent: Duration::ZERO,
        recent: [0; RECENT_MODELS],
        kv_permille: None,
        draining: false,
        flavor: 0,
    };
    let candidate = |_| Candidate {
        replica: ReplicaId { peer: PeerId::random(), index: 0 },
        reach: Reach::Direct,
        rtt: None,
        slots: 8,
        loads: Loads::Never,
        load: Some(load),
        own: Own::default(),
    };
    (0..count).map(candidate).collect()
}

fn grant(balancer: &mut Balancer<u32>, want: &Want, pool: &mut [Candidate], now: Instant) -> Grant {
    match balancer.arrive(want, &mut Ticket::default(), pool, now, || 0) {
        Ok(Arrival::Granted(grant)) => grant,
        other => panic!("{other:?}"),
    }
}

#[test]
fn conversations_stay_where_their_prompts_are_cached() {
    let now = Instant::now();
    let (mut balancer, mut pool) = (balancer(), pool(3, now));
    let text = |n: u8, turns: usize| -> Vec<u8> { (0..turns * 500).map(|at| n ^ (at / 7) as u8).collect() };
    let mut homes = HashMap::new();
    for turn in 1..6 {
        for n in 0..20 {
            let mut grant = grant(&mut balancer, &want(&text(n, turn), true), &mut pool, now);
            let first = *homes.entry(n).or_insert(grant.replica);
            assert_eq!(grant.replica, first, "turn {turn} of conversation {n}");
            balancer.begin(&mut grant, now);
            balancer.end(&mut grant, now);
        }
    }
    let places: std::collections::HashSet<_> = homes.values().collect();
    assert_eq!(places.len(), 3, "not all in one place");
}

/// An answer in one piece has its first byte when all of it is generated: that is no hanging engine.
#[test]
fn only_streams_can_be_late() {
    let now = Instant::now();
    let (mut balancer, mut pool) = (balancer(), pool(1, now));
    let later = now + Duration::from_secs(60);
    let mut unary = grant(&mut balancer, &want(b"x", false), &mut pool, now);
    assert_eq!(unary.new_kib, None);
    balancer.fill_own(&ModelId::new("m").unwrap(), &mut pool, later);
    assert_eq!((pool[0].own.in_flight, pool[0].own.unanswered), (1, Duration::ZERO));
    balancer.end(&mut unary, later);
    let mut stream = grant(&mut balancer, &want(b"x", true), &mut pool, now);
    balancer.fill_own(&ModelId::new("m").unwrap(), &mut pool, later);
    assert_eq!(pool[0].own.unanswered, Duration::from_secs(60));
    balancer.begin(&mut stream, later);
    balancer.fill_own(&ModelId::new("m").unwrap(), &mut pool, later);
    assert_eq!((pool[0].own.in_flight, pool[0].own.unanswered), (1, Duration::ZERO));
}

#[test]
fn only_where_no_other_is_free_may_a_request_wait_at_the_replica() {
    let now = Instant::now();
    let (mut balancer, mut two) = (balancer(), pool(2, now));
    assert_eq!(grant(&mut balancer, &want(b"x", true), &mut two, now).patience, Duration::ZERO);
    assert_eq!(grant(&mut balancer, &want(b"x", true), &mut two[..1], now).patience, LONGEST_PATIENCE);
}

#[test]
fn a_request_that_builds_on_a_response_goes_where_that_was_given() {
    let now = Instant::now();
    let (mut balancer, mut pool) = (balancer(), pool(4, now));
    let first = grant(&mut balancer, &want(b"x", true), &mut pool, now);
    balancer.holds(&first.replica, 77);
    let mut want = want(b"y", true);
    Arc::make_mut(&mut want.prompt).previous = Some(77);
    for _ in 0..7 {
        assert_eq!(grant(&mut balancer, &want, &mut pool, now).replica, first.replica);
    }
    // Its slots are taken now, for a shorter time than the response is worth.
    let mut ticket = Ticket::default();
    let waits = balancer.arrive(&want, &mut ticket, &mut pool, now, || 0);
    assert!(matches!(waits, Ok(Arrival::Waits(_))), "{waits:?}");
    let later = now + LONGEST_CHOICE;
    pool.iter_mut().for_each(|one| one.load.as_mut().unwrap().received = later);
    let (_, grant) = balancer.next_grant(&want.model, &mut pool, later).unwrap();
    assert_ne!(grant.replica, first.replica, "but not for ever");
}

#[test]
fn a_proxy_that_starts_sees_at_once_how_much_comes_from_others() {
    let now = Instant::now();
    let (mut balancer, mut pool) = (balancer(), pool(2, now));
    pool.iter_mut().for_each(|one| one.load.as_mut().unwrap().admitted = 3);
    grant(&mut balancer, &want(b"x", true), &mut pool, now);
    assert_eq!(balancer.others, 1.0);
    // Seven of eight requests are others' now; one look among many changes little.
    for _ in 0..200 {
        balancer.fill_own(&ModelId::new("m").unwrap(), &mut pool, now);
    }
    assert!((0.8..0.9).contains(&balancer.others), "{}", balancer.others);
    pool.iter_mut().for_each(|one| one.load.as_mut().unwrap().admitted = 0);
    balancer.fill_own(&ModelId::new("m").unwrap(), &mut pool, now);
    assert!(balancer.others > 0.75, "{}", balancer.others);
}

/// Its slots would be idle for a round trip each time; but with a short line, a near one is free sooner.
#[test]
fn a_long_line_sends_one_ahead_to_a_far_replica_whose_slot_will_be_free() {
    let now = Instant::now();
    let full = |rtt_ms| {
        let (mut balancer, mut pool) = (balancer(), pool(1, now));
        pool[0].rtt = Some(Duration::from_millis(rtt_ms));
        (0..8).for_each(|_| drop(grant(&mut balancer, &want(b"x", true), &mut pool, now)));
        (balancer, pool)
    };
    let model = ModelId::new("m").unwrap();
    let sent = |rtt_ms, line| {
        let (mut balancer, mut pool) = full(rtt_ms);
        for _ in 0..line {
            let waits = balancer.arrive(&want(b"x", true), &mut Ticket::default(), &mut pool, now, || 0);
            assert!(matches!(waits, Ok(Arrival::Waits(_))), "{waits:?}");
        }
        let later = now + TRY_AGAIN * 2;
        let first = balancer.next_grant(&model, &mut pool, later).is_some();
        (first, balancer.next_grant(&model, &mut pool, later + TRY_AGAIN * 2).is_some())
    };
    // Eight slots of half a second each: one becomes free within 80 ms, and one waits at the agent.
    assert_eq!(sent(80, LONG_LINE), (true, false));
    assert_eq!(sent(80, LONG_LINE - 1), (false, false));
    assert_eq!(sent(2, LONG_LINE), (false, false), "a near one is sent to when it is free");
}

/// Nobody waited before, so how fast those who wait are served is not known: the engines' speeds tell.
#[test]
fn a_burst_on_an_empty_line_is_let_in_as_far_as_it_can_be_served() {
    let now = Instant::now();
    let mut balancer: Balancer<u32> =
        Balancer::new(Settings { waiting_per_model: 1024, waiting: 4096, ..settings() }, SmallRng::seed_from_u64(1));
    // Two engines of eight slots, 0.52 s an answer: some thirty a second.
    let mut pool = pool(2, now);
    let mut come = || balancer.arrive(&want(b"x", true), &mut Ticket::default(), &mut pool, now, || 0);
    let (mut granted, mut waits) = (0, 0);
    let refused = loop {
        match come() {
            Ok(Arrival::Granted(_)) => granted += 1,
            Ok(Arrival::Waits(_)) => waits += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(granted, 16);
    assert!((500..600).contains(&waits), "{waits}");
    assert!(matches!(refused, Refusal::TooLong { wait } if wait > Duration::from_secs(18)), "{refused:?}");
    // Of an engine nothing may be known yet.
    pool[1].load.as_mut().unwrap().speed = Speed::default();
    assert_eq!(route::pace(&pool), Some(Duration::from_micros(32_500)));
    pool[0].load.as_mut().unwrap().speed = Speed::default();
    assert_eq!(route::pace(&pool), None);
}

/// One that hangs with many streams would use it up; one that is slow would not be asked beside without it.
#[test]
fn what_a_replica_is_late_with_that_says_nothing_to_anybody_takes_nothing_from_the_budget() {
    let now = Instant::now();
    let model = ModelId::new("m").unwrap();
    let hedged = |silent: Duration, percent: u8| {
        let settings = Settings { hedged_percent: percent, ..settings() };
        let mut balancer: Balancer<u32> = Balancer::new(settings, SmallRng::seed_from_u64(1));
        let mut pool = pool(2, now);
        pool.iter_mut().for_each(|one| one.load.as_mut().unwrap().slots = 500);
        let late = pool[0].replica;
        pool[0].load.as_mut().unwrap().silent = silent;
        let allowed = |balancer: &Balancer<u32>| balancer.may_hedge(&model, late, &pool, now);
        let first = allowed(&balancer);
        let seconds = || balancer.second(&want(b"x", true), &[late], &mut pool.clone(), now).is_some();
        let count = std::iter::repeat_with(seconds).take(300).filter(|had| *had).count();
        (first, count, allowed(&balancer))
    };
    assert_eq!(hedged(Duration::from_secs(1), 10), (true, 64, false));
    assert_eq!(hedged(Duration::from_secs(4), 10), (true, 300, true));
    assert_eq!(hedged(Duration::from_secs(4), 0), (false, 0, false));
}

/// Two engines of four slots, five times as much as they can answer, and engines that get slower by a quarter, as they do
/// on a busy machine: those who were told to wait get a slot within the time that they may wait.
#[test]
fn who_may_wait_is_served_in_time_though_engines_get_slower() {
    const SECONDS: u32 = 120;
    const PER_SECOND: u32 = 80;
    let start = Instant::now();
    let settings = Settings { waiting_per_model: 1024, waiting: 4096, ..settings() };
    for seed in 0..5 {
        let mut balancer = Balancer::new(settings, SmallRng::seed_from_u64(seed));
        let mut rng = SmallRng::seed_from_u64(100 + seed);
        let (mut pool, mut running) = (pool(2, start), Vec::<(Instant, Grant)>::new());
        let (mut line, mut refused, mut longest) = (Vec::new(), 0, Duration::ZERO);
        for n in 0..SECONDS * PER_SECOND {
            let now = start + Duration::from_secs(1) * n / PER_SECOND;
            // Slots that began together end together, and some answers take twice as long.
            let pace = if n > 9 * PER_SECOND { 500 } else { 400 };
            let answer = Duration::from_millis(if rng.random_bool(0.1) { 2 * pace } else { pace });
            let step = Duration::from_millis(50).as_nanos();
            let ended = |until: &Instant| (now - start).as_nanos() / step * step >= (*until - start).as_nanos();
            for (_, grant) in running.extract_if(.., |(until, _)| ended(until)) {
                balancer.end(&mut { grant }, now);
            }
            for one in &mut pool {
                let here = running.iter().filter(|(_, grant)| grant.replica == one.replica).count() as u32;
                one.slots = 4;
                let load = one.load.as_mut().unwrap();
                (load.slots, load.received, load.admitted, load.running) = (4, now, here, Some(here));
            }
            let tenant = u64::from(n % 20 == 0);
            let want = Want { tenant, ..want(b"x", true) };
            let mut granted = Vec::new();
            match balancer.arrive(&want, &mut Ticket::default(), &mut pool, now, || line.len() as u32) {
                Ok(Arrival::Granted(grant)) => granted.push(grant),
                Ok(Arrival::Waits(_)) => line.push(now),
                Err(Refusal::TooLong { wait }) => {
                    assert!(tenant == 0, "who asks for less than its share is not refused: {wait:?}");
                    refused += 1;
                }
                Err(other) => panic!("{other}"),
            }
            while let Some((who, grant)) = balancer.next_grant(&want.model, &mut pool, now) {
                longest = longest.max(now - line[who as usize]);
                granted.push(grant);
            }
            running.extend(granted.into_iter().map(|grant| (now + answer, grant)));
        }
        assert!(refused > 0, "seed {seed}: that was no overload");
        assert!(longest < settings.hold, "seed {seed}: one waited {longest:?}");
        assert!(longest > settings.hold / 3, "seed {seed}: the line was hardly used, {longest:?}");
    }
}
