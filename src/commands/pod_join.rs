//! Becoming a member as a pod, before anything else: by the token that its kubelet gave it.

use crate::args::PodJoinArgs;
use anyhow::{Context, Result, bail};
use dunlin_node::{
    clock, join, renewal,
    state::{KnownPeer, StateDir},
};
use dunlin_protocol::{certificate::Chain, id::MeshId};
use libp2p::{Multiaddr, multiaddr::Protocol};
use rand::{RngExt, rngs::SmallRng};
use std::{io::Read, path::Path, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

/// One try.
const DEADLINE: Duration = Duration::from_secs(10);
/// Between two tries: doubles from the first to the longest. An orchestrator that starts, or is replaced, is away for a while.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// A file larger than this holds no token.
const FILE_BYTES: u64 = 16 * 1024;

/// Sees to it that this machine is a member, if it is a pod; goes on until it is, or the process is told to end.
pub(crate) async fn ensure(state: &StateDir, args: &PodJoinArgs, peers: &[Multiaddr]) -> Result<()> {
    let (Some(file), Some(mesh)) = (&args.token_file, args.mesh) else { return Ok(()) };
    if is_member(state, mesh)? {
        return Ok(());
    }
    let orchestrators = if args.orchestrator.is_empty() { peers } else { &args.orchestrator };
    let mut ended = signal(SignalKind::terminate())?;
    tokio::select! {
        joined = join(state, file, mesh, orchestrators) => joined,
        _ = ended.recv() => bail!("told to end before this pod was admitted"),
    }
}

/// A certificate that has most of its life left will be renewed by the node itself.
fn is_member(state: &StateDir, mesh: MeshId) -> Result<bool> {
    let now = clock::unix_s();
    let Some(chain) = state.chain()? else { return Ok(false) };
    let peer = state.identity()?.public().to_peer_id();
    Ok(chain.verify(now, &mesh).is_ok_and(|own| own.peer == peer && !renewal::is_due(&own, now)))
}

async fn join(state: &StateDir, file: &Path, mesh: MeshId, orchestrators: &[Multiaddr]) -> Result<()> {
    let identity = state.identity()?;
    // The shell's own randomness, for jitter.
    let mut rng: SmallRng = rand::make_rng();
    let mut pause = FIRST_PAUSE;
    let (chain, membership) = loop {
        // Read each time: the kubelet replaces it.
        let token = token(file)?;
        match join::join_as_pod(mesh, &token, orchestrators, &identity, DEADLINE).await {
            Ok(joined) => break joined,
            Err(error @ (join::Error::NoPeer(_) | join::Error::NoAddress)) => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "this pod is not admitted yet"),
        }
        sleep(pause.mul_f64(rng.random_range(0.5..=1.0))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    store(state, &chain, orchestrators)?;
    tracing::info!(%mesh, peer = %membership.peer, roles = %membership.roles, "this pod is a member");
    Ok(())
}

fn token(file: &Path) -> Result<String> {
    let mut text = String::new();
    let opened = std::fs::File::open(file).and_then(|opened| opened.take(FILE_BYTES).read_to_string(&mut text));
    opened.with_context(|| format!("the pod's token in {} can't be read", file.display()))?;
    Ok(text.trim().to_owned())
}

fn store(state: &StateDir, chain: &Chain, orchestrators: &[Multiaddr]) -> Result<()> {
    state.store_chain(chain)?;
    let mut known = state.known_peers()?;
    for address in orchestrators {
        let Some(Protocol::P2p(peer)) = address.iter().last() else { continue };
        let address: Multiaddr = address.iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect();
        known.retain(|known| known.peer != peer);
        known.insert(0, KnownPeer { peer, addresses: vec![address] });
    }
    state.store_known_peers(known)?;
    Ok(())
}
