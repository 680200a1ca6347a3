//! The orchestrator's part in the mesh, which it takes while it leads: a stand-by with the same identity stays out.

use crate::{
    commands::{service::Process, status},
    settings::NodeSettings,
};
use anyhow::{Context, Result};
use dunlin_k8s::{
    jobs::logs::Agents,
    member::{Member, Revocations},
    mesh::{Mesh, Sight},
    pods::{Accounts, Cluster},
    roster::{Recorded, Roster},
    world::OwnPod,
};
use dunlin_node::{Config, Node, control, pods::PodAdmission, state::StateDir};
use dunlin_protocol::id::{Role, Roles};
use futures::future::{BoxFuture, FutureExt};
use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

/// Before another try to take part.
const AGAIN: Duration = Duration::from_secs(5);

/// What it takes to take part.
pub(super) struct Setup {
    pub(super) home: PathBuf,
    pub(super) client: kube::Client,
    pub(super) accounts: Accounts,
    pub(super) node: NodeSettings,
    /// What members may ask of it.
    pub(super) routes: axum::Router,
    /// The way of these routes to replicas.
    pub(super) agents: Agents,
}

/// Stands in for the member while there is none.
#[derive(Default)]
pub(super) struct Part {
    leads: watch::Sender<bool>,
    member: Mutex<Option<Member>>,
    changed: Notify,
    roster: Roster,
    revocations: Revocations,
}

impl Part {
    fn member(&self) -> Option<Member> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn put(&self, member: Option<Member>) {
        *self.member.lock().unwrap_or_else(PoisonError::into_inner) = member;
        self.changed.notify_one();
    }

    /// Takes part whenever this process leads, until `stop`.
    pub(super) async fn take(&self, setup: Setup, stop: CancellationToken) {
        let mut leads = self.leads.subscribe();
        loop {
            // What it waits for is not kept: it would keep others from saying anything new.
            let begun = matches!(stop.run_until_cancelled(leads.wait_for(|leads| *leads)).await, Some(Ok(_)));
            if !begun {
                return;
            }
            let ended = stop.child_token();
            let led = async {
                // An error means that nobody can lead any more.
                let _ = leads.wait_for(|leads| !*leads).await;
            };
            let follow = async {
                ended.run_until_cancelled(led).await;
                ended.cancel();
            };
            let (taken, ()) = tokio::join!(self.take_once(&setup, ended.clone()), follow);
            self.put(None);
            setup.agents.through(None);
            if let Err(error) = taken {
                tracing::error!(error = format!("{error:#}"), "this orchestrator could not take part in the mesh");
                stop.run_until_cancelled(sleep(AGAIN)).await;
            }
        }
    }

    async fn take_once(&self, setup: &Setup, ended: CancellationToken) -> Result<()> {
        // However it ends, whoever waits for the end is told.
        let _told = ended.clone().drop_guard();
        let pods = Cluster::new(setup.client.clone(), setup.accounts.clone(), self.roster.clone());
        let mut config = Config::new(StateDir::open(&setup.home)?, Roles::from_iter([Role::Orchestrator]));
        config.listen.clone_from(&setup.node.listen);
        config.external.clone_from(&setup.node.external);
        config.bootstrap.clone_from(&setup.node.peers);
        config.mdns = setup.node.mdns;
        config.pods = Some(PodAdmission::new(pods, setup.accounts.namespace.clone()));
        let (node, handle) = Node::start(config, setup.routes.clone()).await?;
        let process = Process { endpoint: None, no_auth: false, pid: std::process::id() };
        let control = control::Server::bind(&setup.home, handle.clone(), status::routes(process, None))?;
        let member = Member::new(handle.clone(), self.roster.clone());
        self.put(Some(member.clone()));
        setup.agents.through(Some(handle.clone()));
        tracing::info!(mesh = %handle.mesh(), peer = %handle.peer_id(), "takes part in the mesh");
        if !handle.issues() {
            tracing::error!(
                "this orchestrator may not issue, and so can't admit pods: run `dunlin mesh delegate {} --role agent,proxy,relay` where the mesh was made",
                handle.peer_id()
            );
        }
        let ((), (), (), node) = tokio::join!(
            member.watch(ended.clone()),
            self.revocations.carry_out(&handle, ended.clone()),
            control.run(ended.clone()),
            node.run(ended.clone())
        );
        node.context("the node ended badly")
    }
}

impl Mesh for Part {
    fn sight(&self, pod: &OwnPod, known: Option<&str>) -> Sight {
        self.member().map(|member| member.sight(pod, known)).unwrap_or_default()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        async {
            let member = self.member();
            let seen = async {
                match &member {
                    Some(member) => member.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = seen => {}
                () = self.roster.bound() => {}
                () = self.changed.notified() => {}
            }
        }
        .boxed()
    }

    fn recorded(&self, namespace: &str, playground: &str, replicas: Option<Vec<Recorded>>) {
        match replicas {
            Some(replicas) => self.roster.put(namespace, playground, replicas),
            None => self.roster.remove(namespace, playground),
        }
    }

    fn revoke<'a>(&'a self, peer: &'a str) -> BoxFuture<'a, bool> {
        async move {
            let Ok(peer) = peer.parse() else { return true };
            self.member().into_iter().for_each(|member| member.forget(&peer));
            self.revocations.end(peer).await
        }
        .boxed()
    }

    fn leads(&self, leads: bool) {
        self.roster.clear();
        self.leads.send_replace(leads);
    }
}
