//! What the other parts of a process hold of its node: cheap to clone, never a channel in a signature.

use crate::{
    directory::{self, Directory, SharedDirectory},
    gossip::MeshMessage,
    hop::Hop,
    issuer::Issuing,
    members::Members,
    pace::Heard,
    peer_info::PeerInfo,
    state::StateDir,
};
use arc_swap::ArcSwap;
use dunlin_protocol::{
    announcement::{ReplicaState, ServedModel, SignedAnnouncement},
    id::{MeshId, PeerId, ReplicaId, Role, Roles, RuntimeName, Version},
    key::{KeyStatement, SignedKeyStatement},
    load::LoadReport,
    record::Continuation,
    revocation::ListVersion,
    topic::Topic,
};
use libp2p::{Multiaddr, identity::Keypair};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};

/// Commands that wait for the event loop. It takes one in microseconds; a caller waits for room when it is full.
pub(crate) const COMMANDS: usize = 256;
/// Longest time that a look-up waits for a connection to one of those it found.
const MEET: Duration = Duration::from_millis(1500);

/// Time for the last frames of connections to get out.
const LAST_FRAMES: Duration = Duration::from_millis(150);

/// The whole truth about one replica of this process, as its agent knows it. Replaces what was said before.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// Which of the agent's engines, by order of configuration.
    pub index: u16,
    /// Where it stands. `Ready` registers its models in the DHT; everything else withdraws them.
    pub state: ReplicaState,
    /// The engine's runtime.
    pub runtime: RuntimeName,
    /// The self-test's verdict.
    pub continuation: Continuation,
    /// Requests that the engine works on at once.
    pub slots: u16,
    /// Models served. Those outside this peer's certificate are left out, with a warning.
    pub models: Vec<ServedModel>,
}

/// Why a look-up gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The node has ended.
    #[error("the node has stopped")]
    Stopped,
    /// As many look-ups as are allowed are running already.
    #[error("too many look-ups are running")]
    Busy,
}

/// Why a peer could not be connected to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The node has ended.
    #[error("the node has stopped")]
    Stopped,
    /// As many dials as are allowed are running already.
    #[error("too many dials are running")]
    Busy,
    /// Neither a record nor an earlier connection says where the peer is.
    #[error("no address of peer {0} is known")]
    NoAddress(PeerId),
    /// The peer is revoked, or it refused this peer lately.
    #[error("peer {0} is not a member, or refused this one lately")]
    Refused(PeerId),
    /// This machine is out of its mesh, and dials nobody.
    #[error("this machine's membership was revoked")]
    Revoked,
    /// Every address failed.
    #[error("dialling peer {peer} failed: {cause}")]
    Failed {
        /// The peer.
        peer: PeerId,
        /// What the transport said.
        cause: String,
    },
}

/// What is asked of the event loop.
pub(crate) enum Command {
    Offer {
        offer: Offer,
        done: oneshot::Sender<()>,
    },
    LookUp {
        topic: Topic,
        answer: oneshot::Sender<Result<usize, LookupError>>,
    },
    Connect {
        peer: PeerId,
        answer: oneshot::Sender<Result<(), ConnectError>>,
    },
    Publish(Box<MeshMessage>),
    TellKey(Box<SignedKeyStatement>),
    /// A member asked that has another revocation list.
    OtherList {
        peer: PeerId,
        list: ListVersion,
    },
    HangUp,
}

/// Load reports that wait to be gossiped: the newest of each replica of this process.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    reports: Mutex<BTreeMap<u16, LoadReport>>,
    pub(crate) filled: Notify,
}

/// Replicas of this process with a report in the outbox.
const OUTBOX_REPLICAS: usize = directory::REPLICAS_PER_PEER;

impl Outbox {
    fn put(&self, report: LoadReport) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let index = report.replica.index;
        if reports.len() < OUTBOX_REPLICAS || reports.contains_key(&index) {
            reports.insert(index, report);
        }
        drop(reports);
        self.filled.notify_one();
    }

    pub(crate) fn take(&self) -> BTreeMap<u16, LoadReport> {
        std::mem::take(&mut self.reports.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A running node, as its process's other parts see it.
#[derive(Clone)]
pub struct Handle(pub(crate) Arc<Shared>);

/// What all handles and the event loop share.
pub(crate) struct Shared {
    pub(crate) peer_id: PeerId,
    pub(crate) mesh: MeshId,
    pub(crate) epoch: u64,
    /// Roles that this process plays.
    pub(crate) roles: Roles,
    pub(crate) members: Members,
    /// This peer's key.
    pub(crate) identity: Keypair,
    pub(crate) hop: Hop,
    pub(crate) state: StateDir,
    /// Where the mesh key lies, and at delegates.
    pub(crate) issuing: Issuing,
    /// Configured addresses that this process can't see itself.
    pub(crate) external: Vec<Multiaddr>,
    pub(crate) directory: SharedDirectory,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) listen: watch::Sender<Vec<Multiaddr>>,
    pub(crate) outbox: Outbox,
    pub(crate) load_seq: AtomicU64,
    /// How many agents proxies say that there are.
    pub(crate) heard: Mutex<Heard>,
    /// Statements about keys that others gossiped, verified.
    pub(crate) key_statements: broadcast::Sender<Arc<(KeyStatement, SignedKeyStatement)>>,
    /// Own announcements, as last signed.
    pub(crate) announced: ArcSwap<Vec<SignedAnnouncement>>,
}

impl Handle {
    /// This process's peer id.
    #[must_use]
    pub fn peer_id(&self) -> PeerId {
        self.0.peer_id
    }

    /// The mesh that it belongs to.
    #[must_use]
    pub fn mesh(&self) -> MeshId {
        self.0.mesh
    }

    /// The epoch of this process: larger than that of every earlier process with this state directory.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// Members met, this process's own membership, and what was revoked.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.0.members
    }

    /// The client of the hop: sends requests to connected members.
    #[must_use]
    pub fn hop(&self) -> &Hop {
        &self.0.hop
    }

    /// Addresses that the node listens on now, without `/p2p`.
    #[must_use]
    pub fn listen_addresses(&self) -> Vec<Multiaddr> {
        self.0.listen.borrow().clone()
    }

    /// The directory of replicas.
    #[must_use]
    pub fn directory(&self) -> &SharedDirectory {
        &self.0.directory
    }

    /// Looks `topic` up in the DHT once (at most two seconds); verified records go into the directory. Look-ups of one
    /// topic at the same time are joined. Returns the number of live records found, members' or not.
    ///
    /// On a proxy, which connects to whom it finds, this waits until one of them proves to be a member that serves the
    /// topic, a second and a half at most.
    ///
    /// # Errors
    /// [`LookupError::Busy`] with too many look-ups of different topics under way; the node has stopped.
    pub async fn look_up(&self, topic: Topic) -> Result<usize, LookupError> {
        let (answer, answered) = oneshot::channel();
        let asked = topic.clone();
        let sent = self.0.commands.send(Command::LookUp { topic, answer }).await;
        sent.map_err(|_| LookupError::Stopped)?;
        let found = answered.await.map_err(|_| LookupError::Stopped)??;
        if found > 0 && self.0.roles.contains(Role::Proxy) {
            self.meet(&asked).await;
        }
        Ok(found)
    }

    /// Waits until a replica of `topic` is on show, or none of those that registered it is still to be met.
    async fn meet(&self, topic: &Topic) {
        let mut changes = self.0.directory.changed();
        let met = |directory: &Directory| match topic {
            Topic::Model(model) => directory.knows(model) || !directory.awaits(topic),
            Topic::Role(_) | Topic::Job(_) => true,
        };
        let met = async { while !self.0.directory.read(met) && changes.changed().await.is_ok() {} };
        // Without them the answer is that there is none.
        let _ = tokio::time::timeout(MEET, met).await;
    }

    /// Connects to `peer` at the addresses that the directory or an earlier connection knows. At once when connected;
    /// dials of one peer at the same time are joined, and end within [`crate::dial::DEADLINE`].
    ///
    /// # Errors
    /// Unknown address, no room for another dial, refused, or every address failed.
    pub async fn connect(&self, peer: PeerId) -> Result<(), ConnectError> {
        let (answer, answered) = oneshot::channel();
        let sent = self.0.commands.send(Command::Connect { peer, answer }).await;
        sent.map_err(|_| ConnectError::Stopped)?;
        answered.await.map_err(|_| ConnectError::Stopped)?
    }

    /// Says the whole truth about one replica of this process. The node versions and signs it, gossips it, and puts,
    /// refreshes or withdraws its topic records. Returns once that is under way; does nothing after the node's end.
    pub async fn offer(&self, offer: Offer) {
        let (done, finished) = oneshot::channel();
        if self.0.commands.send(Command::Offer { offer, done }).await.is_ok() {
            // An error means that the node ended meanwhile and withdrew everything anyway.
            let _ = finished.await;
        }
    }

    /// The version for the next load report of this process, by gossip or on an answer: each is larger than the last.
    #[must_use]
    pub fn next_load_version(&self) -> Version {
        Version { epoch: self.0.epoch, seq: self.0.load_seq.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Gossips a load report of one of this process's replicas to the proxies. Never waits: of several reports of one
    /// replica within the interval (100 ms, longer in large meshes) the newest goes out. The agent calls this on every
    /// change and at least once a second, each time with a new [`Self::next_load_version`].
    pub fn report(&self, report: LoadReport) {
        self.observe_load(self.peer_id(), report.clone());
        self.0.outbox.put(report);
    }

    /// Takes in a load report that came on an answer of the hop. It counts only if it is about `from`.
    pub fn observe_load(&self, from: PeerId, report: LoadReport) {
        self.0.directory.apply(directory::Event::Load { from, report }, Instant::now());
    }

    /// Every peer that is known of, this one included, in order of their ids.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerInfo> {
        PeerInfo::all(self)
    }

    /// Closes all connections and gives that a moment to get out: for a process that ends without its node's end. Who is
    /// connected over TCP hears of a process's end from its kernel, but over QUIC from nobody.
    pub async fn hang_up(&self) {
        if self.0.commands.send(Command::HangUp).await.is_ok() {
            tokio::time::sleep(LAST_FRAMES).await;
        }
    }

    /// The id of this process's replica `index`.
    #[must_use]
    pub fn replica_id(&self, index: u16) -> ReplicaId {
        ReplicaId { peer: self.peer_id(), index }
    }
}
