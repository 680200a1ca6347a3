//! Why what answers at a URL is not taken for an engine, in words for a person.

use super::{
    Client, EngineUrl,
    client::Error,
    identify::is_proxy,
    models::{self, LIST_BYTES},
};
use http::StatusCode;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(3);

/// What is in the way of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What was seen.
    pub seen: String,
    /// What may be done about it; nothing when it is right as it is.
    pub advice: Option<String>,
}

/// Asks `url` for its models, as a search for engines does, and says what came of it.
pub async fn explain(client: &Client, url: &EngineUrl) -> Explanation {
    let (seen, advice) = match client.get(url, "/v1/models", DEADLINE, LIST_BYTES).await {
        Err(Error::Connect(_)) => ("nothing listens there".to_owned(), Some("start the engine".to_owned())),
        Err(Error::Deadline(_)) => (
            format!("accepts connections and says nothing within {} s", DEADLINE.as_secs()),
            Some("it may be loading, or hang: see its own output".to_owned()),
        ),
        Err(error) => (format!("does not speak HTTP as engines do: {error}"), None),
        Ok(answer) if is_proxy(&answer) => ("a Dunlin endpoint, which is no engine".to_owned(), None),
        Ok(answer) => status(url, answer.status, models::parse(&answer.body).is_ok()),
    };
    Explanation { seen, advice }
}

fn status(url: &EngineUrl, status: StatusCode, is_list: bool) -> (String, Option<String>) {
    let listless = format!(
        "if it is a speech server or another that lists none: --engine {url} --runtime whisper --model NAME \
         (or another runtime)"
    );
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (
            format!("asks for a key of its own ({status})"),
            Some(
                "start it without one, reachable from this machine only: the mesh's endpoints ask for keys".to_owned(),
            ),
        ),
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            (format!("a web server that has no /v1/models ({status})"), Some(listless))
        }
        StatusCode::SERVICE_UNAVAILABLE => (
            format!("says that it isn't ready ({status})"),
            Some("wait: a large model takes minutes to load".to_owned()),
        ),
        status if status.is_success() && is_list => {
            ("lists no models, and nothing tells what kind it is".to_owned(), Some(listless))
        }
        status => (format!("answers /v1/models with something else ({status})"), Some(listless)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obstacle_has_its_own_words() {
        let url: EngineUrl = "http://127.0.0.1:9000".parse().unwrap();
        let of = |code: u16, is_list| status(&url, StatusCode::from_u16(code).unwrap(), is_list);
        assert!(of(401, false).0.contains("key of its own"));
        assert!(of(503, false).1.unwrap().contains("wait"));
        assert!(of(404, false).1.unwrap().contains("--engine http://127.0.0.1:9000 --runtime whisper"));
        assert!(of(200, true).0.contains("lists no models"));
        assert!(of(200, false).0.contains("something else"));
    }

    #[tokio::test]
    async fn nothing_there_is_said_so() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let explanation = explain(&Client::new(), &EngineUrl::loopback(port).unwrap()).await;
        assert_eq!(explanation.seen, "nothing listens there");
    }
}
