//! The mesh hop's vocabulary: the headers that members add to HTTP between them, why an agent did not answer, and who
//! may call what.

use crate::{
    id::{self, ModelId, Role, Roles},
    jobs,
};
use std::{fmt, fmt::Write, str::FromStr};

/// Protocol of the substream that carries HTTP/2.
pub const PROTOCOL: &str = "/dunlin/http/2";
/// A [`crate::load::LoadReport`] of the replica that answered; on streams as a trailer too. Stripped by the proxy.
pub const LOAD: &str = "x-dunlin-load";
/// Which engine of the agent a request is for: [`crate::id::ReplicaId::index`], decimal.
pub const REPLICA_INDEX: &str = "x-dunlin-replica-index";
/// The model that the proxy routed by, as [`model_to_header`] writes it. The agent checks it against what it registered.
pub const MODEL: &str = "x-dunlin-model";
/// Size of the prompt, KiB, and how much of it the proxy takes to be new to the engine's prefix cache, decimal with a
/// space between: what the agent measures the engine by. The second is left out where the answer comes in one piece;
/// [`GUESS`] follows where it is too uncertain to measure by.
pub const PROMPT: &str = "x-dunlin-prompt-kib";
/// See [`PROMPT`].
pub const GUESS: &str = "guess";
/// How long the request has waited already, and how long it may wait for a slot at the agent, milliseconds, decimal with
/// a space between.
pub const LINE: &str = "x-dunlin-line";
/// Why an agent did not answer: a [`Fault`]. Agents take it off what engines say, so that no engine, and no client who
/// makes one answer 404 or 504, is taken for its agent.
pub const FAULT: &str = "x-dunlin-fault";
/// What the request used: a [`crate::usage::Usage`], a trailer of answers whose engine tells. Stripped by the proxy.
pub const USAGE: &str = "x-dunlin-usage";
/// Where in the body of a request for a stream an agent may ask its engine to tell the usage: an [`AskUsage`]. Left out
/// where the client asks for it itself.
pub const ASK_USAGE: &str = "x-dunlin-ask-usage";
/// What an agent holds its engine to, as [`crate::runtime::Bounds::to_header`] writes it; on every answer.
pub const BOUNDS: &str = "x-dunlin-bounds";
/// `yes` when the engine has seen nothing of the request, so that another replica may be asked.
pub const RETRY_SAFE: &str = "x-dunlin-retry-safe";

/// How every header of the mesh's own begins. None passes from outside, whichever side that is.
pub const OWN_PREFIX: &str = "x-dunlin-";

/// Headers between two neighbours, which no member passes on, in lower case: RFC 9110 §7.6.1, and the older
/// `keep-alive`, `proxy-connection` and `http2-settings` (RFC 7540 §3.2.1). Those that `connection` itself names are
/// between neighbours too: [`named_by_connection`].
pub const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The headers that a value of `connection` names, as written there.
pub fn named_by_connection(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// The value of the header [`MODEL`]: percent-encoded where a header value could not hold it.
#[must_use]
pub fn model_to_header(model: &ModelId) -> String {
    let mut value = String::with_capacity(model.as_str().len());
    for byte in model.as_str().bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            value.push(byte.into());
        } else {
            // Writing to a String never fails.
            let _ = write!(value, "%{byte:02X}");
        }
    }
    value
}

/// The model of a value of the header [`MODEL`], or of a path; a `%` that starts no escape stands for itself.
///
/// # Errors
/// What is decoded is no model id.
pub fn model_from_header(value: &str) -> Result<ModelId, id::Error> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = (byte == b'%').then(|| tail.get(..2)).flatten().and_then(hex_byte);
        bytes.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    ModelId::new(&String::from_utf8_lossy(&bytes))
}

fn hex_byte(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let value = digit(*digits.first()?)? * 16 + digit(*digits.get(1)?)?;
    u8::try_from(value).ok()
}

/// Where to write into a JSON body that an engine shall tell the usage at the end of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskUsage {
    /// Bytes before it.
    pub offset: u64,
    /// Bytes of the value of `stream_options` that stands there and gives way; 0 where the whole field is missing, and
    /// `offset` is just behind the object's opening brace.
    pub length: u64,
}

impl AskUsage {
    /// What is written.
    #[must_use]
    pub fn text(self) -> &'static str {
        if self.length == 0 { r#""stream_options":{"include_usage":true},"# } else { r#"{"include_usage":true}"# }
    }

    /// The value of the header [`ASK_USAGE`].
    #[must_use]
    pub fn to_header(self) -> String {
        format!("{} {}", self.offset, self.length)
    }

    /// Reads what [`Self::to_header`] writes.
    #[must_use]
    pub fn from_header(value: &str) -> Option<Self> {
        let (offset, length) = value.split_once(' ')?;
        Some(Self { offset: offset.parse().ok()?, length: length.parse().ok()? })
    }
}

/// What precedes a response's id in the path by which proxies ask each other where it is.
pub const RESPONSES: &str = "/mesh/responses/";

/// Whose fault it is that an agent's answer is not the engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The engine refused the connection, closed it, or sent something that is not HTTP.
    Engine,
    /// The engine took the request and said nothing for as long as the agent waits; it may be at work still.
    Silent,
    /// The agent itself failed, or its replica is not ready.
    Agent,
    /// This replica doesn't serve the model, or no longer. Says nothing of its other models.
    NotServed,
    /// All slots and the short queue are taken.
    Full,
    /// The replica takes nothing new.
    Draining,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Engine, Self::Silent, Self::Agent, Self::NotServed, Self::Full, Self::Draining];

    /// As in the header.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Silent => "silent",
            Self::Agent => "agent",
            Self::NotServed => "not-served",
            Self::Full => "full",
            Self::Draining => "draining",
        }
    }
}
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
impl FromStr for Fault {
    type Err = UnknownFault;
    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        Self::ALL.into_iter().find(|fault| fault.as_str() == text).ok_or(UnknownFault)
    }
}

/// A fault that this version does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown fault")]
pub struct UnknownFault;

/// What a path on the hop is for, which decides who may call it and who answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// Inference: everything that goes to an engine.
    Inference,
    /// An agent's captured engine output.
    Logs,
    /// A certificate's renewal, asked of an issuer.
    Renew,
    /// A delegation for the member that is called. Signed by the mesh key, so that it does not matter who hands it over.
    Delegation,
    /// The newest revocation list.
    Revocations,
    /// Which replica holds a stored response, asked of a proxy by another.
    Responses,
    /// The LoRA adapters of an agent's engines, and having them loaded.
    Adapters,
    /// A member's view of itself: roles, version, replicas.
    Info,
    /// How many agents a proxy hears: said to each of them, so that they report less often the more they are.
    Agents,
    /// Statements about keys, between those who keep them and proxies.
    Keys,
    /// What keys may still use, and have used, between proxies.
    Limits,
    /// How an agent's engines stand, for whoever started them.
    Engines,
    /// Jobs of an orchestrator. In which namespaces an operator may do something is for the orchestrator to say.
    Jobs,
}

/// Where an agent says how its engines stand.
pub const ENGINES_PATH: &str = "/mesh/engines";

/// Paths about jobs: one job, and models, manifests and the cluster beside them.
const JOBS_BELOW: &str = "/mesh/jobs/";
const JOBS_BESIDE: &str = "/mesh/jobs-";

impl Route {
    /// The route of a path on the hop; `None` for what no member answers.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        match path {
            "/mesh/renew" => Some(Self::Renew),
            "/mesh/delegation" => Some(Self::Delegation),
            "/mesh/revocations" => Some(Self::Revocations),
            "/mesh/info" => Some(Self::Info),
            ENGINES_PATH => Some(Self::Engines),
            _ if path == jobs::PATH || path.starts_with(JOBS_BELOW) || path.starts_with(JOBS_BESIDE) => {
                Some(Self::Jobs)
            }
            "/mesh/agents" => Some(Self::Agents),
            "/mesh/adapters" => Some(Self::Adapters),
            "/mesh/keys" => Some(Self::Keys),
            "/mesh/limits" | "/mesh/usage" => Some(Self::Limits),
            _ if path == "/mesh/logs" || path.starts_with("/mesh/logs/") => Some(Self::Logs),
            _ if path.starts_with(RESPONSES) => Some(Self::Responses),
            _ if path.starts_with("/engine/") => Some(Self::Inference),
            _ => None,
        }
    }

    /// Whether a member with these roles may call the route. The one table of rights on the hop, together with
    /// [`Self::allows_keepers`].
    #[must_use]
    pub fn allows(self, caller: Roles) -> bool {
        match self {
            Self::Inference | Self::Agents | Self::Responses | Self::Keys | Self::Limits => {
                caller.contains(Role::Proxy)
            }
            Self::Logs | Self::Adapters => caller.intersects(Roles::from_iter([Role::Proxy, Role::Orchestrator])),
            Self::Engines => caller.contains(Role::Orchestrator),
            Self::Jobs => caller.contains(Role::Operator),
            Self::Renew | Self::Delegation | Self::Revocations | Self::Info => true,
        }
    }

    /// Whether whoever keeps keys ([`crate::certificate::Membership::keeps_keys`]) may call the route in any role.
    #[must_use]
    pub fn allows_keepers(self) -> bool {
        matches!(self, Self::Keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn common_models_are_readable_in_a_header() {
        let model = ModelId::new("Qwen/Qwen3-8B:latest").unwrap();
        assert_eq!(model_to_header(&model), model.as_str());
        assert_eq!(model_to_header(&ModelId::new("a b%é").unwrap()), "a%20b%25%C3%A9");
        assert_eq!(model_from_header("100%").unwrap().as_str(), "100%");
    }

    #[test]
    fn where_to_ask_for_the_usage_survives_the_header() {
        let at = AskUsage { offset: 1, length: 0 };
        assert_eq!((at.to_header().as_str(), AskUsage::from_header("1 0")), ("1 0", Some(at)));
        assert_eq!(AskUsage::from_header("9 4").map(AskUsage::text), Some(r#"{"include_usage":true}"#));
        assert!(["", "1", "1 ", "a 1", "-1 0", "1 2 3"].iter().all(|bad| AskUsage::from_header(bad).is_none()));
    }

    #[test]
    fn a_connection_names_more_headers_between_neighbours() {
        assert_eq!(named_by_connection("close, X-Private ,,\tte").collect::<Vec<_>>(), ["close", "X-Private", "te"]);
        assert_eq!(named_by_connection("").next(), None);
    }

    #[test]
    fn headers_between_neighbours_are_found_by_their_lower_case() {
        assert!(HOP_BY_HOP.is_sorted());
        assert!(HOP_BY_HOP.iter().all(|name| *name == name.to_ascii_lowercase()));
        let own = [LOAD, REPLICA_INDEX, MODEL, FAULT, RETRY_SAFE, USAGE, ASK_USAGE, BOUNDS];
        assert!(own.iter().all(|name| name.starts_with(OWN_PREFIX)));
    }

    proptest! {
        #[test]
        fn every_model_survives_the_header(text in "[^\\p{Cc}]{1,60}") {
            let model = ModelId::new(&text).unwrap();
            let value = model_to_header(&model);
            prop_assert!(value.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(model_from_header(&value).unwrap(), model);
        }

        #[test]
        fn any_value_is_read_without_a_panic(value in ".*") {
            let _ = model_from_header(&value);
        }
    }
}
