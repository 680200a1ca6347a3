//! Where an engine listens.

use http::{Uri, uri};
use std::{fmt, str::FromStr, sync::Arc};

/// Base URL of an engine: `http://host[:port][/prefix]`, without a trailing slash or the `/v1` that OpenAI base URLs end
/// with (paths on the mesh hop carry it).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EngineUrl {
    authority: uri::Authority,
    prefix: Arc<str>,
}

/// Why a text is not an engine's URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a URL at all, or with a query.
    #[error("{0:?} is not an engine's URL; write it like http://127.0.0.1:8000")]
    Malformed(String),
    /// TLS towards engines is not built in: agent and engine share a machine or a pod.
    #[error(
        "{0:?}: https is not supported towards engines; run the agent beside the engine and use http, or put a \
         TLS-terminating proxy in between"
    )]
    Https(String),
    /// Some other scheme.
    #[error("{0:?}: only http:// is supported")]
    Scheme(String),
}

impl EngineUrl {
    /// `http://127.0.0.1:port`.
    ///
    /// # Errors
    /// Never for a valid port; the type of error is that of parsing.
    pub fn loopback(port: u16) -> Result<Self, Error> {
        format!("http://127.0.0.1:{port}").parse()
    }

    /// The URI of `path_and_query` (starting with `/`) on this engine.
    ///
    /// # Errors
    /// The path is not one.
    pub fn join(&self, path_and_query: &str) -> Result<Uri, http::Error> {
        let builder = Uri::builder().scheme(uri::Scheme::HTTP).authority(self.authority.clone());
        if self.prefix.is_empty() {
            return builder.path_and_query(path_and_query).build();
        }
        builder.path_and_query([&self.prefix, path_and_query].concat()).build()
    }

    /// The same host at another port, without a prefix.
    ///
    /// # Errors
    /// The port is 0.
    pub fn at_port(&self, port: u16) -> Result<Self, Error> {
        format!("http://{}:{port}", self.authority.host()).parse()
    }

    /// The port, when this is on the machine's own loopback.
    #[must_use]
    pub fn local_port(&self) -> Option<u16> {
        let local = ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"].contains(&self.authority.host());
        local.then(|| self.authority.port_u16().unwrap_or(80))
    }

    /// Host and port, as in the header `host`.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }
}

impl FromStr for EngineUrl {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let malformed = || Error::Malformed(text.to_owned());
        let (scheme, _) = text.split_once("://").ok_or_else(malformed)?;
        match scheme.to_ascii_lowercase().as_str() {
            "http" => {}
            "https" => return Err(Error::Https(text.to_owned())),
            _ => return Err(Error::Scheme(text.to_owned())),
        }
        let uri: Uri = text.parse().map_err(|_| malformed())?;
        let authority = uri.authority().ok_or_else(malformed)?.clone();
        // `Authority` accepts any number as a port and then knows none.
        let after_host = authority.as_str().strip_prefix(authority.host()).ok_or_else(malformed)?;
        let port_is_fine = after_host.is_empty() || authority.port_u16().is_some_and(|port| port > 0);
        if uri.query().is_some() || authority.host().is_empty() || !port_is_fine {
            return Err(malformed());
        }
        let prefix = uri.path().trim_end_matches('/');
        let prefix = prefix.strip_suffix("/v1").unwrap_or(prefix);
        Ok(Self { authority, prefix: prefix.into() })
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
}
impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<EngineUrl, Error> {
        text.parse()
    }

    #[test]
    fn accepts_what_people_paste() {
        for (given, kept) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
            (" http://localhost:8000/ ", "http://localhost:8000"),
            ("HTTP://box/v1/", "http://box"),
            ("http://box:1/engines/a/v1", "http://box:1/engines/a"),
            ("http://[::1]:8080", "http://[::1]:8080"),
        ] {
            assert_eq!(url(given).unwrap().to_string(), kept);
        }
    }

    #[test]
    fn joins_behind_the_prefix() {
        assert_eq!(url("http://b:1/p").unwrap().join("/v1/models?x=1").unwrap(), "http://b:1/p/v1/models?x=1");
        assert_eq!(url("http://b:1").unwrap().join("/health").unwrap(), "http://b:1/health");
    }

    #[test]
    fn another_port_of_the_same_host() {
        assert_eq!(url("http://box:1/p/v1").unwrap().at_port(8002).unwrap().to_string(), "http://box:8002");
        assert_eq!(url("http://[::1]:1").unwrap().at_port(2).unwrap().to_string(), "http://[::1]:2");
        let local = |text: &str| url(text).unwrap().local_port();
        assert_eq!((local("http://localhost:8000/v1"), local("http://[::1]:81")), (Some(8000), Some(81)));
        assert_eq!((local("http://localhost"), local("http://box:8000")), (Some(80), None));
    }

    #[test]
    fn refuses_the_rest_and_says_why() {
        assert!(matches!(url("https://box:8000"), Err(Error::Https(_))));
        assert!(matches!(url("unix:///run/engine"), Err(Error::Scheme(_))));
        for text in ["", "box:8000", "http://", "http://b/?q=1", "http://user:secret@b", "http://b:99999"] {
            assert!(matches!(url(text), Err(Error::Malformed(_))), "{text}");
        }
    }
}
