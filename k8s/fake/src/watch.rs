//! Watches: streams of changes.

use crate::{ReplyBody, select::Selection};
use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{sync::mpsc, time::Instant};

/// Events that wait for a slow reader before its watch is ended, as a real server does.
const QUEUE: usize = 16 * 1024;
/// How often a bookmark is sent.
const BOOKMARK: Duration = Duration::from_secs(20);

/// One change of one object.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub version: u64,
    pub group: String,
    pub plural: String,
    pub before: Option<Arc<Value>>,
    /// `None` when it has gone.
    pub after: Option<Arc<Value>>,
    /// The object as it was last seen, with the version of its end.
    pub last: Arc<Value>,
}

/// What a watcher wants.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub group: String,
    pub plural: String,
    pub namespace: String,
    pub selection: Selection,
    pub metadata_only: bool,
    pub bookmarks: bool,
    pub ends: Duration,
    /// `apiVersion` and `kind` of the objects.
    pub kind: (String, String),
}

impl Wish {
    fn takes(&self, object: &Value) -> bool {
        let in_namespace = self.namespace.is_empty() || object["metadata"]["namespace"] == self.namespace.as_str();
        in_namespace && self.selection.takes(object)
    }

    /// The event for a change, as one line.
    pub(crate) fn line(&self, change: &Change) -> Option<Bytes> {
        if change.group != self.group || change.plural != self.plural {
            return None;
        }
        let was = change.before.as_ref().is_some_and(|object| self.takes(object));
        let is = change.after.as_ref().is_some_and(|object| self.takes(object));
        let kind = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(event(kind, &self.shown(&change.last)))
    }

    /// The object, or its metadata alone.
    pub(crate) fn shown(&self, object: &Value) -> Value {
        if self.metadata_only { metadata_of(object) } else { object.clone() }
    }

    fn bookmark(&self, version: u64) -> Bytes {
        let (api_version, kind) = &self.kind;
        let metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
        event(
            "BOOKMARK",
            &json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": {}, "data": null}),
        )
    }
}

pub(crate) fn metadata_of(object: &Value) -> Value {
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"]})
}

fn event(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
}

/// A watch that ends with an error before it began.
pub(crate) fn only(status: &Value) -> ReplyBody {
    Full::new(event("ERROR", status)).boxed()
}

struct Watch {
    wish: Wish,
    lines: mpsc::Sender<Bytes>,
}

/// All open watches.
#[derive(Default)]
pub(crate) struct Watches(Vec<Watch>);

impl Watches {
    pub(crate) fn open(&self) -> usize {
        self.0.iter().filter(|watch| !watch.lines.is_closed()).count()
    }

    pub(crate) fn close(&mut self) {
        self.0.clear();
    }

    /// Ends all with an error, as a server does whose history does not reach back far enough.
    pub(crate) fn expire(&mut self, status: &Value) {
        for watch in self.0.drain(..) {
            let _ = watch.lines.try_send(event("ERROR", status));
        }
    }

    pub(crate) fn tell(&mut self, change: &Change) {
        self.0.retain(|watch| match watch.wish.line(change) {
            Some(line) => watch.lines.try_send(line).is_ok(),
            None => !watch.lines.is_closed(),
        });
    }

    /// Opens a watch that first says `backlog`.
    pub(crate) fn start(
        &mut self,
        wish: Wish,
        backlog: Vec<Bytes>,
        version: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> ReplyBody {
        let (lines, queue) = mpsc::channel(QUEUE);
        for line in backlog {
            // No room means that the reader comes again from where it stands.
            if lines.try_send(line).is_err() {
                break;
            }
        }
        self.0.push(Watch { wish: wish.clone(), lines });
        body(wish, queue, version)
    }
}

fn body(wish: Wish, queue: mpsc::Receiver<Bytes>, version: impl Fn() -> u64 + Send + Sync + 'static) -> ReplyBody {
    let ends = Instant::now() + wish.ends;
    let frames = stream::unfold((queue, wish, version), move |(mut queue, wish, version)| async move {
        let line = loop {
            tokio::select! {
                biased;
                line = queue.recv() => break line?,
                () = tokio::time::sleep_until(ends) => return None,
                () = tokio::time::sleep(BOOKMARK) => {
                    if wish.bookmarks {
                        break wish.bookmark(version());
                    }
                }
            }
        };
        Some((Ok::<_, Infallible>(Frame::data(line)), (queue, wish, version)))
    });
    StreamBody::new(frames).boxed()
}
