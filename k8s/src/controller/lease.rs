//! The Lease: only who holds it works.
//!
//! No clock of another machine is believed: a lease is free once it has not changed for its duration, as seen here. Who
//! holds it gives up before that time is over, so that there are never two.

use super::Config;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How a lease is held.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// After so long without a word of its holder the lease is free.
    pub duration: Duration,
    /// How often its holder speaks up, and how often another looks.
    pub renew: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self { duration: Duration::from_secs(15), renew: Duration::from_secs(4) }
    }
}

/// A lease that is held.
pub struct Leadership {
    api: Api<Lease>,
    name: String,
    identity: String,
    terms: Terms,
    /// When it was last renewed for certain.
    renewed: Instant,
}

impl Leadership {
    /// Waits for the lease. `None` once `stop`.
    pub async fn acquire(client: Client, config: &Config, stop: &CancellationToken) -> Option<Self> {
        let mut leadership = Self {
            api: Api::namespaced(client, &config.lease_namespace),
            name: config.lease.clone(),
            identity: config.identity.clone(),
            terms: config.terms,
            renewed: Instant::now(),
        };
        let mut seen: Option<(Option<String>, Instant)> = None;
        loop {
            let looked = Instant::now();
            match timeout(leadership.terms.renew, leadership.look(&mut seen)).await {
                Ok(Ok(true)) => {
                    leadership.renewed = looked;
                    return Some(leadership);
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the lease can't be read or taken"),
                Err(_) => tracing::warn!("the API server does not answer"),
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = sleep(leadership.terms.renew) => {}
            }
        }
    }

    /// Takes the lease if it is free, or was this process's own.
    async fn look(&self, seen: &mut Option<(Option<String>, Instant)>) -> Result<bool, kube::Error> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let mut lease = Lease {
                metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                ..Lease::default()
            };
            self.claim(&mut lease);
            return taken(self.api.create(&PostParams::default(), &lease).await);
        };
        let version = lease.metadata.resource_version.clone();
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let since = match seen {
            Some((known, since)) if *known == version => *since,
            _ => {
                *seen = Some((version, Instant::now()));
                Instant::now()
            }
        };
        let theirs = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = theirs.map_or(self.terms.duration, Duration::from_secs);
        if holder.is_empty() || holder == self.identity || since.elapsed() >= duration {
            self.claim(&mut lease);
            return taken(self.api.replace(&self.name, &PostParams::default(), &lease).await);
        }
        Ok(false)
    }

    fn claim(&self, lease: &mut Lease) {
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0) + 1);
            spec.acquire_time = Some(now.clone());
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = Some(i32::try_from(self.terms.duration.as_secs()).unwrap_or(i32::MAX).max(1));
        spec.renew_time = Some(now);
    }

    /// Holds the lease; returns once it may be lost.
    pub async fn lost(&mut self) {
        loop {
            sleep(self.terms.renew).await;
            // What is renewed counts from before it was asked for.
            let asked = Instant::now();
            match timeout(self.terms.renew, self.renew()).await {
                Ok(Ok(true)) => self.renewed = asked,
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "the lease could not be renewed"),
                Err(_) => tracing::warn!("the API server does not answer"),
            }
            // A third of the time is left for calls that are under way.
            if self.renewed.elapsed() >= self.terms.duration * 2 / 3 {
                return;
            }
        }
    }

    async fn renew(&self) -> Result<bool, kube::Error> {
        let mut lease = self.api.get(&self.name).await?;
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        if holder != Some(&self.identity) {
            return Ok(false);
        }
        self.claim(&mut lease);
        taken(self.api.replace(&self.name, &PostParams::default(), &lease).await)
    }

    /// Gives the lease back, so that another need not wait.
    pub async fn release(self) {
        let give_back = async {
            let mut lease = self.api.get(&self.name).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(&self.identity) {
                spec.holder_identity = None;
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        if !matches!(timeout(self.terms.renew, give_back).await, Ok(Ok(()))) {
            tracing::debug!("the lease could not be given back; it ends by itself");
        }
    }
}

/// A conflict means that another was faster.
fn taken<T>(result: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
