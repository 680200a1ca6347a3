//! A look into a JSON body for what the proxy must know, changing nothing and keeping nothing else.
//!
//! The body is walked once without building values. Only the top level counts: a `model` inside a message is the
//! client's own business.

pub(crate) mod body;

use dunlin_protocol::id::{self, ModelId};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What the proxy reads of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peek {
    /// Who is asked.
    pub(crate) model: ModelId,
    /// Whether the answer is to come in pieces: `"stream": true` and nothing else, as engines read it.
    pub(crate) stream: bool,
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
    /// No name that a model can have.
    #[error("{0}")]
    BadModel(#[from] id::Error),
}

impl Error {
    /// The field at fault.
    pub(crate) fn param(&self) -> Option<&'static str> {
        match self {
            Self::Empty | Self::Syntax { .. } | Self::NotAnObject => None,
            Self::Duplicate(field) => Some(field),
            Self::NoModel | Self::ModelNotAString | Self::BadModel(_) => Some("model"),
        }
    }
}

/// Reads `model` and `stream`.
///
/// # Errors
/// The body is not a JSON object with one `model` that is text.
pub(crate) fn peek(body: &[u8]) -> Result<Peek, Error> {
    let json = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    if json.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::Empty);
    }
    let Fields { model, stream } = serde_json::from_slice(json).map_err(|error| syntax(json, &error))?;
    let model = match model {
        Field::Absent => return Err(Error::NoModel),
        Field::Twice => return Err(Error::Duplicate("model")),
        Field::Once(Scalar::Text(text)) => ModelId::new(&text)?,
        Field::Once(_) => return Err(Error::ModelNotAString),
    };
    if matches!(stream, Field::Twice) {
        return Err(Error::Duplicate("stream"));
    }
    Ok(Peek { model, stream: matches!(stream, Field::Once(Scalar::True)) })
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

#[derive(Default)]
struct Fields {
    model: Field,
    stream: Field,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TopLevel;
        impl<'de> Visitor<'de> for TopLevel {
            type Value = Fields;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Fields::default();
                while let Some(key) = map.next_key::<Key>()? {
                    match key {
                        Key::Model => fields.model.set(map.next_value()?),
                        Key::Stream => fields.stream.set(map.next_value()?),
                        Key::Other => _ = map.next_value::<IgnoredAny>()?,
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(TopLevel)
    }
}

/// The names that matter, however they are escaped.
enum Key {
    Model,
    Stream,
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
                    _ => Key::Other,
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
