//! Connections: direct or through a proxy, with TLS on top.

use crate::Error;
use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::{
        legacy::connect::{HttpConnector, proxy::Tunnel},
        proxy::matcher::Matcher,
    },
    rt::TokioIo,
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::net::TcpStream;
use tower_service::Service;

/// To a server or its proxy.
const CONNECT: Duration = Duration::from_secs(15);

/// Opens TCP connections, through a proxy where the environment names one.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    direct: HttpConnector,
    proxies: Arc<Matcher>,
}

pub(super) fn https() -> Result<HttpsConnector<Connector>, Error> {
    let mut direct = HttpConnector::new();
    direct.set_connect_timeout(Some(CONNECT));
    direct.enforce_http(false);
    let connector = Connector { direct, proxies: Arc::new(Matcher::from_env()) };
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Endpoint { given: "TLS".to_owned(), problem: error.to_string() })?
        .with_root_certificates(authorities())
        .with_no_client_auth();
    Ok(HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(connector))
}

/// The machine's; an image with nothing but this executable has none.
fn authorities() -> RootCertStore {
    let mut store = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    store.add_parsable_certificates(native.certs);
    if store.is_empty() {
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    store
}

/// Whether a certificate was not believed, which it won't be the next time either.
pub(super) fn is_distrust(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // An I/O error hides what it was made from behind the causes of that.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let inner: Option<&(dyn std::error::Error + 'static)> = inner.map(|inner| inner as _);
        if [Some(error), inner]
            .into_iter()
            .flatten()
            .any(|error| matches!(error.downcast_ref::<rustls::Error>(), Some(rustls::Error::InvalidCertificate(_))))
        {
            return true;
        }
        cause = inner.or_else(|| error.source());
    }
    false
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Connecting {
        let mut direct = self.direct.clone();
        let Some(proxy) = self.proxies.intercept(&to) else {
            return Box::pin(async move { direct.call(to).await.map_err(io::Error::other) });
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), direct);
        if let Some(auth) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(auth.clone());
        }
        Box::pin(
            async move { tunnel.call(to).await.map_err(|error| io::Error::other(format!("by the proxy: {error}"))) },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_is_not_believed_is_told_from_a_connection_that_breaks() {
        let bad = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert!(is_distrust(&io::Error::other(io::Error::other(bad))));
        assert!(!is_distrust(&io::Error::other(rustls::Error::HandshakeNotComplete)));
        assert!(!is_distrust(&io::Error::from(io::ErrorKind::ConnectionReset)));
    }
}
