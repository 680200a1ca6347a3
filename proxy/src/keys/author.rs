//! In whose name statements about keys are made here.

use super::Error;
use dunlin_node::{Handle, mesh::Mesh};
use dunlin_protocol::{
    certificate::Chain,
    id::MeshId,
    key::{KeyStatement, SignedKeyStatement},
};
use std::sync::Arc;

/// Who signs: the node that runs, or, while none does, whoever its state directory says this machine is.
pub(super) enum Author {
    Node(Handle),
    Offline(Box<Mesh>),
}

impl Author {
    pub(super) fn mesh(&self) -> MeshId {
        match self {
            Self::Node(handle) => handle.mesh(),
            Self::Offline(mesh) => mesh.members.mesh(),
        }
    }

    /// Whether what it says counts.
    pub(super) fn keeps_keys(&self) -> bool {
        match self {
            Self::Node(handle) => handle.members().own().keeps_keys(),
            Self::Offline(mesh) => mesh.members.own().keeps_keys(),
        }
    }

    pub(super) fn sign(&self, statement: &KeyStatement) -> Result<SignedKeyStatement, Error> {
        if !self.keeps_keys() {
            return Err(Error::NotAllowed);
        }
        Ok(match self {
            Self::Node(handle) => handle.sign_key_statement(statement)?,
            Self::Offline(mesh) => {
                let chain: Chain = Arc::unwrap_or_clone(mesh.members.own_chain());
                SignedKeyStatement::sign(statement, chain, &mesh.identity)?
            }
        })
    }
}
