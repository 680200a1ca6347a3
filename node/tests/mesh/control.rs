//! The control socket.

use crate::harness::*;
use dunlin_node::{
    PeerInfo,
    control::{self, Client, ClientError, Invitation, Invite, ModelInfo, Server, Status},
};
use dunlin_protocol::{announcement::ReplicaState, id::Role, invitation::Token};
use std::{os::unix::fs::PermissionsExt, time::Duration};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

async fn serving(member: &Member, home: &TempDir) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let extra = axum::Router::new().route("/extra", axum::routing::get(|| async { axum::Json(7) }));
    let server = Server::bind(home.path(), member.handle.clone(), extra).unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(server.run(shutdown.clone()));
    (shutdown, task)
}

#[tokio::test]
async fn answers_its_owner() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    until("connected", Duration::from_secs(5), || is_connected(&mesh.first, &agent)).await;
    until("known", Duration::from_secs(5), || knows_replica(&mesh.first, "m", &agent)).await;
    let home = TempDir::new().unwrap();
    let (shutdown, task) = serving(&mesh.first, &home).await;
    let mode = std::fs::metadata(home.path().join(control::SOCKET)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let mut client = Client::connect(home.path()).await.unwrap();
    let status: Status = client.get("/status").await.unwrap();
    assert_eq!((status.peer, status.connected), (mesh.first.peer().to_string(), 1));
    assert!(status.issuer && status.expires_in_s > 0 && !status.listen.is_empty());
    let peers: Vec<PeerInfo> = client.get("/peers").await.unwrap();
    let agent_info = peers.iter().find(|info| info.peer == agent.peer().to_string()).unwrap();
    assert_eq!((agent_info.reachability.as_str(), agent_info.replicas.len()), ("connected", 1));
    assert!(peers.iter().any(|info| info.reachability == "self"));
    let models: Vec<ModelInfo> = client.get("/models").await.unwrap();
    assert_eq!((models[0].model.as_str(), models[0].ready, models[0].slots), ("m", 1, 4));
    let invitation: Invitation = client.post("/invite", &Invite::default()).await.unwrap();
    assert!(!Token::parse(&invitation.token).unwrap().addresses().is_empty());
    assert_eq!(client.get::<u32>("/extra").await.unwrap(), 7);

    let refused = client.post::<serde_json::Value>("/revoke", &serde_json::json!({ "peer": "nonsense" })).await;
    assert!(matches!(refused, Err(ClientError::Refused { .. })), "{refused:?}");
    let missing = client.get::<serde_json::Value>("/nothing").await;
    assert!(matches!(missing, Err(ClientError::Refused { .. })), "{missing:?}");
    drop(client);
    shutdown.cancel();
    task.await.unwrap();
    assert!(!home.path().join(control::SOCKET).exists());
}

#[tokio::test]
async fn says_that_nothing_runs_and_takes_over_a_stale_socket() {
    let home = TempDir::new().unwrap();
    assert!(matches!(Client::connect(home.path()).await, Err(ClientError::NotRunning(_))));
    drop(std::os::unix::net::UnixListener::bind(home.path().join(control::SOCKET)).unwrap());
    assert!(matches!(Client::connect(home.path()).await, Err(ClientError::NotRunning(_))));
    let mesh = Mesh::new(&[TCP]).await;
    let (shutdown, task) = serving(&mesh.first, &home).await;
    assert!(Server::bind(home.path(), mesh.first.handle.clone(), axum::Router::new()).is_err(), "one answers already");
    let mut client = Client::connect(home.path()).await.unwrap();
    client.get::<Status>("/status").await.unwrap();
    drop(client);
    shutdown.cancel();
    task.await.unwrap();
}
