//! One call, as its path and method say it.

use http::Method;
use std::{collections::BTreeMap, fmt, time::Duration};

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// One object.
    Get,
    /// Many.
    List,
    /// Their changes.
    Watch,
    /// A new one.
    Create,
    /// A whole one over another.
    Replace,
    /// A part of one.
    Patch,
    /// Ends one.
    Delete,
}

impl Verb {
    /// As roles name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Replace => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }

    /// Whether something may change.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Create | Self::Replace | Self::Patch | Self::Delete)
    }
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Who calls, as [`crate::Fake::client`] was told.
    pub client: &'static str,
    /// What it does.
    pub verb: Verb,
    /// API group; empty for the core.
    pub group: String,
    /// API version.
    pub version: String,
    /// The kind, lower case and plural, as in paths.
    pub plural: String,
    /// Empty for what has none.
    pub namespace: String,
    /// Empty for lists and for new objects.
    pub name: String,
    /// `status`, `scale`, `token`, or empty.
    pub subresource: String,
    pub(crate) query: BTreeMap<String, String>,
}

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It works.
    Works,
    /// It is refused, with this status code, reason, and message.
    Refused(u16, &'static str, String),
    /// It does nothing, and never answers.
    HangsBefore,
    /// It works, and never answers.
    HangsAfter,
    /// It works, and the connection is lost before the answer.
    AnswerLost,
    /// It works after this time, whether or not the caller is still there.
    Late(Duration),
}

impl Call {
    pub(crate) fn parse(method: &Method, path: &str, query: Option<&str>) -> Option<Self> {
        let query = parse_query(query.unwrap_or_default());
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return None,
        };
        let watches = query.get("watch").is_some_and(|value| value == "true" || value == "1");
        let verb = match *method {
            Method::GET if watches => Verb::Watch,
            Method::GET if name.is_empty() => Verb::List,
            Method::GET => Verb::Get,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Replace,
            Method::PATCH => Verb::Patch,
            Method::DELETE if !name.is_empty() => Verb::Delete,
            _ => return None,
        };
        Some(Self {
            client: "",
            verb,
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
            query,
        })
    }

    /// The kind with its subresource, as roles name it: `playgrounds/status`.
    #[must_use]
    pub fn resource(&self) -> String {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        format!("{}{slash}{}", self.plural, self.subresource)
    }

    /// The version that a watch starts from; 0 where none is named.
    #[must_use]
    pub fn starts_from(&self) -> u64 {
        self.param("resourceVersion").parse().unwrap_or(0)
    }

    pub(crate) fn param(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        matches!(self.param(name), "true" | "1")
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}/{}", self.verb.name(), self.resource(), self.namespace, self.name)
    }
}

fn parse_query(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (unescape(name), unescape(value))
        })
        .collect()
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = |tail: &[u8]| {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            u8::from_str_radix(digits, 16).ok()
        };
        match (first, escaped(tail)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = tail;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
