//! Reads one engine's metrics again and again. Each engine has a task of its own, so that one that hangs delays no other.

use super::{
    fetch::fetch,
    pace::{DEADLINE, Outcome, Pace, counts_for},
    page::Reader,
};
use crate::{
    engine::Client,
    replica::{Reading, Replica},
};
use dunlin_protocol::{load::EngineLoad, runtime::Runtime};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout};

/// Between two looks whether there is an engine whose metrics could be read.
const NOTHING_TO_READ: Duration = Duration::from_secs(1);

/// Reads the metrics of `replica`'s engine until dropped.
pub(crate) async fn poll(replica: Arc<Replica>, client: Client) {
    let mut page = Vec::new();
    let mut pace = Pace::new(replica.metrics_interval);
    let mut reader: Option<(Arc<Runtime>, Reader)> = None;
    loop {
        let view = replica.view();
        let (Some(url), Some(metrics)) = (&view.url, &view.runtime.metrics) else {
            sleep(NOTHING_TO_READ).await;
            continue;
        };
        // The kind may be found out late.
        let (_, reader) = match &mut reader {
            Some(known) if Arc::ptr_eq(&known.0, &view.runtime) => known,
            _ => reader.insert((Arc::clone(&view.runtime), Reader::new(metrics))),
        };
        let elsewhere = metrics.port.and_then(|port| url.at_port(port).ok());
        let page_url = elsewhere.as_ref().unwrap_or(url);
        let started = Instant::now();
        let read = timeout(DEADLINE, fetch(&client, page_url, metrics.path.as_str(), &mut page)).await;
        let load = match read {
            Ok(Ok(())) => reader.read(&page),
            Ok(Err(error)) => {
                tracing::debug!(replica = replica.index, %error, "metrics could not be read");
                None
            }
            Err(_) => None,
        };
        let now = Instant::now();
        let outcome = match load {
            Some(load) if is_idle(&load, &replica) => Outcome::Idle,
            Some(_) => Outcome::Busy,
            None => Outcome::Failed,
        };
        // One that failed in between takes no numbers away.
        replica.gate.learn(load.or_else(|| replica.reading(now.into_std())).as_ref());
        let pause = pace.after(outcome, now - started);
        if let Some(load) = load
            && replica.view().url.as_ref() == Some(url)
        {
            let reading = Reading { load, adapters: reader.adapters().cloned() };
            replica.set_reading(reading, (now + counts_for(pause)).into_std());
        }
        rest(&replica, &mut pace, pause, outcome).await;
    }
}

fn is_idle(load: &EngineLoad, replica: &Replica) -> bool {
    load.running.unwrap_or(0) == 0 && load.waiting.unwrap_or(0) == 0 && replica.gate.counts().in_flight == 0
}

/// Pauses; a request that comes in shortens the pause of an idle engine to the base.
async fn rest(replica: &Replica, pace: &mut Pace, pause: Duration, outcome: Outcome) {
    if outcome != Outcome::Idle {
        return sleep(pause).await;
    }
    let sleeping = sleep(pause);
    tokio::pin!(sleeping);
    tokio::select! {
        () = &mut sleeping => {}
        () = replica.gate.moved() => {
            pace.quicken();
            let _ = timeout(replica.metrics_interval, sleeping).await;
        }
    }
}
