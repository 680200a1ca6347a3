//! Why a request got no answer, and whether it may be sent again.

use super::Body;
use crate::stream::OpenError;
use std::{sync::Arc, time::Duration};

/// A request without an answer. Whether the peer may have seen the request is a variant, not a guess.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// There is no connection to the peer. Nothing was sent.
    #[error("not connected to the peer")]
    NotConnected(Box<http::Request<Body>>),
    /// There is a connection, but the request was not sent.
    #[error("the request was not sent: {1}")]
    NotSent(Box<http::Request<Body>>, #[source] Unsent),
    /// The request was sent, in part or whole, and no answer's head came back. The peer may have acted on it.
    #[error("no answer: {0}")]
    Lost(#[source] Loss),
}

impl SendError {
    /// The request, if the peer has seen nothing of it.
    #[must_use]
    pub fn into_request(self) -> Option<http::Request<Body>> {
        match self {
            Self::NotConnected(request) | Self::NotSent(request, _) => Some(*request),
            Self::Lost(_) => None,
        }
    }
}

/// How a request was lost that may have reached the peer.
#[derive(Debug, thiserror::Error)]
pub enum Loss {
    /// The connection ended, or the peer reset the stream.
    #[error("the connection or stream broke")]
    Broken(#[source] hyper::Error),
    /// Nothing came from the peer for [`super::Settings::suspect`].
    #[error("the peer is silent")]
    Silent,
}

/// Why a request was not sent although there is a connection.
#[derive(Debug, thiserror::Error)]
pub enum Unsent {
    /// As many requests as one connection carries are in flight ([`super::Settings::in_flight`]).
    #[error("{0} requests are in flight to this peer")]
    Full(usize),
    /// Nothing came from the peer for [`super::Settings::suspect`].
    #[error("the peer is silent")]
    Silent,
    /// No substream for HTTP/2 could be opened.
    #[error("no HTTP/2 link: {0}")]
    Open(#[source] Arc<OpenError>),
    /// No substream for HTTP/2 was there in time ([`super::Settings::open`]).
    #[error("no HTTP/2 link within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The links broke under the request, before any of it was sent.
    #[error("the link broke before the request was sent")]
    Broken(#[source] hyper::Error),
}
