//! What the agent leaves in the shared folder.

use super::{EXECUTABLE, SOCKET};
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tokio::net::UnixListener;

/// Anybody in the pod may run it.
const EXECUTABLE_MODE: u32 = 0o755;
/// The engine's container may run as any user. Only the containers of the pod see the folder.
const SOCKET_MODE: u32 = 0o666;

/// Why an agent can't be the sidecar of an engine.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {error}; --sidecar names a folder that the engine's container sees too")]
pub struct Error {
    path: PathBuf,
    error: io::Error,
}

/// Copies this executable there, and listens.
pub(crate) fn install(folder: &Path) -> Result<UnixListener, Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| Error { path, error }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let executable = folder.join(EXECUTABLE);
    copy_self(&executable).map_err(failed(&executable))?;
    let socket = folder.join(SOCKET);
    listen(&socket).map_err(failed(&socket))
}

/// Never half of it under its name, and one that runs keeps its own.
fn copy_self(to: &Path) -> io::Result<()> {
    let new = to.with_extension("new");
    fs::copy(std::env::current_exe()?, &new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(EXECUTABLE_MODE))?;
    fs::rename(new, to)
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    // Of an agent before this one.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(listener)
}
