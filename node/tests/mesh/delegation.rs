//! Members that may issue without the mesh key, and the end of what they gave.

use crate::harness::*;
use dunlin_node::{
    ManageError, clock,
    issuer::{self, DelegationOptions, InvitationOptions},
    join,
    state::StateDir,
};
use dunlin_protocol::{
    certificate::{Authority, Issuer},
    delegation::Delegation,
    hello::Refusal,
    id::{PeerId, Role},
    invitation::Token,
    pattern::{Models, Pattern},
};
use std::time::Duration;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn only(pattern: &str) -> Models {
    Models::Only(vec![Pattern::new(pattern).unwrap()])
}

fn agents_of_qwen() -> DelegationOptions {
    let roles = roles(&[Role::Agent]);
    DelegationOptions { roles, models: only("Qwen/*"), certificate_life: 7 * DAY, life: 90 * DAY }
}

async fn join_with(token: &Token) -> Result<(TempDir, StateDir), join::Error> {
    let home = TempDir::new().unwrap();
    let state = StateDir::open(home.path()).unwrap();
    let (chain, _) = join::join(token, &state.identity().unwrap(), None).await?;
    state.store_chain(&chain).unwrap();
    Ok((home, state))
}

async fn joined(token: &Token, at: &Member, listen: &str) -> Member {
    let (home, state) = join_with(token).await.unwrap();
    Member::start(state, roles(&[Role::Agent]), &[listen], &at.addresses(), Some(home)).await
}

async fn let_issue(mesh: &Mesh, member: &Member, options: DelegationOptions) -> Delegation {
    until("met", SOON, || is_connected(&mesh.first, member)).await;
    mesh.first.handle.delegate(member.peer(), options).await.unwrap()
}

fn in_branch_of(member: &Member, delegate: PeerId) -> bool {
    matches!(member.handle.members().own().issuer, Issuer::Delegate { peer, .. } if peer == delegate)
}

async fn members_join_through_a_delegate_and_go_with_it(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let first = &mesh.first;
    let delegate = mesh.member_on(&[Role::Proxy], &[listen], &[first]).await;
    assert!(matches!(delegate.handle.invite(InvitationOptions::default()).await, Err(ManageError::NotAnIssuer)));
    let_issue(&mesh, &delegate, agents_of_qwen()).await;
    assert!(delegate.handle.issues());

    // No more than the delegation gives.
    let options = delegate.handle.default_invitation().unwrap();
    assert_eq!((options.roles, &options.models), (roles(&[Role::Agent]), &only("Qwen/*")));
    for wider in [
        InvitationOptions { models: Models::Any, ..options.clone() },
        InvitationOptions { roles: roles(&[Role::Agent, Role::Proxy]), ..options.clone() },
    ] {
        let refused = delegate.handle.invite(wider).await;
        assert!(matches!(refused, Err(ManageError::Issuer(issuer::Error::Delegation(_)))), "{refused:?}");
    }
    let token = delegate.handle.invite(options.clone()).await.unwrap();
    let agent = joined(&token, first, listen).await;
    assert!(in_branch_of(&agent, delegate.peer()));
    let own = agent.handle.members().own();
    assert!(own.not_after <= clock::unix_s() + 7 * DAY.as_secs(), "as short-lived as the delegation says");
    agent.handle.offer(offer(0, dunlin_protocol::announcement::ReplicaState::Ready, &["Qwen/Qwen3", "gpt"])).await;
    until("serves at the proxy of another issuer", SOON, || knows_replica(first, "Qwen/Qwen3", &agent)).await;
    assert!(!knows_replica(first, "gpt", &agent));
    assert!(matches!(join_with(&token).await, Err(join::Error::Refused(Refusal::InvitationUsedUp))));

    // Everybody knows who issues.
    until("known as a delegate", SOON, || {
        let issuers = agent.handle.members().issuers();
        let knows = |of: &Member, as_: Authority| {
            issuers.iter().any(|issuer| issuer.peer == of.peer() && issuer.authority() == Some(as_))
        };
        knows(&delegate, Authority::Delegation) && knows(first, Authority::MeshKey)
    })
    .await;

    // A delegate judges its own branch only.
    let other = mesh.member_on(&[Role::Agent], &[listen], &[first, &delegate]).await;
    until("met", SOON, || delegate.handle.members().get(&other.peer()).is_some()).await;
    let refused = delegate.handle.revoke(other.peer()).await;
    assert!(matches!(refused, Err(ManageError::Issuer(issuer::Error::NotInBranch(_)))), "{refused:?}");
    let token = delegate.handle.invite(options.clone()).await.unwrap();
    let (home, state) = join_with(&token).await.unwrap();
    let to = [first, &delegate].map(Member::addresses).concat();
    let short = Member::start(state, roles(&[Role::Agent]), &[listen], &to, Some(home)).await;
    until("connected", SOON, || is_connected(first, &short)).await;
    until("met", SOON, || delegate.handle.members().get(&short.peer()).is_some()).await;
    delegate.handle.revoke(short.peer()).await.unwrap();
    until("revoked by its delegate", SOON, || !is_connected(first, &short) && is_connected(first, &agent)).await;

    // One that was never met may be another issuer's member by now.
    let (_home, state) = join_with(&delegate.handle.invite(options.clone()).await.unwrap()).await.unwrap();
    let away = state.identity().unwrap().public().to_peer_id();
    let revoked = delegate.handle.revoke(away).await;
    assert!(matches!(revoked, Err(ManageError::MaybeMember(peer)) if peer == away), "{revoked:?}");

    // The end of the branch, for connected members too.
    let late = delegate.handle.invite(options).await.unwrap();
    first.handle.undelegate(delegate.peer()).await.unwrap();
    until("the branch has ended", SOON, || {
        !is_connected(first, &agent) && !knows_replica(first, "Qwen/Qwen3", &agent) && !delegate.handle.issues()
    })
    .await;
    assert!(is_connected(first, &delegate) && is_connected(first, &other), "only the branch");
    assert!(matches!(join_with(&late).await, Err(join::Error::Refused(Refusal::NotAnIssuer))));
    assert!(first.handle.members().issuers().iter().all(|issuer| issuer.peer != delegate.peer()));

    // The same machine can be trusted again; what ended stays ended.
    let_issue(&mesh, &delegate, agents_of_qwen()).await;
    let token = delegate.handle.invite(delegate.handle.default_invitation().unwrap()).await.unwrap();
    let again = joined(&token, first, listen).await;
    until("connected", SOON, || is_connected(first, &again)).await;
    assert!(!is_connected(first, &agent));
}

#[tokio::test]
async fn members_join_through_a_delegate_and_go_with_it_over_tcp() {
    members_join_through_a_delegate_and_go_with_it(TCP).await;
}

#[tokio::test]
async fn members_join_through_a_delegate_and_go_with_it_over_quic() {
    members_join_through_a_delegate_and_go_with_it(QUIC).await;
}

#[tokio::test]
async fn a_delegate_stays_one_across_restarts_until_its_delegation_ends() {
    let mesh = Mesh::new(&[TCP]).await;
    let delegate = mesh.member(&[Role::Agent, Role::Proxy], &[&mesh.first]).await;
    let life = Duration::from_secs(5);
    let options = DelegationOptions { life, ..DelegationOptions::default() };
    let given = let_issue(&mesh, &delegate, options).await;
    let token = delegate.handle.invite(delegate.handle.default_invitation().unwrap()).await.unwrap();
    let home = delegate.stop().await.unwrap();
    let state = StateDir::open(home.path()).unwrap();
    let all = roles(&[Role::Agent, Role::Proxy]);
    let back = Member::start(state, all, &[TCP], &mesh.first.addresses(), Some(home)).await;
    assert!(back.handle.issues());
    assert_eq!(token.invitation().unwrap().not_after, given.not_after, "no invitation outlives it");
    let token = back.handle.invite(back.handle.default_invitation().unwrap()).await.unwrap();
    let agent = joined(&token, &mesh.first, TCP).await;
    assert_eq!(agent.handle.members().own().not_after, given.not_after, "nor does a child");
    until("over", SOON, || !back.handle.issues()).await;
    let refused = back.handle.invite(InvitationOptions::default()).await;
    assert!(matches!(refused, Err(ManageError::Issuer(issuer::Error::DelegationEnded))), "{refused:?}");
    assert!(matches!(join_with(&token).await, Err(join::Error::Refused(Refusal::NotAnIssuer))));
}

#[tokio::test]
async fn a_revoked_delegate_takes_its_branch_along_and_is_told_why() {
    let mesh = Mesh::new(&[TCP]).await;
    let delegate = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    let_issue(&mesh, &delegate, DelegationOptions::default()).await;
    let token = delegate.handle.invite(delegate.handle.default_invitation().unwrap()).await.unwrap();
    let agent = joined(&token, &mesh.first, TCP).await;
    until("connected", SOON, || is_connected(&mesh.first, &agent) && is_connected(&mesh.first, &delegate)).await;
    mesh.first.handle.revoke(delegate.peer()).await.unwrap();
    until("both out", SOON, || !is_connected(&mesh.first, &agent) && !is_connected(&mesh.first, &delegate)).await;
    for out in [&agent, &delegate] {
        until("told", SOON, || out.handle.members().standing() != dunlin_node::members::Standing::Member).await;
    }
}

#[tokio::test]
async fn a_delegate_whose_room_for_revocations_is_taken_is_told_what_to_do() {
    let mesh = Mesh::new(&[TCP]).await;
    let first = &mesh.first;
    let delegate = mesh.member(&[Role::Agent], &[first]).await;
    let_issue(&mesh, &delegate, DelegationOptions::default()).await;
    let home = delegate.stop().await.unwrap();
    let state = StateDir::open(home.path()).unwrap();
    let issuer = issuer::Issuer::open(&state).unwrap().unwrap();
    let now = clock::unix_s();
    let earlier: Vec<_> = (0..dunlin_protocol::limits::DELEGATED_REVOCATIONS)
        .map(|_| issuer.revoke(libp2p::identity::Keypair::generate_ed25519().public().to_peer_id(), 0, now).unwrap())
        .collect();
    drop(issuer);
    let delegate = Member::start(state, roles(&[Role::Agent]), &[TCP], &first.addresses(), Some(home)).await;
    assert_eq!(delegate.handle.members().merge_revocations(earlier.clone()).len(), earlier.len());
    let token = delegate.handle.invite(delegate.handle.default_invitation().unwrap()).await.unwrap();
    let member = joined(&token, first, TCP).await;
    until("connected", SOON, || is_connected(first, &member) && is_connected(first, &delegate)).await;
    let refused = delegate.handle.revoke(member.peer()).await.unwrap_err();
    assert!(matches!(refused, ManageError::ListFull), "{refused:?}");
    assert!(refused.to_string().contains("revoke it where the mesh key lies"), "{refused}");
    assert!(is_connected(first, &member));
    let list = delegate.handle.members().revocations();
    assert!(earlier.iter().all(|entry| list.iter().any(|kept| kept == entry)), "all of them count still");
    // As it says.
    first.handle.revoke(member.peer()).await.unwrap();
    until("out", SOON, || !is_connected(first, &member)).await;
}

/// A member of the mesh key that redeems a delegate's invitation as well, while it runs.
async fn who_changes_hands_is_not_half_revoked_in_silence(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let first = &mesh.first;
    let agent = &[Role::Agent];
    let (one, two) =
        (mesh.member_on(agent, &[listen], &[first]).await, mesh.member_on(agent, &[listen], &[first]).await);
    for delegate in [&one, &two] {
        let_issue(&mesh, delegate, DelegationOptions::default()).await;
    }
    let by_key = mesh.member_on(agent, &[listen], &[first, &one]).await;
    until("met", SOON, || one.handle.members().get(&by_key.peer()).is_some()).await;
    let rejoin = async |member: Member, at: &Member| {
        let token = at.handle.invite(at.handle.default_invitation().unwrap()).await.unwrap();
        let home = member.stop().await.unwrap();
        let state = StateDir::open(home.path()).unwrap();
        let (chain, _) = join::join(&token, &state.identity().unwrap(), None).await.unwrap();
        state.store_chain(&chain).unwrap();
        let to = [first.addresses(), at.addresses()].concat();
        let member = Member::start(state, roles(agent), &[listen], &to, Some(home)).await;
        until("back", SOON, || is_connected(first, &member) && is_connected(at, &member)).await;
        member
    };
    let by_key = rejoin(by_key, &one).await;
    assert!(in_branch_of(&by_key, one.peer()));
    let refused = one.handle.revoke(by_key.peer()).await;
    let told = matches!(refused, Err(ManageError::Issuer(issuer::Error::AdmittedByMeshKey { .. })));
    assert!(told && is_connected(first, &by_key), "{refused:?}");

    let token = one.handle.invite(one.handle.default_invitation().unwrap()).await.unwrap();
    let (home, state) = join_with(&token).await.unwrap();
    let to = [first, &one, &two].map(Member::addresses).concat();
    let of_one = Member::start(state, roles(agent), &[listen], &to, Some(home)).await;
    until("met", SOON, || two.handle.members().get(&of_one.peer()).is_some()).await;
    let of_two = rejoin(of_one, &two).await;
    until("seen", SOON, || one.handle.members().get(&of_two.peer()).is_some()).await;
    let refused = two.handle.revoke(of_two.peer()).await;
    let told = matches!(refused, Err(ManageError::Issuer(issuer::Error::AdmittedByAnother { ref by, .. })) if **by == one.peer());
    assert!(told, "{refused:?}");
    until("known with its new certificate", SOON, || {
        one.handle
            .members()
            .get(&of_two.peer())
            .is_some_and(|known| known.issuer == of_two.handle.members().own().issuer)
    })
    .await;
    let half = one.handle.revoke(of_two.peer()).await;
    assert!(matches!(half, Err(ManageError::StillMember { .. })), "{half:?}");
    assert!(half.unwrap_err().to_string().contains(&two.peer().to_string()));
    until("the other knows", SOON, || !two.handle.members().revocations().is_empty()).await;
    two.handle.revoke(of_two.peer()).await.unwrap();
    until("out", SOON, || !is_connected(first, &of_two)).await;
}

#[tokio::test]
async fn who_changes_hands_is_not_half_revoked_in_silence_over_tcp() {
    who_changes_hands_is_not_half_revoked_in_silence(TCP).await;
}

#[tokio::test]
async fn who_changes_hands_is_not_half_revoked_in_silence_over_quic() {
    who_changes_hands_is_not_half_revoked_in_silence(QUIC).await;
}

/// The mesh key's holder comes back, and ends the delegation before anybody listens to its gossip.
async fn a_delegate_that_stays_connected_hears_of_its_end_without_gossip(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let delegate = mesh.member_on(&[Role::Agent, Role::Proxy], &[listen], &[&mesh.first]).await;
    let_issue(&mesh, &delegate, DelegationOptions::default()).await;
    let token = delegate.handle.invite(delegate.handle.default_invitation().unwrap()).await.unwrap();
    let agent = joined(&token, &delegate, listen).await;
    until("connected", SOON, || is_connected(&delegate, &agent)).await;
    let Mesh { issuer, home, first } = mesh;
    first.stop().await;
    let state = StateDir::open(home.path()).unwrap();
    let back = Member::start(state, roles(&[Role::Proxy]), &[listen], &delegate.addresses(), None).await;
    until("connected", SOON, || is_connected(&back, &delegate)).await;
    back.handle.members().revoke(issuer.undelegate(delegate.peer(), 0, clock::unix_s()).unwrap()).unwrap();
    until("told", Duration::from_secs(2), || !delegate.handle.issues()).await;
    until("out with its branch", SOON, || !is_connected(&delegate, &agent)).await;
    assert!(is_connected(&back, &delegate));
}

#[tokio::test]
async fn a_delegate_that_stays_connected_hears_of_its_end_without_gossip_over_tcp() {
    a_delegate_that_stays_connected_hears_of_its_end_without_gossip(TCP).await;
}

#[tokio::test]
async fn a_delegate_that_stays_connected_hears_of_its_end_without_gossip_over_quic() {
    a_delegate_that_stays_connected_hears_of_its_end_without_gossip(QUIC).await;
}

/// A member whose certificate has been due for long, in the branch of a delegate that is away.
#[tokio::test]
async fn the_mesh_key_renews_in_the_name_of_a_delegate_that_is_away() {
    let mesh = Mesh::new(&[TCP]).await;
    let delegate = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    let peer = delegate.peer();
    let_issue(&mesh, &delegate, DelegationOptions::default()).await;
    let home = delegate.stop().await.unwrap();
    let state = StateDir::open(home.path()).unwrap();
    let issuer = dunlin_node::issuer::Issuer::open(&state).unwrap().unwrap();
    let old = clock::unix_s() - 25 * DAY.as_secs();
    let mut rng = rand::make_rng::<rand::rngs::StdRng>();
    let token = issuer.invite(&issuer.default_invitation(), Vec::new(), old, &mut rng).unwrap();
    let agent_home = TempDir::new().unwrap();
    let agent_state = StateDir::open(agent_home.path()).unwrap();
    let joiner = agent_state.identity().unwrap().public().to_peer_id();
    let none = dunlin_protocol::revocation::RevocationList::default();
    let chain = issuer.redeem(joiner, &token.request(joiner, None).unwrap(), None, &none, old).unwrap();
    agent_state.store_chain(&chain).unwrap();
    let agent = roles(&[Role::Agent]);
    let member = Member::start(agent_state, agent, &[TCP], &mesh.first.addresses(), Some(agent_home)).await;
    until("renewed", SOON, || member.handle.members().own().issued_at > old + 24 * DAY.as_secs()).await;
    assert!(in_branch_of(&member, peer), "it stays in its branch");
    until("shown", SOON, || is_connected(&mesh.first, &member)).await;
    mesh.first.handle.undelegate(peer).await.unwrap();
    until("out with its branch", SOON, || !is_connected(&mesh.first, &member)).await;
}
