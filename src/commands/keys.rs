//! `dunlin keys`: over the control socket when a node that keeps keys runs here, so that a change holds at once; else in
//! the file.

use crate::{
    args::{KeysArgs, KeysCommand, LimitArgs, OrNone, Output},
    exit::Failure,
    output,
};
use anyhow::{Result, anyhow, bail};
use dunlin_node::{
    clock,
    control::{Client, ClientError},
    mesh,
    state::StateDir,
};
use dunlin_protocol::{key::KeyKind, pattern::Pattern};
use dunlin_proxy::{
    control::Changed,
    keys::{Created, Error, Key, KeyChange, Keys, Limits, NewKey, Spread},
};
use http::StatusCode;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Where a proxy's keys lie.
pub(crate) fn file(home: &Path) -> PathBuf {
    home.join("keys.db")
}

/// Whom commands about keys ask.
pub(super) enum Place {
    /// The node that runs.
    Node(Client),
    /// Nobody: none does. The directory is held so that no node starts meanwhile and reads half of a change.
    File { keys: Keys, belongs: bool, _state: StateDir },
    /// Nobody, and there is nothing to look at.
    Nothing,
}

impl Place {
    /// `makes`: whether there is to be something afterwards.
    pub(super) async fn open(home: &Path, makes: bool) -> Result<Self> {
        match Client::connect(home).await {
            Ok(client) => Ok(Self::Node(client)),
            // Looking makes nothing.
            Err(ClientError::NotRunning(_)) if !makes && !file(home).exists() => Ok(Self::Nothing),
            Err(ClientError::NotRunning(_)) => {
                let state = StateDir::open(home)?;
                let keys = Keys::open(&file(home))?;
                let belongs = match mesh::load(&state, clock::unix_s()) {
                    Ok(mesh) => {
                        keys.belong_to_state(mesh)?;
                        true
                    }
                    // They are this file's alone until there is a mesh.
                    Err(mesh::Error::NotAMember) => false,
                    Err(error) => return Err(error.into()),
                };
                Ok(Self::File { keys, belongs, _state: state })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What a node says that keeps no keys, in words.
pub(super) fn no_keeper(error: ClientError) -> anyhow::Error {
    match error {
        ClientError::Refused { status: StatusCode::NOT_FOUND, message } if message.contains("answered 404") => anyhow!(
            "the node that runs here has no keys: it is no proxy, and may not make any; run the command on the machine of a \
             proxy, or where the mesh was made, with its --home"
        ),
        other => other.into(),
    }
}

pub(super) async fn get<T: DeserializeOwned>(client: &mut Client, path: &str) -> Result<T> {
    client.get(path).await.map_err(no_keeper)
}

pub(super) async fn ask<T: DeserializeOwned>(
    client: &mut Client,
    method: http::Method,
    path: &str,
    body: &impl Serialize,
) -> Result<Changed<T>> {
    client.send(method, path, body).await.map_err(no_keeper)
}

/// Says whom a change has not reached yet.
pub(super) fn spread(spread: &Spread) {
    if !spread.missing.is_empty() {
        let count = output::counted(spread.missing.len(), "other endpoint");
        output::note(&format!(
            "{count} could not be told yet, and will be as soon as that works: {}",
            spread.missing.join(", ")
        ));
    }
}

pub(crate) async fn run(args: KeysArgs, home: &Path) -> Result<()> {
    let command = args.command.unwrap_or(KeysCommand::List(args.listing));
    match Place::open(home, matches!(command, KeysCommand::Create { .. })).await? {
        Place::Node(client) => with_node(client, command).await,
        Place::File { keys, belongs, .. } => {
            if !belongs {
                let shown = home.display();
                output::note(&format!("{shown} is in no mesh: its keys open nothing until it joins or makes one"));
            }
            with_file(command, &keys)
        }
        Place::Nothing => without_keys(command, home),
    }
}

async fn with_node(mut client: Client, command: KeysCommand) -> Result<()> {
    use http::Method;
    let path = |id: &str| format!("/keys/{}", path_segment(id));
    match command {
        KeysCommand::Create { name, tenant, models, limits, admin } => {
            let asked = new_key(name.as_str(), tenant, models, *limits, admin);
            let created: Changed<Created> = ask(&mut client, Method::POST, "/keys", &asked).await?;
            let Err(error) = output::piece(format!("{}\n", created.now.key).as_bytes()) else {
                spread(&created.spread);
                return Ok(());
            };
            let revoked = client.delete::<Changed<Key>>(&path(&created.now.about.id)).await;
            Err(not_shown(&created.now, &error, revoked.err().map(|error| error.to_string())))
        }
        KeysCommand::List(listing) => list(listing.output, &get::<Vec<Key>>(&mut client, "/keys").await?),
        KeysCommand::Set { id, name, models, limits } => {
            let asked = change(name.map(|name| name.as_str().to_owned()), models, *limits);
            let changed: Changed<Key> =
                ask(&mut client, Method::PATCH, &path(&id), &asked).await.map_err(not_found_here)?;
            spread(&changed.spread);
            output::line(&format!("changed {}", changed.now.id)).map_err(Into::into)
        }
        KeysCommand::Revoke { id, now } => {
            let before: Vec<Key> = get(&mut client, "/keys").await?;
            let at_once = if now { "?now=true" } else { "" };
            match client.delete::<Changed<Key>>(&(path(&id) + at_once)).await {
                Ok(changed) => {
                    spread(&changed.spread);
                    revoked(&changed.now, &before)
                }
                Err(ClientError::Refused { status: StatusCode::NOT_FOUND, message }) => bail!(not_found(message)),
                Err(error) => Err(error.into()),
            }
        }
    }
}

fn with_file(command: KeysCommand, keys: &Keys) -> Result<()> {
    match command {
        KeysCommand::Create { name, tenant, models, limits, admin } => {
            let (created, _) = keys.make(new_key(name.as_str(), tenant, models, *limits, admin))?;
            let Err(error) = output::piece(format!("{}\n", created.key).as_bytes()) else { return Ok(()) };
            let revoked = keys.revoke(&created.about.id);
            Err(not_shown(&created, &error, revoked.err().map(|error| error.to_string())))
        }
        KeysCommand::List(listing) => list(listing.output, &keys.list()?),
        KeysCommand::Set { id, name, models, limits } => {
            let asked = change(name.map(|name| name.as_str().to_owned()), models, *limits);
            let changed = keys.edit(&id, asked).map_err(|error| match error {
                error @ Error::Unknown(_) => not_found(error.to_string()).into(),
                error => anyhow::Error::from(error),
            })?;
            output::line(&format!("changed {}", changed.0.id)).map_err(Into::into)
        }
        KeysCommand::Revoke { id, now } => {
            let before = keys.list()?;
            match keys.end(&id, now) {
                Ok((key, _)) => revoked(&key, &before),
                Err(error @ Error::Unknown(_)) => bail!(not_found(error.to_string())),
                Err(error) => Err(error.into()),
            }
        }
    }
}

fn value<T>(told: Option<OrNone<T>>) -> Option<T> {
    told.and_then(|told| told.0)
}

fn told<T>(told: Option<OrNone<T>>) -> Option<Option<T>> {
    told.map(|told| told.0)
}

fn end(time: Duration) -> u64 {
    clock::unix_s().saturating_add(time.as_secs())
}

fn new_key(name: &str, tenant: Option<String>, models: Vec<Pattern>, limits: LimitArgs, admin: bool) -> NewKey {
    NewKey {
        name: name.to_owned(),
        kind: if admin { KeyKind::Admin } else { KeyKind::Client },
        tenant,
        models: (!models.is_empty()).then_some(models),
        limits: Limits {
            requests_per_minute: value(limits.requests_per_minute),
            tokens_per_minute: value(limits.tokens_per_minute),
            concurrent_requests: value(limits.concurrent_requests),
            monthly_tokens: value(limits.monthly_tokens),
            monthly_cost: value(limits.monthly_cost),
        },
        priority: limits.priority.unwrap_or(0),
        tags: limits.tags,
        expires: value(limits.expires).map(end),
    }
}

/// The patterns of a command line: none told, `any`, or some.
pub(super) fn told_models(models: Vec<Pattern>) -> Option<Option<Vec<Pattern>>> {
    match models.as_slice() {
        [] => None,
        [one] if one.as_str() == "any" => Some(None),
        _ => Some(Some(models)),
    }
}

fn change(name: Option<String>, models: Vec<Pattern>, limits: LimitArgs) -> KeyChange {
    KeyChange {
        name,
        models: told_models(models),
        requests_per_minute: told(limits.requests_per_minute),
        tokens_per_minute: told(limits.tokens_per_minute),
        concurrent_requests: told(limits.concurrent_requests),
        monthly_tokens: told(limits.monthly_tokens),
        monthly_cost: told(limits.monthly_cost),
        priority: limits.priority,
        tags: (!limits.tags.is_empty()).then_some(limits.tags),
        expires: told(limits.expires).map(|told| told.map(end)),
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

fn not_found_here(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<ClientError>() {
        Ok(ClientError::Refused { status: StatusCode::NOT_FOUND, message }) => not_found(message).into(),
        Ok(other) => other.into(),
        Err(error) => error,
    }
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
    let now = clock::unix_s();
    !keys.iter().any(|key| key.kind == KeyKind::Client && key.counts(now))
}

fn list(output: Output, keys: &Vec<Key>) -> Result<()> {
    if none_counts(keys) {
        output::note("no key opens the endpoint: `dunlin keys create` makes one");
    }
    show(output, keys)
}

fn show(output: Output, keys: &Vec<Key>) -> Result<()> {
    let now = clock::unix_s();
    let age = |at: u64| output::ago(now.saturating_sub(at));
    let state = |key: &Key| match key {
        Key { revoked: Some(at), .. } => format!("revoked {}", age(*at)),
        Key { expires: Some(at), .. } if *at <= now => format!("expired {}", age(*at)),
        Key { suspended: true, .. } => "suspended".to_owned(),
        Key { kind: KeyKind::Admin, .. } => "admin".to_owned(),
        Key { local: true, .. } => "here only".to_owned(),
        _ => String::new(),
    };
    output::show(output, keys, |keys| {
        let rows = keys.iter().map(|key| {
            let Key { id, name, tenant, .. } = key;
            [id.clone(), name.clone(), tenant.clone(), limits(key), age(key.created), state(key)]
        });
        output::table(["ID", "NAME", "TENANT", "LIMITS", "MADE", "STATE"], rows)
    })
}

/// What a key may use, in few words.
fn limits(key: &Key) -> String {
    let Limits { requests_per_minute, tokens_per_minute, concurrent_requests, monthly_tokens, monthly_cost } =
        &key.limits;
    let mut words = Vec::new();
    words.extend(requests_per_minute.map(|count| format!("{count} req/min")));
    words.extend(tokens_per_minute.map(|count| format!("{count} tok/min")));
    words.extend(concurrent_requests.map(|count| format!("{count} at once")));
    words.extend(monthly_tokens.map(|count| format!("{count} tok/month")));
    words.extend(monthly_cost.map(|cost| format!("{cost}/month")));
    words.extend(key.models.as_ref().map(|models| {
        let names: Vec<&str> = models.iter().map(Pattern::as_str).collect();
        names.join(" ")
    }));
    words.join(", ")
}
