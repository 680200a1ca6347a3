//! `dunlin join TOKEN`: redeem an invitation and store the certificate.

use crate::output;
use anyhow::{Result, bail};
use dunlin_node::{
    clock, join, mesh,
    state::{FailedJoin, KnownPeer, StateDir},
};
use dunlin_protocol::{
    id::{Name, Role},
    invitation::Token,
};
use std::path::Path;

pub(crate) async fn run(token: &str, name: Option<Name>, home: &Path) -> Result<()> {
    let token = match Token::parse(token) {
        Ok(token) => token,
        Err(error) => {
            // What is wrong with the token says more than that a node runs here.
            if let Ok(state) = StateDir::open(home) {
                remember(&state, None, &error.to_string())?;
            }
            return Err(error.into());
        }
    };
    let state = StateDir::open(home)?;
    let invitation = token.invitation()?;
    if let Some(chain) = state.chain()? {
        let own = chain.certificate.peek()?;
        if own.mesh != invitation.mesh {
            bail!(mesh::Error::AlreadyAMember(own.mesh));
        }
        output::note("this machine is a member already; its certificate is replaced");
    }
    let (chain, membership) = match join::join(&token, &state.identity()?, name).await {
        Ok(joined) => joined,
        Err(error) => {
            remember(&state, Some(invitation.mesh.to_string()), &error.to_string())?;
            return Err(error.into());
        }
    };
    state.store_chain(&chain)?;
    let issuer = KnownPeer { peer: invitation.issuer, addresses: token.addresses().to_vec() };
    let mut known = state.known_peers()?;
    known.retain(|peer| peer.peer != issuer.peer);
    known.insert(0, issuer);
    state.store_known_peers(known)?;
    output::line(&format!("joined mesh {} as {} ({})", membership.mesh, membership.peer, membership.roles))?;
    let next = match (membership.roles.contains(Role::Agent), membership.roles.contains(Role::Proxy)) {
        (true, true) => "dunlin up",
        (true, false) => "dunlin agent",
        (false, true) => "dunlin proxy",
        (false, false) => "dunlin relay",
    };
    output::note(&format!("next: {next}"));
    Ok(())
}

/// For the `dunlin up` that may come next, on a machine of no mesh.
fn remember(state: &StateDir, mesh: Option<String>, cause: &str) -> Result<()> {
    if state.chain()?.is_none() {
        state.store_failed_join(&FailedJoin { mesh, at: clock::unix_s(), cause: cause.to_owned() })?;
    }
    Ok(())
}
