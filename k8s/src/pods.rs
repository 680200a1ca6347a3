//! Pods that want to join the mesh: whose token it is, by the API server; what the pod is to be, by the orchestrator's own
//! record ([`Roster`]). Labels and owners of pods count for nothing: whoever may write into
//! a namespace can write those.

use crate::roster::{Recorded, Roster};
use dunlin_node::pods::{Pod, Pods, Review, Standing, Unavailable};
use dunlin_protocol::{
    id::{Name, PeerId, Role, Roles},
    pattern::{Models, Pattern},
};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::{Api, Client, api::PostParams};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// What the API server adds to a user who is a pod.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// How the name of such a user begins.
const ACCOUNT: &str = "system:serviceaccount:";
/// Pods of its own, proxies and relays, whose peers are remembered. There are as many as somebody asked the chart for.
const OWN: usize = 1_024;

/// Pods that are no replicas but the platform's own, by their ServiceAccounts.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    /// The orchestrator's namespace.
    pub namespace: String,
    /// Of the proxies.
    pub proxy: Option<String>,
    /// Of the relays.
    pub relay: Option<String>,
}

/// The API server, and what is on record.
pub struct Cluster {
    client: Client,
    accounts: Accounts,
    roster: Roster,
    own: Mutex<HashMap<String, PeerId>>,
}

impl Cluster {
    /// Asks through `client`; what is on record stands in `roster`.
    #[must_use]
    pub fn new(client: Client, accounts: Accounts, roster: Roster) -> Self {
        Self { client, accounts, roster, own: Mutex::default() }
    }

    async fn review_token(&self, token: &str, audience: &str) -> Result<Review, kube::Error> {
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![audience.to_owned()]) };
        let asked = TokenReview { spec, ..TokenReview::default() };
        let answer = Api::<TokenReview>::all(self.client.clone()).create(&PostParams::default(), &asked).await?;
        Ok(understand(answer.status.unwrap_or_default()))
    }

    fn replica(&self, pod: &Pod) -> Option<Standing> {
        let Recorded { name, model, .. } = self.roster.replica(&pod.namespace, &pod.uid)?;
        Some(Standing {
            roles: Roles::from_iter([Role::Agent]),
            models: Models::Only(vec![Pattern::new(&model).ok()?]),
            name: Name::new(&name).ok(),
        })
    }

    fn own(&self, pod: &Pod) -> Option<Standing> {
        let Accounts { namespace, proxy, relay } = &self.accounts;
        if pod.namespace != *namespace {
            return None;
        }
        let is = |account: &Option<String>| account.as_ref() == Some(&pod.service_account);
        let roles = [(is(proxy), Role::Proxy), (is(relay), Role::Relay)];
        let roles: Roles = roles.into_iter().filter(|(is, _)| *is).map(|(_, role)| role).collect();
        (roles != Roles::NONE).then(|| Standing {
            roles,
            models: Models::Only(Vec::new()),
            name: Name::new(&pod.name).ok(),
        })
    }
}

fn understand(status: TokenReviewStatus) -> Review {
    if status.authenticated != Some(true) {
        return Review::Bad(status.error.unwrap_or_else(|| "not authenticated".to_owned()).chars().take(200).collect());
    }
    let user = status.user.unwrap_or_default();
    let extra = user.extra.unwrap_or_default();
    let one = |key: &str| extra.get(key).and_then(|values| values.first()).cloned();
    let account = user.username.as_deref().and_then(|name| name.strip_prefix(ACCOUNT)?.split_once(':'));
    let pod = account.zip(one(POD_NAME)).zip(one(POD_UID)).map(|(((namespace, account), name), uid)| Pod {
        namespace: namespace.to_owned(),
        name,
        uid,
        service_account: account.to_owned(),
    });
    Review::Good { audiences: status.audiences.unwrap_or_default(), pod }
}

fn unavailable(error: kube::Error) -> Unavailable {
    // Requests are not part of what it says.
    Unavailable(error.to_string())
}

impl Pods for Cluster {
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> BoxFuture<'a, Result<Review, Unavailable>> {
        async move { self.review_token(token, audience).await.map_err(unavailable) }.boxed()
    }

    fn standing<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<Option<Standing>, Unavailable>> {
        async move { Ok(self.own(pod).or_else(|| self.replica(pod))) }.boxed()
    }

    fn bind<'a>(&'a self, pod: &'a Pod, peer: PeerId) -> BoxFuture<'a, Result<bool, Unavailable>> {
        async move {
            if self.own(pod).is_none() {
                return Ok(self.roster.bind(&pod.uid, peer).await);
            }
            let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            if own.len() >= OWN {
                own.clear();
            }
            Ok(*own.entry(pod.uid.clone()).or_insert(peer) == peer)
        }
        .boxed()
    }
}
