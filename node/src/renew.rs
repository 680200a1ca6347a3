//! Keeps this peer's certificate from ending: asks an issuer in time, tells the mesh of the new one.

use crate::{
    clock,
    gossip::MeshMessage,
    handle::{Command, Handle},
    info, renewal,
    routes::RENEW_PATH,
    state::StateDir,
};
use dunlin_protocol::{certificate::Chain, id::PeerId, limits};
use tokio_util::sync::CancellationToken;

/// Issuers asked in one attempt.
const ISSUERS: usize = 8;

/// Renews whenever it is due, until `shutdown`.
pub(crate) async fn run(handle: Handle, state: StateDir, shutdown: CancellationToken) {
    let mut failures = 0;
    loop {
        let wait = renewal::wait(&handle.members().own(), clock::unix_s(), failures);
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        if !renewal::is_due(&handle.members().own(), clock::unix_s()) {
            failures = 0;
            continue;
        }
        match renew(&handle, &state).await {
            Some(()) => failures = 0,
            None => {
                failures += 1;
                tracing::warn!(failures, "certificate not renewed: no issuer could be asked, or none agreed");
            }
        }
    }
}

async fn renew(handle: &Handle, state: &StateDir) -> Option<()> {
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
    let (stored, state) = (chain.clone(), state.clone());
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
