//! Model patterns of certificates and keys: `*` matches any run of characters, `/` included; all else is literal and
//! case-sensitive. A list that is absent allows every model, an empty list allows none.

use crate::{id, id::ModelId, limits};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// One pattern over model ids.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(String);

impl Pattern {
    /// Checks the text of a pattern.
    ///
    /// # Errors
    /// Empty, over [`limits::PATTERN_BYTES`], or with control characters.
    pub fn new(text: &str) -> Result<Self, id::Error> {
        if text.is_empty() {
            return Err(id::Error::Empty { what: "model pattern" });
        }
        if text.len() > limits::PATTERN_BYTES {
            return Err(id::Error::TooLong { what: "model pattern", size: text.len(), limit: limits::PATTERN_BYTES });
        }
        match text.chars().find(|c| c.is_control()) {
            Some(found) => Err(id::Error::Character { what: "model pattern", found }),
            None => Ok(Self(text.to_owned())),
        }
    }

    /// The pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `model` matches. Linear in the model id for each `*`: no backtracking blow-up.
    #[must_use]
    pub fn matches(&self, model: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = model.strip_prefix(first) else { return false };
        let mut parts: Vec<&str> = parts.collect();
        let Some(last) = parts.pop() else { return rest.is_empty() };
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }

    /// Whether everything that `narrower` matches is matched by `self`: a sound test that may say no too often.
    ///
    /// It holds when `self` matches the text of `narrower` with each `*` of it taken as a character that stands in no
    /// literal part of `self`, since then each `*` of `narrower` lies inside a `*` of `self`.
    #[must_use]
    pub fn covers(&self, narrower: &Self) -> bool {
        self.matches(&narrower.0.replace('*', "\u{0}"))
    }
}
impl TryFrom<String> for Pattern {
    type Error = id::Error;
    fn try_from(text: String) -> Result<Self, id::Error> {
        Self::new(&text)
    }
}
impl FromStr for Pattern {
    type Err = id::Error;
    fn from_str(text: &str) -> Result<Self, id::Error> {
        Self::new(text)
    }
}
impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        pattern.0
    }
}
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The models that a certificate or a key allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Models {
    /// Every model.
    #[default]
    Any,
    /// Those that match one of the patterns; none when the list is empty.
    Only(Vec<Pattern>),
}

impl Models {
    /// Whether `model` is allowed.
    #[must_use]
    pub fn allows(&self, model: &ModelId) -> bool {
        match self {
            Self::Any => true,
            Self::Only(patterns) => patterns.iter().any(|pattern| pattern.matches(model.as_str())),
        }
    }

    /// Whether everything that `narrower` allows is allowed. Sound; may say no too often.
    #[must_use]
    pub fn covers(&self, narrower: &Self) -> bool {
        match (self, narrower) {
            (Self::Any, _) => true,
            (Self::Only(_), Self::Any) => false,
            (Self::Only(wide), Self::Only(narrow)) => narrow.iter().all(|n| wide.iter().any(|w| w.covers(n))),
        }
    }
}
