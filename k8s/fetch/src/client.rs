//! HTTP with patience: redirects followed without carrying secrets to other hosts, deadlines on everything, and a word on
//! whether asking again may help.

mod connect;

use crate::{
    Error,
    bucket::sign::{self, Place},
    secrets::Keys,
    source::bare,
};
use bytes::Bytes;
use connect::Connector;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{
        AUTHORIZATION, CONTENT_RANGE, COOKIE, ETAG, HeaderName, LAST_MODIFIED, LOCATION, RANGE, RETRY_AFTER, USER_AGENT,
    },
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::{client::legacy, rt::TokioExecutor};
use rand::{RngExt, rngs::SmallRng};
use std::{fmt, time::Duration};
use tokio::time::{sleep, timeout};
use url::Url;

/// From a request to the head of its answer.
const HEAD: Duration = Duration::from_secs(30);
/// Between two pieces of a body.
const STALL: Duration = Duration::from_secs(30);
/// Redirects of one request.
const REDIRECTS: usize = 10;
/// A listing is not larger.
const LISTING_BYTES: usize = 32 << 20;
/// Times that something is asked for which may yet come.
const TRIES: u32 = 8;
/// Between two tries: doubles from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Longest that a server may ask for.
const LONGEST_ASKED_PAUSE: Duration = Duration::from_secs(120);

/// What a request is made with where it was addressed to; dropped on the way to any other host.
#[derive(Clone, Default)]
pub enum Credentials {
    /// Nothing.
    #[default]
    None,
    /// `Authorization: Bearer`.
    Bearer(String),
    /// ModelScope's, which looks at the cookie of its own kit as well.
    ModelScope(String),
    /// A signature.
    Signed {
        /// With which keys.
        keys: Keys,
        /// For where.
        region: String,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Bearer(_) => "Bearer(..)",
            Self::ModelScope(_) => "ModelScope(..)",
            Self::Signed { .. } => "Signed(..)",
        })
    }
}

/// A request.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Where.
    pub url: Url,
    /// As whom.
    pub credentials: Credentials,
    /// First and last byte.
    pub range: Option<(u64, u64)>,
    /// Headers that say of which version.
    pub conditions: HeaderMap,
}

impl Ask {
    /// The whole of it.
    #[must_use]
    pub fn new(url: Url, credentials: Credentials) -> Self {
        Self { url, credentials, range: None, conditions: HeaderMap::new() }
    }
}

/// Why a try failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) problem: String,
    pub(crate) status: Option<StatusCode>,
    /// `None` when another try would not help; else the shortest pause before it.
    pub(crate) again: Option<Duration>,
}

impl Failure {
    pub(crate) fn passing(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), status: None, again: Some(Duration::ZERO) }
    }
    pub(crate) fn lasting(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), status: None, again: None }
    }
}

/// Speaks HTTP. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: legacy::Client<HttpsConnector<Connector>, Empty<Bytes>>,
    /// Seconds since 1970, for signatures.
    clock: fn() -> u64,
}

impl Client {
    /// Trusts the machine's authorities (`SSL_CERT_FILE`, `SSL_CERT_DIR`), or, where it has none, Mozilla's; goes through
    /// the proxy that `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` name. `clock` tells seconds since 1970.
    ///
    /// # Errors
    /// TLS can't be set up.
    pub fn new(clock: fn() -> u64) -> Result<Self, Error> {
        let http = legacy::Client::builder(TokioExecutor::new()).pool_idle_timeout(STALL).build(connect::https()?);
        Ok(Self { http, clock })
    }

    /// Asks until there is an answer with a good status, or no hope; then `take` gets it, whose failures count as well.
    pub(crate) async fn insist<T>(
        &self,
        ask: &Ask,
        on_problem: &(dyn Fn(Option<String>) + Sync),
        take: impl AsyncFn(Response<Incoming>) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let mut patience = Patience::default();
        loop {
            let taken = match self.once(ask).await {
                Ok((answer, _)) => take(answer).await,
                Err(failure) => Err(failure),
            };
            match taken {
                Ok(taken) => {
                    on_problem(None);
                    return Ok(taken);
                }
                Err(failure) => patience.after(&ask.url, failure, on_problem).await?,
            }
        }
    }

    /// A listing: JSON or XML, bounded.
    pub(crate) async fn text(&self, ask: &Ask) -> Result<Vec<u8>, Error> {
        let whole = async |answer: Response<Incoming>| {
            let body = Limited::new(answer.into_body(), LISTING_BYTES).collect();
            match timeout(STALL * 2, body).await {
                Ok(Ok(body)) => Ok(body.to_bytes().to_vec()),
                Ok(Err(error)) => Err(Failure::passing(format!("the listing broke off: {error}"))),
                Err(_) => Err(Failure::passing("the listing does not come to its end")),
            }
        };
        self.insist(ask, &|_| {}, whole).await
    }

    /// One try, redirects followed; with the URL that answered in the end.
    pub(crate) async fn once(&self, ask: &Ask) -> Result<(Response<Incoming>, Url), Failure> {
        let mut url = ask.url.clone();
        for _ in 0..=REDIRECTS {
            let request = self.request(ask, &url)?;
            let answer = match timeout(HEAD, self.http.request(request)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) if connect::is_distrust(&error) => {
                    let hint = "give its authority in SSL_CERT_FILE or SSL_CERT_DIR if it is to be trusted";
                    return Err(Failure::lasting(format!("{}; {hint}", causes(&error))));
                }
                Ok(Err(error)) => return Err(Failure::passing(causes(&error))),
                Err(_) => return Err(Failure::passing(format!("no answer within {} s", HEAD.as_secs()))),
            };
            if !answer.status().is_redirection() {
                return Ok((judge(answer, ask)?, url));
            }
            url = next_url(&url, answer.headers())?;
        }
        Err(Failure::lasting(format!("more than {REDIRECTS} redirects")))
    }

    fn request(&self, ask: &Ask, url: &Url) -> Result<Request<Empty<Bytes>>, Failure> {
        let mut headers = ask.conditions.clone();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("dunlin/", env!("CARGO_PKG_VERSION"))));
        if let Some((first, last)) = ask.range {
            headers.insert(RANGE, header(format!("bytes={first}-{last}"))?);
        }
        if url.origin() == ask.url.origin() {
            self.prove(&ask.credentials, url, &mut headers)?;
        }
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = url.as_str().parse().map_err(|_| Failure::lasting("the URL can't be asked for"))?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    fn prove(&self, credentials: &Credentials, url: &Url, headers: &mut HeaderMap) -> Result<(), Failure> {
        match credentials {
            Credentials::None => {}
            Credentials::Bearer(token) => drop(headers.insert(AUTHORIZATION, secret(&format!("Bearer {token}"))?)),
            Credentials::ModelScope(token) => {
                headers.insert(AUTHORIZATION, secret(&format!("Bearer {token}"))?);
                headers.insert(COOKIE, secret(&format!("m_session_id={token}"))?);
            }
            Credentials::Signed { keys, region } => {
                let place = Place { region, now_unix_s: (self.clock)() };
                for (name, value) in sign::headers(url, keys, &place) {
                    headers.insert(HeaderName::from_static(name), secret(&value)?);
                }
            }
        }
        Ok(())
    }
}

fn header(value: String) -> Result<HeaderValue, Failure> {
    HeaderValue::try_from(value).map_err(|_| Failure::lasting("a header can't be sent"))
}

fn secret(value: &str) -> Result<HeaderValue, Failure> {
    let value = HeaderValue::from_str(value.trim());
    let mut value = value.map_err(|_| Failure::lasting("the token or key has characters that can't be sent"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// What hyper's errors are about stands in their causes.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}

/// Where a redirect leads.
fn next_url(from: &Url, headers: &HeaderMap) -> Result<Url, Failure> {
    let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
    let location = location.ok_or_else(|| Failure::lasting("a redirect to nowhere"))?;
    let to = from.join(location).map_err(|_| Failure::lasting("a redirect to what is no URL"))?;
    match (from.scheme(), to.scheme()) {
        ("http" | "https", "https") | ("http", "http") => Ok(to),
        ("https", "http") => Err(Failure::lasting("a redirect from https to http, which is not followed")),
        (_, other) => Err(Failure::lasting(format!("a redirect to {other}:, which is not followed"))),
    }
}

fn judge(answer: Response<Incoming>, ask: &Ask) -> Result<Response<Incoming>, Failure> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let asked_pause = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let pause = asked_pause.map_or(Duration::ZERO, Duration::from_secs).min(LONGEST_ASKED_PAUSE);
    let may_pass = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
    let advice = match (status.as_u16(), &ask.credentials) {
        (401 | 403, Credentials::None) => {
            ": it wants a token or key (HF_TOKEN, MODELSCOPE_API_TOKEN, AWS_ACCESS_KEY_ID)"
        }
        (401, _) => ": the token or key is not accepted",
        (403, _) => ": the token or key does not open this; a gated model wants its licence accepted on the hub first",
        (404, _) => ": there is no such thing, or it is private and wants a token",
        (412 | 416, _) => ": it has changed meanwhile",
        _ => "",
    };
    let problem = format!("answered {status}{advice}");
    Err(Failure { problem, status: Some(status), again: may_pass.then_some(pause) })
}

/// How often something was tried, and how long to wait.
#[derive(Default)]
pub(crate) struct Patience {
    tries: u32,
}

impl Patience {
    /// It goes on well: what failed before counts no more.
    pub(crate) fn renew(&mut self) {
        self.tries = 0;
    }

    /// Waits for the next try, if there is to be one.
    pub(crate) async fn after(
        &mut self,
        url: &Url,
        failure: Failure,
        on_problem: &(dyn Fn(Option<String>) + Sync),
    ) -> Result<(), Error> {
        let Failure { problem, status, again } = failure;
        let url = bare(url);
        let Some(least) = again else {
            return Err(Error::Refused { url, problem, status: status.map(|status| status.as_u16()) });
        };
        self.tries += 1;
        if self.tries >= TRIES {
            return Err(Error::Unreachable { url, problem, tries: self.tries });
        }
        tracing::debug!(url, problem, tries = self.tries, "will be tried again");
        on_problem(Some(format!("{url}: {problem}")));
        // The shell's own randomness, for jitter.
        let mut rng: SmallRng = rand::make_rng();
        let usual = (FIRST_PAUSE * 2_u32.pow(self.tries.min(10) - 1)).min(LONGEST_PAUSE);
        sleep(usual.mul_f64(rng.random_range(0.5..=1.0)).max(least)).await;
        Ok(())
    }
}

/// The next piece of a body; `None` at its end.
pub(crate) async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
    loop {
        return match timeout(STALL, body.frame()).await {
            Ok(None) => Ok(None),
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => Ok(Some(data)),
                Err(_) => continue,
            },
            Ok(Some(Err(error))) => Err(Failure::passing(causes(&error))),
            Err(_) => Err(Failure::passing(format!("nothing came for {} s", STALL.as_secs()))),
        };
    }
}

/// First byte, last byte and size of a part, by its `content-range`.
pub(crate) fn content_range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?;
    let (range, size) = text.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, size.parse().ok()?))
}

/// What tells one version of a file from another, for `if-range`: strong only.
pub(crate) fn validator(headers: &HeaderMap) -> Option<HeaderValue> {
    let strong = headers.get(ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"));
    strong.or_else(|| headers.get(LAST_MODIFIED)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_way_leads_from_https_to_http() {
        let lead = |from: &str, to: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, to.parse().unwrap());
            next_url(&from.parse().unwrap(), &headers).map(String::from).map_err(|failure| failure.again)
        };
        assert_eq!(lead("https://a/x/y", "https://b/z"), Ok("https://b/z".to_owned()));
        assert_eq!(lead("https://a/x/y", "../z?q"), Ok("https://a/z?q".to_owned()));
        assert_eq!(lead("http://a/", "https://a/"), Ok("https://a/".to_owned()));
        assert_eq!(lead("https://a/", "http://a/"), Err(None));
        assert_eq!(lead("https://a/", "file:///etc/passwd"), Err(None));
    }

    #[test]
    fn parts_are_read() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_RANGE, "bytes 5-9/100".parse().unwrap());
        assert_eq!(content_range(&headers), Some((5, 9, 100)));
        for wrong in ["bytes */100", "5-9/100", "bytes 5-9/*", "bytes 9"] {
            headers.insert(CONTENT_RANGE, wrong.parse().unwrap());
            assert_eq!(content_range(&headers), None, "{wrong}");
        }
    }
}
