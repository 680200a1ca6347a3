//! HTTPS: a certificate and a key from files, which are looked at again as long as the proxy runs.

use arc_swap::ArcSwap;
use std::{
    fs, io,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    task::spawn_blocking,
    time::{self, MissedTickBehavior},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};
use tokio_util::sync::CancellationToken;

/// How often the files are looked at: certificates are renewed days before they end.
const LOOK: Duration = Duration::from_secs(5);
/// A file larger than this is no certificate.
const FILE_BYTES: u64 = 1 << 20;
/// HTTP/2 first, as clients like it.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where certificate and key lie, PEM both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The chain, the server's own certificate first.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why HTTPS can't be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read.
    #[error("cannot read {}: {}", .0.display(), .1)]
    Read(PathBuf, #[source] io::Error),
    /// No certificate in it.
    #[error("{} holds no PEM certificate (BEGIN CERTIFICATE)", .0.display())]
    NoCertificate(PathBuf),
    /// No key in it.
    #[error("{} holds no PEM private key without a passphrase (BEGIN PRIVATE KEY)", .0.display())]
    NoKey(PathBuf),
    /// They don't fit.
    #[error("certificate and key are not of one pair, or of a kind that is not supported: {0}")]
    Pair(#[from] rustls::Error),
}

/// Whether HTTPS could be served with these files now.
///
/// # Errors
/// One of them is missing or wrong.
pub fn check(files: Files) -> Result<(), Error> {
    Tls::load(files).map(drop)
}

/// What connections are accepted with.
pub(crate) struct Tls {
    files: Files,
    current: ArcSwap<ServerConfig>,
}

/// Certificate and key as they are on the disk.
type Content = (Vec<u8>, Vec<u8>);

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// One of them is missing or wrong.
    pub(crate) fn load(files: Files) -> Result<Self, Error> {
        let config = configured(&files, &read(&files)?)?;
        Ok(Self { files, current: ArcSwap::new(config) })
    }

    /// For one connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Takes in what changes in the files until `shutdown`. What is wrong there is told, and the old pair stays.
    pub(crate) async fn watch(&self, shutdown: CancellationToken) {
        let mut known = self.look().await.ok();
        let mut tick = time::interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failed = false;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => {}
            }
            let content = match self.look().await {
                Ok(content) if known.as_ref() == Some(&content) => continue,
                Ok(content) => content,
                // In the middle of being replaced, perhaps: told once.
                Err(error) => {
                    if !std::mem::replace(&mut failed, true) {
                        tracing::warn!(%error, "certificate can't be read again; the last one stays in use");
                    }
                    continue;
                }
            };
            failed = false;
            match configured(&self.files, &content) {
                Ok(config) => {
                    self.current.store(config);
                    tracing::info!(file = %self.files.certificate.display(), "certificate replaced");
                }
                Err(error) => tracing::warn!(%error, "new certificate is not taken; the last one stays in use"),
            }
            known = Some(content);
        }
    }

    async fn look(&self) -> Result<Content, Error> {
        let files = self.files.clone();
        let path = files.certificate.clone();
        // The process is ending where the thread does not answer.
        let ending = |_| Err(Error::Read(path, io::ErrorKind::Interrupted.into()));
        spawn_blocking(move || read(&files)).await.unwrap_or_else(ending)
    }
}

fn read(files: &Files) -> Result<Content, Error> {
    let file = |path: &Path| -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        fs::File::open(path)?.take(FILE_BYTES).read_to_end(&mut content)?;
        Ok(content)
    };
    let read = |path: &Path| file(path).map_err(|error| Error::Read(path.to_owned(), error));
    Ok((read(&files.certificate)?, read(&files.key)?))
}

fn configured(files: &Files, (certificate, key): &Content) -> Result<Arc<ServerConfig>, Error> {
    let chain: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    let chain = chain.ok_or_else(|| Error::NoCertificate(files.certificate.clone()))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| Error::NoKey(files.key.clone()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(Arc::new(config))
}
