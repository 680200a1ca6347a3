//! What came of the calls for one Playground.

use super::tables::{Key, key};
use crate::{manifest::Owner, resources::PlaygroundStatus, revision::Revision};
use k8s_openapi::api::{networking::v1::NetworkPolicy, policy::v1::PodDisruptionBudget};
use std::sync::Arc;

/// What came of them.
pub(super) struct Done {
    pub key: Key,
    pub uid: String,
    /// The newest version of the Playground that an answer told.
    pub version: String,
    pub finalizers: Option<Vec<String>>,
    pub revision: Option<Arc<Revision>>,
    /// Name of the ConfigMap that is there now.
    pub config_map: Option<String>,
    pub policy: Option<NetworkPolicy>,
    pub budget: Option<PodDisruptionBudget>,
    pub status: Option<PlaygroundStatus>,
    pub births: Vec<(String, Birth)>,
    pub ended: usize,
    /// Names of revisions that have gone.
    pub dropped: Vec<String>,
    pub failure: Option<Failure>,
}

/// What came of creating a pod.
pub(super) enum Birth {
    /// Its uid.
    Created(String),
    /// The name is taken.
    Taken,
    /// The API server does not want it.
    Refused(Failure),
}

impl Done {
    pub(super) fn new(owner: &Owner) -> Self {
        Self {
            key: key(Some(&owner.namespace), Some(&owner.name)),
            uid: owner.uid.clone(),
            version: String::new(),
            finalizers: None,
            revision: None,
            config_map: None,
            policy: None,
            budget: None,
            status: None,
            births: Vec::new(),
            ended: 0,
            dropped: Vec::new(),
            failure: None,
        }
    }
}

/// Why a call did not work.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub message: String,
    /// There is an object of that name.
    pub exists: bool,
    /// Somebody else was faster.
    pub conflict: bool,
    /// What it is about has gone.
    pub gone: bool,
    /// It won't work any better next time: the word for why.
    pub refusal: Option<&'static str>,
}

impl Failure {
    pub(super) fn of(error: kube::Error) -> Self {
        let plain = |message: String| Self { message, exists: false, conflict: false, gone: false, refusal: None };
        let kube::Error::Api(status) = &error else { return plain(error.to_string()) };
        let message = status.message.clone();
        let quota = message.contains("exceeded quota");
        let refusal = match status.code {
            403 if quota => Some("QuotaExceeded"),
            403 => Some("Refused"),
            400 | 422 => Some("Invalid"),
            _ => None,
        };
        let step = match refusal {
            Some("QuotaExceeded") => ". Raise the ResourceQuota of the namespace, or lower replicas",
            Some("Refused") => {
                ". Check what the namespace enforces (pod security, webhooks), and that the orchestrator's RoleBinding is in it"
            }
            Some("Invalid") => ". Check the Model, the BackendRuntime and the Playground for the field that is named",
            _ => "",
        };
        Self {
            exists: status.code == 409 && status.reason == "AlreadyExists",
            conflict: status.code == 409 && status.reason != "AlreadyExists",
            gone: status.code == 404,
            refusal,
            message: format!("{message}{step}"),
        }
    }

    pub(super) fn unanswered() -> Self {
        Self {
            message: "the API server did not answer in time".to_owned(),
            exists: false,
            conflict: false,
            gone: false,
            refusal: None,
        }
    }

    pub(super) fn refused(word: &'static str, message: String) -> Self {
        Self { message, exists: false, conflict: false, gone: false, refusal: Some(word) }
    }

    /// That it has gone, or is another, is as good as done.
    pub(super) fn or_gone(self) -> Result<(), Self> {
        if self.gone || self.conflict { Ok(()) } else { Err(self) }
    }
}
