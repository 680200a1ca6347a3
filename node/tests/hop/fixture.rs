//! Two connected nodes, of which one serves; and bodies that behave well or badly.

use axum::Router;
use bytes::Bytes;
use dunlin_node::{
    hop::{self, Body, Hop, ResponseBody, Settings},
    members::Members,
    stream,
};
use dunlin_protocol::{
    certificate::{Certificate, Chain, Issuer, Membership},
    id::{MeshId, Role, Roles},
    pattern::Models,
    revocation::{ListVersion, Revocation, RevocationList, SignedRevocation, Target},
};
use futures::StreamExt;
use http_body::Frame;
use http_body_util::BodyExt;
use libp2p::{
    Multiaddr, PeerId, Swarm, Transport,
    core::{muxing::StreamMuxerBox, upgrade::Version},
    identity::Keypair,
    noise, quic,
    swarm::{self, SwarmEvent},
    tcp, yamux,
};
use std::{
    pin::Pin,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Which transport the nodes share.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wire {
    Tcp,
    Quic,
}

pub(crate) fn swarm(wire: Wire) -> (Swarm<stream::Behaviour>, stream::Control, stream::Incoming) {
    let key = Keypair::generate_ed25519();
    let transport = match wire {
        Wire::Tcp => tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
            .upgrade(Version::V1Lazy)
            .authenticate(noise::Config::new(&key).unwrap())
            .multiplex(yamux::Config::default())
            .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
            .boxed(),
        Wire::Quic => quic::tokio::Transport::new(quic::Config::new(&key))
            .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
            .boxed(),
    };
    let (behaviour, control, incoming) = stream::Behaviour::new(hop::PROTOCOL);
    let config = swarm::Config::with_tokio_executor()
        .with_substream_upgrade_protocol_override(Version::V1Lazy)
        .with_idle_connection_timeout(Duration::from_secs(60));
    (Swarm::new(transport, behaviour, key.public().to_peer_id(), config), control, incoming)
}

pub(crate) async fn listen(swarm: &mut Swarm<stream::Behaviour>, wire: Wire) -> Multiaddr {
    let address = match wire {
        Wire::Tcp => "/ip4/127.0.0.1/tcp/0",
        Wire::Quic => "/ip4/127.0.0.1/udp/0/quic-v1",
    };
    swarm.listen_on(address.parse().unwrap()).unwrap();
    loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            return address;
        }
    }
}

/// The members that a server of a new mesh knows: itself.
fn new_mesh(server: PeerId) -> (Keypair, Members) {
    let key = Keypair::generate_ed25519();
    let mesh = MeshId::of(&key.clone().try_into_ed25519().unwrap().public());
    let certificate = Certificate {
        mesh,
        subject: server,
        issuer: key.public().to_peer_id(),
        roles: Roles::from_iter([Role::Agent]),
        models: Models::Any,
        tenants: Vec::new(),
        capabilities: Vec::new(),
        name: None,
        issued_at: 1,
        not_after: u64::MAX,
    };
    let chain = Chain::by_mesh_key(&certificate, &key).unwrap();
    (key, Members::new(chain, mesh, RevocationList::default(), 1).unwrap())
}

/// What a test may change about the pair.
pub(crate) struct Options {
    pub(crate) wire: Wire,
    pub(crate) client: Settings,
    pub(crate) server: Settings,
    pub(crate) routes: Router,
    /// Inbound substreams that the server drops before it serves one.
    pub(crate) drop_first: usize,
}

impl Options {
    pub(crate) fn new(wire: Wire, routes: Router) -> Self {
        Self { wire, client: Settings::default(), server: Settings::default(), routes, drop_first: 0 }
    }

    pub(crate) fn both(mut self, change: impl Fn(&mut Settings)) -> Self {
        change(&mut self.client);
        change(&mut self.server);
        self
    }
}

fn admit(members: &Members, peer: PeerId, roles: impl IntoIterator<Item = Role>, not_after: u64) {
    let membership = Membership {
        mesh: members.mesh(),
        peer,
        roles: Roles::from_iter(roles),
        models: Models::Any,
        name: None,
        capabilities: Vec::new(),
        issued_at: 1,
        not_after,
        issuer: Issuer::Mesh,
    };
    members.insert(membership, ListVersion::default());
}

/// The server's side as the test sees it.
pub(crate) struct Server {
    pub(crate) peer: PeerId,
    /// Whom the server knows.
    pub(crate) members: Members,
    mesh_key: Keypair,
    pause: Arc<Mutex<Option<Arc<Barrier>>>>,
    kill: CancellationToken,
    pub(crate) shutdown: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Makes a peer a member with these roles, until then (unix seconds).
    pub(crate) fn admit(&self, peer: PeerId, roles: impl IntoIterator<Item = Role>, not_after: u64) {
        admit(&self.members, peer, roles, not_after);
    }

    pub(crate) fn revoke(&self, peer: PeerId) {
        let mesh = self.members.mesh();
        let revocation = Revocation { mesh, target: Target::Member(peer), before: 1000 };
        let signed = SignedRevocation::by_mesh_key(&revocation, &self.mesh_key).unwrap();
        self.members.revoke(signed).unwrap();
    }

    /// Stops the server's only thread, runs `meanwhile`, lets it go on.
    pub(crate) async fn paused(&self, meanwhile: impl Future<Output = ()>) {
        let barrier = Arc::new(Barrier::new(2));
        *self.pause.lock().unwrap() = Some(Arc::clone(&barrier));
        // The thread takes the barrier within its next tick, and waits on it.
        while self.pause.lock().unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        meanwhile.await;
        tokio::task::spawn_blocking(move || barrier.wait()).await.unwrap();
    }

    /// Ends the thread and everything on it, connections included.
    pub(crate) fn kill(&self) {
        self.kill.cancel();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill.cancel();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// The caller's side.
pub(crate) struct Client {
    pub(crate) peer: PeerId,
    pub(crate) hop: Hop,
    pub(crate) control: stream::Control,
    swarm: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.swarm.abort();
    }
}

pub(crate) struct Pair {
    pub(crate) server: Server,
    pub(crate) client: Client,
}

impl Pair {
    /// Sends a request that must be answered.
    pub(crate) async fn get(&self, path: &str) -> http::Response<ResponseBody> {
        self.send(path, Body::empty()).await.unwrap()
    }

    pub(crate) async fn send(&self, path: &str, body: Body) -> Result<http::Response<ResponseBody>, hop::SendError> {
        let request = http::Request::post(path).body(body).unwrap();
        self.client.hop.send(self.server.peer, request).await
    }

    /// Sends a request that must be answered in full.
    pub(crate) async fn read(&self, path: &str) -> Bytes {
        self.get(path).await.into_body().collect().await.unwrap().to_bytes()
    }

    /// The answer's body, or `None` if the request or its answer was lost.
    pub(crate) async fn try_read(&self, path: &str) -> Option<Bytes> {
        let response = self.send(path, Body::empty()).await.ok()?;
        Some(response.into_body().collect().await.ok()?.to_bytes())
    }
}

pub(crate) async fn pair(options: Options) -> Pair {
    let (mut client, control, client_incoming) = swarm(options.wire);
    let client_peer = *client.local_peer_id();
    let client_settings = options.client.clone();
    let (server, address) = start_server(options, client_peer).await;
    client.dial(address).unwrap();
    loop {
        match client.select_next_some().await {
            SwarmEvent::ConnectionEstablished { .. } => break,
            SwarmEvent::OutgoingConnectionError { error, .. } => panic!("{error}"),
            _ => {}
        }
    }
    let hop = Hop::new(control.clone(), client_settings);
    let swarm = tokio::spawn(async move {
        let _incoming = client_incoming;
        loop {
            client.select_next_some().await;
        }
    });
    Pair { server, client: Client { peer: client_peer, hop, control, swarm } }
}

async fn start_server(options: Options, caller: PeerId) -> (Server, Multiaddr) {
    let pause = Arc::<Mutex<Option<Arc<Barrier>>>>::default();
    let (kill, shutdown) = (CancellationToken::new(), CancellationToken::new());
    let (started, starting) = oneshot::channel();
    let run = {
        let pause = Arc::clone(&pause);
        let (kill, shutdown) = (kill.clone(), shutdown.clone());
        async move {
            let (mut swarm, control, incoming) = swarm(options.wire);
            let address = listen(&mut swarm, options.wire).await;
            let (mesh_key, members) = new_mesh(*swarm.local_peer_id());
            admit(&members, caller, [Role::Proxy], u64::MAX);
            started.send((*swarm.local_peer_id(), address, mesh_key, members.clone())).unwrap();
            let incoming = refuse_first(incoming, options.drop_first).await;
            let routes = options.routes.layer(axum::Extension(control));
            let serve = hop::server::serve(incoming, members, routes, options.server, shutdown);
            tokio::select! {
                () = kill.cancelled() => {}
                () = async { loop { swarm.select_next_some().await; } } => {}
                () = async { serve.await; std::future::pending().await } => {}
                () = pauses(pause) => {}
            }
        }
    };
    let thread = std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run);
    });
    let (peer, address, mesh_key, members) = starting.await.unwrap();
    (Server { peer, members, mesh_key, pause, kill, shutdown, thread: Some(thread) }, address)
}

async fn pauses(pause: Arc<Mutex<Option<Arc<Barrier>>>>) {
    loop {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let barrier = pause.lock().unwrap().take();
        if let Some(barrier) = barrier {
            barrier.wait();
        }
    }
}

/// Passes inbound substreams on but for the first ones.
async fn refuse_first(mut incoming: stream::Incoming, count: usize) -> stream::Incoming {
    if count == 0 {
        return incoming;
    }
    let (pass, passed) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        for _ in 0..count {
            drop(incoming.recv().await);
        }
        while let Some(inbound) = incoming.recv().await {
            if pass.send(inbound).await.is_err() {
                return;
            }
        }
    });
    passed
}

/// Yields what the function makes, with a break between chunks so that they can't be joined, and counts. The break takes
/// two polls: one that finds no chunk to join, and one that gives the thread back.
pub(crate) struct Chunks<F> {
    make: F,
    breaks: u8,
    gone: Option<oneshot::Sender<()>>,
    yielded: Arc<AtomicUsize>,
}

impl<F> Chunks<F> {
    pub(crate) fn new(make: F) -> Self {
        Self { make, breaks: 0, gone: None, yielded: Arc::default() }
    }

    pub(crate) fn counting(mut self, yielded: &Arc<AtomicUsize>) -> Self {
        self.yielded = Arc::clone(yielded);
        self
    }

    /// Tells when the body is dropped.
    pub(crate) fn telling(mut self, gone: oneshot::Sender<()>) -> Self {
        self.gone = Some(gone);
        self
    }
}

impl<F> Drop for Chunks<F> {
    fn drop(&mut self) {
        if let Some(gone) = self.gone.take() {
            let _ = gone.send(());
        }
    }
}

impl<F: FnMut(usize) -> Option<Frame<Bytes>> + Unpin> http_body::Body for Chunks<F> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.breaks > 0 {
            self.breaks -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.breaks = 2;
        let count = self.yielded.fetch_add(1, Ordering::Relaxed);
        Poll::Ready((self.make)(count).map(Ok))
    }
}

/// A chunk of so many bytes, for ever.
pub(crate) fn endless(bytes: usize) -> impl FnMut(usize) -> Option<Frame<Bytes>> + Unpin {
    let chunk = Bytes::from(vec![b'x'; bytes]);
    move |_| Some(Frame::data(chunk.clone()))
}

/// Hands a value to the one handler call that takes it.
pub(crate) struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Slot<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(Some(value))))
    }

    pub(crate) fn take(&self) -> T {
        self.0.lock().unwrap().take().unwrap()
    }
}

/// Sends one request after another until told to stop; how many were answered, and whether any was lost.
pub(crate) async fn keep_asking(pair: &Pair, path: &str, stop: &AtomicBool) -> (usize, bool) {
    let mut answered = 0;
    while !stop.load(Ordering::Relaxed) {
        match pair.try_read(path).await {
            Some(_) => answered += 1,
            None => return (answered, true),
        }
    }
    (answered, false)
}
