//! The way into the mesh for a command that asks a model: the node that runs here, or one for as long as the command.

use super::{
    service,
    service::{Plan, Process, Service},
};
use crate::{
    http::Target,
    output,
    settings::{EndpointSettings, NodeSettings},
};
use anyhow::{Result, bail};
use dunlin_node::{
    clock,
    control::{Client, ClientError, ModelInfo, SOCKET},
    mesh,
    state::StateDir,
};
use dunlin_protocol::id::{Role, Roles};
use std::{net::Ipv4Addr, path::Path, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long a node that was just started looks for members before a question is sent anyway.
const ACQUAINTANCE: Duration = Duration::from_secs(5);

/// An open way in. A node that was started for it ends with [`Door::close`].
pub(crate) struct Door {
    pub(crate) target: Target,
    own: Option<(CancellationToken, JoinHandle<Result<()>>)>,
}

impl Door {
    /// Uses the node of `home`, or starts one.
    pub(crate) async fn open(home: &Path) -> Result<Self> {
        let target = Target::Socket(home.join(SOCKET));
        match Client::connect(home).await {
            Ok(mut client) => {
                require_endpoint(&mut client, "ask another one with --endpoint URL").await?;
                Ok(Self { target, own: None })
            }
            Err(ClientError::NotRunning(_)) => {
                let service = start(home).await?;
                let end = service.shutdown();
                let running = tokio::spawn(service.run());
                acquaint(home).await;
                Ok(Self { target, own: Some((end, running)) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// An endpoint somewhere else.
    pub(crate) fn elsewhere(target: Target) -> Self {
        Self { target, own: None }
    }

    /// Whether a node was started for it in this process, which ends with the signals that this process gets.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    pub(crate) async fn close(self) -> Result<()> {
        let Some((end, running)) = self.own else { return Ok(()) };
        end.cancel();
        running.await?
    }
}

/// Refuses where the node that runs here is no proxy, and says what to do `instead`.
pub(super) async fn require_endpoint(client: &mut Client, instead: &str) -> Result<()> {
    if client.get::<Process>("/process").await?.endpoint.is_none() {
        bail!("the node that runs here has no endpoint (it is no proxy); {instead}");
    }
    Ok(())
}

/// A node that listens nowhere and has no engines, only a way to ask.
async fn start(home: &Path) -> Result<Service> {
    let state = StateDir::open(home)?;
    if !mesh::load(&state, clock::unix_s())?.members.own().roles.contains(Role::Proxy) {
        bail!("this machine's certificate lacks the role proxy, so it can't ask models; use --endpoint URL");
    }
    let node = NodeSettings { name: None, listen: Vec::new(), external: Vec::new(), peers: Vec::new(), mdns: true };
    let usual = dunlin_proxy::Config::default();
    let endpoint = EndpointSettings {
        http: (Ipv4Addr::LOCALHOST, 0).into(),
        no_auth: false,
        keys_max_age: None,
        trusted_proxies: Vec::new(),
        admin: None,
        first_byte_timeout: None,
        inter_token_timeout: None,
        hedged_percent: usual.hedged_percent,
        names: Default::default(),
        tls: None,
        upload_folder: None,
        upload_disk_bytes: usual.upload_disk,
    };
    let roles = Roles::from_iter([Role::Proxy]);
    let engines = service::Engines::default();
    let plan = Plan { state, roles, node, engines, metrics_http: None, endpoint: Some(endpoint) };
    service::Service::start(plan).await
}

/// Waits until some model is ready, but not for ever.
async fn acquaint(home: &Path) {
    let looking = async {
        loop {
            if let Ok(mut client) = Client::connect(home).await
                && let Ok(models) = client.get::<Vec<ModelInfo>>("/models").await
                && models.iter().any(|model| model.ready > 0)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    if tokio::time::timeout(ACQUAINTANCE, looking).await.is_err() {
        output::note("no member of the mesh with a ready model was reached yet");
    }
}
