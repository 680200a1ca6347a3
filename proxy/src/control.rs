//! What the command line asks a running process over the node's control socket: keys, tenants and prices, so that a
//! change holds at once, the endpoint itself, for `dunlin chat`, and what it counts, for `dunlin top`.

use crate::{
    audit::{Actor, Audit},
    http::Door,
    keys::{
        Created, Error, Keeper, Key, KeyChange, Keys, NewKey, NewTenant, Price, Signed, Spread, Tenant, TenantChange,
    },
    usage::{Usage, report},
};
use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{Path, Query, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{any, get, patch},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What was changed, and whom it has reached already.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Changed<T> {
    /// As it is now.
    #[serde(flatten)]
    pub now: T,
    /// The other proxies.
    pub spread: Spread,
}

/// How something is to end.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct End {
    /// Of a key: the answers that are under way end too.
    pub now: bool,
    /// Of a tenant: its keys are revoked.
    pub keys: bool,
}

/// Which price.
#[derive(Debug, Deserialize)]
struct OfModels {
    models: String,
}

/// The routes of the endpoint's process. Whoever can open the socket owns the proxy, so nothing more is asked: `owner`
/// answers without a key.
pub(crate) fn routes(owner: Arc<Door>) -> Router {
    let page = {
        let owner = owner.clone();
        // Not asked through the endpoint: looking at the counts must not change them.
        move || async move { owner.metrics_page() }
    };
    let ask = move |request: Request| async move { owner.answer(request, None).await.map(Body::new) };
    Router::new().route("/metrics", get(page)).route("/v1/{*path}", any(ask))
}

/// What those commands need.
#[derive(Clone)]
pub struct Rooms {
    /// The keys.
    pub keeper: Keeper,
    /// Where changes are written down.
    pub audit: Audit,
    /// What keys have used, where there is an endpoint.
    pub usage: Option<Usage>,
}

/// All of them, for the description of the admin API.
#[cfg(test)]
pub(crate) const ROUTES: [(&str, &str); 13] = [
    ("GET", "/keys"),
    ("POST", "/keys"),
    ("GET", "/keys/{id}"),
    ("PATCH", "/keys/{id}"),
    ("DELETE", "/keys/{id}"),
    ("GET", "/tenants"),
    ("POST", "/tenants"),
    ("PATCH", "/tenants/{name}"),
    ("DELETE", "/tenants/{name}"),
    ("GET", "/prices"),
    ("PUT", "/prices"),
    ("DELETE", "/prices"),
    ("GET", "/usage"),
];

/// How usage is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// An array of objects.
    #[default]
    Json,
    /// RFC 4180.
    Csv,
}

/// Query of `GET /usage`: flat, since a query string knows no nesting.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AskUsage {
    from: Option<u64>,
    to: Option<u64>,
    by: report::Span,
    key: Option<String>,
    tenant: Option<String>,
    model: Option<String>,
    format: Format,
}

impl AskUsage {
    fn query(self) -> report::Query {
        let Self { from, to, by, key, tenant, model, format: _ } = self;
        report::Query { from, to, by, key, tenant, model }
    }
}

/// `/keys`, `/tenants`, `/prices` and `/usage`: of proxies, and of any process that may make keys.
pub fn keys_routes(rooms: Rooms) -> Router {
    Router::new()
        .route("/keys", get(list).post(create))
        .route("/keys/{id}", get(one).patch(edit).delete(revoke))
        .route("/tenants", get(tenants).post(create_tenant))
        .route("/tenants/{name}", patch(edit_tenant).delete(remove_tenant))
        .route("/prices", get(prices).put(set_price).delete(remove_price))
        .route("/usage", get(usage))
        .with_state(rooms)
}

async fn list(State(rooms): State<Rooms>) -> Result<Json<Vec<Key>>, Failed> {
    rooms.keeper.keys().list().map(Json).map_err(Failed::from)
}

async fn one(State(rooms): State<Rooms>, Path(id): Path<String>) -> Result<Json<Key>, Failed> {
    rooms.keeper.keys().key(&id).map(Json).map_err(Failed::from)
}

async fn create(
    State(rooms): State<Rooms>,
    actor: Option<Extension<Actor>>,
    Json(asked): Json<NewKey>,
) -> Result<(StatusCode, Json<Changed<Created>>), Failed> {
    let changed = change(&rooms, actor, "key created", move |keys| keys.make(asked)).await?;
    tracing::info!(id = changed.now.about.id, told = changed.spread.told, "key created");
    Ok((StatusCode::CREATED, Json(changed)))
}

async fn edit(
    State(rooms): State<Rooms>,
    actor: Option<Extension<Actor>>,
    Path(id): Path<String>,
    Json(asked): Json<KeyChange>,
) -> Result<Json<Changed<Key>>, Failed> {
    let changed = change(&rooms, actor, "key changed", move |keys| keys.edit(&id, asked)).await?;
    tracing::info!(id = changed.now.id, told = changed.spread.told, "key changed");
    Ok(Json(changed))
}

async fn revoke(
    State(rooms): State<Rooms>,
    actor: Option<Extension<Actor>>,
    Path(id): Path<String>,
    Query(end): Query<End>,
) -> Result<Json<Changed<Key>>, Failed> {
    let changed = change(&rooms, actor, "key revoked", move |keys| keys.end(&id, end.now)).await?;
    tracing::info!(id = changed.now.id, told = changed.spread.told, "key revoked");
    Ok(Json(changed))
}

async fn tenants(State(rooms): State<Rooms>) -> Json<Vec<Tenant>> {
    Json(rooms.keeper.keys().tenants())
}

async fn create_tenant(
    State(rooms): State<Rooms>,
    actor: Option<Extension<Actor>>,
    Json(asked): Json<NewTenant>,
) -> Result<(StatusCode, Json<Changed<Tenant>>), Failed> {
    let changed = change(&rooms, actor, "tenant created", move |keys| keys.make_tenant(asked)).await?;
    tracing::info!(tenant = changed.now.name, "tenant created");
    Ok((StatusCode::CREATED, Json(changed)))
}

async fn edit_tenant(
    State(rooms): State<Rooms>,
    actor: Option<Extension<Actor>>,
    Path(name): Path<String>,
    Json(asked): Json<TenantChange>,
) -> Result<Json<Changed<Tenant>>, Failed> {
    let changed = change(&rooms, actor, "tenant changed", move |keys| keys.edit_tenant(&name, asked)).await?;
    tracing::info!(tenant = changed.now.name, "tenant changed");
    Ok(Json(changed))
}

async fn remove_tenant(
    State(rooms): State<Rooms>,
    actor: Option<Extension<Actor>>,
    Path(name): Path<String>,
    Query(end): Query<End>,
) -> Result<Json<Changed<Tenant>>, Failed> {
    let changed = change(&rooms, actor, "tenant removed", move |keys| keys.remove_tenant(&name, end.keys)).await?;
    tracing::info!(tenant = changed.now.name, "tenant removed");
    Ok(Json(changed))
}

async fn prices(State(rooms): State<Rooms>) -> Json<Vec<Price>> {
    Json(rooms.keeper.keys().prices())
}

async fn set_price(
    State(rooms): State<Rooms>,
    actor: Option<Extension<Actor>>,
    Json(price): Json<Price>,
) -> Result<Json<Changed<Price>>, Failed> {
    let said =
        change(&rooms, actor, "price set", move |keys| keys.set_price(&price).map(|signed| (price, signed))).await?;
    tracing::info!(models = %said.now.models, "price set");
    Ok(Json(said))
}

async fn remove_price(
    State(rooms): State<Rooms>,
    actor: Option<Extension<Actor>>,
    Query(of): Query<OfModels>,
) -> Result<Json<Changed<End>>, Failed> {
    let remove = move |keys: &Keys| keys.remove_price(&of.models).map(|signed| (End::default(), signed));
    let said = change(&rooms, actor, "price removed", remove).await?;
    tracing::info!("price removed");
    Ok(Json(said))
}

/// What keys have used. `?format=csv`: not as JSON.
async fn usage(State(rooms): State<Rooms>, Query(asked): Query<AskUsage>) -> Result<Response, Failed> {
    let Some(usage) = rooms.usage else { return Ok(StatusCode::NOT_FOUND.into_response()) };
    let csv = asked.format == Format::Csv;
    let query = asked.query();
    let (key, tenant) = (query.key.clone(), query.tenant.clone());
    let lines = tokio::task::spawn_blocking(move || usage.report(&query)).await.map_err(|_| Failed(None))?;
    let lines = lines.map_err(|error| Failed(Some((StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))))?;
    if lines.is_empty() {
        // Of somebody whom there never was, nothing looks like nothing used.
        let keys = rooms.keeper.keys();
        key.map_or(Ok(()), |id| keys.key(&id).map(|_| ()))?;
        tenant.map_or(Ok(()), |name| keys.was_tenant(&name))?;
    }
    Ok(match csv {
        true => ([(http::header::CONTENT_TYPE, "text/csv; charset=utf-8")], report::csv(&lines)).into_response(),
        false => Json(lines).into_response(),
    })
}

/// Makes a change, which waits for the disk, writes down who made it, and tells the others.
async fn change<T: Serialize + Send + 'static>(
    rooms: &Rooms,
    actor: Option<Extension<Actor>>,
    did: &'static str,
    work: impl FnOnce(&Keys) -> Result<(T, Signed), Error> + Send + 'static,
) -> Result<Changed<T>, Failed> {
    let (keys, audit) = (rooms.keeper.keys().clone(), rooms.audit.clone());
    let actor = actor.map_or(Actor::Socket, |Extension(actor)| actor);
    let done = tokio::task::spawn_blocking(move || {
        let (now, signed) = work(&keys)?;
        audit.note(&actor, did, Shown(&now)).map_err(|error| {
            tracing::error!(%error, did, "a change was made and could not be written to the audit file");
            Failed(Some((
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("{did}, but the audit file can't be written: {error}"),
            )))
        })?;
        Ok::<_, Failed>((now, signed))
    });
    let (now, signed) = done.await.map_err(|_| Failed(None))??;
    Ok(Changed { now, spread: rooms.keeper.tell(signed).await })
}

/// What was changed, without the text of a key.
struct Shown<'a, T>(&'a T);

impl<T: Serialize> Serialize for Shown<'_, T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut value = serde_json::to_value(self.0).map_err(serde::ser::Error::custom)?;
        if let Some(fields) = value.as_object_mut() {
            fields.remove("key");
        }
        value.serialize(serializer)
    }
}

/// Status and message; `None`: the process is ending.
struct Failed(Option<(StatusCode, String)>);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(Some((status(&error), error.to_string())))
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let (status, message) =
            self.0.unwrap_or_else(|| (StatusCode::SERVICE_UNAVAILABLE, "the proxy is ending".to_owned()));
        (status, Json(serde_json::json!({"error": {"message": message}}))).into_response()
    }
}

/// Whose fault an error is.
pub(crate) fn status(error: &Error) -> StatusCode {
    match error {
        Error::Unknown(_) | Error::UnknownTenant(_) | Error::UnknownPrice(_) => StatusCode::NOT_FOUND,
        Error::Name | Error::Invalid(_) | Error::Statement(_) => StatusCode::BAD_REQUEST,
        Error::TenantExists(_) | Error::TenantHasKeys { .. } | Error::Final(_) | Error::OnlyHere(_) => {
            StatusCode::CONFLICT
        }
        Error::NotAllowed => StatusCode::FORBIDDEN,
        Error::TooMany | Error::TooManyTenants => StatusCode::INSUFFICIENT_STORAGE,
        Error::Database { .. } | Error::File { .. } | Error::Random(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
