//! The floor: a plain reverse proxy on hyper, with nothing that the mesh has. Runs as a process of its own, on one
//! thread, as the mesh's processes do.

use anyhow::Result;
use http::{Request, Response, Uri, uri::Scheme};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Forwards everything that comes to `listen` to `upstream`, until the process is killed.
pub fn run(listen: SocketAddr, upstream: SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(listen, upstream))
}

async fn serve(listen: SocketAddr, upstream: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(listen).await?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build(connector);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let client = client.clone();
        let service = service_fn(move |request| forward(client.clone(), upstream, request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn forward(
    client: Client<HttpConnector, Incoming>,
    upstream: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Response<Incoming>> {
    let mut uri = std::mem::take(request.uri_mut()).into_parts();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(upstream.to_string().parse()?);
    *request.uri_mut() = Uri::from_parts(uri)?;
    Ok(client.request(request).await?)
}
