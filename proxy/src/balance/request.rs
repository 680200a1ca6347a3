//! What a request brings, and what it gets.

use super::affinity::Sent;
use crate::{
    late::{Place, Priority},
    prompt::Prompt,
    route::Step,
};
use dunlin_protocol::id::{ModelId, ReplicaId};
use http::HeaderValue;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Why a request may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// So many wait already.
    #[error("too many requests wait")]
    TooMany {
        /// How long this one would wait, as far as that is known.
        wait: Option<Duration>,
    },
    /// It would wait longer than it may.
    #[error("it would wait for {wait:?}")]
    TooLong {
        /// How long it would wait.
        wait: Duration,
    },
    /// So many wait already for a replica that starts.
    #[error("too many requests wait for a replica that starts")]
    TooManyForStarting,
}

/// A request's way to its replica: kept over its tries.
#[derive(Debug, Default)]
pub struct Ticket {
    pub(super) place: Option<Place>,
    /// When it came.
    pub(super) since: Option<Instant>,
    /// Replicas on which it failed.
    pub tried: Vec<ReplicaId>,
    /// Whether it had to wait for a slot.
    pub waited: bool,
    /// Until when it may wait for a better replica than there is.
    pub(super) choosy_until: Option<Instant>,
}

impl Ticket {
    /// The request failed on `replica`, perhaps not for the first time.
    pub fn failed_on(&mut self, replica: ReplicaId) {
        if !self.tried.contains(&replica) {
            self.tried.push(replica);
        }
    }
}

/// What a request asks for.
#[derive(Debug, Clone)]
pub struct Want {
    /// The model.
    pub model: ModelId,
    /// Whose request it is, as a number: those who wait are served in turns.
    pub tenant: u64,
    /// How early the tenant's requests are served among those who wait.
    pub priority: Priority,
    /// The outline of its prompt.
    pub prompt: Arc<Prompt>,
    /// Whether it can be seen when the prompt has been worked through: the answer comes in pieces.
    pub stream: bool,
}

/// One request's hold on a replica. Must be given back with [`Balancer::end`](super::Balancer::end).
#[derive(Debug)]
pub struct Grant {
    /// Who is to be asked.
    pub replica: ReplicaId,
    /// The same as a header's value.
    pub name: HeaderValue,
    /// How it was chosen.
    pub step: Step,
    /// KiB of the prompt.
    pub kib: u32,
    /// KiB of it that the replica has not seen; `None` where it can't be seen when they are worked through.
    pub new_kib: Option<u32>,
    /// Whether that is a guess about what other proxies did.
    pub guess: bool,
    /// How long it has waited already.
    pub waited: Duration,
    /// How long it may wait at the replica for a slot: not at all where another is free.
    pub patience: Duration,
    /// When its first token is expected after it was sent, milliseconds; `None` where nothing was measured.
    pub expected_ms: Option<u32>,
    /// It is the one request that tries an ejected replica, and has no verdict yet.
    pub(super) probe: bool,
    pub(super) since: Instant,
    pub(super) begun: bool,
    pub(super) prompt: Arc<Prompt>,
    pub(super) sent: Sent,
}

/// What became of a request that asked.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is made, and never kept")]
pub enum Arrival {
    /// It has a replica.
    Granted(Grant),
    /// It waits.
    Waits(Place),
}
