//! Embeddings: a text's vector is the sum of its tokens' vectors, so that alike texts lie close together.

use super::{
    config::Speed,
    error::Error,
    metrics::Ending,
    models::Models,
    scheduler::{Need, Scheduler},
    text::mix,
    tokenizer,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::time::Instant;

#[derive(Debug, Deserialize)]
struct Request {
    model: Option<String>,
    input: Option<Input>,
    encoding_format: Option<Encoding>,
    dimensions: Option<u16>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string, a list of strings, or token ids")]
enum Input {
    One(String),
    Many(Vec<String>),
    Tokens(Vec<u32>),
    ManyTokens(Vec<Vec<u32>>),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    Base64,
}

#[derive(Serialize)]
struct Answer {
    object: &'static str,
    data: Vec<Entry>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Entry {
    index: usize,
    object: &'static str,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Input {
    fn into_tokens(self) -> Vec<Vec<u32>> {
        match self {
            Self::One(text) => vec![tokenizer::encode(&text)],
            Self::Many(texts) => texts.iter().map(|text| tokenizer::encode(text)).collect(),
            Self::Tokens(ids) => vec![ids],
            Self::ManyTokens(lists) => lists,
        }
    }
}

/// The body of an answer, after the time that it takes.
pub(super) async fn answer(
    models: &Models,
    scheduler: &Arc<Scheduler>,
    speed: Speed,
    size: u16,
    bytes: &[u8],
) -> Result<Vec<u8>, Error> {
    let request: Request = serde_json::from_slice(bytes)?;
    let resolved = models.resolve(request.model)?;
    let texts = request.input.ok_or(Error::Missing("input"))?.into_tokens();
    let size = usize::from(request.dimensions.unwrap_or(size).clamp(1, size.max(1)));
    let prompt_tokens = texts.iter().map(Vec::len).sum();
    let need = Need { prompt_tokens, prompt: String::new(), adapter: resolved.adapter };
    let Some(mut work) = scheduler.queue(need)?.begin().await else {
        return Err(super::scheduler::QueueFull.into());
    };
    let after = speed.until_token(prompt_tokens, 0);
    if !after.is_zero() {
        tokio::time::sleep_until(Instant::from_std(work.started) + after).await;
    }
    let encoding = request.encoding_format.unwrap_or_default();
    let entry = |(index, ids): (usize, &Vec<u32>)| Entry {
        index,
        object: "embedding",
        embedding: encode(vector(&resolved.root, ids, size), encoding),
    };
    let data = texts.iter().enumerate().map(entry).collect();
    work.finish(Ending::Stop, "");
    let usage = Usage { prompt_tokens, total_tokens: prompt_tokens };
    let answer = Answer { object: "list", data, model: resolved.asked, usage };
    Ok(serde_json::to_vec(&answer).unwrap_or_default())
}

/// A vector of length 1.
fn vector(root: &str, ids: &[u32], size: usize) -> Vec<f32> {
    let root = super::text::Context::EMPTY.with(root);
    let mut sum = vec![0f32; size];
    for &id in ids {
        for (place, number) in sum.iter_mut().enumerate() {
            let bits = root.number(mix(u64::from(id)) ^ place as u64);
            *number += f32::from(i16::from_le_bytes([bits as u8, (bits >> 8) as u8])) / 32768.0;
        }
    }
    let length = sum.iter().map(|number| number * number).sum::<f32>().sqrt();
    if length > 0.0 {
        sum.iter_mut().for_each(|number| *number /= length);
    }
    sum
}

fn encode(vector: Vec<f32>, encoding: Encoding) -> Vector {
    match encoding {
        Encoding::Float => Vector::Numbers(vector),
        Encoding::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            Vector::Base64(data_encoding::BASE64.encode(&bytes))
        }
    }
}
