//! The answering side. Who may ask was decided before, by [`dunlin_protocol::hop::Route`].

use super::{Error, Keeper, KeyMessage};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use dunlin_protocol::limits;
use http::StatusCode;

/// Bytes of statements in one answer.
const STATEMENTS: usize = limits::KEY_MESSAGE_BYTES / 4;

impl Keeper {
    /// Answers one message of another proxy.
    pub(crate) async fn answer(&self, body: Bytes) -> Response {
        let Ok(message) = KeyMessage::decode(&body) else { return StatusCode::BAD_REQUEST.into_response() };
        if matches!(&message, KeyMessage::Push(said) if said.len() > limits::KEYS_PER_PUSH) {
            return StatusCode::PAYLOAD_TOO_LARGE.into_response();
        }
        // Who has nothing yet would tell others that there is nothing.
        if !matches!(message, KeyMessage::Push(_)) && !self.is_synced() {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        let keeper = self.clone();
        match tokio::task::spawn_blocking(move || keeper.reply(message)).await {
            Ok(Ok(Some(reply))) => match reply.encode() {
                Ok(bytes) => bytes.into_response(),
                Err(error) => failed(&error),
            },
            Ok(Ok(None)) => StatusCode::BAD_REQUEST.into_response(),
            Ok(Err(error)) => failed(&error),
            Err(error) => failed(&error),
        }
    }

    fn reply(&self, message: KeyMessage) -> Result<Option<KeyMessage>, Error> {
        Ok(Some(match message {
            KeyMessage::Push(said) => {
                let (new, refused) = self.verify_and_take(said)?;
                if new > 0 {
                    tracing::info!(new, "statements about keys taken in");
                }
                KeyMessage::Taken { refused }
            }
            KeyMessage::Compare => KeyMessage::Buckets(self.0.keys.buckets().to_vec()),
            KeyMessage::Fetch(wanted) => {
                let (whole, statements) = self.0.keys.in_buckets(&wanted, STATEMENTS)?;
                KeyMessage::Statements { buckets: u16::try_from(whole).unwrap_or(u16::MAX), statements }
            }
            KeyMessage::Buckets(_) | KeyMessage::Statements { .. } | KeyMessage::Taken { .. } => return Ok(None),
        }))
    }
}

fn failed(error: &dyn std::fmt::Display) -> Response {
    tracing::error!(%error, "statements about keys could not be answered");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}
