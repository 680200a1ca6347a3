//! The transport: TCP with Noise and Yamux, QUIC, and relayed connections, names resolved, and all of it behind
//! [`Admission`]. Which of them a node listens on is decided by its listen addresses alone.

use crate::admission::Admission;
use libp2p::{
    PeerId, Transport as _,
    core::{
        muxing::StreamMuxerBox,
        transport::{Boxed, timeout::TransportTimeout},
        upgrade::Version,
    },
    dns,
    identity::Keypair,
    noise, quic, relay, tcp, yamux,
};
use std::time::Duration;

/// Substreams on one connection. More would leave Yamux no room to grow the window of any of them, and passing the
/// limit ends the connection (yamux 0.14, `Config::set_max_num_streams`).
const SUBSTREAMS: usize = 1024;
/// From dialling an address to its admission: name, connection, handshake, admission.
pub const DIAL_DEADLINE: Duration = Duration::from_secs(5);

/// What a transport yields.
pub type Connection = (PeerId, StreamMuxerBox);

/// Why there is no transport.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The identity cannot be used for Noise.
    #[error(transparent)]
    Noise(#[from] noise::Error),
}

fn yamux_config() -> yamux::Config {
    let mut config = yamux::Config::default();
    config.set_max_num_streams(SUBSTREAMS);
    config
}

/// TCP and QUIC, encrypted, the other end's peer id proved, nobody admitted yet.
pub(crate) fn secured(keypair: &Keypair) -> Result<Boxed<Connection>, Error> {
    match dns::tokio::Transport::system(direct(keypair)?) {
        Ok(resolving) => Ok(resolving.boxed()),
        Err(error) => {
            // A container without a resolver's configuration still reaches addresses.
            tracing::warn!(%error, "names in addresses cannot be resolved");
            Ok(direct(keypair)?.boxed())
        }
    }
}

fn direct(keypair: &Keypair) -> Result<impl Direct, Error> {
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(keypair)?)
        .multiplex(yamux_config())
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let quic = quic::tokio::Transport::new(quic::Config::new(keypair))
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    Ok(quic.or_transport(tcp).map(|either, _| either.into_inner()))
}

/// A transport that can be wrapped and boxed: spelled once.
trait Direct:
    libp2p::Transport<
        Output = Connection,
        Error: Send + Sync + 'static,
        Dial: Send + 'static,
        ListenerUpgrade: Send + 'static,
    > + Send
    + Unpin
    + 'static
{
}
impl<T> Direct for T where
    T: libp2p::Transport<
            Output = Connection,
            Error: Send + Sync + 'static,
            Dial: Send + 'static,
            ListenerUpgrade: Send + 'static,
        > + Send
        + Unpin
        + 'static
{
}

/// The swarm's transport: every connection, relayed ones too, goes through `admission`.
///
/// # Errors
/// The identity cannot be used.
pub fn build(
    keypair: &Keypair,
    admission: Admission,
    relay: relay::client::Transport,
) -> Result<Boxed<Connection>, Error> {
    let relayed = relay
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(keypair)?)
        .multiplex(yamux_config())
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    // First, since TCP and QUIC would take the relay's own address for the whole one.
    let all = relayed.or_transport(secured(keypair)?).map(|either, _| either.into_inner());
    Ok(gate(all, admission))
}

/// The same without relays, for a peer that uses none.
///
/// # Errors
/// The identity cannot be used.
pub fn build_direct(keypair: &Keypair, admission: Admission) -> Result<Boxed<Connection>, Error> {
    Ok(gate(secured(keypair)?, admission))
}

fn gate(transport: impl Direct, admission: Admission) -> Boxed<Connection> {
    // Handshake and admission each have the deadline, so that a peer that is slow in both is cut all the same.
    let incoming = admission.settings().deadline * 2;
    let admitted = transport.boxed().and_then(move |connection, point| admission.clone().admit(connection, point));
    let admitted = admitted.boxed();
    TransportTimeout::with_outgoing_timeout(TransportTimeout::with_ingoing_timeout(admitted, incoming), DIAL_DEADLINE)
        .boxed()
}
