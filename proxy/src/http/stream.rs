//! Answering a request whose answer streams: within a short time as it is, later under the cover of comments.

use super::{
    answer::{Body, Held, Outcome, Relay},
    endpoint::Dialect,
};
use crate::{
    dispatch::{Ask, Dispatcher, resume::Keep},
    errors::{Error, engine::Said, error_event},
};
use bytes::Bytes;
use dunlin_protocol::id::ModelId;
use futures::future::BoxFuture;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use std::{sync::Arc, time::Duration};
use tokio::time;

/// Of an answer that can't be passed on any more, so much is told.
const TOLD: usize = 64 << 10;

/// The replica's answer; or, when nothing came for `silence`, a stream that has begun without it.
///
/// # Errors
/// The request failed while that could still be said with a status.
pub(super) async fn answer(dispatcher: Arc<Dispatcher>, ask: Ask, silence: Duration) -> Result<Response<Body>, Error> {
    let (dialect, path, model) = (ask.dialect, ask.path.path().to_owned(), ask.want.model.clone());
    let mut answer: BoxFuture<'static, Result<Response<Relay>, Error>> = Box::pin(async move {
        let mut ask = ask;
        let answer = dispatcher.dispatch(&mut ask).await?;
        Ok(answer.map(|relay| relay.kept_by(|replica| Keep::new(dispatcher, ask, replica, silence))))
    });
    if let Ok(answered) = time::timeout(silence, &mut answer).await {
        return answered.map(|answer| answer.map(|relay| Body::Relay(Box::new(relay))));
    }
    let held = Held::new(Box::pin(outcome(answer, dialect, path, model)), silence);
    let mut response = Response::new(Body::Held(Box::new(held)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

async fn outcome(
    answer: BoxFuture<'static, Result<Response<Relay>, Error>>,
    dialect: Dialect,
    path: String,
    model: ModelId,
) -> Outcome {
    match answer.await {
        Err(error) => Outcome::Event(error.event(dialect)),
        Ok(answer) if is_stream(&answer) => Outcome::Stream(Box::new(answer.into_body())),
        Ok(answer) => Outcome::Event(tell(answer, dialect, &path, &model).await),
    }
}

fn is_stream(answer: &Response<Relay>) -> bool {
    answer.status() == StatusCode::OK && answer.body().is_event_stream()
}

/// An engine's answer that is no stream, as an event: its own words where they are an error.
async fn tell(answer: Response<Relay>, dialect: Dialect, path: &str, model: &ModelId) -> Bytes {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), TOLD).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let kind = if status.is_client_error() { "invalid_request_error" } else { "server_error" };
    let message = if status.is_success() {
        format!("the engine answered {status} instead of a stream")
    } else {
        Said { status, body: &body, dialect, path, model: model.as_str() }.message()
    };
    error_event(dialect, kind, "engine_error", &message)
}
