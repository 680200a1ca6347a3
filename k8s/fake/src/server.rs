//! The same server on a socket.

use crate::{Fake, respond};
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{net::TcpListener, task::JoinSet};

pub(crate) async fn serve(fake: Fake, listener: TcpListener) -> std::io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        let fake = fake.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let fake = fake.clone();
                async move { respond::answer(&fake, request, "socket").await }
            });
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
        });
    }
}
