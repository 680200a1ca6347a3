//! When to renew this peer's certificate, and where. Pure: the asking is the hop's.

use dunlin_protocol::{
    certificate::{Authority, Issuer, Membership},
    id::PeerId,
};
use std::{sync::Arc, time::Duration};

/// A certificate is renewed once this much of its life is left (for those of a shorter life: half of it).
pub const AHEAD: Duration = Duration::from_secs(10 * 24 * 60 * 60);
/// First wait after an attempt that failed; doubles with each further one.
pub const FIRST_RETRY: Duration = Duration::from_secs(60);
/// Longest wait after failures.
pub const LAST_RETRY: Duration = Duration::from_secs(60 * 60);
/// Longest wait at all, so that a clock that was set, or a machine that slept, is noticed.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);

/// Seconds before the certificate's end at which renewal is due.
fn ahead_s(own: &Membership) -> u64 {
    let life = own.not_after.saturating_sub(own.issued_at);
    AHEAD.as_secs().min(life / 2)
}

/// Whether the certificate should be renewed at `now` (unix seconds).
#[must_use]
pub fn is_due(own: &Membership, now: u64) -> bool {
    now.saturating_add(ahead_s(own)) >= own.not_after
}

/// How long to wait at `now` (unix seconds) before looking again, after `failures` attempts in a row that failed.
#[must_use]
pub fn wait(own: &Membership, now: u64, failures: u32) -> Duration {
    if !is_due(own, now) {
        let due_in = own.not_after.saturating_sub(ahead_s(own)).saturating_sub(now);
        return Duration::from_secs(due_in).min(LONGEST_WAIT);
    }
    match failures {
        0 => Duration::ZERO,
        _ => FIRST_RETRY.saturating_mul(1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX)).min(LAST_RETRY),
    }
}

/// Issuers to ask at `now` (unix seconds), the best first. In a delegate's branch: that delegate, then the mesh key, which
/// renews in its name. Else the mesh key; and delegates, which would take this peer into their branch, once half of the
/// time for renewal has gone.
#[must_use]
pub fn whom_to_ask(own: &Membership, issuers: &[Arc<Membership>], now: u64) -> Vec<PeerId> {
    let by = |authority: Authority| {
        let such = issuers.iter().filter(move |issuer| issuer.authority() == Some(authority));
        such.map(|issuer| issuer.peer).filter(|peer| *peer != own.peer)
    };
    match own.issuer {
        Issuer::Delegate { peer, .. } => {
            let delegate = by(Authority::Delegation).filter(|delegate| *delegate == peer);
            delegate.chain(by(Authority::MeshKey)).collect()
        }
        Issuer::Mesh => {
            let urgent = now.saturating_add(ahead_s(own) / 2) >= own.not_after;
            by(Authority::MeshKey).chain(by(Authority::Delegation).filter(|_| urgent)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::{
        certificate,
        id::{MeshId, PeerId, Roles},
        pattern::Models,
    };

    const DAY: u64 = 24 * 60 * 60;

    fn own(life_s: u64) -> Membership {
        Membership {
            mesh: MeshId([0; 32]),
            peer: PeerId::random(),
            roles: Roles::NONE,
            models: Models::Any,
            name: None,
            capabilities: vec![],
            issued_at: 1000,
            not_after: 1000 + life_s,
            issuer: Issuer::Mesh,
        }
    }

    #[test]
    fn a_month_is_renewed_ten_days_ahead_and_a_week_at_its_half() {
        let month = own(30 * DAY);
        assert!(!is_due(&month, 1000 + 20 * DAY - 1) && is_due(&month, 1000 + 20 * DAY));
        let week = own(7 * DAY);
        assert!(!is_due(&week, 1000 + 7 * DAY / 2 - 1) && is_due(&week, 1000 + 7 * DAY / 2));
    }

    #[test]
    fn delegates_are_asked_by_their_own_and_by_others_only_in_need() {
        let issuer = |word: &str| Arc::new(Membership { capabilities: vec![word.to_owned()], ..own(30 * DAY) });
        let (key, one, two) =
            (issuer(certificate::ISSUE), issuer(certificate::DELEGATE), issuer(certificate::DELEGATE));
        let issuers = [two.clone(), one.clone(), key.clone()];
        let mut member = own(30 * DAY);
        let due = 1000 + 20 * DAY;
        assert_eq!(whom_to_ask(&member, &issuers, due), [key.peer]);
        assert_eq!(whom_to_ask(&member, &issuers, due + 5 * DAY), [key.peer, two.peer, one.peer]);
        member.issuer = Issuer::Delegate { peer: one.peer, delegated_at: 0 };
        assert_eq!(whom_to_ask(&member, &issuers, due + 5 * DAY), [one.peer, key.peer]);
        let delegate = Membership::clone(&one);
        assert_eq!(whom_to_ask(&delegate, &issuers, due + 5 * DAY), [key.peer, two.peer]);
    }

    #[test]
    fn it_waits_until_then_and_longer_after_each_failure() {
        assert_eq!(wait(&own(3600), 1000, 0), Duration::from_secs(1800));
        assert_eq!(wait(&own(30 * DAY), 1000, 0), LONGEST_WAIT);
        let waits: Vec<_> = (0..5).map(|failures| wait(&own(3600), 4000, failures).as_secs()).collect();
        assert_eq!(waits, [0, 60, 120, 240, 480]);
        assert_eq!(wait(&own(3600), 4000, 40), LAST_RETRY);
        assert_eq!(wait(&own(3600), 4000, u32::MAX), LAST_RETRY);
    }
}
