//! The listening side.

use super::{SOCKET, routes};
use crate::handle::Handle;
use axum::{Router, extract::DefaultBodyLimit, serve::ListenerExt};
use std::{
    fs, io,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

/// Largest body that the command line may send.
const BODY_BYTES: usize = 1024 * 1024;
/// How long answers under way may go on after the end of the node.
const DRAIN: Duration = Duration::from_secs(1);
/// Longest path of a Unix socket, bytes (`sun_path` has 108 on Linux, 104 elsewhere, one of them the end mark).
const PATH_BYTES: usize = 103;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process answers on it.
    #[error("another process answers on {}", .0.display())]
    InUse(PathBuf),
    /// Unix sockets have short names.
    #[error("the path {} is too long for a Unix socket; choose a shorter --home", .0.display())]
    TooLong(PathBuf),
    /// The operating system refused.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What it said.
        cause: io::Error,
    },
}

/// The socket of the state directory `home`.
///
/// # Errors
/// [`Error::TooLong`].
pub fn path(home: &Path) -> Result<PathBuf, Error> {
    let path = home.join(SOCKET);
    if path.as_os_str().len() > PATH_BYTES { Err(Error::TooLong(path)) } else { Ok(path) }
}

/// A control socket that listens.
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    routes: Router,
}

impl Server {
    /// Listens in the state directory `home`, with the node's own routes and `extra`, which must not repeat them.
    ///
    /// The state directory's lock says that no other node runs here, so a socket that nobody answers on is a left-over.
    ///
    /// # Errors
    /// A path that is too long; somebody answers there; the operating system refuses.
    pub fn bind(home: &Path, handle: Handle, extra: Router) -> Result<Self, Error> {
        let path = path(home)?;
        let io = |cause| Error::Io { path: path.clone(), cause };
        if path.exists() {
            if UnixStream::connect(&path).is_ok() {
                return Err(Error::InUse(path));
            }
            fs::remove_file(&path).map_err(io)?;
        }
        let listener = UnixListener::bind(&path).map_err(io)?;
        // The directory is 0700 already; this holds where it could not be made so.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(io)?;
        let routes = routes::routes(handle).merge(extra).layer(DefaultBodyLimit::max(BODY_BYTES));
        Ok(Self { listener, path, routes })
    }

    /// Answers until `shutdown`, then removes the socket.
    pub async fn run(self, shutdown: CancellationToken) {
        let listener = self.listener.tap_io(|_| {});
        let serving = axum::serve(listener, self.routes).with_graceful_shutdown(shutdown.clone().cancelled_owned());
        let ended = async {
            shutdown.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            served = serving => {
                if let Err(error) = served {
                    tracing::error!(%error, "control socket");
                }
            }
            () = ended => {}
        }
        // An error means that somebody removed it.
        let _ = fs::remove_file(&self.path);
    }
}
