//! Reads an engine's error to its end and gives it the shape that clients look for.

use super::answer::Body;
use crate::errors::engine::Said;
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::time::timeout;

/// Of a longer error, so much is read.
const BYTES: usize = 64 << 10;
/// How long the rest of an error may take once it has begun.
const TIME: Duration = Duration::from_secs(5);

/// `response`, if it is an engine's error, in the shape that `said` makes of it.
pub(super) async fn shaped(response: Response<Body>, said: Said<'_>) -> Response<Body> {
    let status = response.status();
    if status.is_success() || !matches!(response.body(), Body::Relay(_)) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let body = beginning(body).await;
    let reshaped = if is_of_the_engine_alone(status) {
        head.status = StatusCode::BAD_GATEWAY;
        Some(Said { status: head.status, ..said }.of_the_engine_alone(status))
    } else {
        Said { status, body: &body, ..said }.reshaped()
    };
    head.headers.remove(header::CONTENT_LENGTH);
    if reshaped.is_some() {
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    Response::from_parts(head, Body::whole(reshaped.unwrap_or(body)))
}

/// Whether a status is nothing that the client could do anything about: the engine wants a key of its own, or answers
/// with what is no answer to a client of an API.
fn is_of_the_engine_alone(status: StatusCode) -> bool {
    let of_keys = [StatusCode::UNAUTHORIZED, StatusCode::PROXY_AUTHENTICATION_REQUIRED].contains(&status);
    of_keys || !(status.is_client_error() || status.is_server_error())
}

/// What comes of a body within bounds. One that breaks off says what it has said.
async fn beginning(mut body: Body) -> Bytes {
    let mut read = BytesMut::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(piece) = frame.into_data() else { continue };
            read.extend_from_slice(&piece[..piece.len().min(BYTES - read.len())]);
            if read.len() == BYTES {
                break;
            }
        }
    };
    // What has come by then has to do.
    let _ = timeout(TIME, reading).await;
    read.freeze()
}
