//! Which headers pass in either direction, and those that the front door adds.

use crate::{auth, errors::Error, prompt, request::form};
use dunlin_protocol::{
    hop,
    id::{ModelId, ReplicaId},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version, header};
use rand::Rng;

/// Names one request in the answer, the engine's log and ours.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Which replica answered: peer id and index.
pub(crate) const REPLICA: HeaderName = HeaderName::from_static("x-dunlin-replica");
/// The step of the routing ladder by which it was chosen.
pub(crate) const ROUTE: HeaderName = HeaderName::from_static("x-dunlin-route");
/// The model that answered, as [`hop::model_to_header`] writes it, where it is not called as the client asked.
pub(crate) const MODEL: HeaderName = HeaderName::from_static(hop::MODEL);
/// How many replicas were asked, where it was not the first that answered.
pub(crate) const TRIES: HeaderName = HeaderName::from_static("x-dunlin-tries");
/// `off` in a request: should its stream be lost, it ends with an error and does not go on at another replica.
const CONTINUATION: HeaderName = HeaderName::from_static("x-dunlin-continuation");
/// Which session a request belongs to, in the client's own words: its requests go to one replica where that is no slower.
const SESSION: HeaderName = HeaderName::from_static("x-session-id");
/// All headers of a request, bytes: less than what the hop carries.
pub(crate) const MAX_BYTES: usize = 32 << 10;
/// Longest request id that is taken over.
const REQUEST_ID_BYTES: usize = 128;

/// What concerns only the client and this proxy: its key, its cookies, what it is as a browser, a compression under which
/// events could not be told apart; and the length of the body, which the hop counts itself.
const NOT_TO_ENGINES: [&str; 11] = [
    "accept-encoding",
    "access-control-request-headers",
    "access-control-request-method",
    "authorization",
    "content-length",
    "cookie",
    "expect",
    "host",
    "origin",
    "referer",
    "x-api-key",
];
/// What an engine says of itself as a web server; and where else it would send clients, who can't reach that.
const NOT_TO_CLIENTS: [&str; 3] = ["location", "set-cookie", "www-authenticate"];

/// The session that the client names.
pub(crate) fn session(client: &HeaderMap) -> Option<u64> {
    client.get(SESSION).map(HeaderValue::as_bytes).filter(|name| !name.is_empty()).map(prompt::hash)
}

/// Whether the client wants no stream to go on at another replica.
pub(crate) fn refuses_continuation(client: &HeaderMap) -> bool {
    client.get(CONTINUATION).is_some_and(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"off"))
}

/// The model of a form, where the client names it beforehand.
///
/// # Errors
/// No name that a model can have.
pub(crate) fn model(client: &HeaderMap) -> Result<Option<ModelId>, Error> {
    let mut named = client.get_all(MODEL).iter();
    let Some(first) = named.next() else { return Ok(None) };
    let text = first.to_str().ok().filter(|_| named.next().is_none()).ok_or(form::Error::ModelNotAText)?;
    let model = hop::model_from_header(text).map_err(form::Error::BadModel)?;
    Ok(Some(model))
}

/// Whether a request of HTTP/1 comes in chunks. The connection is closed behind it: it may have named a length besides,
/// which hyper does not always show, and a server in front may have gone by that (RFC 9112 §6.1).
pub(crate) fn is_in_chunks<B>(request: &Request<B>) -> bool {
    request.version() <= Version::HTTP_11 && request.headers().contains_key(header::TRANSFER_ENCODING)
}

/// Refuses a body whose end may be read in two ways.
pub(crate) fn check_length(client: &HeaderMap) -> Result<(), Error> {
    let both = client.contains_key(header::TRANSFER_ENCODING) && client.contains_key(header::CONTENT_LENGTH);
    if both { Err(Error::NotHttp) } else { Ok(()) }
}

/// Refuses a head that the hop could not carry.
pub(crate) fn check_size(client: &HeaderMap) -> Result<(), Error> {
    // 32 bytes of overhead each, as HTTP/2 counts (RFC 9113 §6.5.2).
    let size: usize = client.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
    if size > MAX_BYTES { Err(Error::Headers(MAX_BYTES)) } else { Ok(()) }
}

/// The headers of a request as the hop carries them.
pub(crate) fn to_engine(client: &HeaderMap, replica: ReplicaId, model: &ModelId, id: &HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(client.len() + 3);
    let connection = client.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    let named: Vec<&str> = connection.flat_map(hop::named_by_connection).collect();
    for (name, value) in client {
        let kept = passes(name.as_str())
            && !NOT_TO_ENGINES.contains(&name.as_str())
            && !named.iter().any(|named| name.as_str().eq_ignore_ascii_case(named));
        if kept {
            headers.append(name, value.clone());
        }
    }
    headers.insert(REQUEST_ID, id.clone());
    headers.insert(HeaderName::from_static(hop::REPLICA_INDEX), HeaderValue::from(replica.index));
    // Percent-encoded, so always a header value.
    if let Ok(model) = HeaderValue::try_from(hop::model_to_header(model)) {
        headers.insert(HeaderName::from_static(hop::MODEL), model);
    }
    headers
}

/// Whether a header passes beyond the next neighbour at all, in either direction.
fn passes(name: &str) -> bool {
    !name.starts_with(hop::OWN_PREFIX) && !hop::HOP_BY_HOP.contains(&name)
}

/// Leaves of an engine's headers what is for the client.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    let of_a_server = |name: &str| name.starts_with("access-control-") || name.starts_with("x-ratelimit-");
    let kept = |name: &str| passes(name) && !NOT_TO_CLIENTS.contains(&name) && !of_a_server(name);
    let foreign: Vec<HeaderName> = headers.keys().filter(|name| !kept(name.as_str())).cloned().collect();
    for name in foreign {
        headers.remove(name);
    }
}

/// The client's own request id if it is fit to be logged, else a new one.
pub(crate) fn request_id(client: &HeaderMap, rng: &mut impl Rng) -> HeaderValue {
    let usable = |value: &&HeaderValue| {
        !value.is_empty() && value.len() <= REQUEST_ID_BYTES && value.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    if let Some(given) = client.get(REQUEST_ID).filter(usable) {
        return given.clone();
    }
    let made = format!("req-{:016x}", rng.next_u64());
    HeaderValue::try_from(made).unwrap_or(HeaderValue::from_static("req"))
}

/// What lets a browser's page read the answer. Keys travel in a header of the page's own making, never by themselves as
/// cookies do, so any page that has a key may use it; without keys only pages from this machine may.
pub(crate) fn allow_origin(headers: &mut HeaderMap, client: &HeaderMap, local_only: bool) {
    let Some(origin) = client.get(header::ORIGIN) else { return };
    if local_only && !auth::origin_is_local(client) {
        return;
    }
    let allowed = if local_only { origin.clone() } else { HeaderValue::from_static("*") };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(
            "x-request-id, x-dunlin-replica, x-dunlin-route, x-dunlin-model, x-dunlin-tries, retry-after",
        ),
    );
    if local_only {
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
    }
}

/// What a browser asks before it sends a request.
pub(crate) fn preflight(headers: &mut HeaderMap, client: &HeaderMap) {
    headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST, DELETE, OPTIONS"));
    if !client.contains_key(header::ORIGIN) {
        return;
    }
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, POST, DELETE, OPTIONS"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    // Not `*`: that would leave `Authorization` out.
    let asked = client.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let allowed = asked.unwrap_or(HeaderValue::from_static("authorization, content-type, x-api-key"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
}

/// Whether the method asks a browser's question.
pub(crate) fn is_preflight(method: &Method) -> bool {
    *method == Method::OPTIONS
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::id::PeerId;
    use rand::{SeedableRng, rngs::StdRng};

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_key_and_what_is_ours_do_not_reach_engines() {
        let client = headers(&[
            ("authorization", "Bearer sk-dunlin-a-b"),
            ("x-api-key", "sk-dunlin-a-b"),
            ("x-dunlin-replica-index", "7"),
            ("x-dunlin-model", "other"),
            ("connection", "keep-alive, x-named"),
            ("x-named", "1"),
            ("host", "h"),
            ("content-length", "5"),
            ("traceparent", "00-1-2-03"),
            ("content-type", "application/json"),
            ("openai-organization", "o"),
        ]);
        let replica = ReplicaId { peer: PeerId::random(), index: 3 };
        let model = ModelId::new("Qwen/a b").unwrap();
        let sent = to_engine(&client, replica, &model, &HeaderValue::from_static("req-1"));
        let expected = headers(&[
            ("traceparent", "00-1-2-03"),
            ("content-type", "application/json"),
            ("openai-organization", "o"),
            ("x-request-id", "req-1"),
            ("x-dunlin-replica-index", "3"),
            ("x-dunlin-model", "Qwen/a%20b"),
        ]);
        assert_eq!(sent, expected);
    }

    #[test]
    fn what_is_between_members_does_not_reach_clients() {
        let mut answer = headers(&[
            ("x-dunlin-load", "abc"),
            ("x-dunlin-fault", "engine"),
            ("access-control-allow-origin", ""),
            ("keep-alive", "timeout=5"),
            ("server", "llama.cpp"),
            ("content-type", "text/event-stream"),
        ]);
        to_client(&mut answer);
        assert_eq!(answer, headers(&[("server", "llama.cpp"), ("content-type", "text/event-stream")]));
    }

    #[test]
    fn a_request_id_is_taken_over_only_if_it_can_be_logged() {
        let mut rng = StdRng::seed_from_u64(1);
        assert_eq!(request_id(&headers(&[("x-request-id", "abc-1")]), &mut rng), "abc-1");
        for odd in ["", "a b", "caf\u{e9}"] {
            let value = HeaderValue::from_bytes(odd.as_bytes()).unwrap();
            let made = request_id(&HeaderMap::from_iter([(REQUEST_ID, value)]), &mut rng);
            assert!(made.to_str().unwrap().starts_with("req-"), "{odd}");
        }
    }

    #[test]
    fn browsers_may_send_a_key_and_read_the_answer() {
        let client =
            headers(&[("origin", "https://app.test"), ("access-control-request-headers", "authorization,x-a")]);
        let mut answer = HeaderMap::new();
        preflight(&mut answer, &client);
        allow_origin(&mut answer, &client, false);
        assert_eq!(answer["access-control-allow-origin"], "*");
        assert_eq!(answer["access-control-allow-headers"], "authorization,x-a");
        let mut refused = HeaderMap::new();
        allow_origin(&mut refused, &client, true);
        assert!(refused.is_empty(), "a foreign page on an endpoint without keys");
    }
}
