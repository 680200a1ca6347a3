use super::*;
use dunlin_protocol::{
    id::Roles,
    load::Measured,
    pattern::{Models, Pattern},
};
use libp2p::identity::Keypair;
use proptest::{prelude::*, sample::Index};
use std::sync::LazyLock;

static PEERS: LazyLock<Vec<PeerId>> =
    LazyLock::new(|| (0..3).map(|_| Keypair::generate_ed25519().public().to_peer_id()).collect());

fn model(name: &str) -> ModelId {
    ModelId::new(name).unwrap()
}

fn served(names: &[&str]) -> Vec<ServedModel> {
    names.iter().map(|name| ServedModel { id: model(name), parent: None, context: None, root: None }).collect()
}

fn version(seq: u64) -> Version {
    Version { epoch: 1, seq }
}

fn id() -> ReplicaId {
    ReplicaId { peer: PEERS[0], index: 0 }
}

fn announcement(seq: u64, state: ReplicaState, models: &[&str]) -> Event {
    Event::Announcement(Announcement {
        replica: id(),
        version: version(seq),
        state,
        runtime: RuntimeName::new("demo").unwrap(),
        continuation: Continuation::None,
        slots: 4,
        models: served(models),
    })
}

fn live() -> RecordState {
    RecordState::Live {
        addresses: vec!["/ip4/10.0.0.1/tcp/1".parse().unwrap()],
        runtime: None,
        continuation: Continuation::None,
    }
}

fn record(seq: u64, name: &str, state: RecordState) -> Event {
    let topic = Topic::Model(model(name));
    Event::Record(TopicRecord { topic, replica: id(), version: version(seq), state })
}

fn report(from: PeerId, seq: u64, in_flight: u16) -> Event {
    let report = LoadReport {
        replica: id(),
        version: version(seq),
        slots: 4,
        in_flight,
        queued: 0,
        draining: false,
        flavor: 0,
        measured: Measured::default(),
        engine: None,
    };
    Event::Load { from, report }
}

fn all_roles() -> Roles {
    Role::ALL.into_iter().collect()
}

fn rights(patterns: &[&str], issued_at: u64) -> Event {
    let models = Models::Only(patterns.iter().map(|pattern| Pattern::new(pattern).unwrap()).collect());
    Event::Member { peer: PEERS[0], rights: Rights { roles: all_roles(), models, issued_at } }
}

/// A directory that knows all peers as members with every right.
fn met() -> Directory {
    let mut directory = Directory::default();
    for peer in PEERS.iter() {
        let rights = Rights { roles: all_roles(), models: Models::Any, issued_at: 0 };
        directory.apply(Event::Member { peer: *peer, rights }, Instant::now());
    }
    directory
}

fn after(events: impl IntoIterator<Item = Event>) -> Directory {
    let (mut directory, now) = (met(), Instant::now());
    for event in events {
        directory.apply(event, now);
    }
    directory
}

fn names(directory: &Directory) -> Vec<String> {
    let mut names: Vec<String> = directory.models().map(ToString::to_string).collect();
    names.sort();
    names
}

#[test]
fn a_record_alone_makes_a_replica_and_its_tombstone_ends_it() {
    let mut directory = after([record(1, "m", live())]);
    assert_eq!(directory.replicas(&model("m")).next().unwrap().state, ReplicaState::Ready);
    assert!(directory.apply(record(2, "m", RecordState::Withdrawn), Instant::now()));
    assert!(!directory.knows(&model("m")));
    assert!(!directory.apply(record(1, "m", live()), Instant::now()));
}

#[test]
fn an_announcement_is_the_whole_truth_until_a_later_record() {
    let directory = after([
        record(1, "old", live()),
        announcement(2, ReplicaState::Ready, &["m", "n"]),
        record(3, "n", RecordState::Withdrawn),
        record(4, "new", live()),
    ]);
    assert_eq!(names(&directory), ["m", "new"]);
}

#[test]
fn who_left_is_not_shown_until_a_later_word() {
    let mut directory = after([announcement(5, ReplicaState::Gone, &[]), record(4, "m", live())]);
    assert!(directory.all_replicas().next().is_none());
    directory.apply(record(6, "m", live()), Instant::now());
    assert!(directory.knows(&model("m")));
}

#[test]
fn a_draining_replica_keeps_its_models() {
    let directory = after([
        announcement(2, ReplicaState::Draining, &["m"]),
        record(2, "m", RecordState::Withdrawn),
        record(1, "m", live()),
    ]);
    assert_eq!(directory.replicas(&model("m")).next().unwrap().state, ReplicaState::Draining);
}

#[test]
fn load_counts_only_from_its_peer() {
    let directory =
        after([announcement(1, ReplicaState::Ready, &["m"]), report(PEERS[1], 9, 9), report(PEERS[0], 1, 3)]);
    let (load, _) = directory.replica(&id()).unwrap().load.clone().unwrap();
    assert_eq!(load.in_flight, 3);
    assert!(directory.last_report(&PEERS[1]).is_none());
}

#[test]
fn a_load_report_leaves_the_rest_of_the_view_as_it_is() {
    let mut directory = after([announcement(1, ReplicaState::Ready, &["m"]), report(PEERS[0], 1, 1)]);
    let models = |directory: &Directory| directory.replica(&id()).unwrap().models.as_ptr();
    let before = models(&directory);
    assert!(directory.apply(report(PEERS[0], 2, 3), Instant::now()));
    assert_eq!(models(&directory), before, "derived anew");
    assert_eq!(directory.replica(&id()).unwrap().load.as_ref().unwrap().0.in_flight, 3);
}

#[test]
fn slots_are_unknown_until_an_announcement_or_a_report_says() {
    let mut directory = after([record(1, "m", live())]);
    let slots = |directory: &Directory| directory.replica(&id()).unwrap().slots;
    assert_eq!(slots(&directory), 0);
    directory.apply(report(PEERS[0], 1, 0), Instant::now());
    assert_eq!(slots(&directory), 4);
}

#[test]
fn load_of_an_earlier_process_is_not_shown() {
    let mut old = announcement(1, ReplicaState::Ready, &["m"]);
    if let Event::Announcement(announcement) = &mut old {
        announcement.version.epoch = 2;
    }
    let directory = after([report(PEERS[0], 50, 3), old]);
    assert!(directory.replica(&id()).unwrap().load.is_none());
}

#[test]
fn words_of_unknown_peers_are_shown_to_nobody_and_take_little_room() {
    let (mut directory, now) = (Directory::default(), Instant::now());
    directory.apply(record(1, "real", live()), now);
    let peers: Vec<PeerId> = (0..2 * REPLICAS_PER_PEER + 2 * unproven::PEERS).map(|_| PeerId::random()).collect();
    for (nth, peer) in peers.iter().enumerate() {
        let replica = ReplicaId { peer: *peer, index: 0 };
        for mut event in [announcement(1, ReplicaState::Ready, &["fake"]), record(2, "fake", live())] {
            match &mut event {
                Event::Announcement(said) => said.replica = replica,
                Event::Record(said) => said.replica = replica,
                _ => {}
            }
            assert!(!directory.apply(event.clone(), now));
        }
        assert!(directory.strangers().count() <= unproven::PEERS, "{nth}");
    }
    assert_eq!((directory.all_replicas().count(), directory.models().count(), directory.peers().count()), (0, 0, 0));
    // The newest ones wait, and are worth a dial.
    let newest = *peers.last().unwrap();
    assert!(directory.strangers().any(|stranger| stranger == Stranger { peer: newest, proxy: false, agent: true }));
    assert_eq!(directory.addresses(&newest).len(), 1);
    assert!(directory.awaits(&Topic::Model(model("fake"))) && !directory.awaits(&Topic::Model(model("real"))));
    directory.apply(Event::Unreachable { peer: newest }, now);
    assert!(directory.strangers().all(|stranger| stranger.peer != newest));
    directory.expire(now + EXPIRY);
    assert_eq!(directory.strangers().count(), 0);
}

#[test]
fn words_count_once_their_peer_proves_a_member_and_within_its_rights() {
    let mut directory = Directory::default();
    let now = Instant::now();
    for event in [record(1, "a/x", live()), announcement(2, ReplicaState::Ready, &["a/x", "b/y"])] {
        directory.apply(event, now);
    }
    // Known already, so not worth verifying again.
    assert_eq!(directory.announced_version(&id()), Some(version(2)));
    assert_eq!(directory.record_version(&Topic::Model(model("a/x")), &id()), Some(version(1)));
    assert!(directory.apply(rights(&["a/*"], 1), now));
    assert_eq!(names(&directory), ["a/x"]);
    assert_eq!((directory.strangers().count(), directory.addresses(&id().peer).len()), (0, 1));
}

#[test]
fn a_new_process_of_a_peer_ends_what_its_earlier_one_said() {
    let of = |index, epoch, mut event: Event| {
        match &mut event {
            Event::Announcement(said) => (said.replica.index, said.version.epoch) = (index, epoch),
            Event::Record(said) => (said.replica.index, said.version.epoch) = (index, epoch),
            Event::Load { report, .. } => report.version.epoch = epoch,
            _ => {}
        }
        event
    };
    let ready = || announcement(1, ReplicaState::Ready, &["m"]);
    let role = |state| {
        let topic = Topic::Role(Role::Proxy);
        Event::Record(TopicRecord { topic, replica: id(), version: version(9), state })
    };
    let old = [of(0, 1, ready()), of(1, 1, ready()), of(2, 1, record(1, "n", live())), of(0, 1, role(live()))];
    let new = [of(0, 2, ready()), of(0, 2, record(1, "x", live())), of(0, 2, report(PEERS[0], 1, 0))];
    for word in new {
        for events in [[old.to_vec(), vec![word.clone()]].concat(), [vec![word], old.to_vec()].concat()] {
            let directory = after(events);
            assert!(directory.all_replicas().all(|replica| replica.version.epoch == 2), "{directory:?}");
            assert!(!directory.knows(&model("n")));
            assert_eq!(directory.members(Role::Proxy).count(), 0);
        }
    }
}

#[test]
fn rights_limit_what_is_shown_and_the_later_certificate_counts() {
    let mut directory = after([announcement(1, ReplicaState::Ready, &["a/x", "b/y"]), rights(&["a/*"], 10)]);
    assert_eq!(names(&directory), ["a/x"]);
    directory.apply(rights(&["*"], 5), Instant::now());
    assert_eq!(names(&directory), ["a/x"]);
    directory.apply(rights(&["*"], 11), Instant::now());
    assert_eq!(names(&directory), ["a/x", "b/y"]);
    directory.apply(Event::Revoked { peer: PEERS[0] }, Instant::now());
    assert!(names(&directory).is_empty());
}

#[test]
fn connections_change_reachability_and_nothing_else() {
    let peer = PEERS[0];
    let mut directory = after([announcement(1, ReplicaState::Ready, &["m"])]);
    let mut reached = |event: Event| {
        directory.apply(event, Instant::now());
        directory.replicas(&model("m")).next().unwrap().reachability
    };
    assert_eq!(reached(Event::Suspect { peer }), Reachability::Unknown);
    let direct = Reachability::Connected { relayed: false, rtt: None };
    assert_eq!(reached(Event::Connected { peer, relayed: false }), direct);
    assert_eq!(reached(Event::Suspect { peer }), Reachability::Suspect);
    assert_eq!(reached(Event::Heard { peer }), direct);
    assert_eq!(reached(Event::Disconnected { peer }), Reachability::Disconnected);
}

#[test]
fn what_is_not_refreshed_is_forgotten() {
    let (mut directory, start) = (met(), Instant::now());
    directory.apply(record(1, "m", live()), start);
    directory.apply(report(PEERS[0], 1, 1), start);
    // A replay does not lengthen its life.
    directory.apply(record(1, "m", live()), start + EXPIRY / 2);
    assert!(!directory.expire(start + EXPIRY / 2));
    assert!(directory.expire(start + EXPIRY));
    assert!(!directory.knows(&model("m")) && directory.replicas.is_empty());
    directory.expire(start + EXPIRY * 2);
    assert!(directory.peers.is_empty());
}

#[test]
fn one_peer_cannot_fill_the_directory() {
    let mut directory = met();
    for index in 0..u16::try_from(REPLICAS_PER_PEER).unwrap() + 10 {
        let replica = ReplicaId { peer: PEERS[0], index };
        let topic = Topic::Model(model("m"));
        let record = TopicRecord { topic, replica, version: version(1), state: live() };
        directory.apply(Event::Record(record), Instant::now());
    }
    assert_eq!(directory.replicas(&model("m")).count(), REPLICAS_PER_PEER);
}

#[test]
fn two_living_epochs_of_one_peer_are_noticed() {
    let (mut directory, now) = (met(), Instant::now());
    directory.apply(report(PEERS[0], 1, 1), now);
    let Event::Load { from, report: mut newer } = report(PEERS[0], 1, 1) else { panic!() };
    newer.version.epoch = 2;
    directory.apply(Event::Load { from, report: newer }, now);
    assert!(!directory.peer(&PEERS[0]).unwrap().epochs_conflict(now));
    directory.apply(report(PEERS[0], 2, 1), now);
    assert!(directory.peer(&PEERS[0]).unwrap().epochs_conflict(now));
    assert!(!directory.peer(&PEERS[0]).unwrap().epochs_conflict(now + Duration::from_secs(60)));
}

#[test]
fn roles_are_registered_and_withdrawn() {
    let role = |seq, state| {
        let topic = Topic::Role(Role::Proxy);
        Event::Record(TopicRecord { topic, replica: id(), version: version(seq), state })
    };
    let mut directory = after([role(1, live())]);
    assert_eq!(directory.members(Role::Proxy).collect::<Vec<_>>(), [PEERS[0]]);
    assert_eq!(directory.peer(&PEERS[0]).unwrap().addresses.len(), 1);
    directory.apply(role(2, RecordState::Withdrawn), Instant::now());
    assert_eq!(directory.members(Role::Proxy).count(), 0);
}

/// A word of some peer about itself. What is said under one version is a function of it, as with honest peers.
fn any_statement() -> impl Strategy<Value = Event> {
    (0..3_usize, 0..2_u16, 1..3_u64, 0..6_u64, 0..6_u8).prop_map(|(peer, index, epoch, seq, kind)| {
        let replica = ReplicaId { peer: PEERS[peer], index };
        let version = Version { epoch, seq };
        let pick = epoch * 7 + seq * 3 + u64::from(index);
        let topic = |n: u64| Topic::Model(model(["a", "b", "c"][usize::try_from(n % 3).unwrap()]));
        match kind {
            0 | 1 => {
                use ReplicaState::{Draining, Gone, Ready, Starting, Unhealthy};
                let states = [Starting, Ready, Draining, Gone, Unhealthy];
                Event::Announcement(Announcement {
                    replica,
                    version,
                    state: states[usize::try_from(pick % 5).unwrap()],
                    runtime: RuntimeName::new("demo").unwrap(),
                    continuation: Continuation::None,
                    slots: u16::try_from(pick % 9).unwrap(),
                    models: served(&["a", "b", "c"][..usize::try_from(pick % 4).unwrap()]),
                })
            }
            2 | 3 => {
                let n = u64::from(kind) + pick;
                let state = if (n + seq).is_multiple_of(2) { live() } else { RecordState::Withdrawn };
                Event::Record(TopicRecord { topic: topic(n), replica, version, state })
            }
            4 => {
                let topic = Topic::Role(Role::Proxy);
                let state = if pick.is_multiple_of(2) { live() } else { RecordState::Withdrawn };
                let replica = ReplicaId { index: 0, ..replica };
                Event::Record(TopicRecord {
                    topic,
                    replica,
                    version: Version { epoch, seq: seq * 2 + u64::from(index) },
                    state,
                })
            }
            _ => {
                let report = LoadReport {
                    replica,
                    version,
                    slots: 4,
                    in_flight: u16::try_from(pick).unwrap(),
                    queued: 0,
                    draining: false,
                    flavor: 0,
                    measured: Measured::default(),
                    engine: None,
                };
                Event::Load { from: PEERS[peer], report }
            }
        }
    })
}

/// All that a reader can see.
fn visible(directory: &Directory) -> String {
    let mut replicas: Vec<&Replica> = directory.all_replicas().collect();
    replicas.sort_by_key(|replica| replica.id);
    let mut index: Vec<String> = directory
        .models()
        .map(|model| format!("{model}: {:?}", directory.replicas(model).map(|replica| replica.id).collect::<Vec<_>>()))
        .collect();
    index.sort();
    let mut proxies: Vec<PeerId> = directory.members(Role::Proxy).collect();
    proxies.sort();
    format!("{replicas:?} {index:?} {proxies:?}")
}

proptest! {
    #[test]
    fn any_order_and_any_repetition_lead_to_the_same_view(
        (events, shuffled) in prop::collection::vec(any_statement(), 0..40)
            .prop_flat_map(|events| (Just(events.clone()), Just(events).prop_shuffle())),
        repeated in prop::collection::vec(any::<Index>(), 0..20),
    ) {
        let now = Instant::now();
        let (mut one, mut other) = (met(), met());
        for event in events.clone() {
            one.apply(event, now);
        }
        for event in shuffled {
            other.apply(event, now);
        }
        prop_assert_eq!(visible(&one), visible(&other));
        for index in repeated {
            if !events.is_empty() {
                prop_assert!(!one.apply(events[index.index(events.len())].clone(), now), "a repetition changed something");
            }
        }
        prop_assert_eq!(visible(&one), visible(&other));
    }

    #[test]
    fn the_index_always_agrees_with_the_replicas(events in prop::collection::vec(any_statement(), 0..60)) {
        let mut directory = met();
        for event in events {
            directory.apply(event, Instant::now());
            for model in directory.models() {
                prop_assert!(directory.replicas(model).count() > 0);
                prop_assert!(directory.replicas(model).all(|replica| replica.serves(model)));
            }
            for replica in directory.all_replicas() {
                prop_assert!(replica.models.iter().all(|served| directory.replicas(&served.id).any(|r| r.id == replica.id)));
            }
        }
    }
}

fn role_record(seq: u64, role: Role) -> Event {
    let Event::Record(record) = record(seq, "m", live()) else { unreachable!() };
    Event::Record(TopicRecord { topic: Topic::Role(role), ..record })
}

/// A storer may keep what it likes, or invent it: what its peer's certificate does not allow counts nowhere.
#[test]
fn a_role_counts_only_within_the_certificate() {
    let now = Instant::now();
    let with = |roles: &[Role], issued_at| {
        let roles = roles.iter().copied().collect();
        Event::Member { peer: PEERS[0], rights: Rights { roles, models: Models::Any, issued_at } }
    };
    let proxies = |directory: &Directory| directory.members(Role::Proxy).count();
    for proof_first in [true, false] {
        let mut directory = Directory::default();
        let mut events = [with(&[Role::Agent], 1), role_record(1, Role::Proxy)];
        if !proof_first {
            events.reverse();
        }
        for event in events {
            directory.apply(event, now);
        }
        assert_eq!(proxies(&directory), 0);
        // Another certificate gives the role, and one after that takes it.
        assert!(directory.apply(with(&[Role::Agent, Role::Proxy], 2), now));
        assert_eq!(proxies(&directory), 1);
        assert!(directory.apply(with(&[Role::Agent], 3), now));
        assert_eq!(proxies(&directory), 0);
        directory.apply(with(&[Role::Proxy], 4), now);
        directory.apply(Event::Revoked { peer: PEERS[0] }, now);
        assert_eq!(proxies(&directory), 0);
    }
}

/// One member hands over what thousands of made-up peers say, and goes on with that.
#[test]
fn a_flood_from_one_source_leaves_what_others_hand_over() {
    let (mut directory, now) = (Directory::default(), Instant::now());
    let (liar, honest) = (PeerId::random(), PeerId::random());
    let said_by = |peer| {
        let Event::Announcement(said) = announcement(1, ReplicaState::Ready, &["m"]) else { unreachable!() };
        Event::Announcement(Announcement { replica: ReplicaId { peer, index: 0 }, ..said })
    };
    let flood = |directory: &mut Directory| {
        for _ in 0..4 * unproven::PEERS {
            directory.apply_from(liar, said_by(PeerId::random()), now);
        }
    };
    flood(&mut directory);
    let newcomers: Vec<PeerId> = (0..8).map(|_| PeerId::random()).collect();
    for peer in &newcomers {
        directory.apply_from(honest, said_by(*peer), now);
        flood(&mut directory);
    }
    let first: Vec<PeerId> = directory.strangers().take(2 * newcomers.len()).map(|stranger| stranger.peer).collect();
    assert!(newcomers.iter().all(|peer| first.contains(peer)), "among the first to be dialled");
    assert!(directory.strangers().count() <= unproven::PEERS);
}

#[test]
fn what_a_lost_process_proved_counts_once_it_is_heard_again() {
    let peer = PEERS[0];
    let exact = |seq| {
        let Event::Announcement(mut said) = announcement(seq, ReplicaState::Ready, &["m"]) else { unreachable!() };
        said.continuation = Continuation::Exact;
        Event::Announcement(said)
    };
    let reported = |epoch| {
        let Event::Load { from, mut report } = report(peer, 9, 0) else { unreachable!() };
        report.version.epoch = epoch;
        Event::Load { from, report }
    };
    let mut directory = after([exact(1)]);
    let mut goes_on = |event| {
        directory.apply(event, Instant::now());
        directory.replicas(&model("m")).next().map(|replica| replica.continuation)
    };
    let connected = || Event::Connected { peer, relayed: false };
    assert_eq!(goes_on(connected()), Some(Continuation::Exact));
    assert_eq!(goes_on(Event::Suspect { peer }), Some(Continuation::Exact));
    assert_eq!(goes_on(Event::Disconnected { peer }), Some(Continuation::None));
    // Whoever answers there now may have other weights.
    assert_eq!(goes_on(connected()), Some(Continuation::None));
    assert_eq!(goes_on(reported(1)), Some(Continuation::Exact), "the same process");
    goes_on(Event::Disconnected { peer });
    assert_eq!(goes_on(exact(2)), Some(Continuation::Exact), "said anew");
    goes_on(Event::Disconnected { peer });
    goes_on(connected());
    assert_eq!(goes_on(reported(2)), None, "another process, which has said nothing of its models yet");
}
