//! `GET /mesh/logs?replica=0&tail=100&since_s=60&follow=true`, or `&previous=true` for the run before the present one: what
//! a launched engine wrote, oldest line first.

use super::Service;
use crate::{
    output::{Output, runs::Selection},
    replica::Replica,
};
use axum::{
    body::Body,
    extract::{Query, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::stream;
use http::{StatusCode, header};
use serde::Deserialize;
use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};
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
    /// Only what was written within so many seconds.
    since_s: Option<u64>,
    #[serde(default)]
    follow: bool,
    /// Of the run before the present one.
    #[serde(default)]
    previous: bool,
}

impl Ask {
    /// Unless asked otherwise, a look at the end; of a stretch of time or of an earlier run, everything.
    fn selection(&self, now: Instant) -> Selection {
        // Longer ago than the machine runs is all there is.
        let since = self.since_s.and_then(|seconds| now.checked_sub(Duration::from_secs(seconds)));
        let default = (self.since_s.is_none() && !self.previous).then_some(TAIL);
        Selection { tail: self.tail.or(default), since, previous: self.previous }
    }
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
        return error(StatusCode::NOT_FOUND, elsewhere(&replica));
    }
    if ask.follow && ask.previous {
        return error(
            StatusCode::BAD_REQUEST,
            "a run that has ended can't be followed: ask for previous or for follow",
        );
    }
    let asked = replica.output.select(ask.selection(Instant::now()));
    if ask.previous && asked.is_empty() && ask.tail != Some(0) && ask.since_s.is_none() {
        return error(StatusCode::NOT_FOUND, "there is no run before the present one");
    }
    let follower = if ask.follow {
        match Arc::clone(&service.followers).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => return error(StatusCode::TOO_MANY_REQUESTS, "too many followers of this agent's output"),
        }
    } else {
        None
    };
    let watch = replica.output.watch();
    let reading = Reading { output: Arc::clone(&replica.output), watch, next: asked.start, until: asked.end, follower };
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
                let mut lines = self.output.since(self.next, BATCH);
                if self.follower.is_none() {
                    lines.retain(|line| line.number < self.until);
                }
                lines
            };
            if lines.is_empty() {
                self.follower.as_ref()?;
                self.watch.changed().await.ok()?;
                continue;
            }
            let mut text = String::new();
            for line in &lines {
                if line.number > self.next {
                    text.push_str(&format!("[dunlin] {} lines skipped\n", line.number - self.next));
                }
                self.next = line.number + 1;
                text.push_str(&line.text);
                text.push('\n');
            }
            return Some((Ok(text.into()), self));
        }
    }
}
