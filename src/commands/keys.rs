//! `dunlin keys`: over the control socket when a proxy runs here, so that a change holds at once; else in the file.

use super::door::require_endpoint;
use crate::{
    args::{KeysArgs, KeysCommand, Output},
    exit::Failure,
    output,
};
use anyhow::{Result, anyhow, bail};
use dunlin_node::{
    clock,
    control::{Client, ClientError},
    state::StateDir,
};
use dunlin_proxy::keys::{Created, Error, Key, Keys};
use http::StatusCode;
use std::path::{Path, PathBuf};

/// Where a proxy's keys lie.
pub(crate) fn file(home: &Path) -> PathBuf {
    home.join("keys.db")
}

pub(crate) async fn run(args: KeysArgs, home: &Path) -> Result<()> {
    let command = args.command.unwrap_or(KeysCommand::List(args.listing));
    match Client::connect(home).await {
        Ok(client) => with_node(client, command).await,
        Err(ClientError::NotRunning(_)) => with_file(command, home),
        Err(error) => Err(error.into()),
    }
}

async fn with_node(mut client: Client, command: KeysCommand) -> Result<()> {
    let instead =
        "each endpoint has its own keys: run `dunlin keys` on the machine of the proxy, with the --home of the proxy";
    require_endpoint(&mut client, instead).await?;
    match command {
        KeysCommand::Create { name } => {
            let created: Created = client.post("/keys", &serde_json::json!({ "name": name })).await?;
            let Err(error) = output::piece(format!("{}\n", created.key).as_bytes()) else { return Ok(()) };
            let revoked = client.delete::<Key>(&format!("/keys/{}", path_segment(&created.about.id))).await;
            Err(not_shown(&created, &error, revoked.err().map(|error| error.to_string())))
        }
        KeysCommand::List(listing) => list(listing.output, &client.get::<Vec<Key>>("/keys").await?),
        KeysCommand::Revoke { id } => {
            let before: Vec<Key> = client.get("/keys").await?;
            match client.delete::<Key>(&format!("/keys/{}", path_segment(&id))).await {
                Ok(key) => revoked(&key, &before),
                Err(ClientError::Refused { status: StatusCode::NOT_FOUND, message }) => bail!(not_found(message)),
                Err(error) => Err(error.into()),
            }
        }
    }
}

fn with_file(command: KeysCommand, home: &Path) -> Result<()> {
    // Looking makes nothing.
    if !matches!(command, KeysCommand::Create { .. }) && !file(home).exists() {
        return without_keys(command, home);
    }
    // Held so that no node starts meanwhile and reads half of a change.
    let _state = StateDir::open(home)?;
    let keys = Keys::open(&file(home))?;
    match command {
        KeysCommand::Create { name } => {
            let created = keys.create(name.as_str())?;
            let Err(error) = output::piece(format!("{}\n", created.key).as_bytes()) else { return Ok(()) };
            let revoked = keys.revoke(&created.about.id);
            Err(not_shown(&created, &error, revoked.err().map(|error| error.to_string())))
        }
        KeysCommand::List(listing) => list(listing.output, &keys.list()?),
        KeysCommand::Revoke { id } => {
            let before = keys.list()?;
            match keys.revoke(&id) {
                Ok(key) => revoked(&key, &before),
                Err(error @ Error::Unknown(_)) => bail!(not_found(error.to_string())),
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// A key is shown once. One that nobody saw must not go on opening the endpoint, also where the reader went away.
fn not_shown(created: &Created, error: &output::Unwritten, not_revoked: Option<String>) -> anyhow::Error {
    let id = &created.about.id;
    match not_revoked {
        None => anyhow!("the new key could not be shown, so it is revoked again ({id}): {error}"),
        Some(cause) => anyhow!(
            "the new key could not be shown: {error}; revoking it failed as well ({cause}); run `dunlin keys revoke {id}`"
        ),
    }
}

/// Where no key was ever made.
fn without_keys(command: KeysCommand, home: &Path) -> Result<()> {
    match command {
        KeysCommand::List(listing) => {
            output::note(&format!("no key was made in {} yet: `dunlin keys create` makes one", home.display()));
            show(listing.output, &Vec::new())
        }
        _ => bail!(not_found(format!("no key was made in {} yet", home.display()))),
    }
}

fn not_found(message: String) -> Failure {
    Failure::NotFound { what: "key".into(), hint: format!(": {message}\n  `dunlin keys list` shows the ids") }
}

/// Ids are plain; anything else must not become another path.
pub(super) fn path_segment(id: &str) -> String {
    id.bytes()
        .map(|b| {
            if b.is_ascii_alphanumeric() || b"-_".contains(&b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

/// `before`: all keys as they were.
fn revoked(key: &Key, before: &[Key]) -> Result<()> {
    output::line(&format!("revoked {}", key.id))?;
    if let Some(at) = before.iter().find(|other| other.id == key.id).and_then(|known| known.revoked) {
        output::note(&format!("it was revoked already, {}", output::ago(clock::unix_s().saturating_sub(at))));
    }
    Ok(())
}

/// Whether no key opens the endpoint.
pub(super) fn none_counts(keys: &[Key]) -> bool {
    keys.iter().all(|key| key.revoked.is_some())
}

fn list(output: Output, keys: &Vec<Key>) -> Result<()> {
    if none_counts(keys) {
        output::note("no key opens the endpoint: `dunlin keys create` makes one");
    }
    show(output, keys)
}

fn show(output: Output, keys: &Vec<Key>) -> Result<()> {
    let age = |at: u64| output::ago(clock::unix_s().saturating_sub(at));
    output::show(output, keys, |keys| {
        let rows = keys
            .iter()
            .map(|key| [key.id.clone(), key.name.clone(), age(key.created), key.revoked.map(age).unwrap_or_default()]);
        output::table(["ID", "NAME", "MADE", "REVOKED"], rows)
    })
}
