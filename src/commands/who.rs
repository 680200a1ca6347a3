//! Which member is meant: by its peer id, or by its name where only one that is known here has it.

use crate::exit::Failure;
use anyhow::Result;
use dunlin_node::{PeerInfo, control::Client};
use dunlin_protocol::id::PeerId;

/// The member that `text` stands for; `None` when it is neither a peer id nor the name of any member known here.
///
/// # Errors
/// The node does not answer, or several members have that name: they are listed.
pub(crate) async fn find(client: &mut Client, text: &str) -> Result<Option<PeerId>> {
    if let Ok(peer) = text.parse() {
        return Ok(Some(peer));
    }
    let known: Vec<PeerInfo> = client.get("/peers").await?;
    Ok(named(text, &known)?)
}

/// The same where nothing else than a member can be meant.
///
/// # Errors
/// As [`find`], and nobody is called so.
pub(crate) async fn expect(client: &mut Client, text: &str) -> Result<PeerId> {
    let missing = || Failure::NotFound {
        what: format!("a member called {text:?}"),
        hint: "\n  `dunlin peers` lists names and peer ids; a peer id looks like 12D3KooW...".into(),
    };
    Ok(find(client, text).await?.ok_or_else(missing)?)
}

fn named(name: &str, known: &[PeerInfo]) -> Result<Option<PeerId>, Failure> {
    let has_name = |peer: &&PeerInfo| peer.name.as_ref().is_some_and(|known| known.as_str() == name);
    let found: Vec<&PeerInfo> = known.iter().filter(has_name).collect();
    match found.as_slice() {
        [] => Ok(None),
        [only] => Ok(only.peer.parse().ok()),
        several => {
            let choices: Vec<_> =
                several.iter().map(|peer| format!("\n  {} ({})", peer.peer, peer.reachability)).collect();
            Err(Failure::Usage(format!("several members are called {name:?}; give the peer id:{}", choices.concat())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::id::Name;

    fn peer(name: Option<&str>) -> PeerInfo {
        PeerInfo {
            peer: PeerId::random().to_string(),
            name: name.map(|name| Name::new(name).unwrap()),
            roles: Vec::new(),
            reachability: "connected".to_owned(),
            rtt_us: None,
            addresses: Vec::new(),
            not_after: None,
            duplicate: false,
            replicas: Vec::new(),
        }
    }

    #[test]
    fn a_name_counts_where_it_is_the_only_one() {
        let known = [peer(Some("rack")), peer(Some("desk")), peer(None), peer(Some("desk"))];
        assert_eq!(named("rack", &known).unwrap().unwrap().to_string(), known[0].peer);
        assert!(named("attic", &known).unwrap().is_none());
        let said = named("desk", &known).unwrap_err().to_string();
        assert!(
            said.contains(&known[1].peer) && said.contains(&known[3].peer) && !said.contains(&known[0].peer),
            "{said}"
        );
    }
}
