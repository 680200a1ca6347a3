use super::*;
use crate::mesh;
use dunlin_protocol::{
    certificate::Membership,
    id::{Role, Roles},
    invitation::{Invitation, Token},
    pattern::Models,
};
use rand::{SeedableRng, rngs::StdRng};
use std::sync::Barrier;

const NOW: u64 = 1_800_000_000;
const DAY: u64 = 24 * 60 * 60;

struct Home {
    _directory: tempfile::TempDir,
    state: StateDir,
}
fn home() -> Home {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    mesh::create(&state, InvitationOptions::default().roles, None, NOW).unwrap();
    Home { _directory: directory, state }
}
fn issuer(home: &Home) -> Issuer {
    Issuer::open(&home.state).unwrap().unwrap()
}
fn peer() -> PeerId {
    Keypair::generate_ed25519().public().to_peer_id()
}
fn invite(issuer: &Issuer, uses: u32) -> Token {
    let options = InvitationOptions { uses, ..InvitationOptions::default() };
    issuer.invite(&options, vec![], NOW, &mut StdRng::from_seed([5; 32])).unwrap()
}
fn redeem(issuer: &Issuer, token: &Token, joiner: PeerId, now: u64) -> Result<Chain, Refusal> {
    let request = token.request(joiner, None).unwrap();
    issuer.redeem(joiner, &request, None, &RevocationList::default(), now).map_err(|error| error.refusal())
}

#[test]
fn an_invitation_makes_members_and_not_one_more_than_it_says() {
    let home = home();
    let issuer = issuer(&home);
    let token = invite(&issuer, 2);
    let (one, two, three) = (peer(), peer(), peer());
    let chain = redeem(&issuer, &token, one, NOW).unwrap();
    assert_eq!(chain.verify(NOW, &issuer.mesh()).unwrap().peer, one);
    assert!(redeem(&issuer, &token, two, NOW).is_ok());
    assert_eq!(redeem(&issuer, &token, three, NOW), Err(Refusal::InvitationUsedUp));
    assert_eq!(redeem(&issuer, &token, one, NOW + 60), Ok(chain), "the same peer gets the same certificate");
}

#[test]
fn uses_are_counted_on_disk() {
    let home = home();
    let token = invite(&issuer(&home), 1);
    redeem(&issuer(&home), &token, peer(), NOW).unwrap();
    // As after a restart.
    assert_eq!(redeem(&issuer(&home), &token, peer(), NOW), Err(Refusal::InvitationUsedUp));
}

#[test]
fn a_race_for_the_last_use_has_one_winner() {
    let home = home();
    let issuer = issuer(&home);
    let token = invite(&issuer, 1);
    let start = Barrier::new(8);
    let won = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    redeem(&issuer, &token, peer(), NOW).is_ok()
                })
            })
            .collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).filter(|&won| won).count()
    });
    assert_eq!(won, 1);
}

#[test]
fn expired_withdrawn_foreign_and_unknown_invitations_give_nothing() {
    let (ours, theirs) = (home(), home());
    let issuer = issuer(&ours);
    let token = invite(&issuer, 9);
    let end = NOW + INVITATION_LIFE.as_secs();
    assert!(redeem(&issuer, &token, peer(), end).is_ok());
    assert_eq!(redeem(&issuer, &token, peer(), end + 1), Err(Refusal::InvitationExpired));
    let [row] = issuer.invitations().unwrap().try_into().unwrap();
    assert_eq!((row.key, row.used, row.uses, row.withdrawn), (token.invitation().unwrap().key, 1, 9, false));
    assert_eq!(issuer.withdraw("000000000000", NOW).unwrap(), None);
    assert_eq!(issuer.withdraw(&row.id(), end + 1).unwrap(), None, "it has ended");
    assert!(issuer.withdraw(&row.id(), NOW).unwrap().is_some_and(|row| row.withdrawn));
    assert_eq!(issuer.withdraw(&row.id(), NOW).unwrap(), None, "once");
    assert_eq!(redeem(&issuer, &token, peer(), NOW), Err(Refusal::InvitationWithdrawn));

    let foreign = super::tests::issuer(&theirs);
    assert_eq!(redeem(&issuer, &invite(&foreign, 1), peer(), NOW), Err(Refusal::WrongMesh));

    // Signed by the mesh key, but made by an issuer whose database is lost.
    let seed = [9; 32];
    let lost = Invitation { key: invitation::public_half(&seed).unwrap(), ..token.invitation().unwrap() };
    let lost = Token::new(seed, issuer.0.signer.sign(&lost).unwrap(), vec![]).unwrap();
    assert_eq!(redeem(&issuer, &lost, peer(), NOW), Err(Refusal::InvitationUnknown));
}

#[test]
fn somebody_elses_request_gives_nothing() {
    let home = home();
    let issuer = issuer(&home);
    let request = invite(&issuer, 9).request(peer(), None).unwrap();
    let error = issuer.redeem(peer(), &request, None, &RevocationList::default(), NOW).unwrap_err();
    assert_eq!(error.refusal(), Refusal::InvitationUnknown);
}

#[test]
fn a_revoked_member_comes_back_only_with_a_new_invitation() {
    let home = home();
    let issuer = issuer(&home);
    let (joiner, old) = (peer(), invite(&issuer, 5));
    let member = redeem(&issuer, &old, joiner, NOW).unwrap().verify(NOW, &issuer.mesh()).unwrap();
    let mut list = RevocationList::default();
    list.insert(issuer.revoke(joiner, 0, NOW).unwrap(), &issuer.mesh()).unwrap();
    assert!(list.revokes(&member));
    assert_eq!(issuer.renew(&member, None, &list, NOW).unwrap_err().refusal(), Refusal::Revoked);
    let again = issuer.redeem(joiner, &old.request(joiner, None).unwrap(), None, &list, NOW).unwrap_err();
    assert_eq!(again.refusal(), Refusal::Revoked);
    let options = InvitationOptions::default();
    let new = issuer.invite(&options, vec![], NOW, &mut StdRng::from_seed([6; 32])).unwrap();
    let chain = issuer.redeem(joiner, &new.request(joiner, None).unwrap(), None, &list, NOW).unwrap();
    assert!(!list.revokes(&chain.verify(NOW, &issuer.mesh()).unwrap()), "same second, and yet a member");
}

#[test]
fn a_revoked_member_does_not_come_back_with_an_invitation_that_lives_longer_than_its_certificate() {
    let home = home();
    let issuer = issuer(&home);
    let joiner = peer();
    let options = InvitationOptions { uses: 9, life: Duration::from_secs(90 * DAY), ..InvitationOptions::default() };
    let token = issuer.invite(&options, vec![], NOW, &mut StdRng::from_seed([6; 32])).unwrap();
    redeem(&issuer, &token, joiner, NOW).unwrap();
    let mut list = RevocationList::default();
    list.insert(issuer.revoke(joiner, 0, NOW).unwrap(), &issuer.mesh()).unwrap();
    let request = token.request(joiner, None).unwrap();
    for later in [NOW + 1, NOW + 40 * DAY] {
        let refused = issuer.redeem(joiner, &request, None, &list, later).unwrap_err();
        assert_eq!(refused.refusal(), Refusal::Revoked);
    }
    assert!(redeem(&issuer, &token, joiner, NOW + 40 * DAY).is_ok(), "who was not revoked gets another one");
}

#[test]
fn a_revocation_reaches_certificates_of_a_faster_clock() {
    let home = home();
    let issuer = issuer(&home);
    let joiner = peer();
    redeem(&issuer, &invite(&issuer, 1), joiner, NOW + 500).unwrap();
    let revocation = issuer.revoke(joiner, 0, NOW).unwrap().verify(&issuer.mesh()).unwrap();
    assert_eq!(revocation.before, NOW + 501);
    let revocation = issuer.revoke(joiner, NOW + 900, NOW).unwrap().verify(&issuer.mesh()).unwrap();
    assert_eq!(revocation.before, NOW + 901);
}

#[test]
fn renewing_keeps_the_rights_and_ends_with_the_membership() {
    let home = home();
    let issuer = issuer(&home);
    let none = RevocationList::default();
    let member = redeem(&issuer, &invite(&issuer, 1), peer(), NOW).unwrap().verify(NOW, &issuer.mesh()).unwrap();
    let later = NOW + 25 * DAY;
    let renewed = issuer.renew(&member, None, &none, later).unwrap().verify(later, &issuer.mesh()).unwrap();
    assert_eq!((renewed.peer, renewed.roles, &renewed.models), (member.peer, member.roles, &member.models));
    assert_eq!(renewed.not_after, later + CERTIFICATE_LIFE.as_secs());
    let end = member.not_after + certificate::LEEWAY_S + 1;
    assert_eq!(issuer.renew(&member, None, &none, end).unwrap_err().refusal(), Refusal::Expired);
}

#[test]
fn the_newest_certificate_of_each_peer_is_listed() {
    let home = home();
    let issuer = issuer(&home);
    let joiner = peer();
    let member = redeem(&issuer, &invite(&issuer, 1), joiner, NOW).unwrap().verify(NOW, &issuer.mesh()).unwrap();
    let later = NOW + 25 * DAY;
    issuer.renew(&member, None, &RevocationList::default(), later).unwrap();
    let issued = issuer.issued().unwrap();
    assert_eq!((issued.len(), issued[0].peer, issued[0].issued_at), (2, joiner, later));
    assert_eq!(issued[0].not_after, later + CERTIFICATE_LIFE.as_secs());
}

fn rows(home: &Home, table: &str, of: PeerId) -> i64 {
    let db = rusqlite::Connection::open(home.state.path().join("issuer.db")).unwrap();
    let query = format!("SELECT count(*) FROM {table} WHERE peer = ?1");
    db.query_row(&query, [of.to_bytes()], |row| row.get(0)).unwrap()
}

#[test]
fn a_certificate_is_renewed_when_it_is_due_and_once() {
    let home = home();
    let issuer = issuer(&home);
    let none = RevocationList::default();
    let member = redeem(&issuer, &invite(&issuer, 1), peer(), NOW).unwrap().verify(NOW, &issuer.mesh()).unwrap();
    let early = issuer.renew(&member, None, &none, NOW + 9).unwrap_err();
    assert!(early.to_string().contains("not due"), "{early}");

    let later = NOW + 25 * DAY;
    let start = Barrier::new(8);
    let chains: Vec<Chain> = std::thread::scope(|scope| {
        let ask = |n| {
            start.wait();
            issuer.renew(&member, None, &none, later + n).unwrap()
        };
        let asking: Vec<_> = (0..8).map(|n| scope.spawn(move || ask(n))).collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert!(chains.iter().all(|chain| *chain == chains[0]), "whoever asks again gets the same one");
    assert_eq!(rows(&home, "issued", member.peer), 1, "what a newer one replaced is forgotten");
}

#[test]
fn a_renewal_of_other_rights_or_one_that_is_due_itself_is_not_given_again() {
    let home = home();
    let issuer = issuer(&home);
    let none = RevocationList::default();
    let member = redeem(&issuer, &invite(&issuer, 1), peer(), NOW).unwrap().verify(NOW, &issuer.mesh()).unwrap();
    let (later, last) = (NOW + 25 * DAY, NOW + 50 * DAY);
    let renewed = issuer.renew(&member, None, &none, later).unwrap().verify(later, &issuer.mesh()).unwrap();
    let proxy = Membership { roles: Roles::from_iter([Role::Proxy]), ..member };
    let narrowed = issuer.renew(&proxy, None, &none, later).unwrap().verify(later, &issuer.mesh()).unwrap();
    assert_eq!(narrowed.roles, proxy.roles);
    let again = issuer.renew(&renewed, None, &none, last).unwrap().verify(last, &issuer.mesh()).unwrap();
    assert_eq!((again.roles, again.issued_at), (renewed.roles, last));
}

#[test]
fn certificates_that_ended_long_ago_are_forgotten() {
    let home = home();
    let issuer = issuer(&home);
    let gone = peer();
    redeem(&issuer, &invite(&issuer, 2), gone, NOW).unwrap();
    let much_later = NOW + 400 * DAY;
    let options = InvitationOptions::default();
    let new = issuer.invite(&options, vec![], much_later, &mut StdRng::from_seed([7; 32])).unwrap();
    redeem(&issuer, &new, peer(), much_later).unwrap();
    assert_eq!(rows(&home, "issued", gone), 0);
}

#[test]
fn a_certificate_of_the_far_future_has_no_other_forgotten() {
    let home = home();
    let issuer = issuer(&home);
    let (one, two) = (peer(), peer());
    redeem(&issuer, &invite(&issuer, 2), one, NOW).unwrap();
    let mut list = RevocationList::default();
    list.insert(issuer.revoke(two, NOW + 400 * DAY, NOW).unwrap(), &issuer.mesh()).unwrap();
    let grant = |subject| Grant {
        subject,
        roles: Roles::NONE,
        models: Models::Any,
        capabilities: vec![],
        name: None,
        life: CERTIFICATE_LIFE,
    };
    // Of no use, and does no harm.
    let _ = issuer.issue(grant(two), &list, NOW);
    assert_eq!(rows(&home, "issued", one), 1);
}

mod delegates {
    use super::*;
    use dunlin_protocol::{
        certificate::Issuer as Name,
        pattern::Pattern,
        revocation::{Revocation, SignedRevocation, Target},
    };

    fn only(pattern: &str) -> Models {
        Models::Only(vec![Pattern::new(pattern).unwrap()])
    }

    /// A home whose peer the mesh key lets issue for agents of some models.
    fn delegate_of(holder: &Issuer, life_s: u64) -> Home {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        let peer = state.identity().unwrap().public().to_peer_id();
        let member = member_of(holder, peer);
        let options = DelegationOptions {
            roles: Roles::from_iter([Role::Agent]),
            models: only("Qwen/*"),
            certificate_life: Duration::from_secs(7 * DAY),
            life: Duration::from_secs(life_s),
        };
        let appointment = holder.delegate(&member, &options, &RevocationList::default(), NOW).unwrap();
        state.store_chain(&appointment.chain).unwrap();
        state.store_delegation(&appointment.delegation).unwrap();
        Home { _directory: directory, state }
    }

    fn member_of(issuer: &Issuer, peer: PeerId) -> Membership {
        let mut seed = [0; 32];
        seed.copy_from_slice(&peer.to_bytes()[..32]);
        let mut rng = StdRng::from_seed(seed);
        let token = issuer.invite(&issuer.default_invitation(), vec![], NOW, &mut rng).unwrap();
        redeem(issuer, &token, peer, NOW).unwrap().verify(NOW, &issuer.mesh()).unwrap()
    }

    #[test]
    fn they_admit_within_their_bounds() {
        let (first, none) = (home(), RevocationList::default());
        let holder = issuer(&first);
        let branch = delegate_of(&holder, 100 * DAY);
        let delegate = issuer(&branch);
        assert!(!delegate.holds_mesh_key() && delegate.mesh() == holder.mesh());
        let member = member_of(&delegate, peer());
        assert_eq!(member.issuer, Name::Delegate { peer: delegate.0.peer, delegated_at: NOW + 1 });
        assert_eq!((member.not_after, &member.models), (NOW + 7 * DAY, &only("Qwen/*")));
        let mut rng = StdRng::from_seed([8; 32]);
        let wide = InvitationOptions { models: Models::Any, ..delegate.default_invitation() };
        assert!(matches!(delegate.invite(&wide, vec![], NOW, &mut rng), Err(Error::Delegation(_))));
        let narrow = InvitationOptions { models: only("Qwen/Qwen3*"), ..delegate.default_invitation() };
        let token = delegate.invite(&narrow, vec![], NOW + 98 * DAY, &mut rng).unwrap();
        let last = redeem(&delegate, &token, peer(), NOW + 98 * DAY).unwrap();
        assert_eq!(last.verify(NOW + 98 * DAY, &delegate.mesh()).unwrap().not_after, NOW + 100 * DAY);
        assert_eq!(redeem(&delegate, &token, peer(), NOW + 100 * DAY), Err(Refusal::NotAnIssuer));
        assert!(matches!(delegate.check(&none, NOW + 100 * DAY), Err(Error::DelegationEnded)));
        // Depth one.
        let refused = delegate.delegate(&member, &DelegationOptions::default(), &none, NOW);
        assert!(matches!(refused, Err(Error::NotTheMeshKey)));
        assert!(matches!(delegate.undelegate(member.peer, 0, NOW), Err(Error::NotTheMeshKey)));
    }

    #[test]
    fn their_right_ends_with_its_revocation_and_so_does_what_they_gave() {
        let first = home();
        let holder = issuer(&first);
        let branch = delegate_of(&holder, 100 * DAY);
        let delegate = issuer(&branch);
        let member = member_of(&delegate, peer());
        for revocation in [holder.undelegate(delegate.0.peer, 0, NOW), holder.revoke(delegate.0.peer, 0, NOW)] {
            let mut list = RevocationList::default();
            list.insert(revocation.unwrap(), &holder.mesh()).unwrap();
            assert!(list.revokes(&member));
            assert!(matches!(delegate.check(&list, NOW), Err(Error::DelegationRevoked)));
            let later = NOW + 6 * DAY;
            assert_eq!(delegate.renew(&member, None, &list, later).unwrap_err().refusal(), Refusal::Revoked);
        }
    }

    #[test]
    fn members_are_renewed_in_their_branch_and_by_nobody_elses() {
        let (first, none) = (home(), RevocationList::default());
        let holder = issuer(&first);
        let (one, two) = (delegate_of(&holder, 100 * DAY), delegate_of(&holder, 100 * DAY));
        let (delegate, other) = (issuer(&one), issuer(&two));
        let member = member_of(&delegate, peer());
        let right = one.state.delegation().unwrap().unwrap();
        let later = NOW + 5 * DAY;
        let renewed = |by: &Issuer, shown| {
            by.renew(&member, shown, &none, later).map(|chain| chain.verify(later, &holder.mesh()).unwrap())
        };
        for by in [&delegate, &holder] {
            let renewed = renewed(by, Some(&right)).unwrap();
            assert_eq!((renewed.issuer, renewed.not_after), (member.issuer, later + 7 * DAY));
        }
        assert_eq!(renewed(&other, Some(&right)).unwrap_err().refusal(), Refusal::NotAnIssuer);
        // In the name of a delegation that it is not under, or of none.
        let wrong = two.state.delegation().unwrap().unwrap();
        assert_eq!(renewed(&holder, Some(&wrong)).unwrap_err().refusal(), Refusal::Invalid);
        assert_eq!(renewed(&holder, None).unwrap_err().refusal(), Refusal::Invalid);
        // The mesh key's own members, too, as far as its rights go.
        let token = {
            let models = only("Qwen/Qwen3*");
            let options =
                InvitationOptions { roles: Roles::from_iter([Role::Agent]), models, ..holder.default_invitation() };
            holder.invite(&options, vec![], NOW, &mut StdRng::from_seed([9; 32])).unwrap()
        };
        let narrow = redeem(&holder, &token, peer(), NOW).unwrap().verify(NOW, &holder.mesh()).unwrap();
        let later = NOW + 26 * DAY;
        let taken = delegate.renew(&narrow, None, &none, later).unwrap().verify(later, &holder.mesh()).unwrap();
        assert_eq!((taken.issuer, taken.models), (member.issuer, narrow.models));
        let wide = member_of(&holder, peer());
        assert!(matches!(delegate.renew(&wide, None, &none, later), Err(Error::Delegation(_))));
    }

    #[test]
    fn a_certificate_that_ends_with_the_delegation_is_not_renewed_again_and_again() {
        let first = home();
        let branch = delegate_of(&issuer(&first), 5 * DAY);
        let delegate = issuer(&branch);
        let member = member_of(&delegate, peer());
        let late = delegate.renew(&member, None, &RevocationList::default(), NOW + 4 * DAY);
        assert!(matches!(late, Err(Error::EndsWithDelegation)), "{late:?}");
    }

    /// What a delegate revokes, in its own words: it need not run this program.
    fn says(home: &Home, revocation: Revocation) -> SignedRevocation {
        let right = home.state.delegation().unwrap().unwrap();
        SignedRevocation::by_delegate(&revocation, right, &home.state.identity().unwrap()).unwrap()
    }

    #[test]
    fn they_put_no_certificate_of_others_out_of_reach() {
        let first = home();
        let holder = issuer(&first);
        let branch = delegate_of(&holder, 100 * DAY);
        let delegate = issuer(&branch);
        let (mesh, own, other) = (holder.mesh(), member_of(&delegate, peer()), member_of(&holder, peer()));
        let mut list = RevocationList::default();
        for target in [other.peer, own.peer].map(Target::Member) {
            let last = Revocation { mesh, target, before: NOW + 100 * DAY };
            list.insert(says(&branch, last), &mesh).unwrap();
        }
        let later = NOW + 25 * DAY;
        let renewed = holder.renew(&other, None, &list, later).unwrap().verify(later, &mesh).unwrap();
        assert_eq!(renewed.issued_at, later);
        let appointed = holder.delegate(&other, &DelegationOptions::default(), &list, later).unwrap();
        assert_eq!(appointed.delegation.peek().unwrap().issued_at, later);
        let again =
            holder.redeem(own.peer, &invite(&holder, 1).request(own.peer, None).unwrap(), None, &list, NOW).unwrap();
        assert_eq!(again.verify(NOW, &mesh).unwrap().issued_at, NOW, "the mesh key takes it in");
        let token =
            delegate.invite(&delegate.default_invitation(), vec![], NOW, &mut StdRng::from_seed([3; 32])).unwrap();
        let refused = delegate.redeem(own.peer, &token.request(own.peer, None).unwrap(), None, &list, NOW).unwrap_err();
        assert_eq!(refused.refusal(), Refusal::Revoked);
    }

    #[test]
    fn a_member_that_the_mesh_key_admitted_is_not_theirs_to_revoke_until_its_old_certificate_has_ended() {
        let (first, none) = (home(), RevocationList::default());
        let holder = issuer(&first);
        let branch = delegate_of(&holder, 100 * DAY);
        let delegate = issuer(&branch);
        let grant = Grant {
            subject: peer(),
            roles: Roles::from_iter([Role::Agent]),
            models: only("Qwen/Qwen3"),
            capabilities: vec![],
            name: None,
            life: CERTIFICATE_LIFE,
        };
        let member = holder.issue(grant, &none, NOW).unwrap().verify(NOW, &holder.mesh()).unwrap();
        let later = NOW + 26 * DAY;
        let taken = delegate.renew(&member, None, &none, later).unwrap().verify(later, &holder.mesh()).unwrap();
        let until = member.not_after + certificate::LEEWAY_S;
        for known in [Some(&taken), None] {
            let refused = delegate.may_revoke(taken.peer, known, &none, later);
            assert!(
                matches!(refused, Err(Error::AdmittedByMeshKey { until: told, .. }) if told == until),
                "{refused:?}"
            );
            assert!(delegate.may_revoke(taken.peer, known, &none, until + 1).is_ok());
        }
        // It would have come back with it.
        let mut list = RevocationList::default();
        list.insert(delegate.revoke(taken.peer, 0, later).unwrap(), &holder.mesh()).unwrap();
        assert!(list.revokes(&taken) && !list.revokes(&member));
    }

    #[test]
    fn what_a_machine_gave_with_the_mesh_key_is_not_its_to_revoke_once_the_key_is_gone() {
        let (home, none) = (home(), RevocationList::default());
        let holder = issuer(&home);
        let own = home.state.chain().unwrap().unwrap().verify(NOW, &holder.mesh()).unwrap();
        let appointment = holder.delegate(&own, &DelegationOptions::default(), &none, NOW).unwrap();
        holder.remember(&appointment, NOW).unwrap();
        home.state.store_chain(&appointment.chain).unwrap();
        home.state.store_delegation(&appointment.delegation).unwrap();
        let member = member_of(&holder, peer());
        mesh::key::remove(&home.state, NOW).unwrap();

        let delegate = issuer(&home);
        assert!(!delegate.holds_mesh_key());
        let until = member.not_after + certificate::LEEWAY_S;
        for known in [Some(&member), None] {
            let refused = delegate.may_revoke(member.peer, known, &none, NOW + 9);
            let told = matches!(refused, Err(Error::AdmittedByMeshKey { until: told, .. }) if told == until);
            assert!(told, "{known:?}: {refused:?}");
        }
        assert!(delegate.may_revoke(member.peer, None, &none, until + 1).is_ok());
        // The mesh key, brought back, reaches it, and this machine may take it out of its branch then.
        let mut list = RevocationList::default();
        list.insert(holder.revoke(member.peer, 0, NOW).unwrap(), &holder.mesh()).unwrap();
        assert!(list.revokes(&member) && delegate.may_revoke(member.peer, None, &list, NOW + 9).is_ok());
        // Who came after that is in its branch.
        let after = member_of(&delegate, peer());
        for known in [Some(&after), None] {
            delegate.may_revoke(after.peer, known, &none, NOW + 9).unwrap();
        }
    }

    /// Joins with an invitation of `by`, as a member that `by` met as `known`.
    fn taken_over(by: &Issuer, known: &Membership, now: u64) -> Membership {
        let mut rng = StdRng::from_seed([12; 32]);
        let token = by.invite(&by.default_invitation(), vec![], now, &mut rng).unwrap();
        let request = token.request(known.peer, None).unwrap();
        let chain = by.redeem(known.peer, &request, Some(known), &RevocationList::default(), now).unwrap();
        chain.verify(now, &by.mesh()).unwrap()
    }

    #[test]
    fn a_member_that_joins_a_branch_with_a_certificate_of_the_mesh_key_is_theirs_once_that_has_ended() {
        let (first, none) = (home(), RevocationList::default());
        let holder = issuer(&first);
        let branch = delegate_of(&holder, 100 * DAY);
        let delegate = issuer(&branch);
        let before = member_of(&holder, peer());
        let until = before.not_after + certificate::LEEWAY_S;
        let after = taken_over(&delegate, &before, NOW + 9);
        for known in [Some(&after), Some(&before), None] {
            let refused = delegate.may_revoke(after.peer, known, &none, NOW + 9);
            let told = matches!(refused, Err(Error::AdmittedByMeshKey { until: told, .. }) if told == until);
            assert!(told, "{known:?}: {refused:?}");
        }
        assert!(delegate.may_revoke(after.peer, Some(&after), &none, until + 1).is_ok());
        // The mesh key reaches both.
        let mut list = RevocationList::default();
        list.insert(holder.revoke(after.peer, after.issued_at, NOW).unwrap(), &holder.mesh()).unwrap();
        assert!(list.revokes(&before) && list.revokes(&after));
        // Known before, and revoked since: it can't come back with that.
        assert!(delegate.may_revoke(after.peer, Some(&after), &list, NOW + 9).is_ok());
    }

    #[test]
    fn a_member_of_two_branches_is_revoked_in_the_older_first() {
        let first = home();
        let holder = issuer(&first);
        let (one, two) = (delegate_of(&holder, 100 * DAY), delegate_of(&holder, 100 * DAY));
        let (old, new) = (issuer(&one), issuer(&two));
        let before = member_of(&old, peer());
        let after = taken_over(&new, &before, NOW + 9);
        let mut list = RevocationList::default();
        let refused = new.may_revoke(after.peer, Some(&after), &list, NOW + 9);
        assert!(matches!(refused, Err(Error::AdmittedByAnother { ref by, .. }) if **by == old.0.peer), "{refused:?}");
        // It left the branch, and what it got there counts still.
        old.may_revoke(after.peer, Some(&after), &list, NOW + 9).unwrap();
        list.insert(old.revoke(after.peer, after.issued_at, NOW + 9).unwrap(), &holder.mesh()).unwrap();
        assert!(list.revokes(&before) && !list.revokes(&after));
        new.may_revoke(after.peer, Some(&after), &list, NOW + 9).unwrap();
        list.insert(new.revoke(after.peer, after.issued_at, NOW + 9).unwrap(), &holder.mesh()).unwrap();
        assert!(list.revokes(&after));
        // What it got there has ended by then.
        let ended = old.may_revoke(after.peer, Some(&after), &list, before.not_after + certificate::LEEWAY_S + 1);
        assert!(matches!(ended, Err(Error::NotInBranch(_))), "{ended:?}");
    }

    #[test]
    fn delegations_that_ended_are_forgotten_with_what_was_under_them() {
        let (first, none) = (home(), RevocationList::default());
        let holder = issuer(&first);
        let (one, two) = (member_of(&holder, peer()), member_of(&holder, peer()));
        let short = DelegationOptions { life: Duration::from_secs(DAY), ..DelegationOptions::default() };
        holder.remember(&holder.delegate(&one, &short, &none, NOW).unwrap(), NOW).unwrap();
        let last = NOW + DAY + 2 * certificate::LEEWAY_S;
        let next = holder.delegate(&two, &DelegationOptions::default(), &none, NOW).unwrap();
        holder.remember(&next, last).unwrap();
        assert_eq!(rows(&first, "delegations", one.peer), 1);
        holder.remember(&next, last + 1).unwrap();
        assert_eq!((rows(&first, "delegations", one.peer), rows(&first, "delegations", two.peer)), (0, 1));
    }

    #[test]
    fn a_narrower_delegation_takes_the_end_of_the_former_one() {
        let (first, none) = (home(), RevocationList::default());
        let holder = issuer(&first);
        let member = member_of(&holder, peer());
        let wide = DelegationOptions::default();
        let first_one = holder.delegate(&member, &wide, &none, NOW).unwrap();
        holder.remember(&first_one, NOW).unwrap();
        let narrower = [
            DelegationOptions { models: only("Qwen/*"), ..wide.clone() },
            DelegationOptions { roles: Roles::from_iter([Role::Agent]), ..wide.clone() },
            DelegationOptions { certificate_life: Duration::from_secs(DAY), ..wide.clone() },
            DelegationOptions { life: Duration::from_secs(DAY), ..wide.clone() },
        ];
        for options in &narrower {
            assert!(matches!(holder.delegate(&member, options, &none, NOW), Err(Error::Narrower(_))), "{options:?}");
        }
        assert!(holder.delegate(&member, &wide, &none, NOW + 9).is_ok());
        let mut list = RevocationList::default();
        list.insert(holder.undelegate(member.peer, 0, NOW).unwrap(), &holder.mesh()).unwrap();
        assert!(holder.delegate(&member, &narrower[0], &list, NOW).is_ok());
    }

    #[test]
    fn who_gives_the_mesh_key_away_says_that_it_issues_only_if_it_does() {
        let (first, none) = (home(), RevocationList::default());
        let holder = issuer(&first);
        let own = first.state.chain().unwrap().unwrap().verify(NOW, &holder.mesh()).unwrap();
        let life = Duration::from_secs(5 * DAY);
        let options = DelegationOptions { life, ..DelegationOptions::default() };
        let right = holder.delegate(&own, &options, &none, NOW).unwrap().delegation;
        let says = |now| {
            let chain = holder.step_down(&own, Some(right.clone()), &none, now).unwrap();
            chain.verify(now, &holder.mesh()).unwrap().authority()
        };
        assert_eq!(says(NOW + 9), Some(certificate::Authority::Delegation));
        assert_eq!(says(NOW + 5 * DAY), None);
    }
}
