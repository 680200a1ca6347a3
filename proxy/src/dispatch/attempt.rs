//! One replica asked once.

use super::{
    Ask, Dispatcher,
    first::{self, First},
    patience::within,
    sense::{self, Sense},
};
use crate::{
    errors::Cause,
    http::{
        answer::{Relay, Watched},
        endpoint::Dialect,
        headers, sse,
    },
    pool::Lease,
    prompt,
    tally::Tally,
};
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
use std::{pin::pin, sync::atomic::AtomicBool, time::Instant};
use tokio::time;

/// Bytes at the beginning of a response in which its id is looked for.
const RESPONSE_HEAD: usize = 1024;
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
        let (deadlines, told) = self.deadlines(lease.replica(), ask.want.prompt.kib(), ask.want.stream);
        let murmurs = AtomicBool::new(false);
        let mut request = request(ask, &lease);
        request.headers_mut().extend(told);
        let answer = {
            let mut begins = pin!(self.first_byte(ask, &lease, request, &murmurs));
            // A replica's time begins when it can have the whole request.
            let early = tokio::select! {
                biased;
                answer = begins.as_mut() => Some(answer),
                () = ask.body.arrived() => None,
            };
            match early {
                None => within(&deadlines, &murmurs, begins).await,
                early => early,
            }
        };
        let (mut answer, first) = match answer.unwrap_or(Err(Refused::Failed(Cause::Timeout))) {
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
        let sense = sense_of(ask, &answer, &first);
        if let Sense::Nonsense(what) = sense {
            lease.failed();
            return Err(Failure::Failed(Cause::Nonsense(what)));
        }
        let at_fault = is_failure_of_replica(answer.status());
        // Of a client's own mistake another replica would say the same.
        let is_error = matches!(sense, Sense::Error(status) if !status.is_some_and(|status| status.is_client_error()));
        if let (Sense::Error(status), false) = (sense, is_event_stream(answer.headers())) {
            *answer.status_mut() = status.unwrap_or(StatusCode::BAD_GATEWAY);
        }
        let status = answer.status();
        let failing = status.is_server_error() || is_error;
        if at_fault {
            lease.failed();
        } else if !failing {
            lease.answered();
        }
        if ask.dialect == Dialect::Responses
            && let Some(response) = first.piece.as_deref().and_then(response_id)
        {
            lease.holds(prompt::hash(response));
            if let Ok(id) = std::str::from_utf8(response) {
                let (replica, now) = (lease.replica(), Instant::now());
                self.responses.given(id, replica, &ask.want.model, ask.owner, now);
            }
        }
        headers::to_client(answer.headers_mut());
        answer.headers_mut().insert(headers::REPLICA, lease.name().clone());
        answer.headers_mut().insert(headers::ROUTE, HeaderValue::from_static(lease.step().as_str()));
        let is_stream = status == StatusCode::OK && is_event_stream(answer.headers());
        if is_stream {
            answer.headers_mut().remove(header::CONTENT_LENGTH);
        }
        let watch = is_stream.then(|| Watched::new(ask.dialect, ask.want.model.clone(), deadlines));
        let mut tally =
            Tally::new(ask.want.model.clone(), ask.want.prompt.bytes, self.metrics.clone(), ask.account.clone());
        if !status.is_success() || failing {
            tally.cancel();
        }
        let answer = answer.map(|rest| {
            Relay::new(first, rest, watch, failing, lease, tally, (self.handle.clone(), self.metrics.clone()))
        });
        if at_fault {
            return Err(Failure::Answered(Cause::Status(status.as_u16()), Box::new(answer)));
        }
        if is_error {
            return Err(Failure::Answered(Cause::Nonsense("an error as if it were an answer"), Box::new(answer)));
        }
        Ok(answer)
    }

    /// Sends the request and reads up to the first piece of the answer's body.
    async fn first_byte(
        &self,
        ask: &Ask,
        lease: &Lease,
        request: Request<Body>,
        murmurs: &AtomicBool,
    ) -> Result<(Response<ResponseBody>, First), Refused> {
        let replica = lease.replica();
        self.connect(replica.peer).await?;
        let mut answer = self.handle.hop().send(replica.peer, request).await.map_err(|error| {
            tracing::debug!(%replica, %error, "not answered");
            match error {
                SendError::NotSent(_, Unsent::Full(_)) => Refused::Full,
                SendError::NotConnected(_) | SendError::NotSent(..) => Refused::Untouched(Cause::Unreachable),
                SendError::Lost(_) => Refused::Failed(Cause::Lost),
            }
        })?;
        self.take_load(replica.peer, answer.headers());
        self.hear_bounds(replica, answer.headers());
        if let Some(refused) = refusal(answer.headers()) {
            return Err(refused);
        }
        let first = if answer.status().is_success() && is_event_stream(answer.headers()) {
            first::event(answer.body_mut(), murmurs).await?
        } else {
            first::piece(answer.body_mut(), ask.path.path(), &self.held).await?
        };
        Ok((answer, first))
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
}

/// Whether an engine's answer says that the replica, and not the request, is at fault: an engine whose worker process has
/// died answers so though its health check says 200. Of other 5xx a request may be the cause, which must not get a healthy
/// replica ejected.
pub(super) fn is_failure_of_replica(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

/// What an answer of success is; of others the status says it.
fn sense_of(ask: &Ask, answer: &Response<ResponseBody>, first: &First) -> Sense {
    let begun = first.piece.as_deref().unwrap_or_default();
    if !answer.status().is_success() || answer.status() == StatusCode::NO_CONTENT {
        return Sense::Answer;
    }
    if is_event_stream(answer.headers()) {
        return sse::data_of(begun).next().map_or(Sense::Answer, sense::of_event);
    }
    sense::of_answer(ask.path.path(), answer.headers(), begun, first.whole)
}

/// Why a replica gave no answer of its engine.
pub(super) enum Refused {
    Full,
    Draining,
    Failed(Cause),
    /// The engine has not begun.
    Untouched(Cause),
}

fn request(ask: &Ask, lease: &Lease) -> Request<Body> {
    let mut request = Request::new(ask.body.body());
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

/// The id of a response, on which the client may build its next request: in the first event of a stream and
/// at the beginning of a whole answer.
fn response_id(first: &[u8]) -> Option<&[u8]> {
    const ID: &[u8] = b"\"id\":";
    let head = &first[..first.len().min(RESPONSE_HEAD)];
    let after = memchr::memmem::find(head, ID)? + ID.len();
    let value = head.get(after..)?.trim_ascii_start().strip_prefix(b"\"")?;
    let id = &value[..memchr::memchr(b'"', value)?];
    id.starts_with(b"resp_").then_some(id)
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.get(.."text/event-stream".len()).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"))
}
