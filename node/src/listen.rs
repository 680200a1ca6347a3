//! Starting to listen, and saying in words why that failed.

use crate::{addresses, behaviour::Behaviour, config::Config, node::Error};
use libp2p::{Multiaddr, Swarm, core::transport::ListenerId, multiaddr::Protocol};
use socket2::{Domain, Socket, Type};
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

/// Between two askings for a place at a relay that was lost.
const AGAIN: Duration = Duration::from_secs(3);

/// Whether all of these addresses could be listened on now.
///
/// # Errors
/// Names the first that could not, and why.
pub fn check(addresses: &[Multiaddr]) -> Result<(), Error> {
    addresses.iter().try_for_each(|address| check_free(address).map_err(|cause| refused(address.clone(), &cause)))
}

/// The places at relays, which end with the connection to the relay and are asked for again as long as this process runs.
#[derive(Debug, Default)]
pub(crate) struct Places {
    held: HashMap<ListenerId, Multiaddr>,
    lost: Vec<(Multiaddr, Instant)>,
}

impl Places {
    fn hold(&mut self, listener: ListenerId, address: Multiaddr) {
        if addresses::is_relayed(&address) {
            self.held.insert(listener, address);
        }
    }

    /// A listener has ended. Whether it was such a place.
    pub(crate) fn lose(&mut self, listener: ListenerId, now: Instant) -> bool {
        let lost = self.held.remove(&listener).map(|address| (address, now + AGAIN));
        self.lost.extend(lost.clone());
        lost.is_some()
    }

    /// Those that are to be asked for again at `now`.
    fn due(&mut self, now: Instant) -> Vec<Multiaddr> {
        let due = self.lost.extract_if(.., |(_, at)| *at <= now);
        due.map(|(address, _)| address).collect()
    }

    /// Asks for those that were lost.
    pub(crate) fn ask_again(&mut self, swarm: &mut Swarm<Behaviour>, now: Instant) {
        for address in self.due(now) {
            match swarm.listen_on(address.clone()) {
                Ok(listener) => self.hold(listener, address),
                Err(error) => {
                    tracing::debug!(%address, %error, "no place at the relay");
                    self.lost.push((address, now + AGAIN));
                }
            }
        }
    }
}

/// A node that could not start.
pub(crate) fn listen(swarm: &mut Swarm<Behaviour>, config: &Config) -> Result<Places, Error> {
    check(&config.listen)?;
    let relayed = config.relays.iter().map(|relay| relay.clone().with(Protocol::P2pCircuit));
    let mut places = Places::default();
    for address in config.listen.iter().cloned().chain(relayed) {
        let listener = swarm.listen_on(address.clone()).map_err(|cause| refused(address.clone(), &cause))?;
        places.hold(listener, address);
    }
    Ok(places)
}

/// Transports wrap what the system said in errors that say nothing.
fn refused(address: Multiaddr, error: &(dyn std::error::Error + 'static)) -> Error {
    let mut causes: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let said = error.to_string();
        if !said.is_empty() && !causes.iter().any(|known| known.contains(&said)) {
            causes.push(said);
        }
        next = error.source();
    }
    Error::Listen { address, cause: causes.join(": ") }
}

/// libp2p shares its TCP ports with other sockets of this machine (`SO_REUSEPORT`): a second node on the same port would
/// start in silence, and get every other connection. Whoever can bind the port without sharing is alone on it.
fn check_free(address: &Multiaddr) -> io::Result<()> {
    let Some((address, kind)) = socket_address(address).filter(|(address, _)| address.port() != 0) else {
        return Ok(());
    };
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::DGRAM {
        return socket.bind(&address.into());
    }
    // What an earlier process left behind in TIME_WAIT is in nobody's way.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    // Only a listening socket shows that another one, bound with the same option, listens already.
    socket.listen(1)
}

/// Where this machine itself would listen; nowhere for a place at a relay, whose address is another machine's.
fn socket_address(address: &Multiaddr) -> Option<(SocketAddr, Type)> {
    if addresses::is_relayed(address) {
        return None;
    }
    let mut parts = address.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some((SocketAddr::new(ip, port), Type::STREAM)),
        Protocol::Udp(port) => Some((SocketAddr::new(ip, port), Type::DGRAM)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_port_is_not_free() {
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        other.set_reuse_address(true).unwrap();
        other.set_reuse_port(true).unwrap();
        other.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        other.listen(1).unwrap();
        let port = other.local_addr().unwrap().as_socket().unwrap().port();
        let address: Multiaddr = format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap();
        let error = refused(address.clone(), &check_free(&address).unwrap_err()).to_string();
        assert!(error.contains("in use"), "{error}");
        drop(other);
        check_free(&address).unwrap();
    }

    #[test]
    fn a_place_at_a_relay_is_no_port_of_this_machine() {
        let peer = libp2p::PeerId::random();
        let relayed = format!("/ip4/192.0.2.7/tcp/4480/p2p/{peer}/p2p-circuit").parse().unwrap();
        check_free(&relayed).unwrap();
        assert!(check_free(&"/ip4/192.0.2.7/tcp/4480".parse().unwrap()).is_err());
    }

    #[test]
    fn a_place_that_was_lost_is_due_again_after_a_while_and_a_port_is_not() {
        let now = Instant::now();
        let relayed: Multiaddr =
            format!("/ip4/192.0.2.7/tcp/4480/p2p/{}/p2p-circuit", libp2p::PeerId::random()).parse().unwrap();
        let (place, port) = (ListenerId::next(), ListenerId::next());
        let mut places = Places::default();
        places.hold(place, relayed.clone());
        places.hold(port, "/ip4/192.0.2.7/tcp/4480".parse().unwrap());
        assert!(places.lose(place, now) && !places.lose(port, now) && !places.lose(place, now));
        assert!(places.due(now).is_empty());
        assert_eq!(places.due(now + AGAIN), [relayed]);
        assert!(places.due(now + AGAIN).is_empty());
    }

    #[test]
    fn a_taken_port_is_seen_before_anything_is_started() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let of_tcp = format!("/ip4/127.0.0.1/tcp/{}", tcp.local_addr().unwrap().port());
        let of_udp = format!("/ip4/127.0.0.1/udp/{}/quic-v1", udp.local_addr().unwrap().port());
        for taken in [of_tcp, of_udp] {
            let taken: Multiaddr = taken.parse().unwrap();
            let free = "/ip4/127.0.0.1/tcp/0".parse().unwrap();
            let error = check(&[free, taken.clone()]).unwrap_err().to_string();
            assert!(error.contains(&taken.to_string()), "{error}");
        }
        let free = [tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port()];
        drop((tcp, udp));
        let [tcp, udp] = free;
        check(&[format!("/ip4/127.0.0.1/tcp/{tcp}").parse().unwrap()]).unwrap();
        check(&[format!("/ip4/127.0.0.1/udp/{udp}/quic-v1").parse().unwrap()]).unwrap();
    }
}
