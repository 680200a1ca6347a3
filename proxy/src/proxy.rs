//! One proxy: its parts put together, from start to end.

use crate::{
    admin::Admin,
    audit::Audit,
    auth::Auth,
    config::Config,
    control::{self, Rooms},
    dispatch::Dispatcher,
    fellows::Fellows,
    http::{
        Door,
        serve::{
            Server,
            tls::{self, Tls},
        },
    },
    keys::{self, Keeper, Keys},
    limits::Limits,
    meter::Meters,
    metrics::Metrics,
    pool::{self, Pool},
    request::body::{Bounds, Shares},
    upload,
    usage::{self, Usage},
};
use dunlin_node::{Handle, clock};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    time::{self, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// Clients that the kernel holds while we are busy.
const BACKLOG: i32 = 1024;
/// How often is looked whether another process changed the keys.
const KEYS: Duration = Duration::from_secs(1);

/// Why a proxy did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Certificate or key are wrong.
    #[error("cannot serve HTTPS: {0}")]
    Tls(#[from] tls::Error),
    /// The address can't be listened on.
    #[error("cannot listen on {address}: {source}; choose another address with {flag} ADDR:PORT")]
    Listen {
        /// As configured.
        address: SocketAddr,
        /// Where it is configured.
        flag: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The keys can't be taken up.
    #[error(transparent)]
    Keys(#[from] keys::Error),
    /// The usage can't be taken up.
    #[error(transparent)]
    Usage(#[from] usage::Error),
    /// Changes can't be written down.
    #[error("the audit file {path} can't be opened: {source}")]
    Audit {
        /// The file.
        path: String,
        /// What the system says.
        source: io::Error,
    },
}

/// A proxy that listens already and answers once it runs.
pub struct Proxy {
    server: Server,
    /// The same endpoint for whoever owns this node.
    owner: Arc<Door>,
    pool: Arc<Pool>,
    rooms: Rooms,
    meters: Meters,
    admin: Option<(Admin, SocketAddr)>,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
}

impl Proxy {
    /// Binds the listener. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The address is taken or not this machine's.
    pub fn new(config: Config, handle: Handle, keys: Keys) -> Result<Self, Error> {
        let tls = config.tls.clone().map(Tls::load).transpose()?.map(Arc::new);
        let listen = |source| Error::Listen { address: config.http, flag: "--http", source };
        let listener = bind(config.http).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(listen)?;
        if config.no_auth {
            tracing::warn!(%address, "no key is asked for; only requests to localhost are taken");
        }
        let usage = Usage::open(&keys.beside("usage.db"), handle.clone(), keys.clone())?;
        let rooms = Rooms { usage: Some(usage.clone()), ..rooms(handle.clone(), keys.clone())? };
        let meters = Meters { limits: Limits::new(handle.clone(), keys), usage };
        let keeper = rooms.keeper.clone();
        let admin = match config.admin {
            None => None,
            Some(address) => {
                let listen = |source| Error::Listen { address, flag: "--admin-http", source };
                let listener = bind(address).map_err(listen)?;
                let address = listener.local_addr().map_err(listen)?;
                let listener = tokio::net::TcpListener::from_std(listener).map_err(listen)?;
                Some((Admin::new(listener, rooms.clone()), address))
            }
        };
        let metrics = Arc::new(Metrics::new());
        let settings = pool::Settings {
            fresh: config.fresh,
            waiting_per_model: config.waiting_per_model,
            waiting: config.waiting,
            starting_per_model: config.starting_per_model,
            starting: config.starting,
            hold: config.hold,
            hedged_percent: config.hedged_percent,
        };
        let pool = Arc::new(Pool::new(handle.directory().clone(), settings, metrics.clone()));
        let dispatcher = Arc::new(Dispatcher::new(handle, pool.clone(), metrics.clone(), &config));
        let names = Arc::new(config.names.clone());
        let shares = Shares::new(config.buffered);
        let requests = Arc::new(Semaphore::new(config.requests.min(Semaphore::MAX_PERMITS)));
        let uploads = upload::Bounds {
            body: config.form,
            pause: config.body_pause,
            memory: shares.clone(),
            disk: Shares::new(usize::try_from(config.upload_disk).unwrap_or(usize::MAX)),
            folder: config.upload_folder.clone(),
        };
        let door = |auth| {
            Arc::new(Door {
                auth,
                meters: meters.clone(),
                failures: Mutex::default(),
                trusted: config.trusted_proxies.clone(),
                bodies: Bounds { body: config.body, pause: config.body_pause, shares: shares.clone() },
                requests: requests.clone(),
                uploads: uploads.clone(),
                dispatcher: dispatcher.clone(),
                metrics: metrics.clone(),
                names: names.clone(),
                silence: config.silence,
                started: clock::unix_s(),
                rng: Mutex::new(rand::make_rng()),
            })
        };
        let auth = match config.no_auth {
            true => Auth::LocalOnly,
            false => Auth::Keys(keeper.clone(), config.keys_max_age),
        };
        let server = Server::new(listener, door(auth), tls.clone(), &config);
        Ok(Self { server, owner: door(Auth::Owner), pool, rooms, meters, admin, address, tls })
    }

    /// Whether a proxy could listen on `address` now.
    ///
    /// # Errors
    /// The address is taken or not this machine's.
    pub fn check(address: SocketAddr) -> Result<(), Error> {
        bind(address).map(drop).map_err(|source| Error::Listen { address, flag: "--http", source })
    }

    /// Where it listens; with the port that was chosen when none was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Answers, from now on, what other proxies ask on the hop.
    pub fn answer(&self, fellows: &Fellows) {
        fellows.keep(self.rooms.keeper.clone());
        fellows.meter(Some((self.meters.limits.clone(), self.meters.usage.clone())));
    }

    /// Where the admin API listens.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(_, address)| *address)
    }

    /// Routes for the node's control socket: those of [`control::keys_routes`], the endpoint itself under `/v1/`, without
    /// a key, and `GET /metrics`.
    pub fn control_routes(&self) -> axum::Router {
        control::keys_routes(self.rooms.clone()).merge(control::routes(self.owner.clone()))
    }

    /// Answers clients until `shutdown`, then finishes what is in flight, within [`Config::drain`].
    pub async fn run(self, shutdown: CancellationToken) {
        tracing::info!(address = %self.address, "endpoint open");
        // The pool goes on until the last answer: requests in flight may still wait for a slot.
        let finished = CancellationToken::new();
        let serve = async {
            self.server.run(shutdown).await;
            finished.cancel();
        };
        let watch_tls = async {
            if let Some(tls) = &self.tls {
                tls.watch(finished.clone()).await;
            }
        };
        let Rooms { keeper, .. } = self.rooms;
        let keys = keeper.keys().clone();
        let Meters { limits, usage } = self.meters;
        // Large, and moved once each.
        let keeping = Box::pin(keeper.run(finished.clone()));
        let limiting = Box::pin(limits.run(finished.clone()));
        let counting = Box::pin(usage.run(|| limits.others(), finished.clone()));
        let admin = Box::pin(async {
            if let Some((admin, _)) = self.admin {
                admin.run(finished.clone()).await;
            }
        });
        tokio::join!(
            serve,
            self.pool.drive(finished.clone()),
            watch_keys(keys, finished.clone()),
            keeping,
            limiting,
            counting,
            admin,
            watch_tls
        );
    }
}

/// What commands about keys need where there is no endpoint; files beside the keys.
///
/// # Errors
/// A file can't be opened.
pub fn rooms(handle: Handle, keys: Keys) -> Result<Rooms, Error> {
    let path = keys.beside("audit.jsonl");
    let audit = Audit::open(&path).map_err(|source| Error::Audit { path: path.display().to_string(), source })?;
    Ok(Rooms { keeper: Keeper::new(handle, keys)?, audit, usage: None })
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Taken over at once from a proxy that has just ended.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Notices what another process did to the keys.
async fn watch_keys(keys: Keys, shutdown: CancellationToken) {
    let mut tick = time::interval(KEYS);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = tick.tick() => {}
        }
        let keys = keys.clone();
        match tokio::task::spawn_blocking(move || keys.refresh()).await {
            Ok(Err(error)) => tracing::warn!(%error, "keys could not be read again; the last ones stay in force"),
            Ok(Ok(true)) => tracing::info!("keys changed"),
            Ok(Ok(false)) | Err(_) => {}
        }
    }
}
