use super::*;
use dunlin_protocol::{
    announcement::{Announcement, ReplicaState},
    id::{ReplicaId, RuntimeName, Version},
    load::Measured,
    record::Continuation,
};
use libp2p::identity::Keypair;
use std::time::Instant;

fn report(peer: PeerId) -> LoadReport {
    LoadReport {
        replica: ReplicaId { peer, index: 0 },
        version: Version { epoch: 1, seq: 1 },
        slots: 4,
        in_flight: 1,
        queued: 0,
        draining: false,
        flavor: 0,
        measured: Measured::default(),
        engine: None,
    }
}

fn announcement(keypair: &Keypair, seq: u64) -> SignedAnnouncement {
    let announcement = Announcement {
        replica: ReplicaId { peer: keypair.public().to_peer_id(), index: 0 },
        version: Version { epoch: 1, seq },
        state: ReplicaState::Ready,
        runtime: RuntimeName::new("demo").unwrap(),
        continuation: Continuation::None,
        slots: 4,
        models: Vec::new(),
    };
    SignedAnnouncement::sign(&announcement, keypair).unwrap()
}

fn on_mesh(message: &MeshMessage, known: &Directory) -> Judgement {
    judge(&mesh_topic().hash(), PeerId::random(), &message.encode().unwrap(), known)
}

#[test]
fn settings_are_accepted_by_the_builder() {
    settings().unwrap();
}

#[test]
fn a_load_report_counts_only_from_its_peer_and_is_never_forwarded() {
    let (peer, known) = (PeerId::random(), Directory::default());
    let data = report(peer).encode().unwrap();
    let own = judge(&load_topic().hash(), peer, &data, &known);
    assert!(matches!(own.learnt, Some(Learnt::Directory(_))));
    assert!(matches!(own.acceptance, MessageAcceptance::Ignore));
    let lie = judge(&load_topic().hash(), PeerId::random(), &data, &known);
    assert!(lie.learnt.is_none() && matches!(lie.acceptance, MessageAcceptance::Ignore));
}

#[test]
fn announcements_are_forwarded_once_verified_and_not_again() {
    let keypair = Keypair::generate_ed25519();
    let mut known = Directory::default();
    let first = on_mesh(&MeshMessage::Announcement(announcement(&keypair, 2)), &known);
    assert!(matches!(first.acceptance, MessageAcceptance::Accept));
    let Some(Learnt::Directory(event)) = first.learnt else { panic!("nothing learnt") };
    known.apply(*event, Instant::now());
    let older = on_mesh(&MeshMessage::Announcement(announcement(&keypair, 1)), &known);
    assert!(older.learnt.is_none() && matches!(older.acceptance, MessageAcceptance::Ignore));
}

#[test]
fn what_is_forged_or_garbled_is_rejected() {
    let known = Directory::default();
    let mut data = MeshMessage::Announcement(announcement(&Keypair::generate_ed25519(), 1)).encode().unwrap();
    *data.last_mut().unwrap() ^= 1;
    for bytes in [data.as_slice(), b"", b"garbage"] {
        let judged = judge(&mesh_topic().hash(), PeerId::random(), bytes, &known);
        assert!(judged.learnt.is_none() && matches!(judged.acceptance, MessageAcceptance::Reject));
    }
    assert!(matches!(
        judge(&load_topic().hash(), PeerId::random(), b"garbage", &known).acceptance,
        MessageAcceptance::Reject
    ));
}

#[test]
fn agents_report_more_rarely_in_large_meshes() {
    assert_eq!(report_interval(1), Duration::from_millis(100));
    assert_eq!(report_interval(40), Duration::from_millis(100));
    assert_eq!(report_interval(200), Duration::from_millis(500));
    assert_eq!(report_interval(10_000), Duration::from_millis(500));
}
