//! An event stream as it is watched: where it stands, what of it goes out, and whether it is silent for too long.

use super::super::rhythm::Rhythm;
use crate::{
    errors,
    http::{
        endpoint::Dialect,
        sse::{self, Stage, Watch},
    },
};
use bytes::Bytes;
use dunlin_node::hop::Silence;
use dunlin_protocol::{id::ModelId, runtime::Deadlines};
use std::task::{Context, Poll, ready};

/// See the module.
pub(crate) struct Watched {
    watch: Watch,
    dialect: Dialect,
    /// The model that is asked, under its own name.
    model: ModelId,
    silence: Silence,
    rhythm: Rhythm,
}

impl Watched {
    /// A stream that begins, lost when it says nothing, or nothing but comments, for too long.
    pub(crate) fn new(dialect: Dialect, model: ModelId, deadlines: Deadlines) -> Self {
        let silence = Silence::new(deadlines.inter_token, deadlines.whole);
        Self { watch: Watch::default(), dialect, model, silence, rhythm: Rhythm::new(deadlines.inter_token) }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(super) fn stage(&self) -> Stage {
        self.watch.stage()
    }

    /// Whether what went out last is half a line.
    pub(super) fn is_mid_line(&self) -> bool {
        self.watch.is_mid_line()
    }

    /// What goes out of what came in: see [`Watch::push`].
    pub(super) fn push(&mut self, piece: Bytes) -> Bytes {
        self.rhythm.heard();
        if sse::is_comment(&piece) {
            self.silence.murmured();
        } else {
            self.silence.broken();
        }
        let out = self.watch.push(piece);
        self.cleaned(out)
    }

    /// What was held back when the stream ended by itself, as a whole event.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        let rest = self.watch.rest().map(|event| self.cleaned(event));
        rest.map(|event| [event.as_ref(), b"\n\n"].concat()).unwrap_or_default()
    }

    /// Once the engine has said that it failed: without the paths of its host.
    fn cleaned(&self, events: Bytes) -> Bytes {
        match self.watch.stage() {
            Stage::Failed => errors::events::cleaned(events, self.model.as_str()),
            _ => events,
        }
    }

    /// Ready when it has said nothing for too long.
    pub(super) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.silence.poll(cx)
    }

    /// Ready when it has said nothing for unusually long, and then again only after as long a time.
    pub(super) fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.rhythm.poll_late(cx));
        self.rhythm.wait_again();
        Poll::Ready(())
    }
}
