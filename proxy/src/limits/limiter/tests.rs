use super::*;

const KEY: &str = "abcdefgh";

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Requests that run are given back as they end, and the others get them, whoever keeps the account.
#[test]
fn running_requests_are_counted_over_all() {
    for key in ["a", "b", "c", "d", "e", "f"] {
        running_requests_of(key);
    }
}

fn running_requests_of(key: &str) {
    let start = Instant::now();
    let peers: Vec<PeerId> = (0..2).map(|n| PeerId::from_bytes(&[0, 4, 8, 1, 18, n]).unwrap()).collect();
    let caps: Caps = [None, None, Some(4)];
    let mut all: Vec<Limiter> = peers.iter().map(|peer| Limiter::new(*peer, 1, [], start)).collect();
    let connect = |all: &mut Vec<Limiter>| {
        for (limiter, other) in all.iter_mut().zip([peers[1], peers[0]]) {
            limiter.connected(&BTreeSet::from([other]), start);
        }
    };
    connect(&mut all);
    let exchange = |all: &mut Vec<Limiter>, sent: Outgoing, now: Instant| {
        let (to, from) = if sent.to == peers[0] { (0, 1) } else { (1, 0) };
        let reply = all[to].report(peers[from], &sent.report, |_| Some(caps), now);
        all[from].answered(&sent, &reply, now);
    };
    let tick = |all: &mut Vec<Limiter>, now: Instant| {
        for n in 0..2 {
            for sent in all[n].reports(now) {
                exchange(all, sent, now);
            }
        }
    };
    tick(&mut all, start);
    let ask = |all: &mut Vec<Limiter>, n: usize, now: Instant| match all[n].take(key, &caps, &[1, 10, 1], false, now) {
        Taken::Yes => true,
        Taken::No(_) => false,
        Taken::Ask => {
            if let Some(sent) = all[n].borrow(key, &[1, 10, 1], now) {
                exchange(all, sent, now);
            }
            all[n].take_now(key, &[1, 10, 1], now) == Taken::Yes
        }
    };
    let now = start + seconds(1);
    let passed: Vec<bool> = (0..6).map(|n| ask(&mut all, n % 2, now)).collect();
    assert_eq!(passed.iter().filter(|passed| **passed).count(), 4, "{key}: {passed:?}");
    all[0].ended(key, &[1, 10, 1], now, None, now);
    let later = now + seconds(1);
    for _ in 0..3 {
        tick(&mut all, later);
    }
    assert!(ask(&mut all, 1, later + seconds(1)), "{key}: what one gave back is the other's");
    assert!(!ask(&mut all, 0, later + seconds(1)), "{key}");
}

/// The owner of an account loses somebody for a moment, which the others don't see, and then waits to be told all: which
/// must come about although some question is always under way.
#[test]
fn an_owner_that_was_unsure_for_a_moment_is_told_all_again() {
    let start = Instant::now();
    let peers: Vec<PeerId> = (0..2).map(|n| PeerId::from_bytes(&[0, 4, 8, 1, 18, n]).unwrap()).collect();
    let caps: Caps = [Some(60), None, None];
    let mut owner = Limiter::new(peers[0], 1, [], start);
    let mut asker = Limiter::new(peers[1], 1, [], start);
    owner.connected(&BTreeSet::from([peers[1]]), start);
    asker.connected(&BTreeSet::from([peers[0]]), start);
    let keys: Vec<String> =
        (0..100).map(|n| format!("key{n}")).filter(|key| asker.view.owner(key) == peers[0]).collect();
    let exchange = |owner: &mut Limiter, asker: &mut Limiter, sent: &Outgoing, now| {
        let reply = owner.report(peers[1], &sent.report, |_| Some(caps), now);
        asker.answered(sent, &reply, now);
    };
    for sent in asker.reports(start) {
        exchange(&mut owner, &mut asker, &sent, start);
    }
    let ask = |owner: &mut Limiter, asker: &mut Limiter, key: &str, now| {
        match asker.take(key, &caps, &[1, 0, 1], false, now) {
            Taken::Yes => return true,
            Taken::No(_) => return false,
            Taken::Ask => {}
        }
        if let Some(sent) = asker.borrow(key, &[1, 0, 1], now) {
            exchange(owner, asker, &sent, now);
        }
        asker.take_now(key, &[1, 0, 1], now) == Taken::Yes
    };
    let mut now = start + seconds(1);
    assert!(ask(&mut owner, &mut asker, &keys[0], now));
    owner.connected(&BTreeSet::new(), now);
    owner.connected(&BTreeSet::from([peers[1]]), now);
    let mut passed = Vec::new();
    for round in 0..10 {
        now += Duration::from_millis(100);
        let [busy, other] = [&keys[1 + round * 2], &keys[2 + round * 2]];
        // One question is under way whenever reports are made.
        let under_way = match asker.take(busy, &caps, &[1, 0, 1], false, now) {
            Taken::Ask => asker.borrow(busy, &[1, 0, 1], now),
            _ => None,
        };
        passed.push(ask(&mut owner, &mut asker, other, now));
        if asker.is_due(now) {
            for sent in asker.reports(now) {
                let reply = owner.report(peers[1], &sent.report, |_| Some(caps), now);
                asker.answered(&sent, &reply, now);
            }
        }
        if let Some(sent) = under_way {
            let reply = owner.report(peers[1], &sent.report, |_| Some(caps), now);
            asker.answered(&sent, &reply, now);
        }
    }
    assert!(passed[4..].iter().all(|passed| *passed), "{passed:?}");
}

/// Tokens are reserved by an estimate, and what was used in truth counts once it is known.
#[test]
fn tokens_are_settled() {
    let start = Instant::now();
    let peer = PeerId::from_bytes(&[0, 2, 8, 1]).unwrap();
    let mut limiter = Limiter::new(peer, 1, [], start);
    let caps: Caps = [None, Some(1000), None];
    let take = |limiter: &mut Limiter, tokens, at| limiter.take(KEY, &caps, &[1, tokens, 1], false, at) == Taken::Yes;
    assert!(take(&mut limiter, 900, start) && !take(&mut limiter, 200, start));
    limiter.ended(KEY, &[1, 900, 1], start, Some(100), start);
    assert!(take(&mut limiter, 900, start), "eight hundred came back");
    limiter.ended(KEY, &[1, 900, 1], start, Some(1500), start);
    let left = limiter.left(KEY, 1, start).unwrap();
    assert_eq!((left.limit, left.remaining), (1000, 0));
    assert!(!take(&mut limiter, 1, start + seconds(59)), "what went beyond counts too");
    assert!(take(&mut limiter, 1000, start + seconds(60)), "one that needs all waits for all");
    let Taken::No(refused) = limiter.take(KEY, &caps, &[1, 10, 1], false, start + seconds(80)) else { panic!("full") };
    assert_eq!((refused.kind, refused.wait), (1, seconds(40)));
    // All of it undone.
    limiter.undo(KEY, &[1, 1000, 1], start + seconds(60), start + seconds(80));
    assert!(take(&mut limiter, 1000, start + seconds(80)));
}

/// Whoever may use nothing gets nothing, of whatever kind.
#[test]
fn a_limit_of_nothing_lets_nothing_pass() {
    let (me, now) = (PeerId::from_bytes(&[0, 1, 7]).unwrap(), Instant::now());
    for kind in 0..KINDS {
        let mut caps: Caps = [None; KINDS];
        caps[kind] = Some(0);
        let mut limiter = Limiter::new(me, 1, [], now);
        for _ in 0..3 {
            let taken = limiter.take(KEY, &caps, &[1, 0, 1], false, now);
            assert!(matches!(taken, Taken::No(Refused { kind: refused, .. }) if refused == kind), "{kind}: {taken:?}");
        }
    }
}
