//! What a later version of this program may say: it is left alone, and whoever says it is not.

use crate::{
    harness::*,
    light::{Light, announcement, live},
};
use dunlin_node::{gossip, hop};
use dunlin_protocol::{
    announcement::Announcement,
    codec,
    id::{ModelId, ReplicaId, Role, RuntimeName, Version},
    limits,
    pattern::Models,
    record::{Continuation, SignedRecord, TopicRecord},
    signed::{Signed, Statement},
    topic::Topic,
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
/// A variant of which nobody knows yet, and what stands in it: as bincode writes an enum.
type Unknown = (u32, u64);
const UNKNOWN: Unknown = (250, 7);

#[derive(Serialize, Deserialize)]
struct LaterRecord {
    topic: Topic,
    replica: ReplicaId,
    version: Version,
    state: Unknown,
}

impl Statement for LaterRecord {
    const DOMAIN: &'static str = TopicRecord::DOMAIN;
    const LIMIT: usize = TopicRecord::LIMIT;
}

/// As [`Announcement`], in a state that there is not.
#[derive(Serialize, Deserialize)]
struct LaterAnnouncement {
    replica: ReplicaId,
    version: Version,
    state: u32,
    runtime: RuntimeName,
    continuation: Continuation,
}

impl Statement for LaterAnnouncement {
    const DOMAIN: &'static str = Announcement::DOMAIN;
    const LIMIT: usize = Announcement::LIMIT;
}

#[tokio::test]
async fn what_a_later_version_says_is_left_alone() {
    let mesh = Mesh::new(&[TCP]).await;
    let mut later = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    later.connect(&mesh.first).await;
    later.swarm.behaviour_mut().gossip.subscribe(&gossip::mesh_topic()).unwrap();
    later.idle(Duration::from_millis(500)).await;

    let replica = ReplicaId { peer: later.peer(), index: 0 };
    let version = Version { epoch: 1, seq: 1 };
    let topic = Topic::Model(ModelId::new("m").unwrap());
    let record = Signed::sign(&LaterRecord { topic, replica, version, state: UNKNOWN }, &later.keypair).unwrap();
    let bytes = codec::encode(&record, limits::TOPIC_RECORD_BYTES).unwrap();
    let record: SignedRecord = codec::decode(&bytes, limits::TOPIC_RECORD_BYTES).unwrap();
    later.put("m", &[record], &mesh.first).await;
    look_up_until(&mesh.first, "m", 0, SOON).await;

    let runtime = RuntimeName::new("demo").unwrap();
    let said = LaterAnnouncement { replica, version, state: UNKNOWN.0, runtime, continuation: Continuation::None };
    let said = Signed::sign(&said, &later.keypair).unwrap();
    // In the first version of the envelope the first kind of message is an announcement.
    let announced = codec::encode(&(0_u32, 0_u32, said), limits::ANNOUNCEMENT_BYTES).unwrap();
    let unknown = codec::encode(&UNKNOWN, 64).unwrap();
    let unknown_kind = codec::encode(&(0_u32, UNKNOWN), 64).unwrap();
    for (topic, bytes) in [
        (gossip::mesh_topic(), announced),
        (gossip::mesh_topic(), unknown_kind),
        (gossip::mesh_topic(), unknown),
        // Messages are told apart by their bytes.
        (gossip::load_topic(), codec::encode(&(251_u32, 8_u64), 64).unwrap()),
    ] {
        later.swarm.behaviour_mut().gossip.publish(topic, bytes).expect("members listen");
    }
    later.idle(Duration::from_millis(300)).await;
    let listed = || mesh.first.handle.directory().read(|known| known.all_replicas().count());
    assert_eq!(listed(), 0);

    // Still a member, whose other words count.
    let right = announcement(&later.keypair, &["m"]);
    later.swarm.behaviour_mut().gossip.publish(gossip::mesh_topic(), right).expect("members listen");
    let record = later.record("m", live(&["/ip4/10.0.0.1/tcp/1"]));
    later.put("m", &[record], &mesh.first).await;
    look_up_until(&mesh.first, "m", 1, SOON).await;
    assert_eq!(listed(), 1);
}

#[tokio::test]
async fn a_route_that_is_not_known_is_no_reason_to_hang_up() {
    let mesh = Mesh::new(&[TCP]).await;
    let proxy = mesh.member(&[Role::Proxy], &[&mesh.first]).await;
    let peer = mesh.first.peer();
    until("connected", SOON, || is_connected(&proxy, &mesh.first)).await;
    let ask = async |path: &str| {
        let request = http::Request::get(path).body(hop::Body::empty()).unwrap();
        proxy.handle.hop().send(peer, request).await.unwrap().status()
    };
    for path in ["/later/than/this", "/peers/of/a/later/version?x=1"] {
        assert_eq!(ask(path).await, StatusCode::NOT_FOUND, "{path}");
    }
    assert!(is_connected(&proxy, &mesh.first));
    assert_eq!(ask("/later/again").await, StatusCode::NOT_FOUND, "on the same link");
}
