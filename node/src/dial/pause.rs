//! Whether this process dials at all: not while it is out of its mesh, where every dial ends with the same refusal. Pure.

use crate::members::Standing;
use std::time::{Duration, Instant};

/// How long a process that is called revoked, and alone, goes on dialling: one member alone must not keep it from the
/// others, which may let it in.
const LOOK: Duration = Duration::from_secs(30);
/// How long it dials nobody then, before it looks again. As long as who refused it is left alone anyway.
const LOOK_AGAIN: Duration = super::REFUSED;

/// Dials, or does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Pause {
    /// As a member does.
    #[default]
    No,
    /// It is called revoked: looks until then whether anybody lets it in.
    Looking(Instant),
    /// Nobody did: dials nobody until then.
    Waiting(Instant),
    /// The signed revocation is here: only a new certificate helps, and that comes with a restart.
    ForGood,
}

impl Pause {
    /// Whether anybody is dialled.
    pub(crate) fn dials(&self) -> bool {
        matches!(self, Self::No | Self::Looking(_))
    }

    /// Takes how this process stands, and whether it is connected to nobody. Returns true where it has just learnt that it
    /// was revoked, which is to be said once.
    pub(crate) fn update(&mut self, standing: Standing, alone: bool, now: Instant) -> bool {
        let before = *self;
        *self = match (standing, before) {
            (Standing::Revoked, _) => Self::ForGood,
            (Standing::CalledRevoked(_), before) if alone => match before {
                Self::Looking(until) if until <= now => Self::Waiting(now + LOOK_AGAIN),
                Self::Looking(until) => Self::Looking(until),
                Self::Waiting(until) if until > now => Self::Waiting(until),
                Self::No | Self::Waiting(_) | Self::ForGood => Self::Looking(now + LOOK),
            },
            (Standing::CalledRevoked(_) | Standing::Member, _) => Self::No,
        };
        before == Self::No && *self != Self::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::id::PeerId;

    fn called() -> Standing {
        Standing::CalledRevoked(PeerId::random())
    }

    #[test]
    fn who_has_its_revocation_dials_nobody_and_says_so_once() {
        let (mut pause, start) = (Pause::default(), Instant::now());
        assert!(!pause.update(Standing::Member, true, start) && pause.dials());
        assert!(pause.update(Standing::Revoked, false, start));
        for hours in 0..100 {
            assert!(!pause.update(Standing::Revoked, true, start + Duration::from_secs(3600 * hours)));
            assert!(!pause.dials());
        }
        assert!(!pause.update(Standing::Member, true, start) && pause.dials(), "it has a new certificate");
    }

    #[test]
    fn who_is_called_revoked_tries_the_others_then_looks_every_ten_minutes() {
        let (mut pause, start) = (Pause::default(), Instant::now());
        assert!(pause.update(called(), true, start), "said at once");
        let mut dialled = Vec::new();
        for second in 1..2000 {
            assert!(!pause.update(called(), true, start + Duration::from_secs(second)), "and once");
            if pause.dials() {
                dialled.push(second);
            }
        }
        let (look, again) = (LOOK.as_secs(), LOOK_AGAIN.as_secs());
        let looks = |n: u64| n * (look + again)..n * (look + again) + look;
        assert!(dialled.iter().all(|second| (0..4).any(|n| looks(n).contains(second))), "{dialled:?}");
        assert_eq!(dialled.len() as u64, 4 * look - 1);
    }

    #[test]
    fn one_member_alone_keeps_nobody_from_the_others() {
        let (mut pause, start) = (Pause::default(), Instant::now());
        assert!(!pause.update(called(), false, start) && pause.dials(), "connected to others");
        pause.update(called(), true, start);
        assert!(pause.dials());
        pause.update(called(), true, start + LOOK);
        assert!(!pause.dials());
        pause.update(Standing::Member, false, start + LOOK * 2);
        assert!(pause.dials(), "somebody dialled it and let it in");
    }
}
