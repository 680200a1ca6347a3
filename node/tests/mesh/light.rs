//! A member that is no node: admitted, and otherwise free to say what it likes.

use crate::harness::*;
use dunlin_node::{
    admission::{self, Admission},
    gossip::{self, MeshMessage},
    record_store, transport,
};
use dunlin_protocol::{
    announcement::{Announcement, ReplicaState, SignedAnnouncement},
    id::{ModelId, PeerId, ReplicaId, Roles, RuntimeName, Version},
    pattern::Models,
    record::{self, Continuation, RecordState, SignedRecord, TopicRecord},
    topic::Topic,
};
use futures::StreamExt;
use libp2p::{
    Multiaddr, StreamProtocol, Swarm, gossipsub,
    identity::Keypair,
    kad::{self, store::MemoryStore},
    swarm::{self, NetworkBehaviour, SwarmEvent},
};
use std::time::Duration;

#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    pub(crate) kad: kad::Behaviour<MemoryStore>,
    pub(crate) gossip: gossipsub::Behaviour,
}

pub(crate) struct Light {
    pub(crate) keypair: Keypair,
    pub(crate) swarm: Swarm<Behaviour>,
    mesh: dunlin_protocol::id::MeshId,
    seq: u64,
}

impl Light {
    pub(crate) fn new(mesh: &Mesh, roles: Roles, models: Models) -> Self {
        let keypair = Keypair::generate_ed25519();
        let members = mesh.admit(&keypair, roles, models);
        let admission = Admission::new(members, None, admission::Settings::default());
        let transport = transport::build_direct(&keypair, admission).unwrap();
        let peer = keypair.public().to_peer_id();
        let mut config = kad::Config::new(StreamProtocol::new("/dunlin/kad/1"));
        config.set_max_packet_size(dunlin_protocol::limits::KAD_PACKET_BYTES);
        let mut kad = kad::Behaviour::with_config(peer, MemoryStore::new(peer), config);
        kad.set_mode(Some(kad::Mode::Client));
        let anonymous = gossipsub::MessageAuthenticity::Anonymous;
        let gossip = gossipsub::Behaviour::new(anonymous, gossip::settings().unwrap()).unwrap();
        let config = swarm::Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
        let swarm = Swarm::new(transport, Behaviour { kad, gossip }, peer, config);
        Self { keypair, swarm, mesh: mesh.id(), seq: 0 }
    }

    pub(crate) fn peer(&self) -> PeerId {
        self.keypair.public().to_peer_id()
    }

    pub(crate) async fn connect(&mut self, to: &Member) {
        self.swarm.dial(to.addresses()[0].clone()).unwrap();
        loop {
            match self.next().await {
                SwarmEvent::ConnectionEstablished { .. } => return,
                SwarmEvent::OutgoingConnectionError { error, .. } => panic!("not connected: {error}"),
                _ => {}
            }
        }
    }

    pub(crate) async fn next(&mut self) -> SwarmEvent<BehaviourEvent> {
        let next = tokio::time::timeout(Duration::from_secs(5), self.swarm.select_next_some());
        next.await.expect("an event within 5 s")
    }

    /// Lets the swarm work.
    pub(crate) async fn idle(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        while tokio::time::timeout_at(end, self.swarm.select_next_some()).await.is_ok() {}
    }

    pub(crate) fn record(&mut self, name: &str, state: RecordState) -> SignedRecord {
        self.seq += 1;
        let replica = ReplicaId { peer: self.peer(), index: 0 };
        let version = Version { epoch: 1, seq: self.seq };
        let topic = Topic::Model(ModelId::new(name).unwrap());
        SignedRecord::sign(&TopicRecord { topic, replica, version, state }, &self.keypair).unwrap()
    }

    /// Puts records under the key of a model at one member, and waits for its acknowledgement or refusal.
    pub(crate) async fn put(&mut self, name: &str, records: &[SignedRecord], at: &Member) {
        let topic = Topic::Model(ModelId::new(name).unwrap());
        let value = record::encode_list(records.iter()).unwrap();
        let record = kad::Record::new(record_store::key(&topic, &self.mesh), value);
        let peers = [at.peer()].into_iter();
        let query = self.swarm.behaviour_mut().kad.put_record_to(record, peers, kad::Quorum::One);
        loop {
            if let SwarmEvent::Behaviour(BehaviourEvent::Kad(kad::Event::OutboundQueryProgressed { id, .. })) =
                self.next().await
                && id == query
            {
                return;
            }
        }
    }
}

pub(crate) fn live(addresses: &[&str]) -> RecordState {
    let addresses = addresses.iter().map(|address| address.parse::<Multiaddr>().unwrap()).collect();
    RecordState::Live { addresses, runtime: None, continuation: Continuation::None }
}

/// What the owner of a key may say of itself, gossiped.
pub(crate) fn announcement(keypair: &Keypair, models: &[&str]) -> Vec<u8> {
    let announcement = Announcement {
        replica: ReplicaId { peer: keypair.public().to_peer_id(), index: 0 },
        version: Version { epoch: 1, seq: 1 },
        state: ReplicaState::Ready,
        runtime: RuntimeName::new("demo").unwrap(),
        continuation: Continuation::None,
        slots: 4,
        models: offer(0, ReplicaState::Ready, models).models,
    };
    MeshMessage::Announcement(SignedAnnouncement::sign(&announcement, keypair).unwrap()).encode().unwrap()
}
