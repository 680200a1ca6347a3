//! What a shell offers where the command line takes the name of something that the running node knows.

use crate::settings;
use clap_complete::engine::CompletionCandidate;
use dunlin_node::{PeerInfo, control::Client};
use dunlin_proxy::keys::Key;
use serde::de::DeserializeOwned;
use std::{collections::BTreeSet, ffi::OsString, path::PathBuf, time::Duration};

/// Set by the script of `dunlin completions`: this run is to complete a command line, not to do what it says.
pub(crate) const VARIABLE: &str = "DUNLIN_COMPLETE";

/// Whoever presses a key does not want to wait for a node that hangs.
const PATIENCE: Duration = Duration::from_millis(500);

/// Models that the mesh serves.
pub(crate) fn models() -> Vec<CompletionCandidate> {
    let served = peers().into_iter().flat_map(|peer| peer.replicas).flat_map(|replica| replica.models);
    let models: BTreeSet<_> = served.map(|model| model.to_string()).collect();
    models.into_iter().map(CompletionCandidate::new).collect()
}

/// Members, by name where they have one.
pub(crate) fn members() -> Vec<CompletionCandidate> {
    let candidate = |peer: PeerInfo| match peer.name {
        Some(name) => CompletionCandidate::new(name.to_string()).help(Some(peer.peer.into())),
        None => CompletionCandidate::new(peer.peer),
    };
    peers().into_iter().map(candidate).collect()
}

/// What has logs: models and members.
pub(crate) fn log_targets() -> Vec<CompletionCandidate> {
    models().into_iter().chain(members()).collect()
}

/// Ids of keys that are not revoked.
pub(crate) fn keys() -> Vec<CompletionCandidate> {
    let keys: Vec<Key> = ask("/keys").unwrap_or_default();
    let valid = keys.into_iter().filter(|key| key.revoked.is_none());
    valid.map(|key| CompletionCandidate::new(key.id).help(Some(key.name.into()))).collect()
}

fn peers() -> Vec<PeerInfo> {
    ask("/peers").unwrap_or_default()
}

/// Nothing where no node runs, or it does not answer at once.
fn ask<T: DeserializeOwned>(path: &str) -> Option<T> {
    let home = settings::home(home_flag(std::env::args_os()).as_deref()).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async {
        let asked = async { Client::connect(&home).await.ok()?.get(path).await.ok() };
        tokio::time::timeout(PATIENCE, asked).await.ok()?
    })
}

/// The state directory that the unfinished command line names, or the environment.
fn home_flag(words: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let words: Vec<_> = words.collect();
    let after = words.windows(2).find(|pair| pair[0] == "--home").map(|pair| pair[1].clone());
    let within = words.iter().find_map(|word| word.to_str()?.strip_prefix("--home=").map(OsString::from));
    after.or(within).or_else(|| std::env::var_os("DUNLIN_HOME")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_is_that_of_the_command_line() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>().into_iter();
        assert_eq!(home_flag(words("dunlin -- dunlin --home /a chat")), Some("/a".into()));
        assert_eq!(home_flag(words("dunlin -- dunlin --home=/b chat")), Some("/b".into()));
    }
}
