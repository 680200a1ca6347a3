//! A look into a JSON body for what the proxy must know, changing nothing and keeping nothing else.
//!
//! The body is walked once without building values. Only the top level counts: a `model` inside a message is the
//! client's own business. Of the prompt only an outline is kept, by which its beginning can be recognised.

pub(crate) mod body;
pub(crate) mod form;
mod outline;
pub(crate) mod payload;

use crate::prompt::Prompt;
use bytes::Bytes;
use dunlin_protocol::{
    hop::AskUsage,
    id::{self, ModelId},
};
use outline::{Outline, Part};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::{fmt, marker::PhantomData, ops::Range};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What the proxy reads of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peek {
    /// Who is asked.
    pub(crate) model: ModelId,
    /// Whether the answer is to come in pieces: `"stream": true` and nothing else, as engines read it.
    pub(crate) stream: bool,
    /// Where the model's name stands in the body, quotes included; `None` in a body that is no UTF-8.
    pub(crate) model_at: Option<Range<usize>>,
    /// The response that it builds on.
    pub(crate) previous: Option<String>,
    /// What routing reads of its prompt.
    pub(crate) prompt: Prompt,
    /// Tokens that the answer may have at most, if that is said.
    pub(crate) longest: Option<u32>,
    /// Where an agent may ask for the usage of the stream; `None` where the client asks itself, or there is no stream.
    pub(crate) ask_usage: Option<AskUsage>,
}

/// Why a body can't be routed. The messages go to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// No body.
    #[error("the request has no body; send a JSON object with at least a \"model\"")]
    Empty,
    /// Not JSON. Position as the parser counts: both from 1.
    #[error("the body is not valid JSON: {reason} at line {line}, column {column}")]
    Syntax { reason: String, line: usize, column: usize },
    /// JSON, but no object.
    #[error("the body must be a JSON object")]
    NotAnObject,
    /// The field is missing.
    #[error("you must provide a \"model\" parameter; GET /v1/models lists what is served")]
    NoModel,
    /// The field is no text.
    #[error("\"model\" must be a string")]
    ModelNotAString,
    /// Engines differ in which of the two they take.
    #[error("\"{0}\" is given more than once; give it once")]
    Duplicate(&'static str),
    /// Another model's name is to be written into it.
    #[error("the body is not valid UTF-8")]
    NotUtf8,
    /// No name that a model can have.
    #[error("{0}")]
    BadModel(#[from] id::Error),
}

impl Error {
    /// The field at fault.
    pub(crate) fn param(&self) -> Option<&'static str> {
        match self {
            Self::Empty | Self::Syntax { .. } | Self::NotAnObject | Self::NotUtf8 => None,
            Self::Duplicate(field) => Some(field),
            Self::NoModel | Self::ModelNotAString | Self::BadModel(_) => Some("model"),
        }
    }
}

/// Reads `model`, `stream` and the outline of the prompt.
///
/// # Errors
/// The body is not a JSON object with one `model` that is text.
pub(crate) fn peek(body: &[u8]) -> Result<Peek, Error> {
    let json = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    if json.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::Empty);
    }
    // What is no UTF-8 inside a prompt is the engine's to judge, so then there is just no outline of it.
    let fields = match serde_json::from_slice(json) {
        Ok(Fields::<Outline<'_>> { model, stream, prompt }) => Ok((model, stream, Some(prompt))),
        Err(_) => serde_json::from_slice(json).map(|Fields::<IgnoredAny> { model, stream, .. }| (model, stream, None)),
    };
    let (model, stream, outline) = fields.map_err(|error| syntax(json, &error))?;
    let model = match model {
        Field::Absent => return Err(Error::NoModel),
        Field::Twice => return Err(Error::Duplicate("model")),
        Field::Once(Scalar::Text(text)) => ModelId::new(&text)?,
        Field::Once(_) => return Err(Error::ModelNotAString),
    };
    if matches!(stream, Field::Twice) {
        return Err(Error::Duplicate("stream"));
    }
    let stream = matches!(stream, Field::Once(Scalar::True));
    let ask_usage = outline.as_ref().filter(|_| stream).and_then(|outline| outline.ask_usage(body));
    let model_at = outline.as_ref().and_then(|outline| outline.model_at(body));
    let outline = outline.unwrap_or_default();
    let (prompt, previous, longest) = (outline.prompt(&model, body.len()), outline.previous(), outline.longest());
    Ok(Peek { model, model_at, stream, previous, prompt, longest, ask_usage })
}

/// `body` with `model` for what stands at `at`, and where it stands now. All else is left as it is.
pub(crate) fn renamed(body: &[u8], at: &Range<usize>, model: &ModelId) -> (Bytes, Range<usize>) {
    let name = serde_json::Value::from(model.as_str()).to_string();
    let before = body.get(..at.start).unwrap_or_default();
    let after = body.get(at.end..).unwrap_or_default();
    ([before, name.as_bytes(), after].concat().into(), at.start..at.start + name.len())
}

fn syntax(json: &[u8], error: &serde_json::Error) -> Error {
    let starts_an_object = json.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    if error.is_data() && !starts_an_object {
        return Error::NotAnObject;
    }
    let said = error.to_string();
    let reason = said.split(" at line ").next().unwrap_or_default().to_owned();
    Error::Syntax { reason, line: error.line(), column: error.column() }
}

/// A field of the top level.
#[derive(Default)]
enum Field {
    #[default]
    Absent,
    Once(Scalar),
    Twice,
}

impl Field {
    fn set(&mut self, value: Scalar) {
        *self = if matches!(self, Self::Absent) { Self::Once(value) } else { Self::Twice };
    }
}

struct Fields<P> {
    model: Field,
    stream: Field,
    prompt: P,
}

/// What becomes of the fields that make the prompt.
trait Keep<'de>: Default {
    fn keep<A: MapAccess<'de>>(&mut self, part: Part, map: &mut A) -> Result<(), A::Error>;
    fn model<A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<Scalar, A::Error>;
}

impl<'de> Keep<'de> for Outline<'de> {
    fn keep<A: MapAccess<'de>>(&mut self, part: Part, map: &mut A) -> Result<(), A::Error> {
        self.set(part, map.next_value::<&'de RawValue>()?.get().as_bytes());
        Ok(())
    }

    fn model<A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<Scalar, A::Error> {
        let json = map.next_value::<&'de RawValue>()?.get();
        self.set_model(json.as_bytes());
        serde_json::from_str(json).map_err(serde::de::Error::custom)
    }
}

impl<'de> Keep<'de> for IgnoredAny {
    fn keep<A: MapAccess<'de>>(&mut self, _: Part, map: &mut A) -> Result<(), A::Error> {
        map.next_value::<IgnoredAny>().map(|_| ())
    }

    fn model<A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<Scalar, A::Error> {
        map.next_value()
    }
}

impl<'de, P: Keep<'de>> Deserialize<'de> for Fields<P> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TopLevel<P>(PhantomData<P>);
        impl<'de, P: Keep<'de>> Visitor<'de> for TopLevel<P> {
            type Value = Fields<P>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<P>, A::Error> {
                let mut fields = Fields { model: Field::Absent, stream: Field::Absent, prompt: P::default() };
                while let Some(key) = map.next_key::<Key>()? {
                    match key {
                        Key::Model => fields.model.set(fields.prompt.model(&mut map)?),
                        Key::Stream => fields.stream.set(map.next_value()?),
                        Key::Part(part) => fields.prompt.keep(part, &mut map)?,
                        Key::Other => _ = map.next_value::<IgnoredAny>()?,
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(TopLevel(PhantomData))
    }
}

/// The names that matter, however they are escaped.
enum Key {
    Model,
    Stream,
    Part(Part),
    Other,
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field name")
            }
            fn visit_str<E>(self, name: &str) -> Result<Key, E> {
                Ok(match name {
                    "model" => Key::Model,
                    "stream" => Key::Stream,
                    _ => Part::named(name).map_or(Key::Other, Key::Part),
                })
            }
        }
        deserializer.deserialize_str(Name)
    }
}

/// A value of which only text and `true` are of interest.
enum Scalar {
    Text(String),
    True,
    Other,
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(text.to_owned()))
            }
            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(if value { Scalar::True } else { Scalar::Other })
            }
            fn visit_i64<E>(self, _: i64) -> Result<Scalar, E> {
                Ok(Scalar::Other)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Scalar, E> {
                Ok(Scalar::Other)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Scalar, E> {
                Ok(Scalar::Other)
            }
            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar::Other)
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests;
