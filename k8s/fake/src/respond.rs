//! One request, one answer.

use crate::{
    Fake, ReplyBody,
    apply::{self, Writer},
    call::{Call, Fate, Verb},
    fields::Shape,
    lock, pods,
    reply::{Refusal, json_reply, with_body},
    select::Selection,
    store::{Store, Target},
    watch::{self, Wish},
};
use http::{
    Request, Response,
    header::{ACCEPT, CONTENT_TYPE, USER_AGENT},
    request::Parts,
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::{io, sync::Arc, time::Duration};

/// Objects on one page of a list, at most.
const PAGE: usize = 10_000;
/// Kind of content of an apply.
const APPLY: &str = "application/apply-patch+yaml";
/// How long a watch lasts that does not say.
const WATCH: Duration = Duration::from_secs(1_800);

pub(crate) async fn answer<B>(fake: &Fake, request: Request<B>, client: &'static str) -> io::Result<Response<ReplyBody>>
where
    B: http_body::Body + Send,
    B::Data: Send,
    B::Error: std::fmt::Display,
{
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|error| io::Error::other(error.to_string()))?.to_bytes();
    let Some(mut call) = Call::parse(&parts.method, parts.uri.path(), parts.uri.query()) else {
        return Ok(json_reply(
            404,
            &Refusal::new(404, "NotFound", "the server could not find the requested resource".into()).to_value(),
        ));
    };
    call.client = client;
    let fate = fate(fake, &call)?;
    if let Some(verb) = forbidden(fake, &call, &parts) {
        let refusal = Refusal::forbidden(&call, verb);
        return Ok(json_reply(refusal.code, &refusal.to_value()));
    }
    match fate {
        Fate::Works => {}
        Fate::Refused(code, reason, message) => {
            return Ok(json_reply(code, &Refusal::new(code, reason, message).to_value()));
        }
        Fate::HangsBefore => return std::future::pending().await,
        Fate::HangsAfter => {
            let _ = carry_out(fake, &call, &parts, &body);
            return std::future::pending().await;
        }
        Fate::AnswerLost => {
            let _ = carry_out(fake, &call, &parts, &body);
            return Err(io::Error::from(io::ErrorKind::ConnectionReset));
        }
        Fate::Late(by) => {
            let fake = fake.clone();
            let work = tokio::spawn(async move {
                tokio::time::sleep(by).await;
                answer_of(carry_out(&fake, &call, &parts, &body))
            });
            return work.await.map_err(io::Error::other);
        }
    }
    Ok(answer_of(carry_out(fake, &call, &parts, &body)))
}

fn answer_of(outcome: Result<Response<ReplyBody>, Refusal>) -> Response<ReplyBody> {
    outcome.unwrap_or_else(|refusal| json_reply(refusal.code, &refusal.to_value()))
}

fn fate(fake: &Fake, call: &Call) -> io::Result<Fate> {
    let mut gate = lock(&fake.gate);
    if gate.down {
        return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
    }
    if call.verb != Verb::Watch {
        gate.calls.push(call.clone());
    }
    Ok(gate.hook.as_mut().map_or(Fate::Works, |hook| hook(call)))
}

/// What the caller may not do, if it may not.
fn forbidden(fake: &Fake, call: &Call, parts: &Parts) -> Option<Verb> {
    let applies = parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == APPLY);
    let store = lock(&fake.store);
    let is_new = |call: &Call| {
        let kind = store.kinds.get(&call.group, &call.plural)?;
        store.get(Target { kind, namespace: &call.namespace, name: &call.name }).err()
    };
    let makes = applies && call.subresource.is_empty() && is_new(call).is_some();
    drop(store);
    let mut gate = lock(&fake.gate);
    let rights = gate.rights.as_mut()?;
    let mut wanted = [call.verb].into_iter().chain(makes.then_some(Verb::Create));
    wanted.find(|verb| !rights(&Call { verb: *verb, ..call.clone() }))
}

fn carry_out(fake: &Fake, call: &Call, parts: &Parts, body: &[u8]) -> Result<Response<ReplyBody>, Refusal> {
    let mut store = lock(&fake.store);
    let kind = store.kinds.get(&call.group, &call.plural).cloned();
    let kind = kind.filter(|kind| kind.version == call.version);
    let missing = || Refusal::new(404, "NotFound", "the server could not find the requested resource".to_owned());
    let kind = kind.ok_or_else(missing)?;
    let target = Target { kind: &kind, namespace: &call.namespace, name: &call.name };
    let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let metadata_only = header(ACCEPT).contains("PartialObjectMetadata");
    let manager = match call.param("fieldManager") {
        "" => header(USER_AGENT).split('/').next().unwrap_or_default().to_owned(),
        manager => manager.to_owned(),
    };
    let writer = Writer { manager: &manager, subresource: &call.subresource };
    let parse = || serde_json::from_slice::<Value>(body).map_err(|error| Refusal::bad(error.to_string()));
    let show = |object: &Value| if metadata_only { watch::metadata_of(object) } else { object.clone() };
    match (call.verb, call.subresource.as_str()) {
        (Verb::Watch, _) => {
            let wish = wish(call, target, metadata_only)?;
            watch(fake, &mut store, wish, call)
        }
        (Verb::List, _) => list(&store, call, target, metadata_only).map(|list| json_reply(200, &list)),
        (Verb::Get, "scale") => Ok(json_reply(200, &scale_of(target, &*store.get(target)?)?)),
        (Verb::Get, _) => Ok(json_reply(200, &show(&*store.get(target)?))),
        (Verb::Create, "token") => {
            let answer = store.tokens.give(&call.namespace, &call.name, &parse()?);
            Ok(json_reply(201, &answer))
        }
        (Verb::Create, "eviction") => {
            store.delete(target, &json!({})).map(|_| json_reply(201, &json!({"kind": "Status", "status": "Success"})))
        }
        (Verb::Create, _) if kind.plural == "tokenreviews" => Ok(json_reply(201, &pods::review(&store, &parse()?))),
        (Verb::Create, _) => create(&mut store, target, parse()?, writer).map(|object| json_reply(201, &object)),
        (Verb::Replace, "scale") => {
            let replicas = parse()?["spec"]["replicas"].clone();
            set_scale(&mut store, target, &replicas, writer).map(|scale| json_reply(200, &scale))
        }
        (Verb::Replace, _) => replace(&mut store, target, parse()?, writer).map(|object| json_reply(200, &object)),
        (Verb::Patch, "scale") => {
            let replicas = parse()?["spec"]["replicas"].clone();
            set_scale(&mut store, target, &replicas, writer).map(|scale| json_reply(200, &scale))
        }
        (Verb::Patch, _) => {
            let (code, object) = patch(&mut store, call, target, header(CONTENT_TYPE), parse()?, writer)?;
            Ok(json_reply(code, &show(&object)))
        }
        (Verb::Delete, _) => {
            let options = if body.is_empty() { json!({}) } else { parse()? };
            store.delete(target, &options).map(|object| json_reply(200, &object))
        }
    }
}

fn wish(call: &Call, target: Target<'_>, metadata_only: bool) -> Result<Wish, Refusal> {
    let seconds = call.param("timeoutSeconds").parse().map_or(WATCH, Duration::from_secs);
    Ok(Wish {
        group: call.group.clone(),
        plural: call.plural.clone(),
        namespace: call.namespace.clone(),
        selection: Selection::parse(call.param("labelSelector"), call.param("fieldSelector"))?,
        metadata_only,
        bookmarks: call.is_set("allowWatchBookmarks"),
        ends: seconds,
        kind: (target.kind.api_version(), target.kind.kind.clone()),
    })
}

fn watch(fake: &Fake, store: &mut Store, wish: Wish, call: &Call) -> Result<Response<ReplyBody>, Refusal> {
    let from = call.starts_from();
    let backlog = match store.since(from) {
        _ if from == 0 => Vec::new(),
        Ok(changes) => changes.filter_map(|change| wish.line(change)).collect(),
        // As a real server, which has said 200 by the time that it looks: the error is the watch's only event.
        Err(refusal) => return Ok(with_body(200, watch::only(&refusal.to_value()))),
    };
    let versions = Arc::downgrade(&fake.store);
    let version = move || versions.upgrade().map_or(0, |store| lock(&store).version());
    Ok(with_body(200, store.watches.start(wish, backlog, version)))
}

fn list(store: &Store, call: &Call, target: Target<'_>, metadata_only: bool) -> Result<Value, Refusal> {
    let wish = wish(call, target, metadata_only)?;
    let limit = call.param("limit").parse().unwrap_or(PAGE).min(PAGE);
    let start = call.param("continue").split_once('/').map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
    let here = |object: &&Arc<Value>| {
        (wish.namespace.is_empty() || object["metadata"]["namespace"] == wish.namespace.as_str())
            && wish.selection.takes(object)
    };
    let mut found = store.range(target.kind, start).filter(here);
    let items: Vec<&Arc<Value>> = found.by_ref().take(limit).collect();
    let mut metadata = json!({"resourceVersion": store.version().to_string()});
    if found.next().is_some()
        && let Some(last) = items.last()
    {
        let text = |field: &str| last["metadata"][field].as_str().unwrap_or_default().to_owned();
        metadata["continue"] = format!("{}/{}", text("namespace"), text("name")).into();
    }
    let items: Vec<Value> = items.into_iter().map(|object| wish.shown(object)).collect();
    let kind = if metadata_only { "PartialObjectMetadataList".to_owned() } else { format!("{}List", target.kind.kind) };
    let version = if metadata_only { "meta.k8s.io/v1".to_owned() } else { target.kind.api_version() };
    Ok(json!({"apiVersion": version, "kind": kind, "metadata": metadata, "items": items}))
}

fn create(store: &mut Store, target: Target<'_>, mut object: Value, writer: Writer<'_>) -> Result<Arc<Value>, Refusal> {
    if !object["metadata"].is_object() {
        return Err(Refusal::bad("metadata is missing"));
    }
    let name = match (object["metadata"]["name"].as_str(), object["metadata"]["generateName"].as_str()) {
        (Some(name), _) => name.to_owned(),
        (None, Some(prefix)) => format!("{prefix}{:05}", store.version() % 100_000),
        (None, None) => {
            return Err(Refusal::invalid(
                &target.kind.qualified(),
                "",
                vec![("metadata.name".into(), "Required value: name or generateName is required".into())],
            ));
        }
    };
    valid_name(target, &name)?;
    object["apiVersion"] = target.kind.api_version().into();
    object["kind"] = target.kind.kind.clone().into();
    let target = Target { name: &name, ..target };
    let owners = store.updated_owners(target, &json!({}), &object, writer);
    let created = store.create(target, object, owners)?;
    if target.kind.plural == "customresourcedefinitions" {
        store.kinds.add_crd(&created);
    }
    Ok(created)
}

fn valid_name(target: Target<'_>, name: &str) -> Result<(), Refusal> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.len() <= 253 && name.chars().all(allowed) && name.starts_with(ends) && name.ends_with(ends) {
        return Ok(());
    }
    let why = format!(
        "Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
    );
    Err(Refusal::invalid(&target.kind.qualified(), name, vec![("metadata.name".to_owned(), why)]))
}

fn replace(
    store: &mut Store,
    target: Target<'_>,
    mut object: Value,
    writer: Writer<'_>,
) -> Result<Arc<Value>, Refusal> {
    let live = store.get(target)?;
    object["apiVersion"] = target.kind.api_version().into();
    object["kind"] = target.kind.kind.clone().into();
    let owners = store.updated_owners(target, &live, &object, writer);
    store.put(target, object, owners, writer.subresource)
}

fn patch(
    store: &mut Store,
    call: &Call,
    target: Target<'_>,
    content_type: &str,
    body: Value,
    writer: Writer<'_>,
) -> Result<(u16, Arc<Value>), Refusal> {
    match content_type {
        APPLY => server_side_apply(store, call, target, body, writer),
        "application/merge-patch+json" | "application/strategic-merge-patch+json" => {
            let live = store.get(target)?;
            let mut object = (*live).clone();
            apply::merge_patch(&mut object, &body);
            // Without a version in the patch there is nothing to be stale against.
            let owners = store.updated_owners(target, &live, &object, writer);
            store.put(target, object, owners, writer.subresource).map(|object| (200, object))
        }
        other => Err(Refusal::new(
            415,
            "UnsupportedMediaType",
            format!("the body of the request was in an unknown format: {other}"),
        )),
    }
}

fn server_side_apply(
    store: &mut Store,
    call: &Call,
    target: Target<'_>,
    mut config: Value,
    writer: Writer<'_>,
) -> Result<(u16, Arc<Value>), Refusal> {
    if call.param("fieldManager").is_empty() {
        return Err(Refusal::bad("fieldManager is required for apply patch"));
    }
    if config["apiVersion"] != target.kind.api_version().as_str() || config["kind"] != target.kind.kind.as_str() {
        return Err(Refusal::bad("apiVersion and kind of an apply must be those of its path"));
    }
    if !config["metadata"]["managedFields"].is_null() {
        return Err(Refusal::bad("metadata.managedFields must be nil"));
    }
    if !config["metadata"].is_object() {
        config["metadata"] = json!({});
    }
    let live = store.get(target);
    if live.is_err() && !writer.subresource.is_empty() {
        return Err(Refusal::not_found(&target.kind.resource(), target.name));
    }
    let version = config["metadata"].as_object_mut().and_then(|metadata| metadata.remove("resourceVersion"));
    let stale = |live: &Value| version.as_ref().is_some_and(|version| *version != live["metadata"]["resourceVersion"]);
    if live.as_ref().is_ok_and(|live| stale(live)) {
        return Err(Refusal::stale(&target.kind.resource(), target.name));
    }
    let base = live.as_ref().map_or_else(|_| json!({"metadata": {}}), |live| (**live).clone());
    let mut owners = store.owners(target);
    let shape = Shape::of(target.kind.schema.as_ref());
    let object = owners.apply(&base, &config, shape, writer, call.is_set("force"))?;
    match live {
        Ok(_) => store.put(target, object, owners, writer.subresource).map(|object| (200, object)),
        Err(_) => {
            valid_name(target, target.name)?;
            store.create(target, object, owners).map(|object| (201, object))
        }
    }
}

fn scale_of(target: Target<'_>, object: &Value) -> Result<Value, Refusal> {
    let missing = || Refusal::new(404, "NotFound", "the server could not find the requested resource".to_owned());
    let scale = target.kind.scale.as_ref().ok_or_else(missing)?;
    let at = |path: &[String]| path.iter().fold(object, |value, field| &value[field.as_str()]).clone();
    let selector = scale.selector.as_ref().map(|path| at(path)).unwrap_or_default();
    let metadata = &object["metadata"];
    Ok(json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "spec": {"replicas": at(&scale.spec)},
        "status": {"replicas": at(&scale.status).as_i64().unwrap_or(0), "selector": selector},
    }))
}

fn set_scale(store: &mut Store, target: Target<'_>, replicas: &Value, writer: Writer<'_>) -> Result<Value, Refusal> {
    let live = store.get(target)?;
    let path = target.kind.scale.as_ref().map(|scale| scale.spec.clone()).unwrap_or_default();
    let mut object = (*live).clone();
    let place = path.iter().fold(&mut object, |value, field| &mut value[field.as_str()]);
    *place = replicas.clone();
    let owners = store.updated_owners(target, &live, &object, writer);
    let written = store.put(target, object, owners, "")?;
    scale_of(target, &written)
}
