//! The self-test of an engine that has become ready: does it go on with a partial answer to the letter?
//!
//! Beside clients' requests it counts for nothing: it takes no slot, runs only while one is free, and gives way at once
//! when clients need all of them.

use super::{Replica, View};
use crate::engine::{
    Client,
    client::Error,
    continuation::{self, Said, Unfit},
};
use dunlin_protocol::{
    announcement::{ReplicaState, ServedModel},
    record::Continuation,
};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// For each of its answers, of 24 tokens: slow engines on a processor say a few tokens a second.
const DEADLINE: Duration = Duration::from_secs(60);
/// One such answer; llama.cpp takes 250 bytes a token.
const ANSWER_BYTES: usize = 256 * 1024;
const CHAT: &str = "/v1/chat/completions";
/// Before a test that came to nothing is made again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

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
    let mut pause = FIRST_PAUSE;
    loop {
        let view = Arc::clone(&views.borrow_and_update());
        if view.state != ReplicaState::Ready || view.continuation.is_some() {
            pause = FIRST_PAUSE;
            // The sender lives as long as the replica.
            if views.changed().await.is_err() {
                return;
            }
            continue;
        }
        let verdict = tokio::select! {
            verdict = test(&replica, &client, &view) => verdict,
            () = crowded(&replica) => Err(Unclear::GaveWay),
        };
        match verdict {
            Ok(verdict) => {
                tracing::debug!(replica = replica.index, ?verdict, "self-test of continuation");
                replica.set_continuation(&view, verdict);
            }
            Err(unclear) => {
                tracing::debug!(replica = replica.index, %unclear, "self-test of continuation is made again");
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

async fn test(replica: &Replica, client: &Client, view: &View) -> Result<Continuation, Unclear> {
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
            let alone = replica.gate.counts().in_flight == 0;
            return if alone { none } else { Err(Unclear::NotAlone) };
        }
    }
    Ok(Continuation::Exact)
}
