//! Statements about keys as far as a node goes: signed in its name, verified, gossiped, heard. What they say is for the
//! proxies to keep.

use crate::{
    clock,
    handle::{Command, Handle},
    members::Members,
};
use dunlin_protocol::{
    id::{PeerId, Role},
    key::{self, KeyStatement, SignedKeyStatement},
};
use std::sync::Arc;
use tokio::sync::broadcast;

/// Statements heard that wait to be taken; who is slower misses some, and finds them by comparing.
pub(crate) const HEARD: usize = 256;

/// Statements that others gossiped, verified, as they come.
#[derive(Debug)]
pub struct KeyStatements(broadcast::Receiver<Arc<(KeyStatement, SignedKeyStatement)>>);

impl KeyStatements {
    /// The next one; `None` when the node has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Arc<(KeyStatement, SignedKeyStatement)>> {
        loop {
            match self.0.recv().await {
                Ok(heard) => return Some(heard),
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    tracing::debug!(missed, "statements about keys came faster than they were taken");
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

impl Members {
    /// What a statement about a key says, if its signer may say so at `now`, unix seconds.
    ///
    /// # Errors
    /// Signature, right or bound that does not hold; the signer's membership was revoked.
    pub fn verify_key_statement(&self, signed: &SignedKeyStatement, now: u64) -> Result<KeyStatement, key::Error> {
        let known = |peer: &PeerId| self.get(peer).map(Arc::unwrap_or_clone);
        let (statement, signer) = signed.verify(now, &self.mesh(), known)?;
        // One that was invited again after its revocation is known by its later certificate.
        if self.is_revoked(&signer) && !self.check(&signer.peer, now).is_ok_and(|member| member.keeps_keys()) {
            return Err(key::Error::NotAllowed(signer.peer));
        }
        Ok(statement)
    }
}

impl Handle {
    /// Signs a statement in this peer's name. It counts where this peer keeps keys:
    /// `handle.members().own().keeps_keys()`.
    ///
    /// # Errors
    /// Out of bounds.
    pub fn sign_key_statement(&self, statement: &KeyStatement) -> Result<SignedKeyStatement, key::Error> {
        let chain = self.members().own_chain();
        SignedKeyStatement::sign(statement, Arc::unwrap_or_clone(chain), &self.0.identity)
    }

    /// Gossips a statement to the proxies. Does nothing after the node's end.
    pub async fn gossip_key_statement(&self, signed: SignedKeyStatement) {
        // An error means that the node has ended.
        let _ = self.0.commands.send(Command::TellKey(Box::new(signed))).await;
    }

    /// What others gossip about keys from now on. Only proxies hear it.
    #[must_use]
    pub fn key_statements(&self) -> KeyStatements {
        KeyStatements(self.0.key_statements.subscribe())
    }

    /// Members connected now that may hold statements about keys: proxies, and whoever keeps keys.
    #[must_use]
    pub fn key_holders(&self) -> Vec<PeerId> {
        let now = clock::unix_s();
        let connected: Vec<PeerId> = self.directory().read(|directory| {
            let others = directory.peers().filter(|view| view.peer != self.peer_id());
            others.filter(|view| view.reachability.is_connected()).map(|view| view.peer).collect()
        });
        let holds = |peer: &PeerId| {
            self.members().check(peer, now).is_ok_and(|of| of.roles.contains(Role::Proxy) || of.keeps_keys())
        };
        connected.into_iter().filter(holds).collect()
    }
}
