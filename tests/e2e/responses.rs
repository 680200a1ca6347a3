//! Stored responses behind a balancer: any endpoint finds them, for whoever they belong to.

use crate::harness::{
    PATIENCE,
    http::Endpoint,
    node::{LOOPBACK, Mesh, Node},
    odd::OddEngine,
    sandbox::Sandbox,
    wait_for,
};

fn at(node: &Node<'_>, key: &str) -> Endpoint {
    let status = node.status();
    let address = status["endpoint"].as_str().unwrap().strip_prefix("http://").unwrap().parse().unwrap();
    Endpoint { address, key: Some(key.to_owned()) }
}

#[test]
fn a_response_is_found_from_any_endpoint_by_its_owner_alone() {
    let sandbox = Sandbox::new();
    let engine = OddEngine::start(r#"{"data":[{"id":"keeps","owned_by":"odd"}]}"#, "");
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("keeper", &["--engine", &engine.url(), "--runtime", "openai"]);
    mesh.proxy.wait_for_replicas("keeps", 1);
    let other = mesh.member("other", &["--role", "proxy"]);
    let other = other.start(&[&["proxy", "--http", "127.0.0.1:0"], &LOOPBACK[..]].concat());
    other.wait_for_replicas("keeps", 1);
    let [mine, theirs] = ["mine", "theirs"].map(|name| mesh.proxy.home.ask(&["keys", "create", "--name", name]));
    let (here, there, stranger) = (at(&mesh.proxy, &mine), at(&other, &mine), at(&other, &theirs));
    wait_for("the keys", PATIENCE, || (stranger.get("/v1/models").unwrap().status == 200).then_some(()));

    let ask = |previous: Option<&str>| serde_json::json!({"model": "keeps", "input": "hello", "previous_response_id": previous});
    assert_eq!(there.get("/v1/responses/resp_x").unwrap().status, 404, "nobody has it yet");
    let made = here.post("/v1/responses", &ask(None)).unwrap();
    assert_eq!(made.status, 200, "{}", made.text());
    // The other endpoint has heard nothing of it, and asks.
    for path in ["/v1/responses/resp_x", "/v1/responses/resp_x/"] {
        let found = there.get(path).unwrap();
        assert_eq!(found.status, 200, "{}", found.text());
    }
    assert_eq!(there.post("/v1/responses", &ask(Some("resp_x"))).unwrap().status, 200);
    let stolen = stranger.get("/v1/responses/resp_x").unwrap();
    assert_eq!(stolen.status, 404, "{}", stolen.text());
    assert!(stolen.text().contains("response_not_found"), "{}", stolen.text());
    assert_eq!(stranger.post("/v1/responses", &ask(Some("resp_x"))).unwrap().status, 404);
}
