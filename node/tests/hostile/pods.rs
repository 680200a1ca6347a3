//! Pods that join with their tokens, and those who try with what isn't theirs.

use crate::{
    over_tcp_and_quic,
    raw::Raw,
    victim::{SOON, Victim},
};
use dunlin_node::{
    clock, join,
    pods::{Pod, PodAdmission, Pods, Review, Standing, Unavailable},
};
use dunlin_protocol::{
    hello::{Hello, PodRequest, Refusal, pod_audience},
    id::{MeshId, PeerId, Role, Roles},
    pattern::Models,
};
use futures::{FutureExt, future::BoxFuture};
use libp2p::{Multiaddr, identity::Keypair, multiaddr::Protocol};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

over_tcp_and_quic!(
    a_pod_on_record_becomes_an_agent_of_its_model,
    a_token_for_something_else_gives_nothing,
    a_token_of_a_pod_that_has_gone_gives_nothing,
    a_token_from_another_pod_gives_nothing,
    a_pod_that_is_on_no_record_gives_nothing,
    only_the_orchestrators_namespace_has_proxies,
    a_peer_that_was_revoked_does_not_come_back,
    a_flood_of_tokens_is_stemmed,
    a_cluster_that_does_not_answer_is_not_waited_for,
    a_member_that_is_no_orchestrator_says_so,
);

const OWN_NAMESPACE: &str = "dunlin-system";

/// A cluster as the trait shows it: tokens with their audience and pod, and the orchestrator's record.
#[derive(Default)]
struct Cluster {
    tokens: Mutex<HashMap<String, (String, Pod)>>,
    alive: Mutex<HashMap<String, bool>>,
    record: Mutex<HashMap<String, Standing>>,
    bound: Mutex<HashMap<String, PeerId>>,
    reviews: AtomicUsize,
    hangs: Mutex<bool>,
}

impl Cluster {
    /// A pod that runs, with a token for `audience`.
    fn run(&self, namespace: &str, name: &str, audience: &str) -> String {
        let pod = Pod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: format!("uid-of-{namespace}-{name}"),
            service_account: "default".to_owned(),
        };
        let token = format!("token-of-{namespace}-{name}-for-{audience}");
        self.alive.lock().unwrap().insert(pod.uid.clone(), true);
        self.tokens.lock().unwrap().insert(token.clone(), (audience.to_owned(), pod));
        token
    }

    fn note(&self, namespace: &str, name: &str, roles: &[Role], models: Models) {
        let standing = Standing { roles: roles.iter().copied().collect(), models, name: None };
        self.record.lock().unwrap().insert(format!("uid-of-{namespace}-{name}"), standing);
    }
}

struct Shown(Arc<Cluster>);

impl Pods for Shown {
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> BoxFuture<'a, Result<Review, Unavailable>> {
        async move {
            self.0.reviews.fetch_add(1, Ordering::Relaxed);
            if *self.0.hangs.lock().unwrap() {
                std::future::pending::<()>().await;
            }
            let Some((of, pod)) = self.0.tokens.lock().unwrap().get(token).cloned() else {
                return Ok(Review::Bad("unknown".to_owned()));
            };
            if !self.0.alive.lock().unwrap()[&pod.uid] {
                return Ok(Review::Bad("pod is gone".to_owned()));
            }
            // As an API server does: of the audiences asked for, those of the token.
            if of == audience {
                Ok(Review::Good { audiences: vec![of], pod: Some(pod) })
            } else {
                Ok(Review::Bad("token audiences is invalid".to_owned()))
            }
        }
        .boxed()
    }

    fn standing<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<Option<Standing>, Unavailable>> {
        async move { Ok(self.0.record.lock().unwrap().get(&pod.uid).cloned()) }.boxed()
    }

    fn bind<'a>(&'a self, pod: &'a Pod, peer: PeerId) -> BoxFuture<'a, Result<bool, Unavailable>> {
        async move { Ok(*self.0.bound.lock().unwrap().entry(pod.uid.clone()).or_insert(peer) == peer) }.boxed()
    }
}

struct Case {
    victim: Victim,
    cluster: Arc<Cluster>,
    mesh: MeshId,
    orchestrator: Multiaddr,
}

impl Case {
    async fn new(listen: &str) -> Self {
        let cluster = Arc::<Cluster>::default();
        let pods = PodAdmission::new(Shown(Arc::clone(&cluster)), OWN_NAMESPACE.to_owned());
        let victim = Victim::start_with(listen, Some(pods)).await;
        let orchestrator = victim.address.clone().with(Protocol::P2p(victim.peer));
        Self { mesh: victim.members.mesh(), cluster, orchestrator, victim }
    }

    fn audience(&self) -> String {
        pod_audience(&self.mesh)
    }

    async fn join(&self, token: &str, key: &Keypair) -> Result<dunlin_protocol::certificate::Membership, join::Error> {
        let places = [self.orchestrator.clone()];
        join::join_as_pod(self.mesh, token, &places, key, SOON).await.map(|(_, membership)| membership)
    }

    async fn refusal(&self, token: &str) -> Refusal {
        self.refusal_of(token, &Keypair::generate_ed25519()).await
    }

    async fn refusal_of(&self, token: &str, key: &Keypair) -> Refusal {
        match self.join(token, key).await {
            Err(join::Error::Refused(refusal)) => refusal,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    /// An agent's pod of team-a, for models of Qwen's.
    fn agent(&self) -> String {
        let models = Models::Only(vec!["Qwen/*".parse().unwrap()]);
        self.cluster.note("team-a", "qwen-0-1", &[Role::Agent], models);
        self.cluster.run("team-a", "qwen-0-1", &self.audience())
    }
}

async fn a_pod_on_record_becomes_an_agent_of_its_model(listen: &str) {
    let mut case = Case::new(listen).await;
    let (token, key) = (case.agent(), Keypair::generate_ed25519());
    let membership = case.join(&token, &key).await.unwrap();
    assert_eq!(membership.roles, Roles::from_iter([Role::Agent]));
    assert!(membership.may_serve(&"Qwen/Qwen3-8B".parse().unwrap()));
    assert!(!membership.may_serve(&"meta/Llama".parse().unwrap()), "a model that is not its own");
    let life = membership.not_after - clock::unix_s();
    assert!(life <= 7 * 86_400 && life > 6 * 86_400, "{life}");
    // Its container was restarted before the certificate was stored.
    assert!(case.join(&token, &key).await.is_ok(), "the same peer may ask again");
    case.victim.assert_still_serves_after(2).await;
}

async fn a_token_for_something_else_gives_nothing(listen: &str) {
    let case = Case::new(listen).await;
    case.agent();
    for audience in ["https://kubernetes.default.svc", "dunlin.dev/0000", "vault"] {
        let token = case.cluster.run("team-a", "qwen-0-1", audience);
        assert_eq!(case.refusal(&token).await, Refusal::TokenRefused, "{audience}");
    }
    assert_eq!(case.refusal("nonsense").await, Refusal::TokenRefused);
    let key = Keypair::generate_ed25519();
    for (mesh, token, refusal) in [
        (MeshId([1; 32]), "t".to_owned(), Refusal::WrongMesh),
        (case.mesh, String::new(), Refusal::Malformed),
        (case.mesh, "x".repeat(20_000), Refusal::Malformed),
    ] {
        let mut raw = Raw::connect(&key, &case.victim.address).await;
        assert_eq!(raw.refusal(&Hello::Pod(PodRequest { mesh, token })).await, refusal);
    }
}

async fn a_token_of_a_pod_that_has_gone_gives_nothing(listen: &str) {
    let case = Case::new(listen).await;
    let token = case.agent();
    case.cluster.alive.lock().unwrap().insert("uid-of-team-a-qwen-0-1".to_owned(), false);
    assert_eq!(case.refusal(&token).await, Refusal::TokenRefused);
}

async fn a_token_from_another_pod_gives_nothing(listen: &str) {
    let case = Case::new(listen).await;
    let token = case.agent();
    case.join(&token, &Keypair::generate_ed25519()).await.unwrap();
    assert_eq!(case.refusal(&token).await, Refusal::PodTaken, "somebody else came with it");
}

async fn a_pod_that_is_on_no_record_gives_nothing(listen: &str) {
    let case = Case::new(listen).await;
    let token = case.cluster.run("team-a", "made-up", &case.audience());
    assert_eq!(case.refusal(&token).await, Refusal::PodUnknown);
    // It may be put on record a moment later: it need not wait.
    case.cluster.note("team-a", "made-up", &[Role::Agent], Models::Any);
    assert!(case.join(&token, &Keypair::generate_ed25519()).await.is_ok());
}

async fn only_the_orchestrators_namespace_has_proxies(listen: &str) {
    let case = Case::new(listen).await;
    for (namespace, roles, allowed) in [
        ("team-a", &[Role::Proxy][..], false),
        ("team-a", &[Role::Agent, Role::Relay], false),
        (OWN_NAMESPACE, &[Role::Proxy], true),
        (OWN_NAMESPACE, &[Role::Relay], true),
        (OWN_NAMESPACE, &[Role::Orchestrator], false),
        (OWN_NAMESPACE, &[Role::Operator], false),
        (OWN_NAMESPACE, &[], false),
    ] {
        let name = format!("{roles:?}").to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        case.cluster.note(namespace, &name, roles, Models::Any);
        let token = case.cluster.run(namespace, &name, &case.audience());
        match case.join(&token, &Keypair::generate_ed25519()).await {
            Ok(membership) => assert!(allowed && membership.roles == roles.iter().copied().collect()),
            Err(join::Error::Refused(refusal)) => {
                assert!(!allowed && refusal == Refusal::NotAllowed, "{namespace} {roles:?}")
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

async fn a_peer_that_was_revoked_does_not_come_back(listen: &str) {
    let case = Case::new(listen).await;
    let (token, key) = (case.agent(), Keypair::generate_ed25519());
    let membership = case.join(&token, &key).await.unwrap();
    let revocation = case.victim.issuer.revoke(membership.peer, membership.issued_at, clock::unix_s()).unwrap();
    case.victim.members.revoke_own(revocation).unwrap();
    assert_eq!(case.refusal_of(&token, &key).await, Refusal::Revoked);
}

/// How many different ones get through is a matter of `pods::gate`; the same one is reviewed once, whoever comes with it.
async fn a_flood_of_tokens_is_stemmed(listen: &str) {
    let mut case = Case::new(listen).await;
    let token = case.agent();
    for _ in 0..12 {
        assert_eq!(case.refusal("made-up").await, Refusal::TokenRefused);
    }
    assert_eq!(case.cluster.reviews.load(Ordering::Relaxed), 1);
    assert!(case.join(&token, &Keypair::generate_ed25519()).await.is_ok(), "the real one gets in meanwhile");
    case.victim.assert_still_serves_after(13).await;
}

async fn a_cluster_that_does_not_answer_is_not_waited_for(listen: &str) {
    let mut case = Case::new(listen).await;
    let token = case.agent();
    *case.cluster.hangs.lock().unwrap() = true;
    let started = std::time::Instant::now();
    assert!(case.join(&token, &Keypair::generate_ed25519()).await.is_err());
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    case.victim.assert_still_serves_after(1).await;
}

async fn a_member_that_is_no_orchestrator_says_so(listen: &str) {
    let victim = Victim::start(listen).await;
    let key = Keypair::generate_ed25519();
    let mut raw = Raw::connect(&key, &victim.address).await;
    let request = PodRequest { mesh: victim.members.mesh(), token: "t".to_owned() };
    assert_eq!(raw.refusal(&Hello::Pod(request)).await, Refusal::NoPods);
}
