//! The rights that the shipped manifests give the orchestrator. Every scenario on the server in memory runs with these, and
//! fails when a call needs more; the one here sees to it that there are none that no call needs.

use crate::{
    examples::{documents, root},
    harness::{Cluster, condition, needs_fake, until},
    trouble::names_that_are_taken,
};
use dunlin_k8s::{
    controller::Config,
    jobs::{AutoModels, Jobs},
    pods::{Accounts, Cluster as Admission},
    roster::Roster,
};
use dunlin_k8s_fake::{Call, Fake};
use dunlin_node::pods::{Pods, Review};
use dunlin_protocol::jobs::{AddModel, Deploy, Rollout};
use k8s_openapi::{
    api::rbac::v1::{ClusterRole, PolicyRule, Role},
    jiff::Timestamp,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// Group, resource with subresource, verb.
type Right = (String, String, String);

/// Which rules give a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// Of the lease, in the orchestrator's own namespace.
    Lease,
    /// In namespaces where it makes pods.
    Namespace,
    /// Everywhere.
    Cluster,
}

/// Asked for by an admission plugin (OwnerReferencesPermissionEnforcement), where it is on, about owners whose end is blocked;
/// no call needs it by itself.
const OF_ADMISSION: (&str, &str, &str) = ("dunlin.dev", "playgrounds/finalizers", "update");

/// The rules of the orchestrator's roles. A namespace of a scenario is both its own and one that it makes pods in.
struct Rules(Vec<(Scope, PolicyRule)>);

impl Rules {
    fn shipped() -> Self {
        let all = documents(&root().join("k8s/install.yaml"));
        let of_cluster = |name: &str| named::<ClusterRole>(&all, "ClusterRole", name).rules.unwrap_or_default();
        let lease = named::<Role>(&all, "Role", "dunlin-orchestrator-lease").rules.unwrap_or_default();
        let scopes = [
            (Scope::Lease, lease),
            (Scope::Namespace, of_cluster("dunlin-orchestrator-namespace")),
            (Scope::Cluster, of_cluster("dunlin-orchestrator")),
        ];
        Self(scopes.into_iter().flat_map(|(scope, rules)| rules.into_iter().map(move |rule| (scope, rule))).collect())
    }

    /// The narrowest rules that allow a call.
    fn allow(&self, call: &Call) -> Option<Scope> {
        let right = right(call);
        let allows = |(scope, rule): &&(Scope, PolicyRule)| {
            let names = rule.resource_names.as_deref().unwrap_or_default();
            (*scope == Scope::Cluster || !call.namespace.is_empty())
                && rights(rule).any(|given| given == right)
                && (names.is_empty() || names.contains(&call.name))
        };
        self.0.iter().find(allows).map(|(scope, _)| *scope)
    }

    fn all(&self) -> impl Iterator<Item = (Scope, Right)> {
        self.0.iter().flat_map(|(scope, rule)| rights(rule).map(|right| (*scope, right)))
    }
}

fn named<K: DeserializeOwned>(all: &[Value], kind: &str, name: &str) -> K {
    let found = all.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    serde_json::from_value(found.unwrap_or_else(|| panic!("no {kind} {name}")).clone()).unwrap()
}

fn right(call: &Call) -> Right {
    (call.group.clone(), call.resource(), call.verb.name().to_owned())
}

fn rights(rule: &PolicyRule) -> impl Iterator<Item = Right> {
    let groups = rule.api_groups.as_deref().unwrap_or_default().iter();
    groups.flat_map(move |group| {
        let resources = rule.resources.as_deref().unwrap_or_default().iter();
        resources.flat_map(move |resource| {
            rule.verbs.iter().map(move |verb| (group.clone(), resource.clone(), verb.clone()))
        })
    })
}

/// What orchestrators asked of a server.
#[derive(Default)]
struct Asked {
    allowed: BTreeSet<(Scope, Right)>,
    refused: BTreeSet<String>,
}

/// A server that gives orchestrators the shipped rights, and takes down what they asked for.
#[derive(Clone, Default)]
pub(crate) struct Guard(Arc<Mutex<Asked>>);

impl Guard {
    /// From now on. The test itself and the player of kubelets may do anything.
    pub(crate) fn of(fake: &Fake) -> Self {
        let (rules, guard) = (Rules::shipped(), Self::default());
        let asked = guard.0.clone();
        fake.allow(move |call| {
            if ["test", "simulator"].contains(&call.client) {
                return true;
            }
            let (allowed, mut asked) = (rules.allow(call), asked.lock().unwrap());
            match allowed {
                Some(scope) => asked.allowed.insert((scope, right(call))),
                None => asked.refused.insert(call.to_string()),
            };
            allowed.is_some()
        });
        guard
    }

    /// Fails when something was asked for that the shipped rights don't give.
    pub(crate) fn has_refused_nothing(&self) {
        let asked = self.0.lock().unwrap();
        assert!(asked.refused.is_empty(), "the roles of k8s/chart don't allow {:?}", asked.refused);
    }
}

/// All that an orchestrator is there for, once; its calls are all that its roles allow.
#[tokio::test]
async fn every_right_of_the_shipped_roles_is_used() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator_with(Config { namespace: None, ..cluster.config("one") }, "orchestrator");
    names_that_are_taken(&cluster).await;
    // Seven revisions, of which five are kept.
    for seed in 0..7 {
        cluster.change("chat", json!({"runtime": {"args": [format!("--seed={seed}")]}})).await;
        cluster.serves("chat", 1).await;
    }
    // The same trouble twice: one Event, and then its count.
    for model in ["nothing", &cluster.namespace, "nothing"] {
        let reason = if model == "nothing" { "ModelNotFound" } else { "Complete" };
        cluster.change("chat", json!({ "model": model })).await;
        cluster.settles("chat", reason, |status| condition(status, "Progressing").1 == reason).await;
    }
    steer(&cluster).await;
    let client = cluster.fake_server().client("orchestrator");
    let admission = Admission::new(client, Accounts::default(), Roster::default());
    assert!(matches!(admission.review("nobody's", "dunlin.dev/mesh").await, Ok(Review::Bad(_))));
    cluster.delete("chat").await;
    orchestrator.stop().await;

    let used = cluster.guard.0.lock().unwrap().allowed.clone();
    let (group, resource, verb) = OF_ADMISSION;
    let of_admission = (group.to_owned(), resource.to_owned(), verb.to_owned());
    let unused = |(scope, right): &(Scope, Right)| !used.contains(&(*scope, right.clone())) && *right != of_admission;
    let unused: Vec<(Scope, Right)> = Rules::shipped().all().filter(unused).collect();
    assert!(unused.is_empty(), "no call needs {unused:?}");
    cluster.clean().await;
}

/// What operators may ask for.
async fn steer(cluster: &Cluster) {
    let namespace = cluster.namespace.as_str();
    let jobs = Jobs::new(cluster.fake_server().client("orchestrator"), "here".to_owned(), None, AutoModels::default());
    let order = Deploy {
        model: format!("org/{namespace}"),
        name: Some("job".to_owned()),
        namespace: namespace.to_owned(),
        runtime: Some(namespace.to_owned()),
        ..Deploy::default()
    };
    jobs.deploy(&order).await.unwrap();
    jobs.scale(namespace, "job", 0).await.unwrap();
    assert_eq!(jobs.list(|_| true).await.unwrap().len(), 2);
    let other = AddModel {
        served: "org/other".to_owned(),
        source: "hf://org/other".to_owned(),
        flavors_of: Some(namespace.to_owned()),
        ..AddModel::default()
    };
    let made = jobs.add(&other).await.unwrap();
    assert!(jobs.models().await.unwrap().iter().any(|model| model.name == made));
    let object = |kind: &str, spec: Value| {
        let metadata =
            json!({"name": "applied", "namespace": if kind == "Model" { Value::Null } else { namespace.into() }});
        json!({"apiVersion": "dunlin.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
    };
    let model = json!({"servedName": "applied", "source": {"uri": "s3://b/m"}, "flavors": [{"name": "any"}]});
    jobs.apply(&object("Model", model), |_| true).await.unwrap();
    jobs.apply(&object("Playground", json!({"model": "applied", "replicas": 0})), |_| true).await.unwrap();
    jobs.rollout(namespace, "job", Rollout::Restart, Timestamp::now()).await.unwrap();
    until("the job has a revision", async || {
        jobs.progress(namespace, "job").await.is_ok_and(|progress| !progress.revisions.is_empty())
    })
    .await;
    jobs.delete(namespace, "job").await.unwrap();
}

/// Where the platform gave it no rights, it says so where its user looks.
#[tokio::test]
async fn a_namespace_that_is_not_its_own_is_told() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let rules = Rules::shipped();
    let bound = Arc::new(AtomicBool::new(false));
    let is_bound = bound.clone();
    cluster.fake_server().allow(move |call| {
        let free = call.client == "test" || call.client == "simulator" || call.plural == "leases";
        free || rules.allow(call).is_some_and(|scope| scope == Scope::Cluster || is_bound.load(Ordering::Relaxed))
    });
    let orchestrator = cluster.orchestrator_with(Config { namespace: None, ..cluster.config("one") }, "orchestrator");
    cluster.playground("chat", 1, json!({})).await;
    let status = cluster.settles("chat", "the refusal", |status| condition(status, "Progressing").1 == "Refused").await;
    let (going, _, message) = condition(&status, "Progressing");
    assert!(going == "False" && message.contains("RoleBinding"), "{message}");
    bound.store(true, Ordering::Relaxed);
    cluster.serves("chat", 1).await;
    cluster.settles("chat", "the end of it", |status| condition(status, "Progressing").1 == "Complete").await;
    orchestrator.stop().await;
    cluster.clean().await;
}
