//! Keeps this peer's certificate from ending: asks an issuer in time, tells the mesh of the new one.

use crate::{
    clock,
    gossip::MeshMessage,
    handle::{Command, Handle},
    hop, info,
    issuer::Issuer,
    renewal,
    routes::RENEW_PATH,
};
use bytes::Bytes;
use dunlin_protocol::{
    certificate::{self, Chain},
    id::PeerId,
    limits,
};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Issuers asked in one attempt.
const ISSUERS: usize = 8;
/// How often a member without one looks for an issuer.
const LOOK: Duration = Duration::from_secs(1);

/// Renews whenever it is due, until `shutdown`.
pub(crate) async fn run(handle: Handle, shutdown: CancellationToken) {
    // The event loop answers nobody after the shutdown.
    shutdown.run_until_cancelled(keep_renewed(&handle)).await;
}

async fn keep_renewed(handle: &Handle) {
    let mut failures = 0;
    loop {
        let wait = renewal::wait(&handle.members().own(), clock::unix_s(), failures);
        tokio::time::sleep(wait).await;
        if !renewal::is_due(&handle.members().own(), clock::unix_s()) {
            failures = 0;
            continue;
        }
        meet_issuer(handle).await;
        match renew(handle).await {
            Some(()) => failures = 0,
            None => {
                failures += 1;
                tracing::warn!(failures, "certificate not renewed: no issuer could be asked, or none agreed");
            }
        }
    }
}

/// Waits a while for an issuer to be met: at the start of a process nobody is connected yet.
async fn meet_issuer(handle: &Handle) {
    let met = async {
        while handle.0.issuing.get().is_none() && handle.members().issuers().is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    };
    // Without one the attempt fails, and says so.
    let _ = tokio::time::timeout(renewal::FIRST_RETRY, met).await;
}

async fn renew(handle: &Handle) -> Option<()> {
    let issuer = handle.0.issuing.get();
    let chain = match issuer {
        Some(issuer) if issuer.holds_mesh_key() => renew_own(handle, issuer).await?,
        // The mesh key first: what it gives does not end with the delegation.
        Some(issuer) => match ask_issuers(handle).await {
            Some(chain) => chain,
            None => renew_own(handle, issuer).await?,
        },
        None => ask_issuers(handle).await?,
    };
    let (renewed, state) = (chain.clone(), handle.0.state.clone());
    let (members, issuing) = (handle.members().clone(), handle.0.issuing.clone());
    let replace = move || {
        // In memory and on disk at once: a delegation may have come with a certificate meanwhile.
        let _changing = issuing.changing();
        let own = members.replace_own(renewed.clone(), clock::unix_s())?;
        Ok::<_, certificate::Error>((own, state.store_chain(&renewed)))
    };
    let (own, stored) = match tokio::task::spawn_blocking(replace).await.ok()? {
        Ok(replaced) => replaced,
        Err(error) => {
            tracing::debug!(%error, "renewed certificate is of no use");
            return None;
        }
    };
    tracing::info!(not_after = own.not_after, "certificate renewed");
    if let Err(error) = stored {
        tracing::error!(%error, "renewed certificate could not be stored; it will be asked for again after a restart");
    }
    publish(handle, chain).await;
    Some(())
}

/// Tells the mesh of this peer's new certificate.
pub(crate) async fn publish(handle: &Handle, chain: Chain) {
    // An error means that the node has ended.
    let _ = handle.0.commands.send(Command::Publish(Box::new(MeshMessage::Certificate(chain)))).await;
}

async fn renew_own(handle: &Handle, issuer: Issuer) -> Option<Chain> {
    let (own, chain) = (handle.members().own(), handle.members().own_chain());
    let revocations = handle.members().revocations();
    let renew = move || issuer.renew(&own, chain.delegation.as_ref(), &revocations, clock::unix_s());
    match tokio::task::spawn_blocking(renew).await.ok()? {
        Ok(chain) => Some(chain),
        Err(error) => {
            tracing::debug!(%error, "own certificate not renewed");
            None
        }
    }
}

async fn ask_issuers(handle: &Handle) -> Option<Chain> {
    let own = handle.members().own();
    let issuers = renewal::whom_to_ask(&own, &handle.members().issuers(), clock::unix_s());
    for issuer in issuers.into_iter().take(ISSUERS) {
        match ask(handle, issuer).await {
            Ok(chain) => return Some(chain),
            Err(error) => tracing::debug!(peer = %issuer, %error, "issuer did not renew"),
        }
    }
    None
}

async fn ask(handle: &Handle, issuer: PeerId) -> Result<Chain, info::Error> {
    // What matters is whether the request gets there; that says it all.
    let _ = handle.connect(issuer).await;
    // The issuer knows what was shown to it, but not in whose name.
    let body = hop::Body::from(Bytes::from(handle.members().own_chain().encode()?));
    let limit = limits::HELLO_BYTES;
    let bytes = info::ask(handle.hop(), issuer, http::Method::POST, RENEW_PATH, body, limit).await?;
    Ok(Chain::decode(&bytes)?)
}
