//! Answers as JSON and as events, in vLLM's shape. The parts that don't change within an answer are written once.

use super::{
    request::{Endpoint, Job},
    writer::{Finish, Step},
};
use bytes::{BufMut, Bytes, BytesMut};
use std::io::Write as _;

/// What `system_fingerprint` says.
const FINGERPRINT: &str = concat!("dunlin-demo-", env!("CARGO_PKG_VERSION"));
/// Room taken at once for the chunks of a stream.
const CHUNK_ROOM: usize = 4096;

/// What an answer used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) completion_tokens: u32,
    /// Tokens of the prompt from the prefix cache; `None` without a cache.
    pub(super) cached_tokens: Option<usize>,
}

impl Usage {
    fn write(&self, out: &mut BytesMut) {
        let total = self.prompt_tokens + self.completion_tokens as usize;
        let _ = write!(
            out.writer(),
            "\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{total},\"completion_tokens\":{},",
            self.prompt_tokens,
            self.completion_tokens,
        );
        match self.cached_tokens {
            None => out.put_slice(b"\"prompt_tokens_details\":null}"),
            Some(cached) => {
                let _ = write!(out.writer(), "\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}");
            }
        }
    }
}

/// Writes the events of one stream.
#[derive(Debug)]
pub(super) struct Events {
    endpoint: Endpoint,
    /// `data: {"id":...,"model":...,"choices":[`
    head: Bytes,
    out: BytesMut,
}

/// `{"id":...,"object":...,"created":...,"model":...,"choices":[`
fn head(out: &mut BytesMut, job: &Job, object: &str, id: &str, created: u64) {
    let model = serde_json::to_string(&job.model).unwrap_or_default();
    let id = serde_json::to_string(id).unwrap_or_default();
    let _ = write!(
        out.writer(),
        "{{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\"choices\":["
    );
}

fn finish_fields(out: &mut BytesMut, finish: &Finish) {
    match finish {
        Finish::Length => out.put_slice(b"\"finish_reason\":\"length\",\"stop_reason\":null"),
        Finish::Stop(None) => out.put_slice(b"\"finish_reason\":\"stop\",\"stop_reason\":null"),
        Finish::Stop(Some(stop)) => {
            let stop = serde_json::to_string(stop).unwrap_or_default();
            let _ = write!(out.writer(), "\"finish_reason\":\"stop\",\"stop_reason\":{stop}");
        }
    }
}

impl Events {
    pub(super) fn new(job: &Job, id: &str, created: u64) -> Self {
        let object = match job.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        let mut out = BytesMut::with_capacity(CHUNK_ROOM);
        out.put_slice(b"data: ");
        head(&mut out, job, object, id, created);
        Self { endpoint: job.endpoint, head: out.split().freeze(), out }
    }

    fn begin(&mut self, json: &str) {
        let wanted = self.head.len() + json.len() + 256;
        if self.out.capacity() < wanted {
            self.out.reserve(CHUNK_ROOM.max(wanted));
        }
        self.out.put_slice(&self.head);
    }

    /// The first event of a chat: the role, and no text yet.
    pub(super) fn role(&mut self) {
        self.begin("");
        self.out.put_slice(
            b"{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\
              \"prompt_token_ids\":null,\"prompt_text\":null}\n\n",
        );
    }

    /// The text of one step.
    pub(super) fn step(&mut self, step: &Step) {
        self.begin(&step.json);
        let out = &mut self.out;
        match self.endpoint {
            Endpoint::Chat => out.put_slice(b"{\"index\":0,\"delta\":{\"content\":\""),
            Endpoint::Completions => out.put_slice(b"{\"index\":0,\"text\":\""),
        }
        out.put_slice(step.json.as_bytes());
        out.put_slice(match self.endpoint {
            Endpoint::Chat => b"\"},\"logprobs\":null,".as_slice(),
            Endpoint::Completions => b"\",\"logprobs\":null,",
        });
        match (&step.finish, self.endpoint) {
            (None, Endpoint::Chat) => out.put_slice(b"\"finish_reason\":null,\"token_ids\":null}]}\n\n"),
            (None, Endpoint::Completions) => out.put_slice(
                b"\"finish_reason\":null,\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]}\n\n",
            ),
            (Some(finish), _) => {
                finish_fields(out, finish);
                let _ = write!(out.writer(), ",\"token_ids\":null}}],\"system_fingerprint\":\"{FINGERPRINT}\"}}\n\n");
            }
        }
    }

    /// The event with what was used, for clients that ask for it.
    pub(super) fn usage(&mut self, usage: &Usage) {
        self.begin("");
        self.out.put_slice(b"],");
        usage.write(&mut self.out);
        let _ = write!((&mut self.out).writer(), ",\"system_fingerprint\":\"{FINGERPRINT}\"}}\n\n");
    }

    /// The terminal event.
    pub(super) fn done(&mut self) {
        self.out.put_slice(b"data: [DONE]\n\n");
    }

    /// What was written since the last call.
    pub(super) fn take(&mut self) -> Bytes {
        self.out.split().freeze()
    }
}

/// The body of an answer that isn't a stream. `json` is the text inside a JSON string.
pub(super) fn whole(job: &Job, id: &str, created: u64, json: &str, finish: &Finish, usage: &Usage) -> Bytes {
    let mut out = BytesMut::with_capacity(json.len() + 1024);
    match job.endpoint {
        Endpoint::Chat => {
            head(&mut out, job, "chat.completion", id, created);
            out.put_slice(b"{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"");
            out.put_slice(json.as_bytes());
            out.put_slice(
                b"\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null},\
                  \"logprobs\":null,",
            );
        }
        Endpoint::Completions => {
            head(&mut out, job, "text_completion", id, created);
            out.put_slice(b"{\"index\":0,\"text\":\"");
            out.put_slice(json.as_bytes());
            out.put_slice(b"\",\"logprobs\":null,");
        }
    }
    finish_fields(&mut out, finish);
    let _ = write!(
        (&mut out).writer(),
        ",\"token_ids\":null}}],\"service_tier\":null,\"system_fingerprint\":\"{FINGERPRINT}\","
    );
    usage.write(&mut out);
    out.put_slice(b",\"kv_transfer_params\":null}");
    out.freeze()
}
