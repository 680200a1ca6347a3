//! `GET /mesh/logs?replica=0&tail=100&follow=true`: what a launched engine wrote, oldest line first.

use super::Service;
use crate::{output::Output, replica::Replica};
use axum::{
    body::Body,
    extract::{Query, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::stream;
use http::{StatusCode, header};
use serde::Deserialize;
use std::{convert::Infallible, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Lines given unless asked otherwise.
const TAIL: usize = 100;
/// Lines in one piece of the answer.
const BATCH: usize = 256;

/// What is asked for.
#[derive(Debug, Deserialize)]
pub(super) struct Ask {
    #[serde(default)]
    replica: u16,
    tail: Option<usize>,
    #[serde(default)]
    follow: bool,
}

fn error(status: StatusCode, message: &str) -> Response {
    let body = serde_json::json!({ "error": { "message": message, "type": "invalid_request_error", "param": null, "code": null } });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// `/mesh/logs`.
pub(super) async fn logs(State(service): State<Arc<Service>>, Query(ask): Query<Ask>) -> Response {
    let Some(replica) = service.replicas.get(usize::from(ask.replica)) else {
        return error(StatusCode::NOT_FOUND, "this agent has no such replica");
    };
    if replica.process().is_none() {
        return error(StatusCode::NOT_FOUND, elsewhere(replica));
    }
    let tail = replica.output.tail(ask.tail.unwrap_or(TAIL));
    // Also right when nothing was written yet: numbers count from 0.
    let from = tail.first().map_or(0, |line| line.number);
    let until = tail.last().map_or(0, |line| line.number + 1);
    let follower = if ask.follow {
        match Arc::clone(&service.followers).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => return error(StatusCode::TOO_MANY_REQUESTS, "too many followers of this agent's output"),
        }
    } else {
        None
    };
    let watch = replica.output.watch();
    let reading = Reading { output: Arc::clone(&replica.output), watch, next: from, until, follower };
    let body = Body::from_stream(stream::unfold(reading, Reading::batch));
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// Where to look for what an engine writes that the agent has not launched.
fn elsewhere(replica: &Replica) -> &'static str {
    if replica.is_built_in() {
        return "the built-in demo engine is a part of this agent's own process and writes to its log: look at the \
            terminal or journal where that `dunlin up` runs";
    }
    "this engine was not launched by its agent, so its output is not captured; look where it was started"
}

struct Reading {
    output: Arc<Output>,
    watch: watch::Receiver<u64>,
    next: u64,
    /// Where an answer ends that follows nothing.
    until: u64,
    follower: Option<OwnedSemaphorePermit>,
}

impl Reading {
    /// The next lines as one piece; waits for some when following. A reader that is too slow misses lines and is told so:
    /// nothing is kept for it beyond the ring.
    async fn batch(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        loop {
            self.watch.mark_unchanged();
            let lines = if self.follower.is_none() && self.next >= self.until {
                return None;
            } else {
                self.output.since(self.next, BATCH)
            };
            let (Some(first), Some(last)) = (lines.first(), lines.last()) else {
                self.follower.as_ref()?;
                self.watch.changed().await.ok()?;
                continue;
            };
            let mut text = String::new();
            if first.number > self.next {
                text = format!("[dunlin] {} lines skipped\n", first.number - self.next);
            }
            self.next = last.number + 1;
            for line in &lines {
                text.push_str(&line.text);
                text.push('\n');
            }
            return Some((Ok(text.into()), self));
        }
    }
}
