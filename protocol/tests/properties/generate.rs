//! Strategies for the protocol's values. Every value that a strategy gives is one that a peer may say.

use dunlin_protocol::{
    announcement::{Announcement, ReplicaState, ServedModel},
    id::{JobId, MeshId, ModelId, Name, PeerId, ReplicaId, Role, Roles, RuntimeName, Version},
    limits,
    load::{EngineLoad, LoadReport, Measured},
    pattern::{Models, Pattern},
    record::{Continuation, RecordState, TopicRecord},
    topic::Topic,
};
use libp2p_identity::Keypair;
use multiaddr::{Multiaddr, Protocol};
use proptest::{collection::vec, option, prelude::*};
use std::net::{Ipv4Addr, Ipv6Addr};

/// A key of its own for each seed.
pub(crate) fn keypair(seed: u8) -> Keypair {
    let mut secret = [seed; 32];
    secret[0] = 0xd0;
    Keypair::ed25519_from_bytes(secret).unwrap()
}

pub(crate) fn peer(seed: u8) -> PeerId {
    keypair(seed).public().to_peer_id()
}

/// Model ids as on public hubs, as long as those get, and with letters of other scripts.
pub(crate) fn model() -> impl Strategy<Value = ModelId> {
    prop_oneof!["[A-Za-z0-9][A-Za-z0-9._:/-]{0,60}", "[A-Za-z0-9/._-]{100,140}", "[a-z/ *é山]{1,40}",]
        .prop_map(|text| ModelId::new(&text).unwrap())
}

pub(crate) fn pattern() -> impl Strategy<Value = Pattern> {
    "[ab/*]{1,8}".prop_map(|text| Pattern::new(&text).unwrap())
}

pub(crate) fn models() -> impl Strategy<Value = Models> {
    prop_oneof![Just(Models::Any), vec(pattern(), 0..4).prop_map(Models::Only)]
}

pub(crate) fn name() -> impl Strategy<Value = Name> {
    "[ -~é]{1,32}".prop_map(|text| Name::new(&text).unwrap())
}

pub(crate) fn job() -> impl Strategy<Value = JobId> {
    "[a-z0-9]{1,10}/[a-z0-9]{1,10}/[a-z0-9-]{1,20}".prop_map(|text| JobId::new(&text).unwrap())
}

pub(crate) fn runtime() -> impl Strategy<Value = RuntimeName> {
    "[a-z0-9-]{1,12}".prop_map(|text| RuntimeName::new(&text).unwrap())
}

pub(crate) fn role() -> impl Strategy<Value = Role> {
    proptest::sample::select(Role::ALL.to_vec())
}

pub(crate) fn roles() -> impl Strategy<Value = Roles> {
    vec(role(), 0..4).prop_map(Roles::from_iter)
}

pub(crate) fn mesh() -> impl Strategy<Value = MeshId> {
    any::<[u8; 32]>().prop_map(MeshId)
}

pub(crate) fn version() -> impl Strategy<Value = Version> {
    (any::<u64>(), any::<u64>()).prop_map(|(epoch, seq)| Version { epoch, seq })
}

/// Few versions, so that equal ones meet.
pub(crate) fn small_version() -> impl Strategy<Value = Version> {
    (0..3u64, 0..3u64).prop_map(|(epoch, seq)| Version { epoch, seq })
}

pub(crate) fn address() -> impl Strategy<Value = Multiaddr> {
    let ip = prop_oneof![
        any::<u32>().prop_map(|ip| Protocol::Ip4(Ipv4Addr::from(ip))),
        any::<u128>().prop_map(|ip| Protocol::Ip6(Ipv6Addr::from(ip))),
    ];
    (ip, any::<u16>(), any::<bool>()).prop_map(|(ip, port, quic)| {
        let base = Multiaddr::empty().with(ip);
        if quic { base.with(Protocol::Udp(port)).with(Protocol::QuicV1) } else { base.with(Protocol::Tcp(port)) }
    })
}

pub(crate) fn topic() -> impl Strategy<Value = Topic> {
    prop_oneof![model().prop_map(Topic::Model), job().prop_map(Topic::Job), role().prop_map(Topic::Role)]
}

fn continuation() -> impl Strategy<Value = Continuation> {
    proptest::sample::select(vec![Continuation::None, Continuation::Exact])
}

pub(crate) fn record_state() -> impl Strategy<Value = RecordState> {
    let live = (vec(address(), 0..=limits::RECORD_ADDRESSES), option::of(runtime()), continuation())
        .prop_map(|(addresses, runtime, continuation)| RecordState::Live { addresses, runtime, continuation });
    prop_oneof![4 => live, 1 => Just(RecordState::Withdrawn)]
}

/// A record about `peer(seed)`, with that seed.
pub(crate) fn record() -> impl Strategy<Value = (u8, TopicRecord)> {
    (topic(), any::<u8>(), any::<u16>(), version(), record_state()).prop_map(|(topic, seed, index, version, state)| {
        (seed, TopicRecord { topic, replica: ReplicaId { peer: peer(seed), index }, version, state })
    })
}

fn served_model() -> impl Strategy<Value = ServedModel> {
    (model(), option::of(model()), any::<Option<u32>>(), any::<Option<u64>>())
        .prop_map(|(id, parent, context, root)| ServedModel { id, parent, context, root })
}

/// An announcement about `peer(seed)`, with that seed.
pub(crate) fn announcement() -> impl Strategy<Value = (u8, Announcement)> {
    let state = proptest::sample::select(vec![
        ReplicaState::Starting,
        ReplicaState::Ready,
        ReplicaState::Draining,
        ReplicaState::Gone,
        ReplicaState::Unhealthy,
    ]);
    let head = (any::<u8>(), any::<u16>(), version(), state, runtime(), continuation(), any::<u16>());
    (head, vec(served_model(), 0..8)).prop_map(
        |((seed, index, version, state, runtime, continuation, slots), models)| {
            let replica = ReplicaId { peer: peer(seed), index };
            (seed, Announcement { replica, version, state, runtime, continuation, slots, models })
        },
    )
}

fn measured() -> impl Strategy<Value = Measured> {
    let averages = (any::<Option<u32>>(), any::<Option<u32>>(), any::<Option<u32>>(), any::<u32>());
    let prefill = (any::<Option<u32>>(), any::<Option<u32>>(), any::<[u32; 2]>(), any::<u16>(), any::<[u32; 4]>());
    (averages, prefill).prop_map(
        |(
            (ttft_us, itl_us, service_us, chunks_per_s),
            (first_token_us, prefill_us_per_kib, [in_flight_kib, unstarted_kib], silent_ms, recent),
        )| Measured {
            ttft_us,
            itl_us,
            service_us,
            chunks_per_s,
            first_token_us,
            prefill_us_per_kib,
            in_flight_kib,
            unstarted_kib,
            silent_ms,
            recent,
        },
    )
}

fn engine_load() -> impl Strategy<Value = EngineLoad> {
    let counts = (any::<Option<u32>>(), any::<Option<u32>>(), any::<Option<u16>>());
    let totals = (any::<Option<u64>>(), any::<Option<u64>>(), any::<Option<u16>>());
    (counts, totals).prop_map(
        |((running, waiting, kv_used_permille), (prompt_tokens, generated_tokens, prefix_hit_permille))| EngineLoad {
            running,
            waiting,
            kv_used_permille,
            prompt_tokens,
            generated_tokens,
            prefix_hit_permille,
        },
    )
}

pub(crate) fn load_report() -> impl Strategy<Value = LoadReport> {
    let head = (any::<u8>(), any::<u16>(), version());
    let counts = (any::<u16>(), any::<u16>(), any::<u16>(), any::<bool>(), any::<u8>());
    (head, counts, measured(), option::of(engine_load())).prop_map(
        |((seed, index, version), (slots, in_flight, queued, draining, flavor), measured, engine)| LoadReport {
            replica: ReplicaId { peer: peer(seed), index },
            version,
            slots,
            in_flight,
            queued,
            draining,
            flavor,
            measured,
            engine,
        },
    )
}
