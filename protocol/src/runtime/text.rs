//! Texts of a runtime entry that have a form.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a text has not the form that its field needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not an absolute path.
    #[error("{0:?} is not a path: it must start with `/` and have no spaces")]
    Path(String),
    /// Not a JSON pointer (RFC 6901).
    #[error("{0:?} is not a JSON pointer: it must start with `/`, for example \"/data/0/id\"")]
    Pointer(String),
}

/// Path and query of a URL, starting with `/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HttpPath(String);

/// A JSON pointer (RFC 6901) into an answer, as `serde_json::Value::pointer` takes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pointer(String);

impl TryFrom<String> for HttpPath {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        let well_formed = text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic());
        if well_formed { Ok(Self(text)) } else { Err(Error::Path(text)) }
    }
}
impl TryFrom<String> for Pointer {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        if text.starts_with('/') { Ok(Self(text)) } else { Err(Error::Pointer(text)) }
    }
}

macro_rules! text {
    ($name:ident) => {
        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl From<$name> for String {
            fn from(text: $name) -> String {
                text.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
text!(HttpPath);
text!(Pointer);
