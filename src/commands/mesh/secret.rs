//! `dunlin mesh secret`: what an orchestrator in a cluster is in the mesh, as a Kubernetes Secret.

use crate::{args::SecretArgs, commands::connect, output};
use anyhow::{Context, Result};
use data_encoding::BASE64;
use dunlin_node::{
    clock,
    control::{Delegate, Equip, Equipment, Status},
    pods,
};
use dunlin_protocol::{
    appointment::Appointment,
    codec,
    id::{MeshId, Role},
    limits,
};
use libp2p::identity::Keypair;
use serde_json::json;
use std::path::Path;

pub(super) async fn run(args: SecretArgs, home: &Path) -> Result<()> {
    let mut client = connect(home).await?;
    let identity = Keypair::generate_ed25519();
    let peer = identity.public().to_peer_id();
    let roles = if args.roles.is_empty() { vec![Role::Agent, Role::Proxy, Role::Relay] } else { args.roles };
    let gives = Delegate {
        peer: peer.to_string(),
        roles,
        models: (!args.models.is_empty()).then_some(args.models),
        life_s: Some(pods::CERTIFICATE_LIFE.as_secs()),
        ttl_s: Some(args.ttl.as_secs()),
    };
    let asked = Equip { peer: peer.to_string(), roles: vec![Role::Orchestrator], name: Some(args.name.clone()), gives };
    let given: Equipment = client.post("/equip", &asked).await?;
    let bytes = BASE64.decode(given.appointment.as_bytes()).context("the node's answer is not understood")?;
    let appointment = Appointment::decode(&bytes).context("the node's answer is not understood")?;
    let mesh: MeshId = client.get::<Status>("/status").await?.mesh.parse().context("the node's mesh has no id")?;
    appointment.verify(clock::unix_s(), &mesh, &peer).context("the node gave what does not hold")?;
    let key = identity.try_into_ed25519().context("an Ed25519 key is one")?;
    let files = json!({
        "identity.key": BASE64.encode(key.secret().as_ref()),
        "certificate": BASE64.encode(&appointment.chain.encode()?),
        "delegation": BASE64.encode(&codec::encode(&appointment.delegation, limits::DELEGATION_BYTES)?),
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": args.name.to_string(), "annotations": { "dunlin.dev/mesh": mesh.to_string(), "dunlin.dev/peer": peer.to_string() } },
        "data": files,
    });
    // JSON is YAML.
    output::line(&serde_json::to_string_pretty(&secret)?)?;
    output::note(&format!("for Helm: --set mesh.id={mesh} --set mesh.orchestrator={peer}"));
    Ok(())
}
