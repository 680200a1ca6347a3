//! A simulated engine: a real HTTP server with vLLM's API and metric names, whose text is invented.
//!
//! It lets a newcomer see the mesh work with nothing else installed, and it is what tests and benchmarks load. Its text
//! is a deterministic function of the whole context, so that a continued answer can be checked character by character.
//! It always says that it is a demo: in the first sentence of every answer, in a header, as the models' owner.

mod answer;
mod body;
mod config;
mod embeddings;
mod error;
mod faults;
mod http;
mod metrics;
mod models;
mod prefix;
mod request;
mod scheduler;
mod server;
mod text;
mod tokenizer;
mod tokens;
mod vocabulary;
mod writer;

pub use config::{Adapter, Config, Speed};
pub use faults::{Death, Faults};

use socket2::{Domain, Protocol, Socket, Type};
use std::{io, net::SocketAddr, sync::Arc};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Why the engine can't start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address can't be had.
    #[error("the demo engine can't listen on {address}: {error}")]
    Listen {
        /// The address wanted.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The faults make no sense.
    #[error("faults of the demo engine: {0}")]
    Faults(#[from] faults::Error),
}

/// A demo engine that listens.
#[derive(Debug)]
pub struct Engine {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<http::Engine>,
}

impl Engine {
    /// Listens; answers once [`Engine::run`] runs. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// The address can't be had, or the faults make no sense.
    pub fn bind(config: Config) -> Result<Self, Error> {
        config.faults.check(config.may_exit)?;
        let address = config.listen;
        let (listener, address) = listen(address).map_err(|error| Error::Listen { address, error })?;
        Ok(Self { listener, address, shared: Arc::new(http::Engine::new(config)) })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown`, and then up to 5 s for what is in flight.
    pub async fn run(self, shutdown: CancellationToken) {
        server::serve(self.listener, self.shared, shutdown).await;
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let listener = TcpListener::from_std(socket.into())?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
