//! Bringing statements about keys to every proxy, over the hop: what is said here is pushed and acknowledged, what
//! others gossip is taken in, and with whoever comes, and now and then with one at random, everything is compared.

mod exchange;
mod route;

use super::{Error, Keys, Signed};
use dunlin_node::{Handle, clock, hop};
use dunlin_protocol::{
    certificate,
    id::PeerId,
    key::{KeyMessage, SignedKeyStatement},
    limits,
};
use exchange::Failed;
use rand::{RngExt, rngs::StdRng, seq::IteratorRandom};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    task::JoinSet,
    time::{self, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// Path on the hop.
pub(crate) const PATH: &str = "/mesh/keys";
/// How often is looked who has come.
const LOOK: Duration = Duration::from_millis(150);
/// Time between two comparisons with a member chosen by chance.
const ROUND: Range<Duration> = Duration::from_secs(4)..Duration::from_secs(6);
/// Longest wait for one answer when everything is compared.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest wait for one acknowledgement of what was just said.
const ACKNOWLEDGED: Duration = Duration::from_millis(800);
/// Before a member that could not be told, or compared with, is asked again.
const AGAIN: Duration = Duration::from_millis(400);
/// Before a member that keeps no keys (its process plays no proxy) is asked again.
const NOT_A_HOLDER: Duration = Duration::from_secs(30);
/// Comparisons at the same time.
const AT_ONCE: usize = 8;
/// How long a machine that may make keys, and has none, looks for others that have some, before it takes itself for the
/// first.
const FIRST: Duration = Duration::from_secs(2);
/// How often is looked for statements that somebody must sign again, and how many are at once.
const UPKEEP: Duration = Duration::from_secs(60);
const SIGNED_AGAIN: usize = 256;
/// A statement is signed again when its signer's certificate has so little left.
const LEFT: Duration = Duration::from_secs(8 * 24 * 3600);
/// Note of a proxy that has met others.
const OTHERS: &str = "others";

/// Whom a change has reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// Others that have it on disk.
    pub told: usize,
    /// Others that are connected and could not be told in time: they are told as soon as that works.
    pub missing: Vec<String>,
}

/// What is known of another member that may hold keys.
#[derive(Debug, Clone, Copy, Default)]
struct Other {
    /// When it is to be compared with, if at all.
    due: Option<Instant>,
    /// It keeps no keys; asked again then.
    none_until: Option<Instant>,
    busy: bool,
    /// It waits for keys itself.
    waits: bool,
}

/// The keys of this process as a part of the mesh. Cheap to clone.
#[derive(Clone)]
pub struct Keeper(Arc<Inner>);

struct Inner {
    keys: Keys,
    handle: Handle,
    others: Mutex<HashMap<PeerId, Other>>,
    started: Instant,
    agreed: Mutex<Option<Instant>>,
    synced: AtomicBool,
    had_others: AtomicBool,
}

impl Keeper {
    /// Takes up the keys in the name of a node. Blocks on the disk for a moment.
    ///
    /// # Errors
    /// The database refuses.
    pub fn new(handle: Handle, keys: Keys) -> Result<Self, Error> {
        keys.belong_to(handle.clone())?;
        let synced = AtomicBool::new(keys.was_synced()?);
        let had_others = AtomicBool::new(keys.note(OTHERS)?.is_some());
        let (others, started, agreed) = (Mutex::default(), Instant::now(), Mutex::default());
        Ok(Self(Arc::new(Inner { keys, handle, others, started, agreed, synced, had_others })))
    }

    /// The keys.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// Whether it has what the others have: since it compared with one of them, or made a key itself, now or earlier.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        let inner = &self.0;
        if inner.synced.load(Ordering::Acquire) {
            return true;
        }
        // Whoever else is there has nothing either.
        let alone = || {
            let others = self.others();
            self.holders_of(&others).iter().all(|peer| others.get(peer).is_some_and(|other| other.waits))
        };
        let first = inner.keys.may_change() && inner.started.elapsed() >= FIRST && alone();
        let synced = first || inner.keys.was_synced().unwrap_or(false);
        if synced {
            inner.synced.store(true, Ordering::Release);
        }
        synced
    }

    /// How long this proxy has compared its keys with nobody; `None` where there never was anybody else.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        if !self.0.had_others.load(Ordering::Acquire) {
            return None;
        }
        let agreed = *self.0.agreed.lock().unwrap_or_else(PoisonError::into_inner);
        Some(agreed.unwrap_or(self.0.started).elapsed())
    }

    /// Tells the others what was just said here, and waits a moment for them to have it on disk.
    pub async fn tell(&self, said: Signed) -> Spread {
        if said.is_empty() {
            return Spread::default();
        }
        for signed in &said {
            self.0.handle.gossip_key_statement(signed.clone()).await;
        }
        let mut telling = JoinSet::new();
        for peer in self.holders() {
            let (keeper, said) = (self.clone(), said.clone());
            telling.spawn(async move { (peer, keeper.push(peer, said, ACKNOWLEDGED).await) });
        }
        let mut spread = Spread::default();
        while let Some(told) = telling.join_next().await {
            let Ok((peer, told)) = told else { continue };
            match told {
                Ok(()) => spread.told += 1,
                Err(Failed::NotAHolder) => self.is_no_holder(peer),
                Err(error) => {
                    tracing::debug!(%peer, %error, "a change of keys was not acknowledged");
                    self.others().entry(peer).or_default().due = Some(Instant::now() + AGAIN);
                    spread.missing.push(peer.to_string());
                }
            }
        }
        spread
    }

    /// Those connected now who may hold keys, without those who said that they don't.
    fn holders(&self) -> Vec<PeerId> {
        self.holders_of(&self.others())
    }

    fn holders_of(&self, others: &HashMap<PeerId, Other>) -> Vec<PeerId> {
        let now = Instant::now();
        let none = |peer: &PeerId| others.get(peer).is_some_and(|other| other.none_until.is_some_and(|at| at > now));
        self.0.handle.key_holders().into_iter().filter(|peer| !none(peer)).collect()
    }

    fn is_no_holder(&self, peer: PeerId) {
        let mut others = self.others();
        let other = others.entry(peer).or_default();
        (other.due, other.none_until) = (None, Some(Instant::now() + NOT_A_HOLDER));
    }

    /// Compares and takes in until `shutdown`.
    pub async fn run(&self, shutdown: CancellationToken) {
        let mut look = time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = self.0.handle.key_statements();
        let mut comparing = JoinSet::new();
        let mut rng: StdRng = rand::make_rng();
        let (mut round, mut upkeep) = (Instant::now() + ROUND.start, Instant::now() + UPKEEP / 4);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(heard) = heard.next() => self.hear(&heard).await,
                Some(done) = comparing.join_next(), if !comparing.is_empty() => {
                    if let Ok((peer, done)) = done {
                        self.compared(peer, done);
                    }
                }
                _ = look.tick() => {
                    let now = Instant::now();
                    let by_chance = now >= round;
                    if by_chance {
                        round = now + rng.random_range(ROUND);
                    }
                    let most = AT_ONCE.saturating_sub(comparing.len());
                    for peer in self.due(by_chance.then_some(&mut rng), now, most) {
                        let keeper = self.clone();
                        comparing.spawn(async move { (peer, keeper.compare(peer).await) });
                    }
                    if now >= upkeep {
                        upkeep = now + UPKEEP;
                        self.keep_up().await;
                    }
                }
            }
        }
    }

    /// Whom to compare with now; `by_chance`: one more of those who are there.
    fn due(&self, by_chance: Option<&mut StdRng>, now: Instant, most: usize) -> Vec<PeerId> {
        let connected = self.0.handle.key_holders();
        let mut others = self.others();
        others.retain(|peer, _| connected.contains(peer));
        for peer in connected {
            // Who has just come, first of all.
            others.entry(peer).or_insert(Other { due: Some(now), ..Other::default() });
        }
        let holds = |other: &Other| !other.busy && other.none_until.is_none_or(|at| at <= now);
        if let Some(rng) = by_chance
            && let Some((_, other)) = others.iter_mut().filter(|(_, other)| holds(other)).choose(rng)
        {
            other.due = Some(now);
        }
        let due = others.iter_mut().filter(|(_, other)| holds(other) && other.due.is_some_and(|at| at <= now));
        due.take(most)
            .map(|(peer, other)| {
                (other.busy, other.due) = (true, None);
                *peer
            })
            .collect()
    }

    fn compared(&self, peer: PeerId, done: Result<usize, Failed>) {
        let now = Instant::now();
        {
            let mut others = self.others();
            let Some(other) = others.get_mut(&peer) else { return };
            other.busy = false;
            other.waits = matches!(done, Err(Failed::Status(http::StatusCode::SERVICE_UNAVAILABLE)));
            match &done {
                Ok(_) => {}
                Err(Failed::NotAHolder) => other.none_until = Some(now + NOT_A_HOLDER),
                Err(_) => _ = other.due.get_or_insert(now + AGAIN),
            }
        }
        match done {
            Ok(new) => {
                if new > 0 {
                    tracing::info!(%peer, new, "statements about keys fetched");
                }
                *self.0.agreed.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
                let first = !self.0.had_others.swap(true, Ordering::AcqRel);
                let unsynced = !self.0.synced.swap(true, Ordering::AcqRel);
                let noted = || {
                    if unsynced {
                        self.0.keys.set_synced()?;
                    }
                    if first { self.0.keys.set_note(OTHERS, "1") } else { Ok(()) }
                };
                if let Err(error) = noted() {
                    tracing::error!(%error, "not noted");
                }
            }
            Err(error) => tracing::debug!(%peer, %error, "keys not compared"),
        }
    }

    async fn hear(&self, heard: &Arc<(dunlin_protocol::key::KeyStatement, SignedKeyStatement)>) {
        let (keys, heard) = (self.0.keys.clone(), Arc::clone(heard));
        let taken = tokio::task::spawn_blocking(move || keys.take(vec![(*heard).clone()])).await;
        if let Ok(Err(error)) = taken {
            tracing::error!(%error, "a gossiped statement about a key was not stored");
        }
    }

    /// Statements live as long as somebody's certificate stands behind them: whoever keeps keys renews that of his own
    /// ones early, and of others' late, so that it is mostly their signer who does.
    async fn keep_up(&self) {
        let keeper = self.clone();
        let again = tokio::task::spawn_blocking(move || {
            let handle = &keeper.0.handle;
            let own = handle.members().own();
            let (peer, now) = (handle.peer_id(), clock::unix_s());
            let renewed = own.not_after.saturating_sub(now);
            keeper.0.keys.sign_again(SIGNED_AGAIN, |signed| {
                let Ok(certificate) = signed.chain.certificate.peek() else { return true };
                let left = certificate.not_after.saturating_sub(now);
                // With nothing better to give it would be signed again each time.
                let helps = renewed > left;
                let soon = if certificate.subject == peer { LEFT } else { LEFT / 4 };
                let revoked = match signed.chain.verify(now, &handle.mesh()) {
                    Ok(signer) => handle.members().is_revoked(&signer),
                    Err(certificate::Error::Expired { .. }) => true,
                    Err(_) => false,
                };
                certificate.subject != peer && revoked || helps && left < soon.as_secs()
            })
        });
        match again.await {
            Ok(Ok(said)) => {
                for part in said.chunks(limits::KEYS_PER_PUSH) {
                    self.tell(part.to_vec()).await;
                }
            }
            Ok(Err(Error::NotAllowed)) | Err(_) => {}
            Ok(Err(error)) => tracing::warn!(%error, "statements about keys were not signed again"),
        }
    }

    fn others(&self) -> MutexGuard<'_, HashMap<PeerId, Other>> {
        self.0.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
