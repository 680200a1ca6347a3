//! Keeps this peer's certificate from ending: asks an issuer in time, tells the mesh of the new one.

use crate::{
    clock,
    gossip::MeshMessage,
    handle::{Command, Handle},
    info, renewal,
    routes::RENEW_PATH,
};
use dunlin_protocol::{certificate::Chain, id::PeerId, limits};
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
        while handle.0.issuer.is_none() && handle.members().issuers().is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    };
    // Without one the attempt fails, and says so.
    let _ = tokio::time::timeout(renewal::FIRST_RETRY, met).await;
}

async fn renew(handle: &Handle) -> Option<()> {
    let chain = match handle.0.issuer.clone() {
        Some(issuer) => {
            let (own, revocations) = (handle.members().own(), handle.members().revocations());
            let renew = move || issuer.renew(&own, &revocations, clock::unix_s());
            tokio::task::spawn_blocking(renew).await.ok()?.ok()?
        }
        None => ask_issuers(handle).await?,
    };
    let own = handle.members().replace_own(chain.clone(), clock::unix_s()).ok()?;
    tracing::info!(not_after = own.not_after, "certificate renewed");
    let (stored, state) = (chain.clone(), handle.0.state.clone());
    match tokio::task::spawn_blocking(move || state.store_chain(&stored)).await {
        Ok(Ok(())) => {}
        _ => tracing::error!("renewed certificate could not be stored; it will be asked for again after a restart"),
    }
    // An error means that the node has ended.
    let _ = handle.0.commands.send(Command::Publish(Box::new(MeshMessage::Certificate(chain)))).await;
    Some(())
}

async fn ask_issuers(handle: &Handle) -> Option<Chain> {
    for issuer in handle.members().issuers().into_iter().take(ISSUERS) {
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
    let limit = limits::HELLO_BYTES;
    let bytes = info::fetch(handle.hop(), issuer, http::Method::POST, RENEW_PATH, limit).await?;
    Ok(Chain::decode(&bytes)?)
}
