//! The self-test of an engine that has become ready: does it go on with a partial answer to the letter?
//!
//! Beside clients' requests it counts for nothing at first: it takes no slot, runs only while one is free, and gives way at
//! once when clients need all of them. Where they always do, it takes a turn in the end, as one of them: else a replica that
//! comes back to a busy mesh could never go on with what others lose, nor others with its.

use super::{Replica, View};
use crate::{
    admit::InLine,
    engine::{
        Client,
        client::Error,
        continuation::{self, Said, Unfit},
    },
};
use dunlin_protocol::{
    announcement::{ReplicaState, ServedModel},
    record::Continuation,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::watch, time::sleep};

/// For each of its answers, of 24 tokens: slow engines on a processor say a few tokens a second.
const DEADLINE: Duration = Duration::from_secs(60);
/// One such answer; llama.cpp takes 250 bytes a token.
const ANSWER_BYTES: usize = 256 * 1024;
const CHAT: &str = "/v1/chat/completions";
/// Before a test that came to nothing is made again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often in a row it gives way to clients before it takes a slot.
const GIVES_WAY: u32 = 2;
/// Longest wait for that slot.
const TURN: Duration = Duration::from_secs(30);

/// Why a test came to nothing. It is made again.
#[derive(Debug, thiserror::Error)]
enum Unclear {
    #[error("clients needed the engine")]
    GaveWay,
    #[error(transparent)]
    Engine(#[from] Error),
    #[error("the engine answered {0}")]
    Status(http::StatusCode),
    #[error("other words came while the engine had clients' requests as well")]
    NotAlone,
}

/// The model that is asked: adapters come and go, and are continued in the same way.
pub(super) fn tested(models: &[ServedModel]) -> Option<&ServedModel> {
    models.iter().find(|model| model.parent.is_none()).or(models.first())
}

/// Tests the engine of `replica` each time that it has become ready, until dropped.
pub(crate) async fn self_test(replica: Arc<Replica>, client: Client) {
    let mut views = replica.watch();
    let (mut pause, mut gave_way, mut since) = (FIRST_PAUSE, 0, Instant::now());
    loop {
        let view = Arc::clone(&views.borrow_and_update());
        if view.state != ReplicaState::Ready || view.continuation.is_some() {
            (pause, gave_way) = (FIRST_PAUSE, 0);
            // The sender lives as long as the replica.
            if views.changed().await.is_err() {
                return;
            }
            since = Instant::now();
            continue;
        }
        let pass = if gave_way < GIVES_WAY {
            None
        } else {
            replica.gate.enter(InLine { since, patience: TURN, kib: 0 }).await.ok()
        };
        let alone = || replica.gate.counts().in_flight <= u16::from(pass.is_some());
        let verdict = tokio::select! {
            verdict = test(&replica, &client, &view, alone) => verdict,
            () = crowded(&replica), if pass.is_none() => Err(Unclear::GaveWay),
            () = withdrawn(&mut views) => continue,
        };
        drop(pass);
        match verdict {
            Ok(verdict) => {
                tracing::debug!(replica = replica.index, ?verdict, "self-test of continuation");
                replica.set_continuation(&view, verdict);
            }
            Err(unclear) => {
                tracing::debug!(replica = replica.index, %unclear, "self-test of continuation is made again");
                gave_way += u32::from(matches!(unclear, Unclear::GaveWay));
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Ends when no slot is free for the test.
async fn crowded(replica: &Replica) {
    loop {
        let moved = replica.gate.moved();
        let counts = replica.gate.counts();
        if counts.in_flight >= counts.slots {
            return;
        }
        moved.await;
    }
}

/// Ends when the engine takes nothing any more.
async fn withdrawn(views: &mut watch::Receiver<Arc<View>>) {
    while views.borrow_and_update().state == ReplicaState::Ready {
        // The sender lives as long as the replica.
        if views.changed().await.is_err() {
            return;
        }
    }
}

async fn test(
    replica: &Replica,
    client: &Client,
    view: &View,
    alone: impl Fn() -> bool,
) -> Result<Continuation, Unclear> {
    let none = Ok(Continuation::None);
    let Some(way) = continuation::way(&view.runtime) else { return none };
    let (Some(model), Some(url)) = (tested(&view.models), &view.url) else { return none };
    let ask = async |question: serde_json::Value| {
        let answer = client.post_json(url, CHAT, &question, DEADLINE, ANSWER_BYTES).await?;
        match answer.status {
            status if status.is_success() => Ok(Said::read(&answer.body)),
            // It doesn't take such a question at all.
            status if status.is_client_error() => Ok(Err(Unfit::NoStream)),
            status => Err(Unclear::Status(status)),
        }
    };
    let refused = |unfit: Unfit| {
        tracing::debug!(replica = replica.index, %unfit, "self-test of continuation");
        Ok(Continuation::None)
    };
    let said = match ask(continuation::question(&model.id)).await? {
        Ok(said) => said,
        Err(unfit) => return refused(unfit),
    };
    let cuts = match said.cuts() {
        Ok(cuts) => cuts,
        Err(unfit) => return refused(unfit),
    };
    for cut in cuts {
        let rest = match ask(said.rest(cut, &model.id, way)).await? {
            Ok(rest) => rest,
            Err(unfit) => return refused(unfit),
        };
        if !said.is_continued_by(cut, &rest) {
            // Engines that work on several requests at once may round otherwise, and choose another word.
            return if alone() { none } else { Err(Unclear::NotAlone) };
        }
    }
    Ok(Continuation::Exact)
}
