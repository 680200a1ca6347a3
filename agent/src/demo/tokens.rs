//! `/tokenize` and `/detokenize`.

use super::{
    error::Error,
    models::Models,
    request::{self, Message},
    tokenizer,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
struct TokenizeRequest {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Message>>,
}

/// As vLLM answers.
#[derive(Debug, Serialize)]
pub(super) struct Tokenized {
    count: usize,
    max_model_len: u32,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// As vLLM answers.
#[derive(Debug, Serialize)]
pub(super) struct Detokenized {
    prompt: String,
}

/// The tokens of a text or of a chat.
pub(super) fn tokenize(models: &Models, context: u32, bytes: &[u8]) -> Result<Tokenized, Error> {
    let request: TokenizeRequest = serde_json::from_slice(bytes)?;
    let resolved = models.resolve(request.model)?;
    let text = match (request.prompt, request.messages) {
        (Some(prompt), _) => prompt,
        (None, Some(messages)) => request::render(&messages, &resolved.asked)? + request::ANSWER,
        (None, None) => return Err(Error::Missing("prompt")),
    };
    let tokens = tokenizer::encode(&text);
    Ok(Tokenized { count: tokens.len(), max_model_len: context, tokens, token_strs: None })
}

/// The text of tokens.
pub(super) fn detokenize(models: &Models, bytes: &[u8]) -> Result<Detokenized, Error> {
    let request: DetokenizeRequest = serde_json::from_slice(bytes)?;
    models.resolve(request.model)?;
    let prompt = tokenizer::decode(&request.tokens).ok_or(Error::NotTokens)?;
    Ok(Detokenized { prompt })
}
