//! One event of a chat's or a completion's stream, as far as it matters to whoever goes on with it.

use serde::{
    Deserialize,
    de::{Deserializer, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt};

/// An event's data.
#[derive(Debug, Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) id: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) created: Option<u64>,
    #[serde(borrow, default)]
    pub(super) model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) system_fingerprint: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) choices: Vec<Choice<'a>>,
}

/// What an event adds to one choice.
#[derive(Debug, Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    pub(super) index: u32,
    /// Of a chat.
    #[serde(borrow, default)]
    delta: Delta<'a>,
    /// Of a completion.
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Option<Cow<'a, str>>,
}

/// What an event adds to a chat's message.
#[derive(Debug, Default)]
struct Delta<'a> {
    content: Option<Cow<'a, str>>,
    /// Something that is neither the role nor text.
    more: bool,
}

impl Choice<'_> {
    /// The text that it adds; empty for none.
    pub(super) fn text(&self) -> &str {
        self.delta.content.as_deref().or(self.text.as_deref()).unwrap_or_default()
    }

    /// Whether it has more in it than role and text.
    pub(super) fn has_more(&self) -> bool {
        self.delta.more
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Delta<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Delta<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a delta")
            }
            fn visit_unit<E>(self) -> Result<Delta<'de>, E> {
                Ok(Delta::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Delta<'de>, A::Error> {
                let mut delta = Delta::default();
                while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                    match name.as_ref() {
                        "role" => _ = map.next_value::<IgnoredAny>()?,
                        "content" => delta.content = map.next_value()?,
                        // Engines list what they know and have not got: `"reasoning_content": null`.
                        _ => {
                            let value = map.next_value::<&'de RawValue>()?.get();
                            delta.more |= !matches!(value, "null" | "\"\"" | "[]" | "{}");
                        }
                    }
                }
                Ok(delta)
            }
        }
        deserializer.deserialize_any(Fields)
    }
}
