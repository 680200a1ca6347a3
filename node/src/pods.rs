//! Pods as members: a ServiceAccount token instead of an invitation.
//!
//! A pod shows the token that its kubelet projects for this mesh. The API server says whose it is, and whether that pod still
//! lives; the orchestrator's own record says what the pod is to be. Nothing that the pod says of itself counts, nor anything
//! that a user of its namespace could write. One pod is one peer: a token that is stolen after its pod has joined gives
//! nothing to anybody else.

mod gate;

use dunlin_protocol::{
    hello::{PodRequest, Refusal, pod_audience},
    id::{MeshId, Name, PeerId, Role, Roles},
    limits,
    pattern::Models,
};
use futures::future::BoxFuture;
use gate::Gate;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{sync::Semaphore, time::timeout};

/// Life of a pod's certificate.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Questions to the API server at once.
const QUESTIONS: usize = 8;
/// Longest wait for a turn to ask, and for the answers. Admission as a whole has three seconds.
const PATIENCE: Duration = Duration::from_millis(2_500);

/// A pod as the API server knows it from its token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Where it runs.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// No other pod ever has the same.
    pub uid: String,
    /// As whom it runs.
    pub service_account: String,
}

/// What a review of a token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Review {
    /// It is good for these audiences, and of this pod.
    Good {
        /// Of those that were asked for, the ones that the token is for.
        audiences: Vec<String>,
        /// Whose it is; `None` for a token that no pod has.
        pod: Option<Pod>,
    },
    /// It is not good, or no more.
    Bad(String),
}

/// What a pod is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Its roles.
    pub roles: Roles,
    /// What it may serve.
    pub models: Models,
    /// What other members see.
    pub name: Option<Name>,
}

/// The question could not be asked, or not be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// Who knows pods: the API server and the orchestrator's record in it.
pub trait Pods: Send + Sync + 'static {
    /// Whose token it is: a TokenReview that asks for one audience.
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> BoxFuture<'a, Result<Review, Unavailable>>;

    /// What the pod is on record as; `None` for one that is on no record, or shall not be a member any more.
    fn standing<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<Option<Standing>, Unavailable>>;

    /// Puts on record that `peer` speaks for the pod, unless another does: then `false`.
    fn bind<'a>(&'a self, pod: &'a Pod, peer: PeerId) -> BoxFuture<'a, Result<bool, Unavailable>>;
}

/// Admits pods. Cheap to clone.
#[derive(Clone)]
pub struct PodAdmission(Arc<Inner>);

impl fmt::Debug for PodAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodAdmission").field("own_namespace", &self.0.own_namespace).finish_non_exhaustive()
    }
}

struct Inner {
    pods: Box<dyn Pods>,
    /// Whose ServiceAccounts may be more than agents.
    own_namespace: String,
    gate: Mutex<Gate>,
    questions: Semaphore,
}

/// Why a pod was not admitted: what it is told, and what this side's log says.
pub(crate) type Refused = (Refusal, String);

impl PodAdmission {
    /// Asks `pods`. In `own_namespace`, the orchestrator's, pods may be proxies and relays as well.
    #[must_use]
    pub fn new(pods: impl Pods, own_namespace: String) -> Self {
        let (gate, questions) = (Mutex::default(), Semaphore::new(QUESTIONS));
        Self(Arc::new(Inner { pods: Box::new(pods), own_namespace, gate, questions }))
    }

    /// What `peer`, whose connection has proved its id, is to be in `mesh` by this request, and is on record as from now on.
    pub(crate) async fn examine(&self, peer: PeerId, request: &PodRequest, mesh: &MeshId) -> Result<Standing, Refused> {
        if request.mesh != *mesh {
            return Err((Refusal::WrongMesh, format!("a pod that means mesh {}", request.mesh)));
        }
        if request.token.is_empty() || request.token.len() > limits::POD_TOKEN_BYTES {
            return Err((Refusal::Malformed, format!("a token of {} bytes", request.token.len())));
        }
        let Ok(examined) = timeout(PATIENCE, self.0.examine(peer, &request.token, mesh)).await else {
            return Err((Refusal::Busy, format!("its token was not reviewed within {PATIENCE:?}")));
        };
        examined
    }
}

impl Inner {
    async fn examine(&self, peer: PeerId, token: &str, mesh: &MeshId) -> Result<Standing, Refused> {
        let pass = {
            let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
            gate.ask(token, Instant::now())
        };
        match pass {
            gate::Pass::Ask => {}
            gate::Pass::KnownBad => {
                return Err((Refusal::TokenRefused, "its token was refused a moment ago".to_owned()));
            }
            gate::Pass::TooMany => return Err((Refusal::Busy, "too many tokens to review".to_owned())),
        }
        // Never closed.
        let _turn = self.questions.acquire().await;
        let judged = self.judge(peer, token, mesh).await;
        if let Err((Refusal::TokenRefused, _)) = &judged {
            self.gate.lock().unwrap_or_else(PoisonError::into_inner).refused(token, Instant::now());
        }
        judged
    }

    async fn judge(&self, peer: PeerId, token: &str, mesh: &MeshId) -> Result<Standing, Refused> {
        let away = |Unavailable(cause)| (Refusal::Internal, format!("pods can't be looked up: {cause}"));
        let audience = pod_audience(mesh);
        let pod = match self.pods.review(token, &audience).await.map_err(away)? {
            Review::Bad(cause) => return Err((Refusal::TokenRefused, format!("its token is not good: {cause}"))),
            Review::Good { audiences, .. } if !audiences.contains(&audience) => {
                return Err((Refusal::TokenRefused, format!("its token is for {audiences:?}")));
            }
            Review::Good { pod: None, .. } => return Err((Refusal::TokenRefused, "its token is no pod's".to_owned())),
            Review::Good { pod: Some(pod), .. } => pod,
        };
        let unknown =
            || (Refusal::PodUnknown, format!("pod {}/{} ({}) is on no record", pod.namespace, pod.name, pod.uid));
        let standing = self.pods.standing(&pod).await.map_err(away)?.ok_or_else(unknown)?;
        let may_be = self.may_be(&pod);
        if !may_be.includes(standing.roles) || standing.roles == Roles::NONE {
            let cause = format!("pod {}/{} is to be {}, and may be {may_be}", pod.namespace, pod.name, standing.roles);
            return Err((Refusal::NotAllowed, cause));
        }
        if !self.pods.bind(&pod, peer).await.map_err(away)? {
            return Err((Refusal::PodTaken, format!("another peer speaks for pod {}/{}", pod.namespace, pod.name)));
        }
        Ok(standing)
    }

    /// Whoever may write into other namespaces must not be able to make proxies there, which see every prompt.
    fn may_be(&self, pod: &Pod) -> Roles {
        let agent = Roles::from_iter([Role::Agent]);
        if pod.namespace == self.own_namespace { agent.with(Role::Proxy).with(Role::Relay) } else { agent }
    }
}
