//! One limit over three proxies, and usage that adds up.

use crate::harness::{
    PATIENCE,
    http::Endpoint,
    node::{LOOPBACK, Mesh, Node},
    sandbox::Sandbox,
    wait_for,
};
use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

const PROXY: [&str; 3] = ["proxy", "--http", "127.0.0.1:0"];

fn proxy_args() -> Vec<&'static str> {
    [&PROXY[..], &LOOPBACK[..]].concat()
}

fn at(node: &Node<'_>, key: &str) -> Endpoint {
    let status = node.status();
    let address = status["endpoint"].as_str().unwrap().strip_prefix("http://").unwrap().parse().unwrap();
    Endpoint { address, key: Some(key.to_owned()) }
}

/// Three proxies that know a model, and each other.
fn three<'a>(mesh: &Mesh<'a>) -> [Node<'a>; 2] {
    let others = ["second", "third"].map(|name| mesh.member(name, &["--role", "proxy"]).start(&proxy_args()));
    for node in &others {
        node.wait_for_replicas("demo", 1);
    }
    // Until all have said what they hold.
    std::thread::sleep(Duration::from_secs(3));
    others
}

/// C14: sixty a minute were a hundred and eighty over three proxies in others' products.
#[test]
fn c14_a_limit_is_one_over_three_proxies() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("agent", &["--launch", "demo", "--", "--tokens-per-second", "0", "--slots", "64"]);
    mesh.proxy.wait_for_replicas("demo", 1);
    let [second, third] = three(&mesh);
    let key = mesh.proxy.home.ask(&["keys", "create", "--requests-per-minute", "60"]);
    let endpoints = [at(&mesh.proxy, &key), at(&second, &key), at(&third, &key)];
    for endpoint in &endpoints {
        wait_for("the key", PATIENCE, || (endpoint.get("/v1/models").unwrap().status == 200).then_some(()));
    }
    let passed: Mutex<Vec<(Instant, usize)>> = Mutex::default();
    let refused: Mutex<Vec<Option<String>>> = Mutex::default();
    let start = Instant::now();
    // A burst at the second, then all three, then the third alone.
    std::thread::scope(|scope| {
        for (n, endpoint) in endpoints.iter().enumerate() {
            let (passed, refused) = (&passed, &refused);
            scope.spawn(move || {
                while start.elapsed() < Duration::from_secs(20) {
                    let phase = start.elapsed().as_secs() / 4;
                    let asks = match phase {
                        0 => n == 1,
                        3 | 4 => n == 2,
                        _ => true,
                    };
                    if asks {
                        let answer = endpoint.chat("demo", "hello", 1).unwrap();
                        match answer.status {
                            200 => passed.lock().unwrap().push((Instant::now(), n)),
                            429 => {
                                let after = answer.header("retry-after").map(str::to_owned);
                                assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("60"));
                                refused.lock().unwrap().push(after);
                            }
                            other => panic!("{other}: {}", answer.text()),
                        }
                    }
                    std::thread::sleep(Duration::from_millis(40));
                }
            });
        }
    });
    let passed = passed.into_inner().unwrap();
    assert!((54..=66).contains(&passed.len()), "{} passed", passed.len());
    let refused = refused.into_inner().unwrap();
    assert!(refused.len() > 50 && refused.iter().all(Option::is_some), "{}", refused.len());

    // What passed, and what was refused, is told to everybody: what was let in counts, once.
    let id = key.split('-').nth(2).unwrap();
    let counted = |node: &Node<'_>| {
        let lines = node.home.list(&["usage", "--key", id]);
        lines.as_array().unwrap().iter().map(|line| line["requests"].as_u64().unwrap()).sum::<u64>()
    };
    for node in [&mesh.proxy, &second, &third] {
        wait_for("the same usage everywhere", PATIENCE, || (counted(node) == passed.len() as u64).then_some(()));
    }
}

/// Requests at the same time are counted over all endpoints, and a place that one gives back is had by another at once.
#[test]
fn a_place_that_one_proxy_gives_back_is_had_by_another() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("agent", &["--launch", "demo", "--", "--tokens-per-second", "20", "--slots", "16"]);
    mesh.proxy.wait_for_replicas("demo", 1);
    let [second, third] = three(&mesh);
    let key = mesh.proxy.home.ask(&["keys", "create", "--concurrent-requests", "2"]);
    let endpoints = [at(&mesh.proxy, &key), at(&second, &key), at(&third, &key)];
    for endpoint in &endpoints {
        wait_for("the key", PATIENCE, || (endpoint.get("/v1/models").unwrap().status == 200).then_some(()));
    }
    let begin = |endpoint: &Endpoint| {
        let mut events = endpoint.chat_stream("demo", "hello", 1000).unwrap().events();
        events.next().unwrap().unwrap();
        events
    };
    // In every order, whichever of them keeps the account.
    for turn in 0..3 {
        let [one, other] = [&endpoints[turn], &endpoints[(turn + 1) % 3]];
        let (first, last) = (begin(one), begin(one));
        for _ in 0..5 {
            let refused = other.chat("demo", "hello", 1).unwrap();
            assert_eq!(refused.status, 429, "{}", refused.text());
            assert!(refused.text().contains("requests at the same time"), "{}", refused.text());
        }
        drop(first);
        let given_back = Instant::now();
        wait_for("the place that was given back", PATIENCE, || {
            (other.chat("demo", "hello", 1).unwrap().status == 200).then_some(())
        });
        assert!(given_back.elapsed() < Duration::from_secs(3), "{:?}", given_back.elapsed());
        drop(last);
        wait_for("both places", PATIENCE, || (other.chat("demo", "hello", 1).unwrap().status == 200).then_some(()));
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// What was used is known a second later, whatever becomes of the proxy that counted it; a budget ends there.
#[test]
fn usage_outlives_the_proxy_that_counted_it() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("agent", &["--launch", "demo", "--", "--tokens-per-second", "0"]);
    mesh.proxy.wait_for_replicas("demo", 1);
    let [mut second, third] = three(&mesh);
    mesh.proxy.home.ask(&["prices", "set", "demo", "--completion", "1000000"]);
    let key = mesh.proxy.home.ask(&["keys", "create", "--monthly-cost", "30"]);
    let id = key.split('-').nth(2).unwrap().to_owned();
    let endpoint = at(&second, &key);
    wait_for("the key", PATIENCE, || (endpoint.get("/v1/models").unwrap().status == 200).then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..2 {
        assert_eq!(endpoint.chat("demo", "hello", 10).unwrap().status, 200);
    }
    let stream = endpoint.chat_stream("demo", "hello", 10).unwrap();
    assert_eq!(stream.status, 200);
    assert!(stream.events().count() > 0);
    std::thread::sleep(Duration::from_secs(1));
    second.process.kill();
    second.restart(&proxy_args());
    let tokens = |node: &Node<'_>| {
        let lines = node.home.list(&["usage", "--key", &id]);
        let line = lines.as_array().unwrap().first().cloned().unwrap_or_default();
        (line["requests"].as_u64(), line["completion_tokens"].as_u64(), line["cost"].as_f64())
    };
    for node in [&second, &mesh.proxy, &third] {
        wait_for("usage", PATIENCE, || (tokens(node) == (Some(3), Some(30), Some(30.0))).then_some(()));
    }
    let spent = at(&third, &key).chat("demo", "hello", 10).unwrap();
    assert_eq!(spent.status, 429, "{}", spent.text());
    assert!(spent.text().contains("insufficient_quota"));
    let csv = third.home.ask(&["usage", "--key", &id, "--output", "csv"]);
    assert_eq!(csv.lines().count(), 2, "{csv}");
    let columns: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let row: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
    let of = |name: &str| row[columns.iter().position(|column| *column == name).unwrap_or_else(|| panic!("{csv}"))];
    assert_eq!((of("requests"), of("completion_tokens"), of("model")), ("3", "30", "demo"), "{csv}");
    let table = third.home.ask(&["usage", "--key", &id]);
    assert!(table.contains("MODEL") && table.contains("demo") && table.contains("30"), "{table}");
}

#[test]
fn the_admin_api_does_what_the_command_line_does() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &["--admin-http", "127.0.0.1:0"]);
    let said = mesh.proxy.process.output();
    let address = said.split("admin     http://").nth(1).unwrap().split('/').next().unwrap().parse().unwrap();
    let admin = mesh.proxy.home.ask(&["keys", "create", "--admin"]);
    let client = mesh.proxy.home.ask(&["keys", "create"]);
    let with = |key: Option<&str>| Endpoint { address, key: key.map(str::to_owned) };
    for wrong in [None, Some("nothing"), Some(client.as_str())] {
        assert_eq!(with(wrong).get("/admin/v1/keys").unwrap().status, 401, "{wrong:?}");
    }
    let api = with(Some(&admin));
    assert_eq!(at(&mesh.proxy, &admin).get("/v1/models").unwrap().status, 401, "an admin key opens nothing else");
    let origin = [("Origin", "http://localhost:3000")];
    let page = api.send("GET", "/admin/v1/keys", &origin, b"").unwrap().whole().unwrap();
    assert_eq!(page.status, 403);
    assert!(page.header("access-control-allow-origin").is_none());
    let made =
        api.post("/admin/v1/keys", &serde_json::json!({"name": "by http", "limits": {"concurrent_requests": 2}}));
    let made = made.unwrap();
    assert_eq!(made.status, 201, "{}", made.text());
    let made: serde_json::Value = serde_json::from_slice(&made.body).unwrap();
    assert_eq!(at(&mesh.proxy, made["key"].as_str().unwrap()).get("/v1/models").unwrap().status, 200);
    let path = format!("/admin/v1/keys/{}", made["id"].as_str().unwrap());
    let json = [("Content-Type", "application/json")];
    let changed =
        api.send("PATCH", &path, &json, br#"{"concurrent_requests":null,"priority":3}"#).unwrap().whole().unwrap();
    assert_eq!(changed.status, 200, "{}", changed.text());
    let changed: serde_json::Value = serde_json::from_slice(&changed.body).unwrap();
    assert_eq!((&changed["limits"], &changed["priority"]), (&serde_json::json!({}), &3.into()));
    let unknown = api.send("PATCH", &path, &json, br#"{"requests":1}"#).unwrap().whole().unwrap();
    assert_eq!(unknown.status, 422, "{}", unknown.text());
    assert_eq!(api.send("DELETE", &path, &[], b"").unwrap().whole().unwrap().status, 200);
    assert_eq!(api.send("PATCH", &path, &json, b"{}").unwrap().whole().unwrap().status, 409, "revoked is final");
    assert_eq!(api.get("/admin/v1/keys/nobody").unwrap().status, 404);
    // Of whom there never was nothing can have been used; of whom there is it may be nothing.
    for (of, status) in [("tenant=nobody", 404), ("key=nobody", 404), ("tenant=default", 200), ("model=nobody", 200)] {
        let answer = api.get(&format!("/admin/v1/usage?{of}")).unwrap();
        assert_eq!(answer.status, status, "{of}: {}", answer.text());
    }
    let refused = mesh.proxy.home.run(&["usage", "--tenant", "nobody"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(4) && said.contains("there is no tenant \"nobody\""), "{said}");
    assert!(with(None).get("/admin/v1/openapi.json").unwrap().text().contains("\"openapi\""));
    let audit = std::fs::read_to_string(mesh.proxy.home.folder().join("audit.jsonl")).unwrap();
    let by_http: Vec<&str> = audit.lines().filter(|line| line.contains("\"by\":\"key ")).collect();
    assert_eq!(by_http.len(), 3, "{audit}");
    assert!(!audit.contains(made["key"].as_str().unwrap()), "no key is written down");
    // Whoever tries keys is told to wait, and right ones are taken all the while.
    let tries: Vec<u16> = (0..35).map(|_| with(Some("nothing")).get("/admin/v1/keys").unwrap().status).collect();
    assert!(tries.contains(&429), "{tries:?}");
    assert_eq!(api.get("/admin/v1/keys").unwrap().status, 200);
}
