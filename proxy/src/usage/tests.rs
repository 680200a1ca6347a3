use super::{store::Sum, *};
use proptest::prelude::*;

fn scratch(test: &str) -> tempfile::TempDir {
    tempfile::Builder::new().prefix(&format!("dunlin-usage-{test}")).tempdir().unwrap()
}

fn counter(n: u8) -> Counter {
    Counter { origin: PeerId::from_bytes(&[0, 2, 8, n]).unwrap(), epoch: 1 }
}

fn row(by: u8, hour: u64, rev: u64, requests: u64) -> UsageRow {
    let counts = Counts { requests, prompt: requests * 10, ..Counts::default() };
    UsageRow { by: counter(by), key: "k".into(), model: "m".into(), hour, rev, counts }
}

fn total(store: &mut Store) -> u64 {
    store.sums(0, u64::MAX >> 1).unwrap().iter().map(|Sum { counts, .. }| counts.requests).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever comes twice, late, or by way of others is counted once.
    #[test]
    fn rows_are_counted_once(order in proptest::collection::vec((1u8..4, 0u64..3, 1u64..9), 1..40)) {
        let folder = scratch("once");
        let mut store = Store::open(&folder.path().join("usage.db")).unwrap();
        let mut newest = BTreeMap::new();
        for (by, hour, requests) in order {
            store.merge(&[row(by, hour, requests, requests)]).unwrap();
            let known = newest.entry((by, hour)).or_insert(0);
            *known = requests.max(*known);
        }
        prop_assert_eq!(total(&mut store), newest.values().sum::<u64>());
    }
}

#[test]
fn who_asks_gets_what_it_has_not_seen_in_pages() {
    let folder = scratch("pages");
    let mut one = Store::open(&folder.path().join("one.db")).unwrap();
    let mut other = Store::open(&folder.path().join("other.db")).unwrap();
    let rows: Vec<UsageRow> = (0..100).map(|n| row(1, n, n + 1, 1)).collect();
    one.merge(&rows).unwrap();
    let mut asked = 0;
    loop {
        let seen = other.seen().unwrap().first().map_or(0, |(_, rev)| *rev);
        let page = one.after(counter(1), seen, 30).unwrap();
        if page.is_empty() {
            break;
        }
        // Between two pages an early row grows: it comes again behind the others.
        if asked == 1 {
            one.merge(&[row(1, 0, 101, 5)]).unwrap();
        }
        other.merge(&page).unwrap();
        asked += 1;
    }
    assert_eq!((asked, total(&mut other)), (4, 104));
    assert_eq!(other.forget_before(50).unwrap(), 50);
    assert_eq!(total(&mut other), 50);
}

#[test]
fn a_new_month_has_a_new_budget() {
    let mut month = Month::default();
    let hour = 1_796_047_200 / 3600;
    month.add("k", hour, 10, 2);
    month.add("k", hour, 5, 1);
    month.add("k", hour - 24 * 40, 100, 100);
    assert_eq!(month.keys["k"], (15, 3), "what comes late from the last month is not this one's");
    month.add("k", hour + 24, 1, 0);
    assert_eq!(month.keys["k"], (1, 0));
}

/// Sums that no number holds are large, and no reason to show nothing or not to start.
#[test]
fn an_absurd_count_spoils_nothing_else() {
    let folder = scratch("absurd");
    let path = folder.path().join("usage.db");
    let mut store = Store::open(&path).unwrap();
    let absurd = |by| {
        let UsageRow { counts, .. } = row(by, 1, 1, 1);
        UsageRow { counts: Counts { prompt: u64::MAX, completion: u64::MAX, ..counts }, ..row(by, 1, 1, 1) }
    };
    store.merge(&[absurd(1), absurd(2), row(3, 1, 1, 5)]).unwrap();
    let sums = Store::open(&path).unwrap().sums(0, 9).unwrap();
    assert_eq!((sums.len(), sums[0].counts.requests), (1, 7));
    assert!(sums[0].counts.prompt >= 1 << 62);
}
