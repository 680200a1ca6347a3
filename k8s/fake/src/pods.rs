//! What is special about pods: quotas, grace periods, and tokens that live as long as they do.

use crate::{
    reply::Refusal,
    store::{Store, Target},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Checks a new pod against the quotas of its namespace, and gives it its first status.
pub(crate) fn admit(store: &Store, target: Target<'_>, pod: &mut Value) -> Result<(), Refusal> {
    let containers = pod["spec"]["containers"].as_array();
    if containers.is_none_or(Vec::is_empty) {
        let cause = ("spec.containers".to_owned(), "Required value".to_owned());
        return Err(Refusal::invalid("Pod", target.name, vec![cause]));
    }
    pod["status"] = json!({"phase": "Pending", "qosClass": "Burstable"});
    if pod["spec"]["terminationGracePeriodSeconds"].is_null() {
        pod["spec"]["terminationGracePeriodSeconds"] = 30.into();
    }
    let quotas: Vec<Value> = store.all("resourcequotas");
    let here = |object: &&Value| object["metadata"]["namespace"] == target.namespace;
    if !quotas.iter().any(|quota| here(&quota)) {
        return Ok(());
    }
    let pods: Vec<Value> = store.all("pods").into_iter().filter(|pod| here(&pod)).collect();
    for quota in quotas.iter().filter(here) {
        for (what, hard) in quota["status"]["hard"].as_object().into_iter().flatten() {
            let Some(asked) = amount(pod, what) else { continue };
            let used: i64 = pods.iter().filter_map(|pod| amount(pod, what)).sum();
            let hard: i64 = hard.as_str().and_then(|hard| hard.parse().ok()).unwrap_or(i64::MAX);
            if asked > 0 && used + asked > hard {
                let quota = quota["metadata"]["name"].as_str().unwrap_or_default();
                let message = format!(
                    "pods \"{}\" is forbidden: exceeded quota: {quota}, requested: {what}={asked}, used: {what}={used}, limited: {what}={hard}",
                    target.name
                );
                return Err(Refusal::new(403, "Forbidden", message));
            }
        }
    }
    Ok(())
}

/// What a pod takes of a quota's resource.
fn amount(pod: &Value, what: &str) -> Option<i64> {
    if what == "pods" || what == "count/pods" {
        return Some(1);
    }
    let resource = what.strip_prefix("requests.")?;
    let containers = pod["spec"]["containers"].as_array()?;
    let asked = |container: &Value| container["resources"]["requests"][resource].as_str()?.parse::<i64>().ok();
    Some(containers.iter().filter_map(asked).sum())
}

/// How long a deleted object stays, seconds: only a pod on a node does.
pub(crate) fn grace(target: Target<'_>, live: &Value, options: &Value) -> i64 {
    let runs = live["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty())
        && !["Succeeded", "Failed"].contains(&live["status"]["phase"].as_str().unwrap_or_default());
    if target.kind.plural != "pods" || !runs {
        return 0;
    }
    let asked = options["gracePeriodSeconds"].as_i64();
    asked.or_else(|| live["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30)
}

/// Tokens of service accounts that were given out: audiences, and the pod that they are bound to.
#[derive(Default)]
pub(crate) struct Tokens(BTreeMap<String, Token>);

struct Token {
    audiences: Vec<String>,
    namespace: String,
    account: String,
    pod: Option<(String, String)>,
}

impl Tokens {
    /// `POST serviceaccounts/{account}/token`.
    pub(crate) fn give(&mut self, namespace: &str, account: &str, request: &Value) -> Value {
        let token = format!("token-{}", self.0.len() + 1);
        let audiences = request["spec"]["audiences"].as_array().into_iter().flatten();
        let bound = &request["spec"]["boundObjectRef"];
        let pod = bound["name"].as_str().zip(bound["uid"].as_str());
        self.0.insert(
            token.clone(),
            Token {
                audiences: audiences.filter_map(|audience| audience.as_str().map(str::to_owned)).collect(),
                namespace: namespace.to_owned(),
                account: account.to_owned(),
                pod: pod.map(|(name, uid)| (name.to_owned(), uid.to_owned())),
            },
        );
        let mut answer = request.clone();
        answer["status"] = json!({"token": token, "expirationTimestamp": crate::store::now()});
        answer
    }
}

/// `POST tokenreviews`: a token counts for its audience, while its pod is there.
pub(crate) fn review(store: &Store, request: &Value) -> Value {
    let mut answer = request.clone();
    answer["status"] = json!({"authenticated": false, "error": "invalid bearer token"});
    let token = request["spec"]["token"].as_str().and_then(|token| store.tokens.0.get(token));
    let Some(token) = token else { return answer };
    let asked: Vec<&str> =
        request["spec"]["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let audiences: Vec<&str> = token
        .audiences
        .iter()
        .map(String::as_str)
        .filter(|audience| asked.is_empty() || asked.contains(audience))
        .collect();
    let pod_lives = token.pod.as_ref().is_none_or(|(name, uid)| {
        store.stored("pods", &token.namespace, name).is_some_and(|pod| pod["metadata"]["uid"] == uid.as_str())
    });
    if audiences.is_empty() || !pod_lives {
        return answer;
    }
    let mut extra = json!({});
    if let Some((name, uid)) = &token.pod {
        extra = json!({"authentication.kubernetes.io/pod-name": [name], "authentication.kubernetes.io/pod-uid": [uid]});
    }
    let username = format!("system:serviceaccount:{}:{}", token.namespace, token.account);
    answer["status"] = json!({
        "authenticated": true, "audiences": audiences,
        "user": {"username": username, "uid": "", "groups": ["system:serviceaccounts"], "extra": extra},
    });
    answer
}
