//! Appointments: what a member is handed that issues from now on, as one message.

use crate::{
    certificate::{self, Chain, Membership},
    codec,
    delegation::{self, Delegation},
    id::{MeshId, PeerId},
    limits,
    signed::Signed,
};
use serde::{Deserialize, Serialize};

/// A delegation, and the certificate by which others know the delegate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appointment {
    /// The right to issue.
    pub delegation: Signed<Delegation>,
    /// The delegate's certificate from now on, in the mesh key's name: its membership does not end with its delegation.
    pub chain: Chain,
}

/// Why an appointment does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The delegation does not hold.
    #[error(transparent)]
    Delegation(#[from] delegation::Error),
    /// The certificate does not hold.
    #[error(transparent)]
    Certificate(#[from] certificate::Error),
    /// Meant for another peer.
    #[error("the delegation is peer {0}'s")]
    WrongPeer(PeerId),
    /// Its time is over.
    #[error("the delegation ended at {0} (unix seconds)")]
    Ended(u64),
}

impl Appointment {
    /// Bytes for a message.
    ///
    /// # Errors
    /// Too large.
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode_v1(self, limits::HELLO_BYTES)
    }

    /// The appointment in `bytes`, nothing of it verified.
    ///
    /// # Errors
    /// Malformed, too large, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        codec::decode_v1(bytes, limits::HELLO_BYTES)
    }

    /// What it gives to `peer`, at `now` (unix seconds), in `mesh`. Revocations are not looked at here.
    ///
    /// # Errors
    /// Not signed by the mesh key, somebody else's, or over.
    pub fn verify(&self, now: u64, mesh: &MeshId, peer: &PeerId) -> Result<(Delegation, Membership), Error> {
        let delegation = delegation::verify(&self.delegation, mesh)?;
        if delegation.issuer != *peer {
            return Err(Error::WrongPeer(delegation.issuer));
        }
        if now > delegation.not_after {
            return Err(Error::Ended(delegation.not_after));
        }
        let membership = self.chain.verify(now, mesh)?;
        if membership.peer != *peer {
            return Err(certificate::Error::WrongSubject(membership.peer).into());
        }
        Ok((delegation, membership))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::tests::{certificate, delegation, key, mesh};

    const NOW: u64 = 1_800_000_000;

    fn appointment(by: u8, certificate_of: u8) -> Appointment {
        Appointment {
            delegation: Signed::sign(&delegation(), &key(by)).unwrap(),
            chain: Chain::by_mesh_key(&certificate(1, 1, certificate_of), &key(1)).unwrap(),
        }
    }

    #[test]
    fn an_appointment_is_for_one_peer_until_its_end() {
        let (delegate, other) = (key(2).public().to_peer_id(), key(3).public().to_peer_id());
        let made = appointment(1, 2);
        let read = Appointment::decode(&made.encode().unwrap()).unwrap();
        let (terms, membership) = read.verify(NOW, &mesh(1), &delegate).unwrap();
        assert_eq!((terms, membership.peer), (delegation(), delegate));
        assert_eq!(made.verify(NOW, &mesh(1), &other), Err(Error::WrongPeer(delegate)));
        let end = delegation().not_after;
        assert_eq!(made.verify(end + 1, &mesh(1), &delegate), Err(Error::Ended(end)));
        assert!(matches!(made.verify(NOW, &mesh(7), &delegate), Err(Error::Delegation(_))));
        assert!(matches!(appointment(2, 2).verify(NOW, &mesh(1), &delegate), Err(Error::Delegation(_))), "made up");
        assert!(matches!(appointment(1, 3).verify(NOW, &mesh(1), &delegate), Err(Error::Certificate(_))));
    }
}
