//! What an operator says to an orchestrator about jobs, as JSON on the hop. A job is a Playground in Kubernetes, and lives
//! nowhere else: orchestrators keep nothing of their own.

use crate::limits;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Under which all of it stands on the hop.
pub const PATH: &str = "/mesh/jobs";
/// Models, likewise.
pub const MODELS_PATH: &str = "/mesh/jobs-models";
/// Manifests, likewise; the cluster's name follows.
pub const APPLY_PATH: &str = "/mesh/jobs-apply";
/// What an orchestrator calls its cluster, likewise.
pub const CLUSTER_PATH: &str = "/mesh/jobs-cluster";
/// The namespace of manifests that name none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// `CLUSTER/NAMESPACE/NAME`: one job of one mesh.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName {
    /// The orchestrator's name for its cluster.
    pub cluster: String,
    /// The namespace there.
    pub namespace: String,
    /// The Playground's name.
    pub name: String,
}

/// Not the name of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no job; write CLUSTER/NAMESPACE/NAME, as `dunlin jobs` shows it")]
pub struct NoJob(String);

impl FromStr for JobName {
    type Err = NoJob;

    fn from_str(text: &str) -> Result<Self, NoJob> {
        let wrong = || NoJob(text.chars().take(limits::NAME_BYTES).collect());
        let mut words = text.split('/');
        let (Some(cluster), Some(namespace), Some(name), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(wrong());
        };
        if text.len() > limits::JOB_ID_BYTES || ![cluster, namespace, name].into_iter().all(is_label) {
            return Err(wrong());
        }
        Ok(Self { cluster: cluster.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl TryFrom<String> for JobName {
    type Error = NoJob;
    fn try_from(text: String) -> Result<Self, NoJob> {
        text.parse()
    }
}

impl From<JobName> for String {
    fn from(name: JobName) -> Self {
        name.to_string()
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.cluster, self.namespace, self.name)
    }
}

/// Whether a text is a label as Kubernetes has it for names: RFC 1123's.
#[must_use]
pub fn is_label(text: &str) -> bool {
    let fine = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(fine) && !text.starts_with('-') && !text.ends_with('-')
}

/// `POST /mesh/jobs`: a model and a number of replicas are enough.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Deploy {
    /// In which cluster; whichever is asked when absent.
    pub cluster: Option<String>,
    /// Where.
    pub namespace: String,
    /// The job's name; made from the model's when absent.
    pub name: Option<String>,
    /// The model, by the name that it serves or that of its object.
    pub model: String,
    /// How many replicas; 1 when absent, or what there is.
    pub replicas: Option<u32>,
    /// Name of the BackendRuntime.
    pub runtime: Option<String>,
    /// Names of flavors, best first; all of the model's when empty.
    pub flavors: Vec<String>,
}

/// `POST /mesh/jobs/CLUSTER/NAMESPACE/NAME/scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// How many replicas.
    pub replicas: u32,
}

/// `POST /mesh/jobs/CLUSTER/NAMESPACE/NAME/rollout`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "what", deny_unknown_fields)]
pub enum Rollout {
    /// Replace all replicas, by what Model and BackendRuntime say now.
    Restart,
    /// Leave replicas of older revisions as they are.
    Pause,
    /// Go on.
    Resume,
    /// Go back.
    Undo {
        /// To the revision of that name or number; to the one before the present one when absent.
        to: Option<String>,
    },
}

/// `GET /mesh/jobs/CLUSTER/NAMESPACE/NAME/rollout`: where replacing the replicas stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutStatus {
    /// Where.
    pub state: RolloutState,
    /// For people.
    pub message: String,
    /// What it can be undone to, newest first.
    pub revisions: Vec<JobRevision>,
}

/// Where replacing the replicas of a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutState {
    /// The orchestrator has not seen the last change yet.
    Unseen,
    /// It goes on.
    Going,
    /// It does not.
    Stuck,
    /// Every replica is of the newest revision, and serves.
    Done,
}

/// What the replicas of a job were made from once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRevision {
    /// Counts up.
    pub number: i64,
    /// Name of the object that holds it.
    pub name: String,
    /// Whether it is the one that is wanted.
    pub current: bool,
}

/// `POST /mesh/jobs-models/CLUSTER`: a model that jobs can name from then on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddModel {
    /// What clients call it.
    pub served: String,
    /// `hf://ORG/NAME[@REVISION]`, `modelscope://ORG/NAME[@REVISION]`, or a URI of a bucket or web server.
    pub source: String,
    /// The one file of it that is wanted, of a hub's repository.
    pub file: Option<String>,
    /// The model whose flavors it gets; those for models that are made by themselves when absent.
    pub flavors_of: Option<String>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Which.
    pub id: JobName,
    /// The model that it serves.
    pub model: String,
    /// The engine's kind.
    pub runtime: String,
    /// Replicas that are wanted.
    pub wanted: u32,
    /// Replicas that serve.
    pub ready: u32,
    /// Replicas of the newest revision.
    pub updated: u32,
    /// Whether replacing is paused.
    pub paused: bool,
    /// It is being ended.
    pub ending: bool,
    /// What is wrong or under way, for people; empty when all is well.
    pub message: String,
    /// Unix seconds.
    pub created: u64,
    /// Its replicas; left out in listings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<JobReplica>,
}

/// A replica of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReplica {
    /// Its pod's name.
    pub name: String,
    /// `Pending`, `Placing`, `Pulling`, `Loading`, `Ready`, `Draining`, `Failed`.
    pub phase: String,
    /// Its hardware.
    pub flavor: Option<String>,
    /// Its machine.
    pub node: Option<String>,
    /// Its name in the mesh, once it has joined.
    pub peer: Option<String>,
    /// How far loading has come, per cent.
    pub progress: Option<u8>,
    /// Why it stands there.
    pub message: Option<String>,
}

/// A model that jobs can name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobModel {
    /// Of which cluster.
    pub cluster: String,
    /// Name of the object.
    pub name: String,
    /// What clients call it.
    pub served: String,
    /// Where its weights come from, for people.
    pub source: String,
    /// Names of its flavors, best first.
    pub flavors: Vec<String>,
}

/// What an orchestrator says instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// For people: what is wrong, and what to do.
    pub problem: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_by_three_labels() {
        let name: JobName = "eu-1/team-a/qwen3".parse().unwrap();
        assert_eq!((name.cluster.as_str(), name.namespace.as_str(), name.name.as_str()), ("eu-1", "team-a", "qwen3"));
        assert_eq!(name.to_string(), "eu-1/team-a/qwen3");
        for wrong in ["", "a/b", "a/b/c/d", "a//c", "A/b/c", "a/b/c-", "a/../c", "a/b/%2e", "a/b/c d"] {
            assert!(wrong.parse::<JobName>().is_err(), "{wrong}");
        }
    }
}
