//! What the containers of one pod say to each other on the Unix socket of the agent: the shim that runs the engine
//! (`dunlin engine`), and the loader of weights (`dunlin fetch`).
//!
//! Both ends send a [`preamble`] first; the lower version counts. Then come frames: a length of four bytes, big endian,
//! and a message, encoded by [`crate::codec`]. The one who connected speaks first, with an [`Opening`]. What matters is
//! said as a state, whole, so that whoever connects anew has missed nothing.

use crate::{limits, runtime::StopSignal};
use serde::{Deserialize, Serialize};

/// The version of this file.
pub const VERSION: u16 = 1;
/// How every preamble begins.
const MAGIC: [u8; 6] = *b"dunlin";
/// Size of a preamble, bytes.
pub const PREAMBLE_BYTES: usize = MAGIC.len() + 2;

/// Why the other end is not spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unspoken {
    /// It is not a part of Dunlin.
    #[error("what is at the other end of the socket is not dunlin")]
    Stranger,
    /// There is no version that both know.
    #[error("the other end speaks version {0} of this socket's protocol, which this dunlin does not know")]
    Version(u16),
}

/// What is sent first.
#[must_use]
pub fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[MAGIC.len()..].copy_from_slice(&VERSION.to_be_bytes());
    bytes
}

/// The version to speak with whoever sent this preamble.
///
/// # Errors
/// It is none, or of a version that is not known.
pub fn agree(theirs: &[u8; PREAMBLE_BYTES]) -> Result<u16, Unspoken> {
    let [magic @ .., high, low] = theirs;
    match u16::from_be_bytes([*high, *low]) {
        _ if *magic != MAGIC => Err(Unspoken::Stranger),
        0 => Err(Unspoken::Version(0)),
        theirs => Ok(theirs.min(VERSION)),
    }
}

/// Who has connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Opening {
    /// A shim.
    Engine {
        /// Chosen at its start, so that the agent can tell it from the one before.
        instance: u64,
        /// Where its engine stands.
        state: EngineState,
    },
    /// A loader of weights.
    Fetch(FetchProgress),
}

/// Where the engine of a shim stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineState {
    /// Number of the present run, or of the last: 0 before the first.
    pub run: u32,
    /// What became of it.
    pub process: EngineProcess,
    /// The pod is to end: the engine is, once the agent says that it has answered its last request.
    pub stopping: bool,
}

/// A run of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineProcess {
    /// Nothing was started yet.
    Waiting,
    /// It runs.
    Running {
        /// Process id, inside its container.
        pid: u32,
    },
    /// It ended, or could not be started.
    Ended {
        /// How, for people. At most [`limits::POD_TEXT_BYTES`].
        how: String,
        /// Ends in a row, each soon after its start.
        failures: u32,
        /// Milliseconds since.
        ago_ms: u64,
    },
}

/// From the shim, after the opening.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromShim {
    /// A new state.
    State(EngineState),
    /// What the engine wrote.
    Output(Lines),
}

/// Lines of output, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lines {
    /// Number of the first: they count from 0 since the shim's start, and what is missing was lost.
    pub first: u64,
    /// Without their ends. At most [`limits::POD_LINES`], each of at most [`limits::POD_LINE_BYTES`].
    pub lines: Vec<String>,
}

/// From the agent to the shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToShim {
    /// How the engine is to be ended, should there be no agent to say so. Comes first.
    Manners {
        /// The signal that asks it.
        stop: Stop,
        /// The longest that its last requests may take, milliseconds.
        drain_ms: u64,
    },
    /// Every line before this number is kept by the agent.
    Kept(u64),
    /// Start the run of this number, unless that has been done.
    Start(u32),
    /// End the run of this number.
    Stop {
        /// Which.
        run: u32,
        /// How.
        stop: Stop,
    },
    /// The last request was answered: end the engine, and yourself.
    Drained(Stop),
}

/// How an engine is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// What asks its process group to end.
    pub signal: StopSignal,
    /// After so long it is killed, milliseconds.
    pub grace_ms: u64,
}

/// How far the loading of weights has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchProgress {
    /// What is loaded, for people. At most [`limits::POD_TEXT_BYTES`], as all text here.
    pub source: String,
    /// Files that are whole.
    pub files_done: u32,
    /// All files, as far as known.
    pub files: u32,
    /// Bytes that are here.
    pub bytes_done: u64,
    /// All bytes, as far as known.
    pub bytes: u64,
    /// Why it is tried again, or why it was given up.
    pub problem: Option<String>,
    /// Nothing more will come.
    pub ended: bool,
}

/// `text` cut to what a message may hold.
#[must_use]
pub fn bounded(text: &str) -> String {
    let mut end = text.len().min(limits::POD_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    #[test]
    fn the_lower_version_counts_and_strangers_are_told() {
        let of = |version: u16| {
            let mut bytes = preamble();
            bytes[6..].copy_from_slice(&version.to_be_bytes());
            agree(&bytes)
        };
        assert_eq!(agree(&preamble()), Ok(VERSION));
        assert_eq!(of(7), Ok(VERSION), "a later dunlin speaks this version too");
        assert_eq!(of(0), Err(Unspoken::Version(0)));
        assert_eq!(agree(b"GET / HT"), Err(Unspoken::Stranger));
    }

    #[test]
    fn the_largest_messages_fit() {
        let lines = vec!["x".repeat(limits::POD_LINE_BYTES); limits::POD_FRAME_BYTES / (limits::POD_LINE_BYTES + 16)];
        let output = FromShim::Output(Lines { first: u64::MAX, lines });
        assert!(codec::encode(&output, limits::POD_FRAME_BYTES).is_ok());
        let how = bounded(&"é".repeat(limits::POD_TEXT_BYTES));
        let process = EngineProcess::Ended { how, failures: u32::MAX, ago_ms: u64::MAX };
        let state = EngineState { run: 1, process, stopping: true };
        assert!(codec::encode(&Opening::Engine { instance: 0, state }, limits::POD_FRAME_BYTES).is_ok());
    }

    #[test]
    fn text_is_cut_between_characters() {
        let text = format!("{}é", "x".repeat(limits::POD_TEXT_BYTES - 1));
        assert_eq!(bounded(&text).len(), limits::POD_TEXT_BYTES - 1);
        assert_eq!(bounded("short"), "short");
    }
}
