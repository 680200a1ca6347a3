//! Delegates that take more than they were given: their machine may run anything.

use crate::{
    harness::{Member, Mesh, is_connected, roles, until},
    light::Light,
    over_tcp_and_quic,
    raw::Raw,
    victim::{SOON, Victim},
};
use dunlin_node::{
    ManageError, clock,
    gossip::{self, MeshMessage},
    issuer::{self, DelegationOptions, Issuer},
    join,
    state::StateDir,
};
use dunlin_protocol::{
    appointment::Appointment,
    certificate::{self, Certificate, Chain, LEEWAY_S},
    delegation::Delegation,
    hello::{Hello, Papers, Refusal, Reply},
    id::{PeerId, Role},
    limits,
    pattern::{Models, Pattern},
    revocation::{ListVersion, Revocation, SignedRevocation, Target},
    signed::Signed,
};
use libp2p::identity::Keypair;
use std::time::Duration;

over_tcp_and_quic!(
    who_was_given_more_than_a_delegate_may_give_is_refused,
    who_was_given_a_certificate_of_another_time_is_refused,
    nothing_that_a_delegate_issues_after_its_end_counts,
    a_delegate_revokes_nobody_outside_its_branch,
    a_flood_of_a_delegates_revocations_crowds_out_nobody,
    an_issuers_database_of_another_mesh_makes_no_delegate,
);

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

fn peer(key: &Keypair) -> PeerId {
    key.public().to_peer_id()
}

fn only(pattern: &str) -> Models {
    Models::Only(vec![Pattern::new(pattern).unwrap()])
}

/// A delegate of the victim's mesh that writes its certificates itself.
struct Rogue {
    key: Keypair,
    terms: Delegation,
    right: Signed<Delegation>,
}

impl Rogue {
    /// May give the role agent, for `good/*`, for a day, and for another week.
    fn of(victim: &Victim, change: impl FnOnce(&mut Delegation)) -> Self {
        let (key, now) = (Keypair::generate_ed25519(), clock::unix_s());
        let mut terms = Delegation {
            mesh: victim.members.mesh(),
            issuer: peer(&key),
            roles: roles(&[Role::Agent]),
            models: only("good/*"),
            capabilities: vec![],
            life_s: DAY,
            issued_at: now - 30 * DAY,
            not_after: now + 7 * DAY,
        };
        change(&mut terms);
        Self { right: Signed::sign(&terms, &victim.mesh_key).unwrap(), key, terms }
    }

    fn certificate(&self, subject: PeerId, change: impl FnOnce(&mut Certificate)) -> Chain {
        let now = clock::unix_s();
        let mut certificate = Certificate {
            mesh: self.terms.mesh,
            subject,
            issuer: self.terms.issuer,
            roles: self.terms.roles,
            models: only("good/m"),
            tenants: vec![],
            capabilities: vec![],
            name: None,
            issued_at: now,
            not_after: now + HOUR,
        };
        change(&mut certificate);
        Chain::by_delegate(&certificate, self.right.clone(), &self.key).unwrap()
    }

    /// What the victim answers to a certificate of this delegate; `None` when it lets its subject in.
    async fn refusal(&self, victim: &Victim, change: impl FnOnce(&mut Certificate)) -> Option<Refusal> {
        let subject = Keypair::generate_ed25519();
        let chain = self.certificate(peer(&subject), change);
        let hello = Hello::Member(Papers { chain, revocations: ListVersion::default() });
        match Raw::connect(&subject, &victim.address).await.reply(&hello).await {
            Reply::Refused(refusal) => Some(refusal),
            Reply::Member(_) => None,
            Reply::Joined(_) => panic!("answered another question"),
        }
    }
}

type Change = fn(&mut Certificate);

/// Checks what is answered to each change; all that are wrong are told.
async fn expect(rogue: &Rogue, victim: &Victim, cases: &[(&str, Option<Refusal>, Change)]) {
    let mut wrong = Vec::new();
    for (what, expected, change) in cases {
        let answered = rogue.refusal(victim, change).await;
        if answered != *expected {
            wrong.push(format!("{what}: {answered:?} instead of {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

async fn who_was_given_more_than_a_delegate_may_give_is_refused(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let rogue = Rogue::of(&victim, |_| {});
    let invalid = Some(Refusal::Invalid);
    let cases: [(&str, Option<Refusal>, Change); 9] = [
        ("as it may", None, |_| {}),
        ("as long as it may", None, |c| c.not_after = c.issued_at + DAY),
        ("another role", invalid, |c| c.roles = roles(&[Role::Agent, Role::Proxy])),
        ("other models", invalid, |c| c.models = only("bad/m")),
        ("every model", invalid, |c| c.models = Models::Any),
        ("a longer life", invalid, |c| c.not_after = c.issued_at + DAY + 1),
        ("the mesh key's capability", invalid, |c| c.capabilities = vec![certificate::ISSUE.to_owned()]),
        ("a delegate's capability", invalid, |c| c.capabilities = vec![certificate::DELEGATE.to_owned()]),
        ("as the mesh key", invalid, |c| c.issuer = PeerId::random()),
    ];
    expect(&rogue, &victim, &cases).await;
    // A delegation that it gives itself, or another member.
    let wide = Delegation { roles: roles(&[Role::Agent, Role::Proxy]), models: Models::Any, ..rogue.terms.clone() };
    let forged = Rogue { right: Signed::sign(&wide, &rogue.key).unwrap(), key: rogue.key.clone(), terms: wide };
    assert_eq!(forged.refusal(&victim, |_| {}).await, invalid);
    let other = Keypair::generate_ed25519();
    let stolen = Rogue { terms: rogue.terms.clone(), right: rogue.right.clone(), key: other };
    assert_eq!(stolen.refusal(&victim, |_| {}).await, invalid);
    victim.assert_still_serves().await;
}

async fn who_was_given_a_certificate_of_another_time_is_refused(listen: &str) {
    let victim = Victim::start(listen).await;
    let rogue = Rogue::of(&victim, |_| {});
    let cases: [(&str, Option<Refusal>, Change); 5] = [
        ("its clock is ahead", None, |c| c.issued_at += LEEWAY_S - 60),
        // No revocation of today would reach it.
        ("of tomorrow", Some(Refusal::Invalid), |c| {
            c.issued_at += LEEWAY_S + 60;
            c.not_after = c.issued_at + HOUR;
        }),
        ("of the end of time", Some(Refusal::Invalid), |c| (c.issued_at, c.not_after) = (u64::MAX, u64::MAX)),
        // Its life would seem to be none.
        ("ends before it begins", Some(Refusal::Invalid), |c| {
            c.issued_at += LEEWAY_S - 60;
            c.not_after = c.issued_at - 1;
        }),
        ("of last month, and longer", Some(Refusal::Invalid), |c| c.issued_at -= 20 * DAY),
    ];
    expect(&rogue, &victim, &cases).await;

    // A member whom the mesh key revoked is not let in again by a certificate of before, nor by one a little ahead.
    let subject = Keypair::generate_ed25519();
    let now = clock::unix_s();
    let newest = now + LEEWAY_S - 60;
    victim.members.revoke(victim.issuer.revoke(peer(&subject), newest, now).unwrap()).unwrap();
    for issued_at in [now - HOUR, now, newest] {
        let chain = rogue.certificate(peer(&subject), |c| c.issued_at = issued_at);
        let hello = Hello::Member(Papers { chain, revocations: ListVersion::default() });
        assert_eq!(Raw::connect(&subject, &victim.address).await.refusal(&hello).await, Refusal::Revoked);
    }
}

async fn nothing_that_a_delegate_issues_after_its_end_counts(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let ended = Rogue::of(&victim, |terms| terms.not_after = clock::unix_s() - LEEWAY_S - 60);
    let cases: [(&str, Option<Refusal>, Change); 3] = [
        ("as if nothing had happened", Some(Refusal::Invalid), |_| {}),
        ("up to its end", Some(Refusal::Expired), |c| {
            // A little before its end: that was taken from the clock some seconds ago.
            c.not_after = clock::unix_s() - LEEWAY_S - 120;
            c.issued_at = c.not_after - HOUR;
        }),
        ("issued before, for now", Some(Refusal::Invalid), |c| c.issued_at -= 2 * HOUR),
    ];
    expect(&ended, &victim, &cases).await;

    let revoked = Rogue::of(&victim, |_| {});
    assert_eq!(revoked.refusal(&victim, |_| {}).await, None);
    victim.members.revoke(victim.issuer.undelegate(peer(&revoked.key), 0, clock::unix_s()).unwrap()).unwrap();
    let cases: [(&str, Option<Refusal>, Change); 3] = [
        ("as if nothing had happened", Some(Refusal::Revoked), |_| {}),
        ("as if before", Some(Refusal::Revoked), |c| c.issued_at -= 2 * HOUR),
        ("a little ahead", Some(Refusal::Revoked), |c| c.issued_at += LEEWAY_S - 60),
    ];
    expect(&revoked, &victim, &cases).await;
    victim.assert_still_serves().await;
}

/// A member of a whole mesh that is free to say what it likes, and its delegation.
async fn rogue_member(mesh: &Mesh) -> (Light, Appointment) {
    let mut rogue = Light::new(mesh, roles(&[Role::Agent]), Models::Any);
    rogue.connect(&mesh.first).await;
    rogue.swarm.behaviour_mut().gossip.subscribe(&gossip::mesh_topic()).unwrap();
    rogue.idle(Duration::from_millis(500)).await;
    let member = mesh.first.handle.members().get(&rogue.peer()).unwrap();
    let list = mesh.first.handle.members().revocations();
    let right = mesh.issuer.delegate(&member, &DelegationOptions::default(), &list, clock::unix_s()).unwrap();
    (rogue, right)
}

fn says(rogue: &Light, right: &Appointment, mesh: &Mesh, target: Target) -> SignedRevocation {
    let revocation = Revocation { mesh: mesh.id(), target, before: clock::unix_s() + 10 };
    SignedRevocation::by_delegate(&revocation, right.delegation.clone(), &rogue.keypair).unwrap()
}

fn gossips(rogue: &mut Light, said: SignedRevocation) {
    let data = MeshMessage::Revocation(said).encode().unwrap();
    // What finds no room in a queue is lost.
    let _ = rogue.swarm.behaviour_mut().gossip.publish(gossip::mesh_topic(), data);
}

/// Lets the rogue's swarm work until something holds elsewhere.
async fn until_with(rogue: &mut Light, what: &str, mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < SOON, "{what}");
        rogue.idle(Duration::from_millis(20)).await;
    }
}

async fn joined(mesh: &Mesh, at: &Member, listen: &str) -> Member {
    let token = at.handle.invite(at.handle.default_invitation().unwrap()).await.unwrap();
    let home = tempfile::tempdir().unwrap();
    let state = StateDir::open(home.path()).unwrap();
    let (chain, _) = join::join(&token, &state.identity().unwrap(), None).await.unwrap();
    state.store_chain(&chain).unwrap();
    let to = [&mesh.first, at].map(Member::addresses).concat();
    let member = Member::start(state, roles(&[Role::Agent]), &[listen], &to, Some(home)).await;
    until("connected", SOON, || is_connected(&mesh.first, &member) && is_connected(at, &member)).await;
    member
}

async fn a_delegate_revokes_nobody_outside_its_branch(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let first = &mesh.first;
    let agent = mesh.member_on(&[Role::Agent], &[listen], &[first]).await;
    let honest = mesh.member_on(&[Role::Agent], &[listen], &[first]).await;
    until("met", SOON, || is_connected(first, &honest) && is_connected(first, &agent)).await;
    first.handle.delegate(honest.peer(), DelegationOptions::default()).await.unwrap();
    let of_honest = joined(&mesh, &honest, listen).await;
    let (mut rogue, right) = rogue_member(&mesh).await;

    // The mesh key's peer, a member of the mesh key, another delegate and its member; and the rights of both issuers.
    let members = [first, &agent, &honest, &of_honest].map(|member| Target::Member(member.peer()));
    let rights = [first, &honest].map(|issuer| Target::Delegate(issuer.peer()));
    let list = || first.handle.members().revocations();
    let start = std::time::Instant::now();
    // More than once: what finds no room in a queue is lost.
    while list().len() < members.len() {
        assert!(start.elapsed() < SOON, "what it said of members arrived");
        for target in rights.iter().chain(&members) {
            let said = says(&rogue, &right, &mesh, *target);
            gossips(&mut rogue, said);
            rogue.idle(Duration::from_millis(20)).await;
        }
    }
    rogue.idle(Duration::from_millis(1500)).await;
    assert_eq!(list().len(), members.len(), "none about a right to issue");
    for member in [&agent, &honest, &of_honest] {
        assert!(is_connected(first, member) && is_connected(member, first));
    }
    assert!(first.handle.issues() && honest.handle.issues());
    let standing = |member: &Member| member.handle.members().standing();
    for member in [first, &agent, &honest, &of_honest] {
        assert_eq!(standing(member), dunlin_node::members::Standing::Member);
    }
    let list = list();
    assert!([first, &agent, &honest, &of_honest].iter().all(|member| !list.revokes(&member.handle.members().own())));
}

async fn a_flood_of_a_delegates_revocations_crowds_out_nobody(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let first = &mesh.first;
    let honest = mesh.member_on(&[Role::Agent], &[listen], &[first]).await;
    until("met", SOON, || is_connected(first, &honest)).await;
    first.handle.delegate(honest.peer(), DelegationOptions::default()).await.unwrap();
    let (before, after) = (joined(&mesh, &honest, listen).await, joined(&mesh, &honest, listen).await);
    let by_key = mesh.member_on(&[Role::Agent], &[listen], &[first]).await;
    until("met", SOON, || is_connected(first, &by_key)).await;
    honest.handle.revoke(before.peer()).await.unwrap();
    first.handle.revoke(by_key.peer()).await.unwrap();
    until("out", SOON, || !is_connected(first, &before) && !is_connected(first, &by_key)).await;

    let (mut rogue, right) = rogue_member(&mesh).await;
    let members = first.handle.members();
    let full = limits::DELEGATED_REVOCATIONS + 1;
    let mut said = 0;
    let start = std::time::Instant::now();
    // Some are lost; and it goes on once there is no room.
    while members.revocations().displaced() < 20 {
        assert!(start.elapsed() < 6 * SOON, "{said} said, {} arrived", members.revocations().len());
        let flood = says(&rogue, &right, &mesh, Target::Member(PeerId::random()));
        gossips(&mut rogue, flood);
        said += 1;
        rogue.idle(Duration::from_millis(2)).await;
    }
    assert_eq!(members.revocations().len(), full, "the mesh key's, and as many as delegates may have");
    for gone in [&before, &by_key] {
        assert!(members.revocations().revokes(&gone.handle.members().own()));
        assert!(!is_connected(first, gone));
    }
    // An honest one has room still.
    honest.handle.revoke(after.peer()).await.unwrap();
    until_with(&mut rogue, "out", || !is_connected(first, &after)).await;
    // And the mesh key ends it all.
    first.handle.undelegate(rogue.peer()).await.unwrap();
    assert_eq!(members.revocations().len(), 4, "two of the honest one, two of the mesh key");
    assert!(members.revocations().revokes(&before.handle.members().own()));
}

/// Uses of invitations would be counted anew.
async fn an_issuers_database_of_another_mesh_makes_no_delegate(listen: &str) {
    let (mesh, other) = (Mesh::new(&[listen]).await, Mesh::new(&[listen]).await);
    let member = mesh.member_on(&[Role::Agent], &[listen], &[&mesh.first]).await;
    until("met", SOON, || is_connected(&mesh.first, &member)).await;
    let home = member.home.as_ref().unwrap().path().to_path_buf();
    std::fs::copy(other.home.path().join("issuer.db"), home.join("issuer.db")).unwrap();
    let refused = mesh.first.handle.delegate(member.peer(), DelegationOptions::default()).await;
    assert!(matches!(refused, Err(ManageError::NotTaken { .. })), "{refused:?}");
    assert!(!member.handle.issues() && !home.join("delegation").exists());
    assert!(is_connected(&mesh.first, &member), "it stays a member");

    // Put in the place of its own one, it makes no issuer either.
    std::fs::remove_file(home.join("issuer.db")).unwrap();
    mesh.first.handle.delegate(member.peer(), DelegationOptions::default()).await.unwrap();
    let home = member.stop().await.unwrap();
    std::fs::copy(other.home.path().join("issuer.db"), home.path().join("issuer.db")).unwrap();
    let state = StateDir::open(home.path()).unwrap();
    let refused = Issuer::open(&state).map(|_| ());
    let told = matches!(&refused, Err(error @ issuer::Error::State(_)) if error.to_string().contains("another mesh"));
    assert!(told, "{refused:?}");
}
