//! `dunlin join TOKEN`: redeem an invitation and store the certificate.

use crate::output;
use anyhow::{Result, bail};
use dunlin_node::{join, mesh, state::KnownPeer, state::StateDir};
use dunlin_protocol::{
    id::{Name, Role},
    invitation::Token,
};
use std::path::Path;

pub(crate) async fn run(token: &str, name: Option<Name>, home: &Path) -> Result<()> {
    let token: Token = Token::parse(token)?;
    let state = StateDir::open(home)?;
    if let Some(chain) = state.chain()? {
        let own = chain.certificate.peek()?;
        if own.mesh != token.invitation()?.mesh {
            bail!(mesh::Error::AlreadyAMember(own.mesh));
        }
        output::note("this machine is a member already; its certificate is replaced");
    }
    let (chain, membership) = join::join(&token, &state.identity()?, name).await?;
    state.store_chain(&chain)?;
    let issuer = KnownPeer { peer: token.invitation()?.issuer, addresses: token.addresses().to_vec() };
    let mut known = state.known_peers()?;
    known.retain(|peer| peer.peer != issuer.peer);
    known.insert(0, issuer);
    state.store_known_peers(known)?;
    output::line(&format!("joined mesh {} as {} ({})", membership.mesh, membership.peer, membership.roles));
    let next = match (membership.roles.contains(Role::Agent), membership.roles.contains(Role::Proxy)) {
        (true, true) => "dunlin up",
        (true, false) => "dunlin agent",
        (false, true) => "dunlin proxy",
        (false, false) => "dunlin relay",
    };
    output::note(&format!("next: {next}"));
    Ok(())
}
