use super::*;
use proptest::prelude::*;

fn model(name: &str) -> ModelId {
    ModelId::new(name).unwrap()
}

fn serve(line: &mut Line<u32>, model: &ModelId) -> Option<u32> {
    let (place, _) = line.waiters(model, 1).next()?;
    line.serve(model, place, Instant::now())
}

const USUAL: Priority = Priority(0);

fn join_with(line: &mut Line<u32>, tenant: u64, priority: i8, model: &ModelId, waiter: u32) -> Result<Place, Full> {
    let place = line.number(tenant);
    line.join(model, place, Priority(priority), waiter).map(|()| place)
}

fn join_as(line: &mut Line<u32>, tenant: u64, model: &ModelId, waiter: u32) -> Result<Place, Full> {
    join_with(line, tenant, 0, model, waiter)
}

/// All who wait, as they will be served.
fn foreseen(line: &Line<u32>, model: &ModelId) -> Vec<u32> {
    line.waiters(model, usize::MAX).map(|(_, waiter)| *waiter).collect()
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
    assert_eq!(foreseen(&line, &m), [10, 20, 11, 21, 12, 13, 14, 15]);
    assert_eq!([serve(&mut line, &m), serve(&mut line, &m)], [Some(10), Some(20)]);
    // Whoever comes now has its turn in this round, and whoever was refused has the next.
    join_as(&mut line, 3, &m, 30).unwrap();
    let refused = Place { number: 0, tenant: 2 };
    line.rejoin(&m, refused, USUAL, 29);
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
    assert_eq!(line.wait(&m, 1, USUAL), None, "nobody was served yet");
    for _ in 0..20 {
        now += Duration::from_millis(500);
        let (place, _) = line.waiters(&m, 1).next().unwrap();
        line.serve(&m, place, now).unwrap();
    }
    let seconds = |wait: Option<Duration>| wait.unwrap().as_secs_f64();
    assert!((seconds(line.wait(&m, 1, USUAL)) - 10.5).abs() < 0.01);
    assert!((seconds(line.wait(&m, 2, USUAL)) - 1.0).abs() < 0.01, "another tenant has the second turn");
}

#[test]
fn first_come_first_served_and_the_refused_come_first_again() {
    let (mut line, m) = (Line::new(9, 9), model("m"));
    let refused = line.number(0);
    join(&mut line, &m, 1).unwrap();
    join(&mut line, &m, 2).unwrap();
    assert!(line.is_next(&m, refused));
    line.rejoin(&m, refused, USUAL, 0);
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

#[test]
fn higher_priorities_come_first_and_nobody_starves() {
    let (mut line, m) = (Line::new(999, 999), model("m"));
    for n in 0..20 {
        join_with(&mut line, 1, -1, &m, 100 + n).unwrap();
        join_with(&mut line, 2, 5, &m, 200 + n).unwrap();
        join_with(&mut line, 3, 5, &m, 300 + n).unwrap();
    }
    let order = foreseen(&line, &m);
    // Tenants of one priority take turns; after seven that passed it over, the turn is the low one's.
    assert_eq!(order[..9], [200, 300, 201, 301, 202, 302, 203, 100, 303]);
    assert_eq!(order.iter().position(|one| *one == 101), Some(17));
    // The high ones come again and again: the low one has its turns all the same.
    let mut low = 0;
    for n in 0..80 {
        low += usize::from(serve(&mut line, &m).unwrap() / 100 == 1);
        join_with(&mut line, 2 + n % 2, 5, &m, 400).unwrap();
    }
    assert_eq!(low, 8);
}

/// Who waits in a long line sees others come in between, turn after turn: its wait is told with them.
#[test]
fn the_wait_counts_those_who_come_in_between() {
    let (mut line, m, mut now) = (Line::new(999, 999), model("m"), Instant::now());
    for n in 0..100 {
        join_as(&mut line, 1, &m, n).unwrap();
    }
    for _ in 0..60 {
        join_as(&mut line, 2, &m, 200).unwrap();
        now += Duration::from_millis(500);
        let (place, _) = line.waiters(&m, 1).next().unwrap();
        line.serve(&m, place, now).unwrap();
    }
    // Seventy are left, and every other turn is another's.
    let wait = line.wait(&m, 1, USUAL).unwrap().as_secs_f64();
    assert!((68.0..=74.0).contains(&wait), "{wait}");
}

#[test]
fn what_a_low_one_was_granted_and_refused_is_next_all_the_same() {
    let (mut line, m) = (Line::new(99, 99), model("m"));
    let refused = line.number(1);
    join_with(&mut line, 2, 9, &m, 20).unwrap();
    join_with(&mut line, 2, 9, &m, 21).unwrap();
    line.rejoin(&m, refused, Priority(-9), 10);
    join_with(&mut line, 1, -9, &m, 11).unwrap();
    assert_eq!(foreseen(&line, &m), [10, 20, 21, 11]);
}

#[test]
fn a_tenants_latest_priority_holds_for_all_its_requests() {
    let (mut line, m) = (Line::new(99, 99), model("m"));
    for (tenant, priority, waiter) in [(1, 0, 10), (2, 1, 20), (1, 2, 11)] {
        join_with(&mut line, tenant, priority, &m, waiter).unwrap();
    }
    assert_eq!(foreseen(&line, &m), [10, 11, 20]);
}

#[test]
fn the_wait_depends_on_the_priority() {
    let (mut line, m, mut now) = (Line::new(999, 999), model("m"), Instant::now());
    for n in 0..60 {
        join_as(&mut line, 1, &m, n).unwrap();
    }
    for _ in 0..20 {
        now += Duration::from_secs(1);
        let (place, _) = line.waiters(&m, 1).next().unwrap();
        line.serve(&m, place, now).unwrap();
    }
    let wait = |tenant, priority| line.wait(&m, tenant, Priority(priority)).unwrap().as_secs_f64().round();
    assert_eq!((wait(1, 0), wait(2, 0), wait(2, 1)), (41.0, 2.0, 1.0));
    // Whoever comes after all of them is passed over for seven turns at a time.
    assert_eq!(wait(2, -1), 17.0);
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
            let foreseen: Vec<_> = line.waiters(&m, usize::MAX).map(|(place, waiter)| (place.tenant, *waiter)).collect();
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

    /// Whatever the priorities: what is foreseen is served, however little of it is looked at; each tenant's requests keep
    /// their order; and who waits has a turn within eight turns for each who waits.
    #[test]
    fn priorities_move_turns_and_starve_nobody(
        steps in proptest::collection::vec((0u8..4, 0u64..6, -2i8..3), 0..120),
        at_most in 1usize..12,
    ) {
        let (mut line, m, mut places, mut returned) = (Line::new(999, 999), model("m"), Vec::new(), 0_usize);
        for (n, (step, tenant, priority)) in steps.into_iter().enumerate() {
            match step {
                0 | 1 => places.extend(join_with(&mut line, tenant, priority, &m, n as u32).ok()),
                2 => { serve(&mut line, &m); }
                _ => {
                    let waits = places.pop().filter(|_| returned < 5);
                    if let Some((place, waiter)) = waits.and_then(|place| Some((place, line.leave(&m, place)?))) {
                        line.rejoin(&m, place, Priority(priority), waiter);
                        returned += 1;
                    }
                }
            }
            let few: Vec<_> = line.waiters(&m, at_most).map(|(place, _)| place).collect();
            let all: Vec<_> = line.waiters(&m, usize::MAX).map(|(place, _)| place).take(at_most).collect();
            prop_assert_eq!(few, all);
        }
        let order: Vec<_> = line.waiters(&m, usize::MAX).map(|(place, waiter)| (place, *waiter)).collect();
        prop_assert_eq!(order.len(), line.len());
        let served: Vec<_> = std::iter::from_fn(|| serve(&mut line, &m)).collect();
        prop_assert_eq!(&served, &order.iter().map(|(_, waiter)| *waiter).collect::<Vec<_>>());
        for tenant in 0..6 {
            let turns: Vec<_> = order.iter().map(|(place, _)| place).enumerate().filter(|(_, it)| it.tenant == tenant).collect();
            prop_assert!(turns.is_sorted_by_key(|(_, place)| place.number), "{:?}", order);
            let firsts = std::iter::once(0).chain(turns.iter().map(|(at, _)| *at + 1));
            for (from, (to, _)) in firsts.zip(&turns) {
                prop_assert!(to - from <= 8 * 6 + returned, "{:?}", order);
            }
        }
        prop_assert!(line.tenants.is_empty() && line.models.is_empty());
    }
}
