//! The issuer of a running process: there is one from the start, from the moment of a delegation on, or never.

use super::Issuer;
use arc_swap::ArcSwapOption;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by everything that issues in a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Issuing(Arc<Shared>);

#[derive(Default)]
struct Shared {
    issuer: ArcSwapOption<Issuer>,
    changing: Mutex<()>,
}

impl Issuing {
    /// The issuer, if this process has one.
    #[must_use]
    pub fn get(&self) -> Option<Issuer> {
        self.0.issuer.load().as_deref().cloned()
    }

    pub(crate) fn set(&self, issuer: Issuer) {
        self.0.issuer.store(Some(Arc::new(issuer)));
    }

    /// Held by whoever puts another issuer in place, from looking at the old one on.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.0.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Option<Issuer>> for Issuing {
    fn from(issuer: Option<Issuer>) -> Self {
        let issuing = Self::default();
        if let Some(issuer) = issuer {
            issuing.set(issuer);
        }
        issuing
    }
}
