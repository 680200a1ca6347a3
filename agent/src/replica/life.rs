//! Looks at an engine again and again: is it well, what does it list, may it serve.

use super::{
    Replica, Unready,
    adapters::with_loadable,
    hang::{Hang, Overdue},
    health::{Probe, Trial, Work},
    trial::{self, Asked},
};
use crate::engine::{
    Client, EngineUrl,
    identify::identify,
    models::{Listed, served},
    probe::{self, Problem},
};
use dunlin_protocol::{
    announcement::ReplicaState,
    runtime::{Catalogue, Runtime},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Between two looks at an engine that serves: a change of its models is announced within two seconds.
const READY_PAUSE: Duration = Duration::from_secs(1);
/// Between the first looks at one that doesn't serve yet; grows to [`READY_PAUSE`].
const STARTING_PAUSE: Duration = Duration::from_millis(100);
/// Looks that failing requests ask for are at least this far apart.
const APART: Duration = Duration::from_millis(50);
/// One question of a look.
const DEADLINE: Duration = Duration::from_secs(4);
/// A found engine that refuses connections for so long has been ended: proxies need not hold requests for it.
const AWAY: Duration = Duration::from_secs(15);

/// What is kept between looks.
#[derive(Debug)]
struct Looks {
    /// `None` when the runtime was configured.
    identify_with: Option<Arc<Catalogue>>,
    listed: Option<Listed>,
    signs_of_life: u64,
    pause: Duration,
    /// The engine that is looked at, by generation.
    hang: (u64, Hang),
    absent_since: Option<Instant>,
}

/// Looks at the engine of `replica` until dropped. With a catalogue, its kind is found out whenever it (re)appears.
pub(crate) async fn live(replica: Arc<Replica>, client: Client, identify_with: Option<Arc<Catalogue>>) {
    let hang = (replica.generation(), Hang::new(Instant::now()));
    let (signs_of_life, pause, absent_since) = (0, STARTING_PAUSE, None);
    let mut looks = Looks { identify_with, listed: None, signs_of_life, pause, hang, absent_since };
    loop {
        let soonest = Instant::now() + APART;
        looks.look(&replica, &client).await;
        let serving = replica.health().is_ready();
        looks.pause = if serving { READY_PAUSE } else { (looks.pause * 5 / 4).clamp(STARTING_PAUSE, READY_PAUSE) };
        tokio::select! {
            () = sleep(looks.pause) => {}
            () = replica.look.notified() => {
                looks.pause = STARTING_PAUSE;
                sleep(soonest.saturating_duration_since(Instant::now())).await;
            }
        }
    }
}

impl Looks {
    async fn look(&mut self, replica: &Replica, client: &Client) {
        let (generation, was_ready) = (replica.generation(), replica.health().is_ready());
        if self.hang.0 != generation {
            self.hang = (generation, Hang::new(Instant::now()));
        }
        let Some(url) = replica.view().url.clone() else { return };
        if !was_ready {
            self.identify(replica, client, &url).await;
        }
        let runtime = replica.runtime();
        let asked = Instant::now();
        let (well, listed) = tokio::join!(
            probe::health(client, &url, &runtime, DEADLINE),
            probe::models(client, &url, &runtime, DEADLINE),
        );
        replica.probes.observe(asked.elapsed().as_secs_f64());
        let slots = if was_ready { None } else { probe::slots(client, &url, &runtime, DEADLINE).await };
        if replica.generation() != generation {
            // Another engine by now.
            return;
        }
        if was_ready && self.is_another(listed.as_ref().ok().and_then(Option::as_ref)) {
            self.identify(replica, client, &url).await;
        }
        let verdict = well.and(listed).map(|listed| self.listed = listed);
        let work = self.judge(replica, verdict.as_ref().err());
        if replica.health().trial_due(Instant::now()) {
            let trial = self.trial(replica, client, &url).await;
            tracing::warn!(replica = replica.index, ?trial, "requests failed in a row; tried the engine");
            replica.health().tried(trial, Instant::now());
        }
        if !was_ready && verdict.is_ok() {
            replica.set_slots(slots);
        }
        if replica.generation() == generation {
            self.hang.1.saw(replica.health().is_ready(), work == Work::Streaming, Instant::now());
            self.publish(replica, verdict.err());
            self.restart_if_it_hangs(replica, client, &url).await;
        }
    }

    /// An engine that lives and does nothing is of no use; launched, it can be started again.
    async fn restart_if_it_hangs(&mut self, replica: &Replica, client: &Client, url: &EngineUrl) {
        let is_launched = replica.process().is_some_and(|process| process.runs());
        let Some(overdue) = self.hang.1.overdue(&replica.patience, Instant::now()).filter(|_| is_launched) else {
            return;
        };
        let hopeless = match overdue {
            Overdue::NeverReady(_) => true,
            Overdue::Hangs(_) => self.trial(replica, client, url).await == Trial::Failed,
        };
        if hopeless && replica.generation() == self.hang.0 {
            replica.order_restart(overdue.to_string());
        }
        // Should the order come too late, the next one is as far away.
        self.hang.1.forgive(Instant::now());
    }

    /// Whether the engine has been replaced by one of another kind between two looks.
    fn is_another(&self, listed: Option<&Listed>) -> bool {
        let owner = |listed: &Listed| listed.owner.clone();
        match (self.listed.as_ref().and_then(owner), listed.and_then(owner)) {
            (Some(before), Some(now)) => before != now,
            _ => false,
        }
    }

    async fn identify(&self, replica: &Replica, client: &Client, url: &EngineUrl) {
        let Some(catalogue) = &self.identify_with else { return };
        if let Some(identity) = identify(client, url, catalogue).await
            && let Ok(runtime) = catalogue.get(&identity.runtime)
        {
            replica.set_runtime(Runtime::clone(runtime));
        }
    }

    /// Tells the health what was seen, and what the engine was doing meanwhile.
    fn judge(&mut self, replica: &Replica, problem: Option<&Problem>) -> Work {
        let signs_of_life = replica.counters.signs_of_life();
        let work = match replica.gate.counts().in_flight {
            _ if signs_of_life != self.signs_of_life => Work::Streaming,
            0 => Work::Idle,
            _ => Work::Busy,
        };
        self.signs_of_life = signs_of_life;
        self.absent_since = match problem {
            Some(problem) if problem.is_absence() => self.absent_since.or_else(|| Some(Instant::now())),
            _ => None,
        };
        let seen = match problem {
            None => Probe::Well,
            Some(problem) if problem.is_absence() => Probe::Absent,
            Some(_) => Probe::Unwell,
        };
        replica.health().probed(seen, work);
        work
    }

    /// Says what the replica serves, or why it doesn't.
    fn publish(&self, replica: &Replica, problem: Option<Problem>) {
        let (ready, suspended) = {
            let health = replica.health();
            (health.is_ready(), health.is_suspended())
        };
        let models = served(&replica.configured, self.listed.as_ref());
        let unready = if suspended {
            unhealthy("requests fail, though the engine says that it is well".to_owned())
        } else if !ready {
            // Gone is another matter than there and silent: it may be started elsewhere, by whoever runs it.
            let silent = self.hang.1.was_ready() && problem.as_ref().is_some_and(|problem| !problem.is_absence());
            let reason = problem.map_or_else(|| "waiting for the engine".to_owned(), |problem| problem.to_string());
            if silent { unhealthy(reason) } else { reason.into() }
        } else if models.is_empty() {
            "the engine lists no model; load one, or configure its name".to_owned().into()
        } else {
            let able = replica.runtime().lora.is_some();
            replica.set_serving(Ok(with_loadable(models, &replica.allowed, able)));
            return;
        };
        if replica.found && self.absent_since.is_some_and(|since| since.elapsed() >= AWAY) {
            return replica.leave();
        }
        replica.set_serving(Err(unready));
    }

    /// A request of the agent's own, for a client's error can't be told from an engine's.
    async fn trial(&self, replica: &Replica, client: &Client, url: &EngineUrl) -> Trial {
        let models = served(&replica.configured, self.listed.as_ref());
        let first = || Some(Asked::new(models.first()?.id.clone(), ""));
        match replica.last_asked().or_else(first) {
            Some(asked) => trial::run(replica, client, url, &asked).await,
            None => Trial::Unclear,
        }
    }
}

fn unhealthy(reason: String) -> Unready {
    Unready { state: ReplicaState::Unhealthy, reason }
}
