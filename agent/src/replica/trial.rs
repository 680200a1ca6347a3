//! A trial: a small request of the agent's own, which tells an engine's fault from a client's. It asks for what was asked
//! last, for that is what failed: the same model (another might have to be loaded first) by the same kind of endpoint.

use super::{Replica, health::Trial};
use crate::engine::{
    Client, EngineUrl,
    client::{Answer, Error},
};
use dunlin_protocol::id::ModelId;
use std::time::Duration;

/// One token, or a moment of silence.
const DEADLINE: Duration = Duration::from_secs(10);
const ANSWER_BYTES: usize = 64 * 1024;
/// What ends each part of a form.
const BOUNDARY: &str = "dunlin-trial";
/// A fifth of a second of silence: 16 kHz, one channel, 16 bits.
const SILENCE_BYTES: u32 = 6_400;

/// What kind of answer was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Text,
    Embedding,
    Speech,
}

/// What an engine was asked for last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    model: ModelId,
    endpoint: Endpoint,
}

impl Asked {
    pub(crate) fn new(model: ModelId, path: &str) -> Self {
        Self { model, endpoint: Endpoint::of(path) }
    }

    /// Whether this is the same again, as it mostly is.
    pub(crate) fn is(&self, model: &ModelId, path: &str) -> bool {
        self.model == *model && self.endpoint == Endpoint::of(path)
    }
}

impl Endpoint {
    fn of(path: &str) -> Self {
        if path.contains("/audio/transcriptions") || path.contains("/audio/translations") {
            Self::Speech
        } else if path.contains("/embeddings") {
            Self::Embedding
        } else {
            Self::Text
        }
    }
}

/// Tries the engine at `url`. What the endpoint makes of it doesn't matter, as long as it is no server error: an engine
/// that knows no such path, or that wants something else, is alive.
pub(super) async fn run(replica: &Replica, client: &Client, url: &EngineUrl, asked: &Asked) -> Trial {
    let before = replica.counters.signs_of_life();
    match send(client, url, asked).await {
        // 501: a server's way of saying that it does other things.
        Ok(answer) if answer.status.is_server_error() && answer.status.as_u16() != 501 => Trial::Failed,
        Ok(_) | Err(Error::TooLarge(_)) => Trial::Passed,
        Err(Error::Deadline(_)) if replica.counters.signs_of_life() != before => Trial::Unclear,
        Err(_) => Trial::Failed,
    }
}

async fn send(client: &Client, url: &EngineUrl, Asked { model, endpoint }: &Asked) -> Result<Answer, Error> {
    match endpoint {
        Endpoint::Text => {
            let body = serde_json::json!({ "model": model, "prompt": "a", "max_tokens": 1 });
            client.post_json(url, "/v1/completions", &body, DEADLINE, ANSWER_BYTES).await
        }
        Endpoint::Embedding => {
            let body = serde_json::json!({ "model": model, "input": "a" });
            client.post_json(url, "/v1/embeddings", &body, DEADLINE, ANSWER_BYTES).await
        }
        Endpoint::Speech => {
            let kind = format!("multipart/form-data; boundary={BOUNDARY}");
            client.post(url, "/v1/audio/transcriptions", &kind, form(model), DEADLINE, ANSWER_BYTES).await
        }
    }
}

/// The fields `model` and `file`.
fn form(model: &ModelId) -> Vec<u8> {
    let mut form = format!(
        "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n\
         --{BOUNDARY}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"silence.wav\"\r\n\
         content-type: audio/wav\r\n\r\n"
    )
    .into_bytes();
    form.extend_from_slice(&silence());
    form.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    form
}

/// A WAV file: RIFF header, format, samples.
fn silence() -> Vec<u8> {
    let (rate, bytes_per_sample) = (16_000_u32, 2_u16);
    let mut wav = Vec::new();
    wav.extend_from_slice(b"RIFF");
    wav.extend_from_slice(&(36 + SILENCE_BYTES).to_le_bytes());
    wav.extend_from_slice(b"WAVEfmt ");
    wav.extend_from_slice(&16_u32.to_le_bytes());
    // PCM, one channel.
    wav.extend_from_slice(&1_u16.to_le_bytes());
    wav.extend_from_slice(&1_u16.to_le_bytes());
    wav.extend_from_slice(&rate.to_le_bytes());
    wav.extend_from_slice(&(rate * u32::from(bytes_per_sample)).to_le_bytes());
    wav.extend_from_slice(&bytes_per_sample.to_le_bytes());
    wav.extend_from_slice(&(bytes_per_sample * 8).to_le_bytes());
    wav.extend_from_slice(b"data");
    wav.extend_from_slice(&SILENCE_BYTES.to_le_bytes());
    wav.resize(wav.len() + SILENCE_BYTES as usize, 0);
    wav
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trial_is_of_the_kind_that_was_asked_for() {
        for (path, endpoint) in [
            ("/v1/chat/completions", Endpoint::Text),
            ("/v1/audio/transcriptions", Endpoint::Speech),
            ("/v1/audio/translations?x=1", Endpoint::Speech),
            ("/v1/audio/speech", Endpoint::Text),
            ("/v1/embeddings", Endpoint::Embedding),
        ] {
            assert_eq!(Endpoint::of(path), endpoint, "{path}");
        }
        let model: ModelId = "a".parse().unwrap();
        let asked = Asked::new(model.clone(), "/v1/chat/completions");
        assert!(asked.is(&model, "/v1/completions") && !asked.is(&model, "/v1/embeddings"));
    }

    #[test]
    fn silence_is_a_whole_wav_file() {
        let wav = silence();
        assert_eq!(wav.len(), 44 + SILENCE_BYTES as usize);
        let number = |at: usize| u32::from_le_bytes(wav[at..at + 4].try_into().unwrap());
        assert_eq!((number(4) as usize, number(40)), (wav.len() - 8, SILENCE_BYTES));
        assert_eq!((number(24), number(28)), (16_000, 32_000));
    }
}
