//! Engines that already run on this machine: the usual local ports, asked all at once.

use super::{Client, EngineUrl, identify::identify};
use dunlin_protocol::{
    id::{ModelId, RuntimeName},
    runtime::Catalogue,
};
use futures::future::join_all;
use std::{collections::BTreeSet, time::Duration};

/// Usual ports beside those of the catalogue's runtimes: newer llama.cpp, SGLang, LM Studio, TGI, and the speech servers
/// of NIM and the community.
const USUAL_PORTS: [u16; 6] = [9931, 30000, 1234, 3000, 9000, 5092];
/// The whole search.
const DEADLINE: Duration = Duration::from_secs(5);

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

/// Looks for engines on the usual local ports. Takes milliseconds where nothing listens.
pub async fn discover(catalogue: &Catalogue) -> Vec<Found> {
    let ports = catalogue.iter().filter_map(|runtime| runtime.port).chain(USUAL_PORTS).collect::<BTreeSet<_>>();
    discover_on(ports, catalogue).await
}

/// [`discover`] on the ports given, in their order.
pub async fn discover_on(ports: impl IntoIterator<Item = u16>, catalogue: &Catalogue) -> Vec<Found> {
    let client = Client::new();
    let looks = ports.into_iter().map(|port| {
        let client = client.clone();
        async move {
            let url = EngineUrl::loopback(port).ok()?;
            let identity = tokio::time::timeout(DEADLINE, identify(&client, &url, catalogue)).await.ok()??;
            Some(Found { url, runtime: identity.runtime, models: identity.models })
        }
    });
    join_all(looks).await.into_iter().flatten().collect()
}
