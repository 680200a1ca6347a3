//! Engines that already run on this machine: the usual local ports, asked all at once.

use super::{Client, EngineUrl, identify::identify};
use dunlin_protocol::{
    id::{ModelId, RuntimeName},
    runtime::Catalogue,
};
use futures::future::join_all;
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::{net::TcpStream, time::timeout};

/// Usual ports beside those of the catalogue's runtimes: newer llama.cpp, LM Studio, and small speech servers.
const USUAL_PORTS: [u16; 3] = [9931, 1234, 5092];
/// The whole search.
const DEADLINE: Duration = Duration::from_secs(5);
/// A connection on loopback.
const CONNECT: Duration = Duration::from_millis(250);

/// An engine that answers on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Where.
    pub url: EngineUrl,
    /// Its kind.
    pub runtime: RuntimeName,
    /// What it lists now. May be empty: an Ollama without a pulled model.
    pub models: Vec<ModelId>,
}

/// The local ports at which engines usually listen.
#[must_use]
pub fn usual_ports(catalogue: &Catalogue) -> BTreeSet<u16> {
    catalogue.iter().filter_map(|runtime| runtime.port).chain(USUAL_PORTS).collect()
}

/// Looks for engines on the usual local ports. Takes milliseconds where nothing listens.
pub async fn discover(catalogue: &Catalogue) -> Vec<Found> {
    discover_on(usual_ports(catalogue), catalogue).await
}

/// [`discover`] on the ports given, in their order.
pub async fn discover_on(ports: impl IntoIterator<Item = u16>, catalogue: &Catalogue) -> Vec<Found> {
    let client = Client::new();
    let looks = ports.into_iter().map(|port| {
        let client = client.clone();
        async move { found_at(&client, answers(port).await?, catalogue).await }
    });
    join_all(looks).await.into_iter().flatten().collect()
}

/// Where on loopback something listens at `port`: IPv4 first, as engines do.
pub async fn answers(port: u16) -> Option<EngineUrl> {
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let address = SocketAddr::new(address, port);
        if matches!(timeout(CONNECT, TcpStream::connect(address)).await, Ok(Ok(_))) {
            return format!("http://{address}").parse().ok();
        }
    }
    None
}

/// The engine at `url`, if it is one.
pub(crate) async fn found_at(client: &Client, url: EngineUrl, catalogue: &Catalogue) -> Option<Found> {
    let identity = timeout(DEADLINE, identify(client, &url, catalogue)).await.ok()??;
    Some(Found { url, runtime: identity.runtime, models: identity.models })
}
