//! What is read of an answer before the client gets any of it: enough to ask another replica instead.

use super::{attempt::Refused, sense};
use crate::{
    errors::Cause,
    http::sse::{self, Opening},
};
use bytes::{Bytes, BytesMut};
use dunlin_node::hop::{Budget, Reservation, ResponseBody};
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of an answer in one piece up to which it is read to its end before the client gets any of it.
const HELD: usize = 256 << 10;
/// The same for all answers together.
pub(super) const HELD_IN_ALL: usize = 128 << 20;
/// Bytes that a stream may begin with and say nothing.
const PRELUDE: usize = 64 << 10;

/// The beginning of an answer's body.
#[derive(Default)]
pub(crate) struct First {
    /// `None` of an empty body.
    pub(crate) piece: Option<Bytes>,
    /// It is all of it.
    pub(crate) whole: bool,
    /// The memory that it takes.
    pub(crate) memory: Option<Reservation>,
    /// What came behind it.
    pub(crate) trailers: HeaderMap,
}

/// The first event of a stream, with the comments before it, of which the last are kept. A stream that ends before it
/// broke off.
pub(super) async fn event(body: &mut ResponseBody, murmurs: &AtomicBool) -> Result<First, Refused> {
    let (mut prelude, mut trailers) = (Bytes::new(), HeaderMap::new());
    while let Some(piece) = next(body, &mut trailers).await? {
        let begun = if prelude.is_empty() { piece } else { [prelude, piece].concat().into() };
        match sse::opening(&begun) {
            Opening::Event => return Ok(First { piece: Some(begun), ..First::default() }),
            Opening::Nonsense => return Err(Refused::Failed(Cause::Nonsense("no events"))),
            Opening::Comments => murmurs.store(true, Ordering::Relaxed),
            Opening::Unclear => {}
        }
        if begun.len() > PRELUDE {
            // Comments that nobody would miss.
            let end = sse::comments(&begun);
            prelude = begun.slice(end..);
            if prelude.len() > PRELUDE {
                return Err(Refused::Failed(Cause::Nonsense("no events")));
            }
        } else {
            prelude = begun;
        }
    }
    Err(Refused::Failed(Cause::Lost))
}

/// The first piece of any other answer; all of it where it is short, and JSON or of a known length, and there is memory.
pub(super) async fn piece(body: &mut ResponseBody, path: &str, held: &Budget) -> Result<First, Refused> {
    let mut trailers = HeaderMap::new();
    let Some(first) = next(body, &mut trailers).await? else {
        return Ok(First { whole: true, trailers, ..First::default() });
    };
    if body.is_end_stream() {
        return Ok(First { piece: Some(first), whole: true, ..First::default() });
    }
    let left = body.size_hint().exact();
    let may_be_short = left.map_or(sense::is_json(path), |left| left <= HELD as u64);
    let memory = held.reserve(first.len()).filter(|_| may_be_short);
    let Some(mut memory) = memory else { return Ok(First { piece: Some(first), ..First::default() }) };
    let mut all = BytesMut::from(first);
    let mut whole = false;
    while all.len() <= HELD {
        let Some(piece) = next(body, &mut trailers).await? else {
            whole = true;
            break;
        };
        let fits = memory.grow(piece.len());
        all.extend_from_slice(&piece);
        if !fits {
            break;
        }
    }
    Ok(First { piece: Some(all.freeze()), whole, memory: Some(memory), trailers })
}

/// The next piece that is not empty; `None` at the end.
async fn next(body: &mut ResponseBody, trailers: &mut HeaderMap) -> Result<Option<Bytes>, Refused> {
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
