use super::*;
use rand::{SeedableRng, rngs::StdRng};

const OWN: ListVersion = ListVersion(1);
const OTHER: ListVersion = ListVersion(2);

struct Bench {
    it: AntiEntropy,
    rng: StdRng,
    start: Instant,
    connected: Vec<PeerId>,
}

fn bench(members: usize) -> Bench {
    let (mut rng, start) = (StdRng::from_seed([4; 32]), Instant::now());
    let it = AntiEntropy::new(start, &mut rng);
    Bench { it, rng, start, connected: (0..members).map(|_| PeerId::random()).collect() }
}

impl Bench {
    /// Without rounds.
    fn quiet(members: usize) -> Self {
        let mut bench = bench(members);
        bench.it.round = bench.start + Duration::from_secs(100_000);
        bench
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    /// Lets time pass up to `end`; what is asked when, in milliseconds, and `answer` tells what comes of it.
    fn run(&mut self, end_ms: u64, mut answer: impl FnMut(PeerId) -> Option<bool>) -> Vec<(u64, PeerId)> {
        let mut asked = Vec::new();
        while self.it.next() <= self.at(end_ms) {
            let now = self.it.next();
            let due = self.it.due(|| self.connected.iter().copied(), OWN, now, &mut self.rng);
            for peer in due {
                asked.push((u64::try_from((now - self.start).as_millis()).unwrap(), peer));
                if let Some(news) = answer(peer) {
                    self.it.answered(&peer, news, now);
                }
            }
            assert!(self.it.next() > now, "a turn that comes at once again is a busy loop");
        }
        asked
    }
}

#[test]
fn a_round_asks_one_member_by_chance_every_ten_seconds_or_so() {
    let mut bench = bench(5);
    let asked = bench.run(1_000_000, |_| None);
    assert!(asked[0].0 < 12_000, "{}", asked[0].0);
    let gaps: Vec<u64> = asked.windows(2).map(|two| two[1].0 - two[0].0).collect();
    assert!(gaps.iter().all(|gap| (8_000..=12_000).contains(gap)), "{gaps:?}");
    let differ = gaps.iter().collect::<std::collections::HashSet<_>>().len();
    assert!(differ > gaps.len() / 2, "drawn anew for each: {gaps:?}");
    for member in &bench.connected {
        let times = asked.iter().filter(|(_, peer)| peer == member).count();
        assert!((8..35).contains(&times), "{times} of {}", asked.len());
    }
    bench.connected.clear();
    assert!(bench.run(1_100_000, |_| None).is_empty());
}

#[test]
fn a_change_is_told_to_a_few_at_once_and_not_again_for_three_seconds() {
    let mut bench = Bench::quiet(30);
    bench.it.changed(bench.start, &mut bench.rng);
    let asked = bench.run(3_000, |_| None);
    let members: std::collections::HashSet<PeerId> = asked.iter().map(|(_, peer)| *peer).collect();
    assert_eq!((asked.len(), members.len()), (SPREAD, SPREAD));
    let first = asked[0].0;
    assert!(asked.iter().all(|(at, _)| *at == first && *at < 200), "{asked:?}");
    for _ in 0..9 {
        let now = bench.at(first + 100);
        bench.it.changed(now, &mut bench.rng);
    }
    let again = bench.run(10_000, |_| None);
    assert_eq!(again.len(), SPREAD, "nine changes are one wave");
    assert_eq!(again[0].0 - first, 3_000);
    let few = {
        let mut bench = Bench::quiet(3);
        bench.it.changed(bench.start, &mut bench.rng);
        bench.run(10_000, |_| None)
    };
    assert_eq!(few.len(), 3);
}

#[test]
fn who_has_another_list_is_asked_back_ever_less_often_while_that_brings_nothing() {
    let mut bench = Bench::quiet(1);
    let liar = bench.connected[0];
    let mut asked = Vec::new();
    for second in 0..700 {
        let now = bench.at(second * 1000);
        bench.it.differs(liar, OTHER, now);
        asked.extend(bench.run(second * 1000 + 999, |_| Some(false)).into_iter().map(|(at, _)| at / 1000));
    }
    assert_eq!(asked, [0, 4, 12, 28, 60, 124, 244, 364, 484, 604]);
}

#[test]
fn what_brings_news_is_asked_again_soon() {
    let mut bench = Bench::quiet(1);
    let peer = bench.connected[0];
    for second in 0..30 {
        let now = bench.at(second * 1000);
        bench.it.differs(peer, OTHER, now);
        bench.run(second * 1000 + 999, |_| Some(false));
    }
    // Asked last at 28 s, and then not for half a minute; but a round brought news of it meanwhile.
    bench.it.answered(&peer, true, bench.at(30_500));
    let asked = bench.run(31_000, |_| Some(true));
    assert_eq!(asked, [(30_500, peer)]);
    bench.it.differs(peer, OTHER, bench.at(31_000));
    assert_eq!(bench.run(40_000, |_| Some(true)), [(32_500, peer)]);
}

/// A hundred members that know what this one missed: the first of them tells it.
#[test]
fn many_with_another_list_are_asked_one_by_one_until_the_lists_are_equal() {
    let mut bench = Bench::quiet(100);
    for peer in bench.connected.clone() {
        bench.it.differs(peer, OTHER, bench.start);
    }
    let asked = bench.run(1_000, |_| None);
    assert_eq!(asked.len(), 21, "one each 50 ms");
    let rest = bench.it.due(|| bench.connected.iter().copied(), OTHER, bench.at(1_050), &mut bench.rng);
    assert!(rest.is_empty() && bench.it.others_at.is_none(), "what differed is ours now");
}

#[test]
fn who_has_gone_is_not_asked() {
    let mut bench = Bench::quiet(2);
    let gone = PeerId::random();
    bench.it.differs(gone, OTHER, bench.start);
    bench.it.differs(bench.connected[1], OTHER, bench.start);
    assert_eq!(bench.run(9_000, |_| None), [(0, bench.connected[1])]);
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut bench = Bench::quiet(0);
    for _ in 0..REMEMBERED + 10 {
        bench.it.differs(PeerId::random(), OTHER, bench.start);
    }
    assert_eq!(bench.it.others.len(), REMEMBERED);
    bench.run(100, |_| None);
    let peer = PeerId::random();
    bench.it.differs(peer, OTHER, bench.at(200));
    assert!(bench.it.others.contains_key(&peer), "the others have gone");
}
