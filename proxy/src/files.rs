//! How many files this process may have open, which every connection counts among.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files that are asked for at least. Not all that a generous hard limit allows: engines inherit the limit, and
/// programs that close every possible file before they start another program would take minutes.
const WANTED: u64 = 64 << 10;
/// One part in so many of the process's files may be clients: the rest is for the mesh, the databases and the engines.
const SHARE: u64 = 2;

/// Raises the soft limit so that `connections` clients find room, as far as the hard limit allows. Returns how many do.
pub(crate) fn make_room(connections: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    // None: without a limit.
    let Some(soft) = limit.current else { return connections };
    let asked = wanted(connections).min(limit.maximum.unwrap_or(u64::MAX));
    let soft = if asked > soft { raise(soft, asked, limit.maximum) } else { soft };
    let room = bound(connections, soft);
    if room < connections {
        tracing::warn!(room, connections, files = soft, "fewer clients than configured; raise the limit of open files");
    }
    room
}

fn raise(soft: u64, to: u64, maximum: Option<u64>) -> u64 {
    match setrlimit(Resource::Nofile, Rlimit { current: Some(to), maximum }) {
        Ok(()) => to,
        Err(error) => {
            tracing::debug!(%error, soft, to, "limit of open files not raised");
            soft
        }
    }
}

fn wanted(connections: usize) -> u64 {
    u64::try_from(connections).unwrap_or(u64::MAX).saturating_mul(SHARE).max(WANTED)
}

fn bound(connections: usize, files: u64) -> usize {
    connections.min(usize::try_from(files / SHARE).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_half_of_the_files_to_the_rest() {
        assert_eq!(bound(8192, 1024), 512);
        assert_eq!(bound(100, 1024), 100);
        assert_eq!(bound(usize::MAX, u64::MAX), usize::MAX / 2);
    }

    #[test]
    fn the_soft_limit_is_raised_as_far_as_is_wanted_and_allowed() {
        let before = getrlimit(Resource::Nofile);
        let (Some(soft), Some(hard)) = (before.current, before.maximum) else { return };
        let room = make_room(8192);
        let after = getrlimit(Resource::Nofile).current.unwrap();
        assert_eq!(after, soft.max(WANTED.min(hard)));
        assert_eq!(room as u64, (after / SHARE).min(8192));
    }
}
