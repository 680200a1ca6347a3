//! Runtimes: how to launch, probe and read one kind of engine. Data, not code: built-in entries are TOML files in this
//! crate, and a user's file may override any field of them or add a runtime.
//!
//! What the built-in entries say comes from the engines' sources and from answers of real servers.

use crate::id::RuntimeName;
use serde::{Deserialize, Serialize};

pub mod bounds;
pub mod catalogue;
pub mod continuation;
pub mod launch;
pub mod metrics;
pub mod template;
mod text;

pub use bounds::{Bounds, Deadlines};
pub use catalogue::Catalogue;
pub use continuation::{Continuation, Tokenize};
pub use launch::{CommandLine, ContainerLine, Launch};
pub use metrics::{Metrics, Quantity, Series};
pub use template::{Template, Values};
pub use text::{HttpPath, Pointer};

/// One kind of engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runtime {
    /// Its name in flags, records and listings.
    pub name: RuntimeName,
    /// One line for people.
    #[serde(default)]
    pub description: String,
    /// Port that the engine listens on unless told otherwise; also where to look for one that runs already. `None`
    /// when the kind has no usual port.
    #[serde(default)]
    pub port: Option<u16>,
    /// How to start it; `None` for what can only be attached to.
    #[serde(default)]
    pub launch: Option<Launch>,
    /// What to ask a running engine about itself.
    pub probe: Probe,
    /// Where its load can be read; `None` when it tells nothing.
    #[serde(default)]
    pub metrics: Option<Metrics>,
    /// How many requests it works on at once.
    pub slots: Slots,
    /// How long it may take, and how much it may say.
    #[serde(default)]
    pub bounds: Bounds,
    /// How it ends.
    #[serde(default)]
    pub drain: Drain,
    /// Whether it is to be asked, with `stream_options.include_usage`, for the usage of streams whose client did not ask:
    /// it honours that, and does not tell otherwise.
    #[serde(default)]
    pub stream_usage: bool,
    /// How to ask it for the rest of a partial answer; `None` when it can't. That it *can* is checked by a self-test.
    #[serde(default)]
    pub continuation: Option<Continuation>,
    /// How to have it load a LoRA adapter while it runs; `None` when it can't.
    #[serde(default)]
    pub lora: Option<Lora>,
    /// How to count tokens; `None` when it can't.
    #[serde(default)]
    pub tokenize: Option<Tokenize>,
}

/// How an engine is told to load and drop LoRA adapters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// What to post to, to load one.
    pub load: HttpPath,
    /// What to post to, to drop one.
    pub unload: HttpPath,
    /// Field of either request that holds its name.
    pub name: String,
    /// Field that holds where it lies.
    pub source: String,
}

/// What to ask a running engine about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// 2xx when the engine is well; `None` when only its answers tell.
    #[serde(default)]
    pub health: Option<HttpPath>,
    /// OpenAI's list of models; `None` when the engine lists none and its models must be configured.
    #[serde(default)]
    pub models: Option<HttpPath>,
    /// Where it tells its version.
    #[serde(default)]
    pub version: Option<Field>,
    /// How to recognise the kind behind a URL: one matching sign is enough. Empty: never guessed.
    #[serde(default)]
    pub identify: Vec<Sign>,
}

/// A field of a JSON answer to `GET path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// What to get.
    pub path: HttpPath,
    /// Where in the answer.
    pub pointer: Pointer,
}

/// A sign that an engine is of this kind: a field of a JSON answer, or a header, present or of a given value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sign {
    /// What to get.
    pub path: HttpPath,
    /// Where in the JSON answer. Exactly one of `pointer` and `header` is set.
    #[serde(default)]
    pub pointer: Option<Pointer>,
    /// A response header, lower case.
    #[serde(default)]
    pub header: Option<String>,
    /// The text to find there; `None` when being there is enough.
    #[serde(default)]
    pub equals: Option<String>,
}

/// How many requests an engine works on at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slots {
    /// When neither the user nor the engine says.
    pub default: u16,
    /// Where the engine says so: the first that answers with a number counts.
    #[serde(default)]
    pub read: Vec<Field>,
}

/// How an engine ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Drain {
    /// What to send to its process group when its requests are done.
    pub signal: StopSignal,
    /// Seconds from that signal to SIGKILL.
    pub grace_s: u64,
}

impl Default for Drain {
    fn default() -> Self {
        Self { signal: StopSignal::Term, grace_s: 10 }
    }
}

/// Signals that ask an engine to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopSignal {
    /// SIGTERM.
    #[default]
    #[serde(rename = "SIGTERM")]
    Term,
    /// SIGINT, as from a terminal.
    #[serde(rename = "SIGINT")]
    Int,
}

/// Why an entry is refused though each of its fields can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A sign without anything to look at, or with two things.
    #[error("probe.identify[{0}]: set exactly one of `pointer` and `header`")]
    Sign(usize),
    /// A header name as no server sends it.
    #[error("probe.identify[{0}].header: write the header's name in lower case")]
    HeaderCase(usize),
    /// No slots at all.
    #[error("slots.default: must be at least 1")]
    NoSlots,
    /// A bound outside of what it may be.
    #[error(
        "bounds.{0}: times must be above 0 and at most 86400 seconds, per_mib at least 0, answer_mib from 1 to {max}",
        max = bounds::LARGEST_MIB
    )]
    Bounds(&'static str),
    /// Port 0 is no port to look at.
    #[error("port, metrics.port: must not be 0")]
    Port,
    /// Neither a program nor an image.
    #[error("launch: set `command`, `image`, or both")]
    NothingToLaunch,
    /// A template that needs an argument list where one text goes.
    #[error("{0}: `{{args}}` may only stand in `launch.args`, as an element of its own")]
    ArgsOutOfPlace(String),
}

impl Runtime {
    /// Checks what serde cannot.
    ///
    /// # Errors
    /// Names the first field that makes no sense.
    pub fn check(&self) -> Result<(), Invalid> {
        for (index, sign) in self.probe.identify.iter().enumerate() {
            if sign.pointer.is_some() == sign.header.is_some() {
                return Err(Invalid::Sign(index));
            }
            if sign.header.as_ref().is_some_and(|name| name.chars().any(|c| c.is_ascii_uppercase())) {
                return Err(Invalid::HeaderCase(index));
            }
        }
        if self.slots.default == 0 {
            return Err(Invalid::NoSlots);
        }
        if let Some(field) = self.bounds.wrong() {
            return Err(Invalid::Bounds(field));
        }
        if self.port == Some(0) || self.metrics.as_ref().is_some_and(|metrics| metrics.port == Some(0)) {
            return Err(Invalid::Port);
        }
        self.launch.as_ref().map_or(Ok(()), Launch::check)
    }
}

#[cfg(test)]
mod tests;
