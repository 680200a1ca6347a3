//! One replica asked once.

use super::{Ask, Dispatcher};
use crate::{
    errors::Cause,
    http::{
        answer::{Relay, Watched},
        endpoint::Dialect,
        headers,
    },
    pool::Lease,
    prompt,
    tally::Tally,
};
use bytes::Bytes;
use dunlin_node::{
    dial,
    hop::{Body, ResponseBody, SendError, Unsent},
};
use dunlin_protocol::{
    hop::{self, Fault},
    id::PeerId,
    load::LoadReport,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::time;

/// Body bytes after which a replica gets twice the time to its first byte.
const LONG_PROMPT: usize = 256 << 10;
/// Bytes at the beginning of a response in which its id is looked for.
const RESPONSE_HEAD: usize = 1024;
/// Bytes of an answer in one piece up to which it is read to its end before the client gets any of it.
const HELD: u64 = 256 << 10;
/// How much longer the deadline gets at most for a long prompt, and for an answer in one piece, which begins when all of
/// it has been generated.
const PATIENCE: u32 = 5;

/// Why there is no answer to show.
pub(super) enum Failure {
    /// All its slots are taken.
    Full,
    /// It takes nothing new.
    Draining,
    /// No answer came, or none of the engine's.
    Failed(Cause),
    /// The same, and the engine has not begun.
    Untouched(Cause),
    /// The engine answered, in a way that another may better.
    Answered(Cause, Box<Response<Relay>>),
}

impl Dispatcher {
    /// Asks the leased replica and waits for the first byte of its answer.
    pub(super) async fn attempt(&self, ask: &Ask, mut lease: Lease) -> Result<Response<Relay>, Failure> {
        let answer = match time::timeout(self.patience(ask), self.first_byte(ask, &lease)).await {
            Err(_) => Err(Refused::Failed(Cause::Timeout)),
            Ok(answer) => answer,
        };
        let (mut answer, first, trailers) = match answer {
            Ok(answer) => answer,
            Err(Refused::Full) => {
                lease.refused();
                return Err(Failure::Full);
            }
            Err(Refused::Draining) => return Err(Failure::Draining),
            // No failure of the replica: it may well serve its other models.
            Err(Refused::Untouched(Cause::NotServed)) => {
                lease.lacks(&ask.want.model);
                return Err(Failure::Untouched(Cause::NotServed));
            }
            Err(Refused::Untouched(cause)) => {
                lease.failed();
                return Err(Failure::Untouched(cause));
            }
            Err(Refused::Failed(cause)) => {
                lease.failed();
                return Err(Failure::Failed(cause));
            }
        };
        let status = answer.status();
        let failing = status.is_server_error();
        if is_failure_of_replica(status) {
            lease.failed();
        } else if !failing {
            lease.answered();
        }
        if ask.dialect == Dialect::Responses
            && let Some(response) = first.as_deref().and_then(response_id)
        {
            lease.holds(response);
        }
        headers::to_client(answer.headers_mut());
        answer.headers_mut().insert(headers::REPLICA, lease.name().clone());
        answer.headers_mut().insert(headers::ROUTE, HeaderValue::from_static(lease.step().as_str()));
        let is_stream = status == StatusCode::OK && is_event_stream(answer.headers());
        if is_stream {
            answer.headers_mut().remove(header::CONTENT_LENGTH);
        }
        let watch = is_stream.then(|| Watched::new(ask.dialect, self.inter_token));
        let mut tally =
            Tally::new(ask.want.model.clone(), ask.want.prompt.bytes, self.metrics.clone(), ask.account.clone());
        tally.take(&trailers);
        if !status.is_success() {
            tally.cancel();
        }
        let answer = answer.map(|rest| {
            Relay::new((first, rest), watch, failing, lease, tally, self.handle.clone(), self.metrics.clone())
        });
        if is_failure_of_replica(status) {
            return Err(Failure::Answered(Cause::Status(status.as_u16()), Box::new(answer)));
        }
        Ok(answer)
    }

    /// Sends the request and reads up to the first piece of the answer's body, or to the end of a short one with what
    /// follows it.
    async fn first_byte(&self, ask: &Ask, lease: &Lease) -> Result<Begun, Refused> {
        let replica = lease.replica();
        self.connect(replica.peer).await?;
        let mut answer = self.handle.hop().send(replica.peer, request(ask, lease)).await.map_err(|error| {
            tracing::debug!(%replica, %error, "not answered");
            match error {
                SendError::NotSent(_, Unsent::Full(_)) => Refused::Full,
                SendError::NotConnected(_) | SendError::NotSent(..) => Refused::Untouched(Cause::Unreachable),
                SendError::Lost(_) => Refused::Failed(Cause::Lost),
            }
        })?;
        self.take_load(replica.peer, answer.headers());
        if let Some(refused) = refusal(answer.headers()) {
            return Err(refused);
        }
        let mut trailers = HeaderMap::new();
        let mut first = first_piece(answer.body_mut(), &mut trailers).await?;
        if let Some(first) = &mut first
            && is_short(answer.body())
        {
            // The client has nothing of it yet, so that another replica may be asked if the rest does not come.
            while let Some(piece) = first_piece(answer.body_mut(), &mut trailers).await? {
                *first = [first.as_ref(), piece.as_ref()].concat().into();
            }
        }
        // A stream of events that ends before the first is one that broke off.
        if first.is_none() && is_event_stream(answer.headers()) {
            return Err(Refused::Failed(Cause::Lost));
        }
        Ok((answer, first, trailers))
    }

    pub(super) async fn connect(&self, peer: PeerId) -> Result<(), Refused> {
        if self.handle.hop().connected(&peer) {
            return Ok(());
        }
        let unreachable = Refused::Untouched(Cause::Unreachable);
        match time::timeout(dial::DEADLINE, self.handle.connect(peer)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "replica cannot be reached");
                Err(unreachable)
            }
            Err(_) => Err(unreachable),
        }
    }

    fn take_load(&self, peer: PeerId, headers: &HeaderMap) {
        let value = headers.get(hop::LOAD).and_then(|value| value.to_str().ok());
        if let Some(Ok(report)) = value.map(LoadReport::from_header) {
            self.handle.observe_load(peer, report);
        }
    }

    fn patience(&self, ask: &Ask) -> Duration {
        let long = 1 + u32::try_from(ask.body.len() / LONG_PROMPT).unwrap_or(PATIENCE);
        let factor = if ask.want.stream { long.min(PATIENCE) } else { PATIENCE };
        self.first_byte * factor
    }
}

/// Whether an engine's answer says that the replica, and not the request, is at fault: an engine whose worker process has
/// died answers so though its health check says 200. Of other 5xx a request may be the cause, which must not get a healthy
/// replica ejected.
fn is_failure_of_replica(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

/// The head of an answer, the beginning of its body, and the trailers of one that is all there.
type Begun = (Response<ResponseBody>, Option<Bytes>, HeaderMap);

/// Why a replica gave no answer of its engine.
pub(super) enum Refused {
    Full,
    Draining,
    Failed(Cause),
    /// The engine has not begun.
    Untouched(Cause),
}

fn request(ask: &Ask, lease: &Lease) -> Request<Body> {
    let mut request = Request::new(Body::from(ask.body.clone()));
    *request.method_mut() = ask.method.clone();
    // A path that was valid stays so behind a prefix.
    *request.uri_mut() = format!("/engine{}", ask.path).parse().unwrap_or_default();
    *request.headers_mut() = headers::to_engine(&ask.headers, lease.replica(), &ask.want.model, &ask.id);
    if let Some(value) = ask.ask_usage.and_then(|at| HeaderValue::try_from(at.to_header()).ok()) {
        request.headers_mut().insert(HeaderName::from_static(hop::ASK_USAGE), value);
    }
    for (name, value) in lease.headers() {
        request.headers_mut().extend(value.map(|value| (name, value)));
    }
    request
}

/// What an agent says when it is not the engine that answers. Agents take this header off what their engines say.
fn refusal(headers: &HeaderMap) -> Option<Refused> {
    let said = headers.get(hop::FAULT)?;
    let retry_is_safe = headers.get(hop::RETRY_SAFE).is_some_and(|value| value == "yes");
    let failed = |cause| if retry_is_safe { Refused::Untouched(cause) } else { Refused::Failed(cause) };
    Some(match said.to_str().ok().and_then(|fault| fault.parse().ok()) {
        Some(Fault::Full) => Refused::Full,
        Some(Fault::Draining) => Refused::Draining,
        // The engine may be at work still.
        Some(Fault::Silent) => Refused::Failed(Cause::Timeout),
        Some(Fault::NotServed) => Refused::Untouched(Cause::NotServed),
        Some(Fault::Engine) => failed(Cause::Engine),
        Some(Fault::Agent) => failed(Cause::Agent),
        // A fault that only a newer agent knows is at least not the engine's answer.
        None => Refused::Failed(Cause::Agent),
    })
}

/// Whether the answer comes in one piece, which is all there when its beginning is, and is short enough to be held.
fn is_short(body: &ResponseBody) -> bool {
    body.size_hint().exact().is_some_and(|left| left <= HELD)
}

/// The first piece that is not empty; `None` for an empty body.
async fn first_piece(body: &mut ResponseBody, trailers: &mut HeaderMap) -> Result<Option<Bytes>, Refused> {
    while !body.is_end_stream() {
        match body.frame().await {
            None => break,
            Some(Err(_)) => return Err(Refused::Failed(Cause::Lost)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(piece) if !piece.is_empty() => return Ok(Some(piece)),
                Ok(_) => {}
                Err(frame) => trailers.extend(frame.into_trailers().unwrap_or_default()),
            },
        }
    }
    Ok(None)
}

/// The hash of the id of a response, on which the client may build its next request: in the first event of a stream and
/// at the beginning of a whole answer.
fn response_id(first: &[u8]) -> Option<u64> {
    const ID: &[u8] = b"\"id\":";
    let head = &first[..first.len().min(RESPONSE_HEAD)];
    let after = memchr::memmem::find(head, ID)? + ID.len();
    let value = head.get(after..)?.trim_ascii_start().strip_prefix(b"\"")?;
    let id = &value[..memchr::memchr(b'"', value)?];
    id.starts_with(b"resp_").then(|| prompt::hash(id))
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.get(.."text/event-stream".len()).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"))
}
