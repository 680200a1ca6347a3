//! One inference request: hop -> admission -> engine, and the answer straight back.

use super::{
    Service, headers,
    refusal::Refusal,
    relay::{Limits, Relay},
    usage::{self, Asking, Reading},
};
use crate::{
    admit::{InLine, LONGEST_WAIT, gate::Pass},
    counters::{self, Meter},
    engine::{
        EngineUrl,
        client::{Begun, Error},
    },
    outcomes::Outcome,
    replica::Replica,
};
use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use dunlin_protocol::{
    announcement::ReplicaState,
    endpoint::{self, Inference},
    hop::{BOUNDS, GUESS, LINE, LOAD, MODEL, PROMPT, REPLICA_INDEX, model_from_header},
    id::ModelId,
    load,
    runtime::Bounds,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// What the hop puts before the engine's own path.
const PREFIX: &str = "/engine";

/// `/engine/*`.
pub(super) async fn engine(State(service): State<Arc<Service>>, request: Request) -> Response {
    let replica = match addressed(&service, request.headers()) {
        Ok(replica) => replica,
        Err(refusal) => return refusal.into_response(),
    };
    let mut response = match forward(&service, &replica, request).await {
        Ok(response) => response,
        Err(refusal) => {
            tracing::debug!(replica = replica.index, %refusal, "request refused");
            replica.outcomes.count(refusal.outcome());
            refusal.into_response()
        }
    };
    if let Some(load) = load_header(&service, &replica) {
        response.headers_mut().insert(HeaderName::from_static(LOAD), load);
    }
    // Numbers are always a header's value.
    if let Ok(bounds) = HeaderValue::try_from(replica.runtime().bounds.to_header()) {
        response.headers_mut().insert(HeaderName::from_static(BOUNDS), bounds);
    }
    response
}

/// The load of a replica as a header's value.
pub(super) fn load_header(service: &Service, replica: &Replica) -> Option<HeaderValue> {
    let header = service.load(replica)?.to_header().ok()?;
    let mut value = HeaderValue::try_from(header).ok()?;
    // Never the same twice: in HPACK's table it would only push out, within twenty answers, what is said again.
    value.set_sensitive(true);
    Some(value)
}

fn addressed(service: &Service, headers: &HeaderMap) -> Result<Arc<Replica>, Refusal> {
    let text = headers.get(REPLICA_INDEX).and_then(|value| value.to_str().ok()).ok_or(Refusal::Unaddressed)?;
    let index: usize = text.parse().map_err(|_| Refusal::Unaddressed)?;
    service.replicas.get(index).ok_or_else(|| Refusal::NoReplica(text.to_owned()))
}

fn model(headers: &HeaderMap) -> Result<ModelId, Refusal> {
    let text = headers.get(MODEL).and_then(|value| value.to_str().ok()).ok_or(Refusal::Unaddressed)?;
    model_from_header(text).map_err(|_| Refusal::Unaddressed)
}

/// Where the request goes, if this replica serves its model now.
fn target(service: &Service, replica: &Replica, headers: &HeaderMap, path: &str) -> Result<EngineUrl, Refusal> {
    let model = model(headers)?;
    let view = replica.view();
    match view.state {
        ReplicaState::Draining | ReplicaState::Gone => return Err(Refusal::Draining),
        ReplicaState::Starting | ReplicaState::Unhealthy => {
            let reason = view.reason.clone().unwrap_or_else(|| "waiting for the engine".to_owned());
            return Err(Refusal::NotReady(reason));
        }
        ReplicaState::Ready => {}
    }
    if !view.serves(&model) || !service.may_serve(&model) {
        return Err(Refusal::Model(model));
    }
    replica.asks(&model, path);
    view.url.clone().ok_or_else(|| Refusal::NotReady("the engine is gone".to_owned()))
}

async fn forward(service: &Arc<Service>, replica: &Arc<Replica>, request: Request) -> Result<Response, Refusal> {
    let url = target(service, replica, request.headers(), request.uri().path())?;
    let model = model(request.headers())?;
    replica.ensure_loaded(&service.client, &model).await.map_err(Refusal::Adapter)?;
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let path = path.strip_prefix(PREFIX).unwrap_or(path);
    let engine_path = head.uri.path().strip_prefix(PREFIX).unwrap_or_default().to_owned();
    let takes_slot = head.method == Method::POST && !endpoint::is_free(&engine_path);
    let ask_usage = usage::asked(&replica.runtime(), &head.method, &engine_path, &mut head.headers);
    let body = match ask_usage {
        Some(at) => Body::new(Asking::new(body, at)),
        None => body,
    };
    head.uri = url.join(path).map_err(|error| Refusal::Unreachable(error.into()))?;
    head.version = Version::HTTP_11;
    let measured = if takes_slot { measured(&head.headers) } else { counters::Request::default() };
    let line = in_line(&head.headers, measured.kib);
    let bounds = bounds(&head.headers, replica);
    let deadlines = bounds.deadlines(measured.kib, measured.new_kib.is_some());
    headers::strip_request(&mut head.headers);
    // Extensions carry the caller, which is none of the engine's business.
    head.extensions.clear();

    let pass = if takes_slot { Some(replica.gate.enter(line).await?) } else { None };
    let meter = Meter::start(Arc::clone(&replica.counters), measured, Instant::now());
    let patience = Patience { replica, meter: &meter, done: false };
    let begins = service.client.begin(Request::from_parts(head, body));
    let sent = tokio::time::timeout(deadlines.first_byte, begins).await;
    patience.end();
    let begun = match sent {
        Ok(Ok(begun)) => begun,
        Ok(Err(error)) => return Err(failed(replica, error)),
        Err(_) => {
            replica.request_failed();
            return Err(Refusal::Silent(deadlines.first_byte));
        }
    };
    if begun.0.status() == StatusCode::NOT_FOUND
        && endpoint::at(&engine_path).is_some_and(Inference::is_completion)
        && replica.is_adapter(&model)
    {
        // It was there a moment ago: another replica may have it, or this one load it again.
        replica.adapter_missed(&model);
        return Err(Refusal::Model(model));
    }
    let limits = Limits { silence: deadlines.inter_token, bytes: bounds.answer_bytes() };
    relayed(service, replica, begun, limits, (pass, meter), ask_usage.is_some())
}

/// What the engine is held to: what the caller says, where its user has set something, else what the runtime says.
fn bounds(headers: &HeaderMap, replica: &Replica) -> Bounds {
    let given = headers.get(BOUNDS).and_then(|value| value.to_str().ok()).and_then(Bounds::from_header);
    let own = replica.runtime().bounds;
    given.map_or(own, |given| Bounds { answer_mib: own.answer_mib, ..given })
}

fn measured(headers: &HeaderMap) -> counters::Request {
    let (kib, new_kib) = numbers(headers, PROMPT);
    let model = model(headers).map_or(0, |model| load::model_tag(&model));
    let guess = headers.get(PROMPT).is_some_and(|value| value.as_bytes().ends_with(GUESS.as_bytes()));
    counters::Request {
        kib: kib.unwrap_or(0),
        new_kib: new_kib.filter(|new| Some(*new) <= kib),
        guess,
        measures: true,
        model,
    }
}

/// Where it stands among those who wait for a slot.
fn in_line(headers: &HeaderMap, kib: u32) -> InLine {
    let (waited, patience) = numbers(headers, LINE);
    let ms = |ms: u32| Duration::from_millis(ms.into());
    let since = Instant::now().checked_sub(waited.map_or(Duration::ZERO, ms));
    let patience = patience.map_or(LONGEST_WAIT, ms).min(LONGEST_WAIT);
    InLine { since: since.unwrap_or_else(Instant::now), patience, kib }
}

/// One or two numbers, with a space between.
fn numbers(headers: &HeaderMap, name: &str) -> (Option<u32>, Option<u32>) {
    let text = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    (numbers.next().flatten(), numbers.next().flatten())
}

/// Sees a client hang up before the engine has said anything.
struct Patience<'a> {
    replica: &'a Replica,
    meter: &'a Meter,
    done: bool,
}

impl Patience<'_> {
    fn end(mut self) {
        self.done = true;
    }
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        self.replica.outcomes.count(Outcome::HungUp);
        if self.meter.was_abandoned(Instant::now()) {
            self.replica.request_failed();
        }
    }
}

fn failed(replica: &Replica, error: Error) -> Refusal {
    replica.request_failed();
    if error.unsent() { Refusal::Unreachable(error) } else { Refusal::Lost(error) }
}

fn relayed(
    service: &Arc<Service>,
    replica: &Arc<Replica>,
    (answer, first): Begun,
    limits: Limits,
    (pass, mut meter): (Option<Pass>, Meter),
    usage_is_added: bool,
) -> Result<Response, Refusal> {
    let (mut head, body) = answer.into_parts();
    // A status is the engine's word and passes untouched; what it says about the engine is noted.
    let failed = head.status.is_server_error() && head.status != StatusCode::NOT_IMPLEMENTED;
    if failed {
        replica.request_failed();
    } else if head.status == StatusCode::NOT_FOUND {
        replica.model_missed();
    }
    if !head.status.is_success() {
        meter.failed();
    }
    headers::strip_response(&mut head.headers);
    let size = headers::size(&head.headers);
    if size > headers::HEAD_BYTES {
        return Err(Refusal::Head(size));
    }
    let stream = headers::is_stream(&head.headers);
    head.version = Version::HTTP_11;
    let outcome = Outcome::of(head.status);
    let usage = Reading::of(head.status, &head.headers, usage_is_added);
    let counted = (outcome, !failed);
    let (service, replica) = (Arc::clone(service), Arc::clone(replica));
    let relay = Relay::new((first, body), service, replica, (pass, meter), limits, (stream, usage), counted);
    Ok(Response::from_parts(head, Body::new(relay)))
}

#[cfg(test)]
mod tests;
