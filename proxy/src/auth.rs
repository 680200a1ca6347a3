//! Who may send requests: whoever has a key, or, without keys, whoever is on this machine.

pub(crate) mod failures;
pub(crate) mod forwarded;

use crate::keys::{Grant, Keys, Verdict, sync::Keeper};
use dunlin_node::clock;
use dunlin_protocol::key::KeyKind;
use http::{HeaderMap, Uri, header, uri::Authority};
use std::{net::IpAddr, sync::Arc, time::Duration};

/// Why a request is refused. Never says which part of a key was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// No key at all.
    #[error(
        "no API key was sent; send it as `Authorization: Bearer sk-dunlin-...`. `dunlin keys create` makes one on the \
         machine that runs this endpoint"
    )]
    Missing,
    /// No key of this proxy.
    #[error("the API key is not valid here; `dunlin keys list` shows which keys are")]
    Wrong,
    /// A key past its end.
    #[error("the API key has expired; ask for a new one (`dunlin keys create`)")]
    Expired,
    /// A key of a tenant that is suspended.
    #[error("the tenant of this API key is suspended; whoever runs the mesh can resume it (`dunlin tenants resume`)")]
    Suspended,
    /// This proxy is cut off for so long that keys may have been revoked without it.
    #[error(
        "this endpoint has not heard for a while which keys were revoked (--keys-max-age), so that none opens it now; \
         try another one"
    )]
    Stale,
    /// A key that was revoked.
    #[error("the API key was revoked; ask for a new one (`dunlin keys create`)")]
    Revoked,
    /// Without keys, for another host than this machine.
    #[error(
        "this endpoint runs with --no-auth and takes requests to localhost only; use http://127.0.0.1, or run it with \
         keys"
    )]
    NotLocal,
}

impl Error {
    /// For metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Wrong => "wrong",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
            Self::Suspended => "suspended",
            Self::Stale => "stale",
            Self::NotLocal => "not_local",
        }
    }
}

/// The rule of one proxy.
#[derive(Clone)]
pub(crate) enum Auth {
    /// Keys are asked for. With a longest time for which they may not have been compared with the other proxies'.
    Keys(Keeper, Option<Duration>),
    /// They are not: `--no-auth`.
    LocalOnly,
    /// Whoever gets this far owns the node: requests on its control socket.
    Owner,
}

/// Whose request it is, as far as its share of this proxy goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Tenant {
    /// Of this node.
    Owner,
    /// The id of a key.
    Key(Box<str>),
    /// Where no key is asked for.
    Address(IpAddr),
}

impl Auth {
    /// Whose a request is that [`Self::check`] has let in and that comes from `address`.
    pub(crate) fn tenant(&self, headers: &HeaderMap, address: Option<IpAddr>) -> Tenant {
        let id = match self {
            Self::Keys(..) => key(headers).and_then(Keys::id),
            Self::LocalOnly | Self::Owner => None,
        };
        match (id, address) {
            (Some(id), _) => Tenant::Key(id.into()),
            (None, Some(address)) => Tenant::Address(address),
            (None, None) => Tenant::Owner,
        }
    }

    /// Lets a request in, with what its key gives, or says why not. Reads memory only.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<Arc<Grant>>, Error> {
        let (keeper, max_age) = match self {
            Self::LocalOnly => return check_local(uri, headers).map(|()| None),
            Self::Owner => return Ok(None),
            Self::Keys(keeper, max_age) => (keeper, max_age),
        };
        let key = key(headers).ok_or(Error::Missing)?;
        let grant = keeper.keys().admit(key, KeyKind::Client, clock::unix_s()).map_err(|verdict| match verdict {
            Verdict::Revoked => Error::Revoked,
            Verdict::Expired => Error::Expired,
            Verdict::Suspended => Error::Suspended,
            Verdict::Unknown | Verdict::Valid => Error::Wrong,
        })?;
        // Last, so that nobody without a key learns of it.
        match max_age {
            Some(longest) if keeper.age().is_some_and(|age| age > *longest) => Err(Error::Stale),
            _ => Ok(Some(grant)),
        }
    }

    /// Whether the keys are here, as far as any are asked for.
    pub(crate) fn is_ready(&self) -> bool {
        match self {
            Self::Keys(keeper, _) => keeper.is_synced(),
            Self::LocalOnly | Self::Owner => true,
        }
    }
}

/// The key as sent: `Authorization: Bearer KEY`, or `X-API-Key: KEY` as Anthropic's SDKs do.
pub(crate) fn key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, key) = value.trim_start().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let plain = || headers.get("x-api-key").and_then(|value| value.to_str().ok()).map(str::trim);
    bearer.or_else(plain).filter(|key| !key.is_empty())
}

fn check_local(uri: &Uri, headers: &HeaderMap) -> Result<(), Error> {
    let named = headers.get(header::HOST).map(|host| host.to_str().ok().and_then(|host| host.parse().ok()));
    let host: Option<Authority> = named.unwrap_or_else(|| uri.authority().cloned());
    let host_is_local = host.is_some_and(|host| is_local(host.host()));
    if host_is_local && origin_is_local(headers) { Ok(()) } else { Err(Error::NotLocal) }
}

/// Whether a browser's page, if the request is one's, comes from this machine.
pub(crate) fn origin_is_local(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let uri: Option<Uri> = origin.to_str().ok().and_then(|origin| origin.parse().ok());
    uri.and_then(|uri| uri.host().map(is_local)).unwrap_or(false)
}

fn is_local(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = host.strip_suffix('.').unwrap_or(host);
    name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn local(pairs: &[(&'static str, &str)]) -> bool {
        Auth::LocalOnly.check(&Uri::from_static("/v1/models"), &headers(pairs)).is_ok()
    }

    #[test]
    fn without_keys_only_this_machine_is_served() {
        for host in ["127.0.0.1:8480", "localhost:8480", "LOCALHOST", "[::1]:8480", "127.9.9.9", "app.localhost"] {
            assert!(local(&[("host", host)]), "{host}");
        }
        for host in ["evil.test", "192.168.1.5:8480", "localhost.evil.test", "127.0.0.1.evil.test", "0.0.0.0", ""] {
            assert!(!local(&[("host", host)]), "{host}");
        }
        assert!(!local(&[]), "no host at all");
    }

    #[test]
    fn a_page_from_elsewhere_is_refused_though_the_host_is_right() {
        assert!(local(&[("host", "localhost:8480"), ("origin", "http://localhost:3000")]));
        for origin in ["http://evil.test", "null", "https://127.0.0.1.evil.test", "chrome-extension://abc"] {
            assert!(!local(&[("host", "localhost:8480"), ("origin", origin)]), "{origin}");
        }
    }

    #[test]
    fn http2_names_the_host_in_the_uri() {
        let uri = Uri::from_static("http://127.0.0.1:8480/v1/models");
        assert!(Auth::LocalOnly.check(&uri, &HeaderMap::new()).is_ok());
        let uri = Uri::from_static("http://evil.test/v1/models");
        assert!(Auth::LocalOnly.check(&uri, &HeaderMap::new()).is_err());
    }

    #[test]
    fn keys_are_found_in_either_header() {
        for (name, value) in
            [("authorization", "Bearer k"), ("authorization", "bearer   k "), ("x-api-key", "k"), ("x-api-key", " k")]
        {
            assert_eq!(key(&headers(&[(name, value)])), Some("k"), "{name}: {value}");
        }
        for (name, value) in [("authorization", "Basic k"), ("authorization", "Bearer "), ("x-api-key", "")] {
            assert_eq!(key(&headers(&[(name, value)])), None, "{name}: {value}");
        }
        assert_eq!(key(&headers(&[("authorization", "Basic xyz"), ("x-api-key", "k")])), Some("k"));
    }
}
