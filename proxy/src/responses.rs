//! Which replica holds which stored response, and whose it is: engines keep them in memory, each its own.
//!
//! What this proxy does not know, another may: behind a load balancer the next request of a conversation comes to
//! whichever. So the others are asked, once and shortly.

use crate::auth::Tenant;
use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    routing::get,
};
use bytes::Bytes;
use dunlin_node::{
    Handle,
    hop::{Body, ResponseBody},
};
use dunlin_protocol::{
    announcement::root_tag,
    hop,
    id::{ModelId, PeerId, ReplicaId, Role},
};
use futures::{StreamExt, stream::FuturesUnordered};
use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::time;

/// Responses that are known at once; the oldest are forgotten first. Some 150 bytes each.
const ENTRIES: usize = 64 * 1024;
/// How long one is known.
const LIFE: Duration = Duration::from_secs(24 * 3600);
/// Longest id that is remembered, bytes.
const ID_BYTES: usize = 256;
/// How long other proxies have to answer.
const ASKING: Duration = Duration::from_millis(200);
/// Proxies that are asked at most.
const ASKED: usize = 16;
/// Largest answer of one, bytes.
const ANSWER: usize = 4 << 10;

/// Where a response is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    peer: PeerId,
    index: u16,
    pub(crate) model: ModelId,
}

impl Place {
    /// Who holds it.
    pub(crate) fn replica(&self) -> ReplicaId {
        ReplicaId { peer: self.peer, index: self.index }
    }
}

/// What this proxy knows. Cheap to clone; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Responses(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Arc<str>, Entry>,
    /// By age, with ids that may have gone or come again since.
    order: VecDeque<(Instant, Arc<str>)>,
}

#[derive(Debug, Clone)]
struct Entry {
    place: Place,
    tenant: u64,
    since: Instant,
}

impl Table {
    fn insert(&mut self, id: &str, entry: Entry) {
        let now = entry.since;
        let outlived = |since: &Instant| now.saturating_duration_since(*since) >= LIFE;
        while self.order.len() >= ENTRIES || self.order.front().is_some_and(|(since, _)| outlived(since)) {
            let Some((since, id)) = self.order.pop_front() else { break };
            if self.entries.get(&id).is_some_and(|entry| entry.since == since) {
                self.entries.remove(&id);
            }
        }
        let id: Arc<str> = id.into();
        self.order.push_back((now, id.clone()));
        self.entries.insert(id, entry);
    }

    /// `None` also of one that is somebody else's: that it exists is none of the asker's business.
    fn get(&self, id: &str, tenant: u64, now: Instant) -> Option<&Place> {
        let entry = self.entries.get(id)?;
        let counts = entry.tenant == tenant && now.saturating_duration_since(entry.since) < LIFE;
        counts.then_some(&entry.place)
    }
}

/// Whose a response is, the same on each proxy of the mesh.
pub(crate) fn tag(tenant: &Tenant) -> u64 {
    match tenant {
        Tenant::Owner => root_tag("owner"),
        Tenant::Key(id) => root_tag(&format!("key {id}")),
        Tenant::Address(address) => root_tag(&format!("address {address}")),
    }
}

impl Responses {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Set in one step: nothing that a panic elsewhere could leave half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `replica` gave `tenant` the response `id`.
    pub(crate) fn given(&self, id: &str, replica: ReplicaId, model: &ModelId, tenant: u64, now: Instant) {
        if id.len() > ID_BYTES {
            return;
        }
        let place = Place { peer: replica.peer, index: replica.index, model: model.clone() };
        self.table().insert(id, Entry { place, tenant, since: now });
    }

    /// It is no more.
    pub(crate) fn forget(&self, id: &str) {
        self.table().entries.remove(id);
    }

    /// Where `tenant`'s response `id` is, as far as this proxy or another knows.
    pub(crate) async fn find(&self, id: &str, tenant: u64, handle: &Handle) -> Option<Place> {
        let own = self.table().get(id, tenant, Instant::now()).cloned();
        if own.is_some() || id.len() > ID_BYTES || !id.bytes().all(is_plain) {
            return own;
        }
        let found = time::timeout(ASKING, ask_others(id, tenant, handle)).await.ok().flatten()?;
        self.given(id, found.replica(), &found.model, tenant, Instant::now());
        Some(found)
    }

    /// What other proxies are told, for [`dunlin_node::Node::start`].
    pub fn routes(&self) -> Router {
        Router::new().route(&format!("{}{{id}}", hop::RESPONSES), get(tell)).with_state(self.clone())
    }
}

/// Ids are put into a path.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

#[derive(Deserialize)]
struct Asked {
    tenant: u64,
}

async fn tell(
    State(responses): State<Responses>,
    Path(id): Path<String>,
    Query(Asked { tenant }): Query<Asked>,
) -> Result<Json<Place>, StatusCode> {
    let known = responses.table().get(&id, tenant, Instant::now()).cloned();
    known.map(Json).ok_or(StatusCode::NOT_FOUND)
}

/// The first that knows it.
async fn ask_others(id: &str, tenant: u64, handle: &Handle) -> Option<Place> {
    // By their certificates: who plays the role registers for agents to find, which proxies don't look for.
    let others: Vec<PeerId> = handle.directory().read(|directory| {
        let may = directory.peers().filter(|view| view.rights.is_some_and(|of| of.roles.contains(Role::Proxy)));
        may.map(|view| view.peer).collect()
    });
    let connected = others.into_iter().filter(|peer| *peer != handle.peer_id() && handle.hop().connected(peer));
    let mut asking: FuturesUnordered<_> = connected.take(ASKED).map(|peer| ask(peer, id, tenant, handle)).collect();
    while let Some(answered) = asking.next().await {
        if answered.is_some() {
            return answered;
        }
    }
    None
}

async fn ask(peer: PeerId, id: &str, tenant: u64, handle: &Handle) -> Option<Place> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = format!("{}{id}?tenant={tenant}", hop::RESPONSES).parse().ok()?;
    let answer: Response<ResponseBody> = handle.hop().send(peer, request).await.ok()?;
    if answer.status() != StatusCode::OK {
        return None;
    }
    let body: Bytes = Limited::new(answer.into_body(), ANSWER).collect().await.ok()?.to_bytes();
    serde_json::from_slice(&body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::ServiceExt;

    fn model() -> ModelId {
        ModelId::new("m").unwrap()
    }

    fn replica() -> ReplicaId {
        ReplicaId { peer: PeerId::random(), index: 1 }
    }

    #[test]
    fn a_response_is_its_tenants_alone_and_known_for_a_day() {
        let (responses, now, replica) = (Responses::default(), Instant::now(), replica());
        responses.given("resp_1", replica, &model(), 7, now);
        let table = responses.table();
        assert_eq!(table.get("resp_1", 7, now).unwrap().replica(), replica);
        assert_eq!(table.get("resp_1", 8, now), None);
        assert_eq!(table.get("resp_2", 7, now), None);
        assert!(table.get("resp_1", 7, now + LIFE - Duration::from_secs(1)).is_some());
        assert_eq!(table.get("resp_1", 7, now + LIFE), None);
    }

    #[test]
    fn the_table_does_not_grow_beyond_its_bound() {
        let (responses, now, replica) = (Responses::default(), Instant::now(), replica());
        for n in 0..ENTRIES + 10 {
            responses.given(&format!("resp_{n}"), replica, &model(), 7, now + Duration::from_micros(n as u64));
        }
        responses.given(&"x".repeat(ID_BYTES + 1), replica, &model(), 7, now);
        {
            let table = responses.table();
            assert_eq!((table.entries.len(), table.order.len()), (ENTRIES, ENTRIES));
            assert!(table.get("resp_9", 7, now).is_none() && table.get("resp_10", 7, now).is_some());
        }
        // One that was told of again is as young as the last time.
        responses.given("resp_10", replica, &model(), 7, now + LIFE / 2);
        responses.given("late", replica, &model(), 7, now + LIFE + Duration::from_secs(1));
        let table = responses.table();
        assert_eq!(table.entries.len(), 2);
        assert!(table.get("resp_10", 7, now + LIFE).is_some());
    }

    #[tokio::test]
    async fn another_proxy_is_told_only_about_its_own_tenant() {
        let (responses, replica) = (Responses::default(), replica());
        let tenant = tag(&Tenant::Key("k1".into()));
        responses.given("resp_1", replica, &model(), tenant, Instant::now());
        let ask = async |path: String| {
            let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
            responses.routes().oneshot(request).await.unwrap()
        };
        let answer = ask(format!("/mesh/responses/resp_1?tenant={tenant}")).await;
        let place: Place = serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!((place.replica(), place.model), (replica, model()));
        let other = tag(&Tenant::Key("k2".into()));
        assert_eq!(ask(format!("/mesh/responses/resp_1?tenant={other}")).await.status(), StatusCode::NOT_FOUND);
        assert_eq!(ask("/mesh/responses/resp_1".to_owned()).await.status(), StatusCode::BAD_REQUEST);
        responses.forget("resp_1");
        assert_eq!(ask(format!("/mesh/responses/resp_1?tenant={tenant}")).await.status(), StatusCode::NOT_FOUND);
    }
}
