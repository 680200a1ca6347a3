//! The libp2p behaviours of one peer, and their settings. Gates come first: they run in the order of the fields.

use crate::{admission::pending, gossip, liveness, record_store::TopicStore, stream};
use dunlin_protocol::{
    id::{MeshId, PeerId, Role, Roles},
    limits,
};
use libp2p::{
    StreamProtocol, allow_block_list, connection_limits, gossipsub, identify,
    identity::Keypair,
    kad, mdns, ping, relay,
    swarm::{NetworkBehaviour, behaviour::toggle::Toggle},
};
use std::{num::NonZeroUsize, time::Duration};

/// Private, so that no public peer ever fills a routing table of a mesh.
pub(crate) const KAD_PROTOCOL: StreamProtocol = StreamProtocol::new("/dunlin/kad/1");
/// What identify says; informational.
const IDENTIFY_PROTOCOL: &str = "/dunlin/1";

/// Connections in establishment that this peer opened.
const PENDING_OUTGOING: u32 = 128;
/// Connections to one peer: both transports, both directions.
const PER_PEER: u32 = 4;
/// Connections of all peers together.
const CONNECTIONS: u32 = 4096;

/// Longest look-up.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest answer of one peer within a look-up, so that a dead one doesn't take the whole of it.
const SUBSTREAM_TIMEOUT: Duration = Duration::from_millis(700);
/// Peers asked at once.
const PARALLELISM: NonZeroUsize = NonZeroUsize::new(8).unwrap();
/// How often the routing table is refreshed.
const KAD_BOOTSTRAP: Duration = Duration::from_secs(60);
/// Addresses remembered by identify for dials of others: none, the address book does that, filtered.
const IDENTIFY_CACHE: usize = 0;

/// Members that a relay keeps reachable.
const RELAY_RESERVATIONS: usize = 1024;
/// Circuits of a relay, all members together and per member: each carries one connection with all its requests.
const RELAY_CIRCUITS: usize = 1024;
const RELAY_CIRCUITS_PER_PEER: usize = 64;
/// Longest life of a circuit, and the bytes that it may carry. Tokens flow over it, so that the defaults of two minutes
/// and 128 KiB would cut every answer.
const RELAY_CIRCUIT_DURATION: Duration = Duration::from_secs(24 * 3600);
const RELAY_CIRCUIT_BYTES: u64 = 1 << 40;

/// All behaviours of a peer.
#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    pending: pending::Behaviour,
    limits: connection_limits::Behaviour,
    pub(crate) blocked: allow_block_list::Behaviour<allow_block_list::BlockedPeers>,
    pub(crate) streams: stream::Behaviour,
    pub(crate) kad: kad::Behaviour<TopicStore>,
    pub(crate) gossip: gossipsub::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    mdns: Toggle<mdns::tokio::Behaviour>,
    relay_client: relay::client::Behaviour,
    relay_server: Toggle<relay::Behaviour>,
}

/// Why the behaviours could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Gossipsub refused its settings.
    #[error("gossip settings: {0}")]
    Gossip(String),
}

/// What the behaviours depend on.
pub(crate) struct Settings<'a> {
    pub(crate) keypair: &'a Keypair,
    pub(crate) mesh: MeshId,
    pub(crate) roles: Roles,
    /// Of this process.
    pub(crate) epoch: u64,
    pub(crate) mdns: bool,
    /// Whether others can dial this peer, so that it may store for them.
    pub(crate) reachable: bool,
}

impl Behaviour {
    pub(crate) fn new(
        settings: &Settings<'_>,
        streams: stream::Behaviour,
        relay_client: relay::client::Behaviour,
    ) -> Result<Self, Error> {
        let own = settings.keypair.public().to_peer_id();
        let relays = settings.roles.contains(Role::Relay);
        Ok(Self {
            pending: pending::Behaviour::default(),
            limits: connection_limits::Behaviour::new(limits()),
            blocked: allow_block_list::Behaviour::default(),
            streams,
            kad: kademlia(settings),
            gossip: gossipsub(settings)?,
            identify: identify::Behaviour::new(
                identify::Config::new(IDENTIFY_PROTOCOL.to_owned(), settings.keypair.public())
                    .with_agent_version(crate::events::agent_version(settings.epoch))
                    .with_push_listen_addr_updates(true)
                    .with_cache_size(IDENTIFY_CACHE),
            ),
            ping: ping::Behaviour::new(ping::Config::new().with_interval(liveness::PING).with_timeout(liveness::DEAD)),
            mdns: settings.mdns.then(|| local_discovery(own)).flatten().into(),
            relay_client,
            relay_server: relays.then(|| relay::Behaviour::new(own, relay_limits())).into(),
        })
    }
}

/// Finding others on the local network is a convenience: without it, a node still works.
fn local_discovery(own: PeerId) -> Option<mdns::tokio::Behaviour> {
    match mdns::tokio::Behaviour::new(mdns::Config::default(), own) {
        Ok(behaviour) => Some(behaviour),
        Err(error) => {
            tracing::warn!(%error, "members on the local network are not looked for: mDNS does not work here");
            None
        }
    }
}

fn limits() -> connection_limits::ConnectionLimits {
    connection_limits::ConnectionLimits::default()
        .with_max_pending_outgoing(Some(PENDING_OUTGOING))
        .with_max_established_per_peer(Some(PER_PEER))
        .with_max_established(Some(CONNECTIONS))
}

fn kademlia(settings: &Settings<'_>) -> kad::Behaviour<TopicStore> {
    let own = settings.keypair.public().to_peer_id();
    let mut config = kad::Config::new(KAD_PROTOCOL);
    config
        .set_query_timeout(QUERY_TIMEOUT)
        .set_substreams_timeout(SUBSTREAM_TIMEOUT)
        .set_parallelism(PARALLELISM)
        .set_max_packet_size(limits::KAD_PACKET_BYTES)
        // Puts are checked against the sender's certificate before they are stored.
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        // Peers refresh their own records; copies made by storers would outlive withdrawals.
        .set_replication_interval(None)
        .set_publication_interval(None)
        .set_provider_publication_interval(None)
        .set_caching(kad::Caching::Disabled)
        // The record store keeps its own time.
        .set_record_ttl(None)
        .set_periodic_bootstrap_interval(Some(KAD_BOOTSTRAP));
    let mut kad = kad::Behaviour::with_config(own, TopicStore::new(settings.mesh, own), config);
    kad.set_mode(Some(if settings.reachable { kad::Mode::Server } else { kad::Mode::Client }));
    kad
}

fn gossipsub(settings: &Settings<'_>) -> Result<gossipsub::Behaviour, Error> {
    let config = gossip::settings().map_err(|error| Error::Gossip(error.to_string()))?;
    let mut behaviour = gossipsub::Behaviour::new(gossipsub::MessageAuthenticity::Anonymous, config)
        .map_err(|error| Error::Gossip(error.to_owned()))?;
    for topic in gossip::topics(settings.roles) {
        behaviour.subscribe(&topic).map_err(|error| Error::Gossip(error.to_string()))?;
    }
    Ok(behaviour)
}

fn relay_limits() -> relay::Config {
    relay::Config {
        max_reservations: RELAY_RESERVATIONS,
        max_circuits: RELAY_CIRCUITS,
        max_circuits_per_peer: RELAY_CIRCUITS_PER_PEER,
        max_circuit_duration: RELAY_CIRCUIT_DURATION,
        max_circuit_bytes: RELAY_CIRCUIT_BYTES,
        ..relay::Config::default()
    }
}
