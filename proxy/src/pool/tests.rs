use super::*;
use crate::late::Priority;
use dunlin_node::directory::{Event, Rights};
use dunlin_protocol::{
    announcement::{Announcement, ReplicaState, ServedModel},
    id::{PeerId, Role, Roles, RuntimeName, Version},
    load::{LoadReport, Measured},
    pattern::Models,
    record::{Continuation, RecordState, TopicRecord},
    topic::Topic,
};
use std::future::Future;
use tokio::time::{sleep, timeout};

const SOON: Duration = Duration::from_millis(500);

struct World {
    pool: Arc<Pool>,
    directory: SharedDirectory,
    seq: u64,
    _stop: tokio_util::sync::DropGuard,
}

fn model() -> ModelId {
    ModelId::new("m").unwrap()
}

fn want() -> Want {
    Want { tenant: 0, priority: Priority::default(), model: model(), prompt: Arc::default(), stream: true }
}

fn world() -> World {
    let directory = SharedDirectory::default();
    let settings = Settings {
        fresh: Duration::from_millis(1500),
        waiting_per_model: 3,
        waiting: 6,
        starting_per_model: 3,
        starting: 6,
        hold: Duration::from_secs(30),
        hedged_percent: 10,
    };
    let pool = Arc::new(Pool::new(directory.clone(), settings, Arc::new(Metrics::new())));
    let stop = CancellationToken::new();
    tokio::spawn(pool.clone().drive(stop.clone()));
    World { pool, directory, seq: 0, _stop: stop.drop_guard() }
}

impl World {
    fn add(&mut self, slots: u16) -> ReplicaId {
        let replica = ReplicaId { peer: PeerId::random(), index: 0 };
        let rights = Rights { roles: Roles::NONE.with(Role::Agent), models: Models::Any, issued_at: 0 };
        self.directory.apply(Event::Member { peer: replica.peer, rights }, Instant::now());
        self.say(replica, slots, ReplicaState::Ready);
        self.directory.apply(Event::Connected { peer: replica.peer, relayed: false }, Instant::now());
        replica
    }

    fn say(&mut self, replica: ReplicaId, slots: u16, state: ReplicaState) {
        self.seq += 1;
        let announcement = Announcement {
            replica,
            version: Version { epoch: 1, seq: self.seq },
            state,
            runtime: RuntimeName::new("demo").unwrap(),
            continuation: Continuation::None,
            slots,
            models: vec![ServedModel { id: model(), parent: None, context: None, root: None }],
        };
        self.directory.apply(Event::Announcement(announcement), Instant::now());
    }

    fn report(&mut self, replica: ReplicaId, slots: u16, in_flight: u16) {
        self.seq += 1;
        let report = LoadReport {
            replica,
            version: Version { epoch: 1, seq: self.seq },
            slots,
            in_flight,
            queued: 0,
            draining: false,
            flavor: 0,
            measured: Measured::default(),
            engine: None,
        };
        self.directory.apply(Event::Load { from: replica.peer, report }, Instant::now());
    }

    async fn lease_within(&self, ticket: &mut Ticket, time: Duration) -> Result<Lease, Unserved> {
        self.pool.lease(&want(), ticket, Instant::now() + time).await
    }

    async fn lease(&self) -> Result<Lease, Unserved> {
        self.lease_within(&mut Ticket::default(), SOON).await
    }

    /// A request that waits in a task of its own.
    fn wait(&self) -> tokio::task::JoinHandle<Result<Lease, Unserved>> {
        let pool = self.pool.clone();
        tokio::spawn(async move { pool.lease(&want(), &mut Ticket::default(), Instant::now() + SOON).await })
    }
}

/// After a proxy's restart, until announcements come again.
#[tokio::test]
async fn a_replica_known_by_its_record_alone_gets_many_requests_at_once() {
    let world = world();
    let peer = PeerId::random();
    let rights = Rights { roles: Roles::NONE.with(Role::Agent), models: Models::Any, issued_at: 0 };
    let state = RecordState::Live { addresses: Vec::new(), runtime: None, continuation: Continuation::None };
    let replica = ReplicaId { peer, index: 0 };
    let record = TopicRecord { topic: Topic::Model(model()), replica, version: Version { epoch: 1, seq: 1 }, state };
    world.directory.apply(Event::Member { peer, rights }, Instant::now());
    world.directory.apply(Event::Record(record), Instant::now());
    let mut leases = Vec::new();
    for _ in 0..64 {
        leases.push(at_once(world.lease()).await.unwrap());
    }
    assert!(leases.iter().all(|lease| lease.replica() == replica));
}

async fn at_once<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_millis(40), future).await.expect("not at once")
}

#[tokio::test]
async fn unknown_none_and_starting_are_told_apart() {
    let mut world = world();
    assert_eq!(world.lease().await.unwrap_err(), Unserved::Unknown);
    let replica = world.add(1);
    world.say(replica, 1, ReplicaState::Draining);
    assert_eq!(at_once(world.lease()).await.unwrap_err(), Unserved::NoReplica);
    world.say(replica, 1, ReplicaState::Starting);
    let short = world.lease_within(&mut Ticket::default(), Duration::from_millis(60)).await;
    assert_eq!(short.unwrap_err(), Unserved::StillStarting);
}

/// C16: held while one is starting, served as soon as it is up.
#[tokio::test]
async fn a_request_waits_for_a_replica_that_is_starting() {
    let mut world = world();
    let replica = world.add(1);
    world.say(replica, 1, ReplicaState::Starting);
    let waiting = world.wait();
    sleep(Duration::from_millis(30)).await;
    assert!(!waiting.is_finished());
    world.say(replica, 1, ReplicaState::Ready);
    assert_eq!(at_once(waiting).await.unwrap().unwrap().replica(), replica);
}

#[tokio::test]
async fn who_waits_gets_the_slot_that_an_own_request_frees() {
    let mut world = world();
    let replica = world.add(1);
    let held = world.lease().await.unwrap();
    let first = world.wait();
    sleep(Duration::from_millis(10)).await;
    let second = world.wait();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(world.pool.waiting(), 2);
    drop(held);
    let lease = at_once(first).await.unwrap().unwrap();
    assert_eq!(lease.replica(), replica);
    assert!(!second.is_finished(), "first come, first served");
    drop(lease);
    assert!(at_once(second).await.unwrap().is_ok());
    assert_eq!(world.pool.waiting(), 0);
}

/// As an agent does whose slots others have.
async fn refused(world: &World, ticket: &mut Ticket) {
    world.lease_within(ticket, SOON).await.unwrap().refused();
}

#[tokio::test]
async fn who_waits_gets_the_slot_that_a_report_or_a_new_replica_brings() {
    let mut world = world();
    let busy = world.add(2);
    world.report(busy, 2, 2);
    // One may have become free since: it is tried, once in a while.
    let mut ticket = Ticket::default();
    refused(&world, &mut ticket).await;
    let asked = Instant::now();
    refused(&world, &mut ticket).await;
    assert!(asked.elapsed() >= Duration::from_millis(20) && ticket.waited);
    world.report(busy, 2, 1);
    let lease = world.lease_within(&mut ticket, SOON).await.unwrap();
    let held = world.lease().await.unwrap();
    let waiting = world.wait();
    sleep(Duration::from_millis(10)).await;
    assert!(!waiting.is_finished());
    let new = world.add(1);
    assert_eq!(at_once(waiting).await.unwrap().unwrap().replica(), new);
    drop((lease, held));
}

/// The report on an answer counts the request that it answers, which ends right after.
#[tokio::test]
async fn a_slot_is_free_when_its_request_ends_after_the_report() {
    let mut world = world();
    let replica = world.add(2);
    let (one, _two) = (world.lease().await.unwrap(), world.lease().await.unwrap());
    world.report(replica, 2, 2);
    drop(one);
    assert!(at_once(world.lease()).await.is_ok());
}

#[tokio::test]
async fn a_report_gone_stale_frees_who_waits() {
    let mut world = world();
    let silent = world.add(2);
    world.report(silent, 2, 2);
    let (mut ticket, asked) = (Ticket::default(), Instant::now());
    while asked.elapsed() < Duration::from_secs(3) {
        let lease = world.lease_within(&mut ticket, SOON).await.unwrap();
        if lease.step() == crate::route::Step::Stale {
            return;
        }
        lease.refused();
    }
    panic!("still believed");
}

#[tokio::test]
async fn a_refused_request_goes_back_in_front() {
    let mut world = world();
    world.add(1);
    let mut ticket = Ticket::default();
    let lease = world.lease_within(&mut ticket, SOON).await.unwrap();
    let later = world.wait();
    sleep(Duration::from_millis(10)).await;
    lease.refused();
    // Both wait now for the refusal to be forgotten; the refused one was here first.
    let lease = world.lease_within(&mut ticket, SOON).await.unwrap();
    assert!(!later.is_finished());
    drop(lease);
    assert!(later.await.unwrap().is_ok());
}

#[tokio::test]
async fn the_line_has_an_end_and_a_deadline() {
    let mut world = world();
    world.add(1);
    let _held = world.lease().await.unwrap();
    let waiting: Vec<_> = (0..3).map(|_| world.wait()).collect();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(at_once(world.lease()).await.unwrap_err(), Unserved::TooMany { wait: None });
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().unwrap_err(), Unserved::StillFull { wait: None });
    }
    assert_eq!(world.pool.waiting(), 0);
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_its_place_and_its_slot() {
    let mut world = world();
    world.add(1);
    let held = world.lease().await.unwrap();
    let gone = world.wait();
    let stays = world.wait();
    sleep(Duration::from_millis(10)).await;
    gone.abort();
    assert!(gone.await.is_err());
    assert_eq!(world.pool.waiting(), 1);
    drop(held);
    drop(at_once(stays).await.unwrap().unwrap());
    // Granted and hung up in the same moment: the slot must come back all the same.
    for _ in 0..50 {
        let held = world.lease().await.unwrap();
        let waiting = world.wait();
        tokio::task::yield_now().await;
        drop(held);
        tokio::task::yield_now().await;
        waiting.abort();
        drop(waiting.await);
    }
    assert!(at_once(world.lease()).await.is_ok());
}

#[tokio::test]
async fn a_failing_replica_is_ejected_and_comes_back() {
    let mut world = world();
    let (bad, good) = (world.add(8), world.add(8));
    for replica in [bad, good] {
        world.report(replica, 8, 0);
    }
    for _ in 0..3 {
        let mut ticket = Ticket::default();
        ticket.failed_on(good);
        let mut lease = world.lease_within(&mut ticket, SOON).await.unwrap();
        assert_eq!(lease.replica(), bad);
        lease.failed();
    }
    for _ in 0..20 {
        assert_eq!(world.lease().await.unwrap().replica(), good);
    }
    sleep(Duration::from_millis(1050)).await;
    let mut leases = Vec::new();
    for _ in 0..8 {
        leases.push(world.lease().await.unwrap());
    }
    let mut probes: Vec<_> = leases.into_iter().filter(|lease| lease.replica() == bad).collect();
    assert_eq!(probes.len(), 1, "one request tries it");
    probes[0].answered();
    let mut leases = Vec::new();
    for _ in 0..8 {
        leases.push(world.lease().await.unwrap());
    }
    assert!(leases.iter().filter(|lease| lease.replica() == bad).count() > 1, "it is back");
}

#[tokio::test]
async fn a_waiter_that_cannot_use_the_slot_does_not_block_those_behind() {
    let mut world = world();
    let (one, two) = (world.add(1), world.add(1));
    let (held, other) = (world.lease().await.unwrap(), world.lease().await.unwrap());
    let held_replica = held.replica();
    let pool = world.pool.clone();
    let picky = tokio::spawn(async move {
        let mut ticket = Ticket::default();
        ticket.failed_on(held_replica);
        pool.lease(&want(), &mut ticket, Instant::now() + SOON).await
    });
    sleep(Duration::from_millis(10)).await;
    let behind = world.wait();
    sleep(Duration::from_millis(10)).await;
    drop(held);
    assert_eq!(at_once(behind).await.unwrap().unwrap().replica(), held_replica);
    drop(other);
    assert_ne!(at_once(picky).await.unwrap().unwrap().replica(), held_replica);
    assert_ne!(one, two);
}
