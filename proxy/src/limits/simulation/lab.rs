//! The laboratory: proxies, messages between them on their way, clients, and a clock.

use crate::limits::{
    self, Caps,
    limiter::{Limiter, Outgoing, Taken},
    log::WINDOW,
};
use dunlin_protocol::{id::PeerId, lease::LeaseReply};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::{Duration, Instant},
};

const KEY: &str = "abcdefgh";
const TICK: Duration = limits::TICK;
const BORROW: Duration = limits::BORROW;
/// After so long of silence a connection is closed.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

pub(super) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[derive(Debug, Clone)]
pub(super) enum Event {
    Tick(usize),
    Request(usize),
    Report { from: usize, to: usize, sent: Outgoing },
    Reply { to: usize, sent: Outgoing, reply: LeaseReply },
    Lost { at: usize, sent: Outgoing },
    GivesUp { at: usize, request: u64 },
    See { at: usize },
    Kill(usize),
    Cut(usize),
    Mend(usize),
}

struct Waiter {
    request: u64,
    asked: bool,
}

struct Proxy {
    limiter: Limiter,
    alive: bool,
    waiting: Vec<Waiter>,
}

/// One run.
pub(super) struct Lab {
    start: Instant,
    now: Instant,
    pub(super) rng: StdRng,
    peers: Vec<PeerId>,
    proxies: Vec<Proxy>,
    events: BTreeMap<(Instant, u64), Event>,
    count: u64,
    delay: Range<Duration>,
    loss: f64,
    caps: Caps,
    /// Who is cut off from all others, and since when.
    cut: BTreeMap<usize, Instant>,
    pub(super) passed: Vec<(Duration, usize)>,
    offered: Vec<Duration>,
}

impl Lab {
    pub(super) fn new(count: usize, limit: i64, seed: u64, delay: Range<Duration>, loss: f64) -> Self {
        let start = Instant::now();
        let peers: Vec<PeerId> = (0..count).map(|n| PeerId::from_bytes(&[0, 4, 8, 1, 18, n as u8]).unwrap()).collect();
        let proxy =
            |peer: &PeerId| Proxy { limiter: Limiter::new(*peer, 1, [], start), alive: true, waiting: Vec::new() };
        let proxies = peers.iter().map(proxy).collect();
        let mut lab = Self {
            start,
            now: start,
            rng: StdRng::seed_from_u64(seed),
            peers,
            proxies,
            events: BTreeMap::new(),
            count: 0,
            delay,
            loss,
            caps: [Some(limit), None, None],
            cut: BTreeMap::new(),
            passed: Vec::new(),
            offered: Vec::new(),
        };
        for n in 0..count {
            lab.at(start, Event::See { at: n });
            let offset = lab.rng.random_range(Duration::ZERO..TICK);
            lab.at(start + offset, Event::Tick(n));
        }
        lab
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), event);
    }

    pub(super) fn after(&mut self, after: Duration, event: Event) {
        self.at(self.start + after, event);
    }

    /// Requests at each proxy, so many a minute, one after the other.
    pub(super) fn offer(&mut self, during: Range<Duration>, per_minute: &[f64]) {
        for (to, rate) in per_minute.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
            let gap = Duration::from_secs_f64(60.0 / rate);
            let mut at = during.start + self.rng.random_range(Duration::ZERO..gap);
            while at < during.end {
                self.after(at, Event::Request(to));
                at += gap;
            }
        }
    }

    /// Requests by chance, at one proxy or another.
    pub(super) fn offer_by_chance(&mut self, during: Range<Duration>, per_minute: f64) {
        let mut at = during.start;
        while at < during.end {
            let to = self.rng.random_range(0..self.peers.len());
            self.after(at, Event::Request(to));
            // Poisson.
            let gap = -self.rng.random::<f64>().max(1e-9).ln() * 60.0 / per_minute;
            at += Duration::from_secs_f64(gap);
        }
    }

    fn reach(&self, a: usize, b: usize) -> bool {
        a != b
            && self.proxies[a].alive
            && self.proxies[b].alive
            && !self.cut.contains_key(&a)
            && !self.cut.contains_key(&b)
    }

    /// Those whose connection is open as `at` sees it.
    fn connected(&self, at: usize) -> BTreeSet<PeerId> {
        let open = |other: usize| {
            let silent = [at, other].iter().filter_map(|n| self.cut.get(n)).min();
            other != at
                && self.proxies[other].alive
                && silent.is_none_or(|since| self.now.saturating_duration_since(*since) < SILENCE)
        };
        (0..self.peers.len()).filter(|other| open(*other)).map(|other| self.peers[other]).collect()
    }

    fn number(&self, peer: &PeerId) -> usize {
        self.peers.iter().position(|known| known == peer).unwrap()
    }

    fn send(&mut self, from: usize, sent: Outgoing) {
        let to = self.number(&sent.to);
        let delay = self.rng.random_range(self.delay.clone());
        let lost = self.rng.random_bool(self.loss) || !self.reach(from, to);
        if lost {
            self.at(self.now + limits::REPORT, Event::Lost { at: from, sent });
        } else {
            self.at(self.now + delay, Event::Report { from, to, sent });
        }
    }

    fn pass(&mut self, at: usize) {
        self.passed.push((self.now - self.start, at));
    }

    fn borrow(&mut self, at: usize) {
        let waiting = self.proxies[at].waiting.len() as i64;
        if let Some(sent) = self.proxies[at].limiter.borrow(KEY, &[waiting, 0, 0], self.now) {
            self.proxies[at].waiting.iter_mut().for_each(|waiter| waiter.asked = true);
            self.send(at, sent);
        }
    }

    /// Who waits for what was asked about looks again.
    fn through(&mut self, at: usize, sent: &Outgoing) {
        if !sent.report.keys.is_empty() {
            self.wake(at);
        }
    }

    /// The owner has answered or not: who waits looks again.
    fn wake(&mut self, at: usize) {
        let waiting = std::mem::take(&mut self.proxies[at].waiting);
        for waiter in waiting {
            match self.proxies[at].limiter.take_now(KEY, &[1, 0, 0], self.now) {
                Taken::Yes => self.pass(at),
                _ if self.proxies[at].limiter.is_unsure(KEY, self.now) => {
                    self.proxies[at].waiting.push(Waiter { asked: false, ..waiter });
                }
                _ if !waiter.asked => self.proxies[at].waiting.push(waiter),
                _ => {}
            }
        }
        if !self.proxies[at].waiting.is_empty() {
            self.borrow(at);
        }
    }

    /// Those who wait for nobody's answer look now and then.
    fn look_again(&mut self, at: usize) {
        let (asked, waiting) =
            std::mem::take(&mut self.proxies[at].waiting).into_iter().partition(|waiter| waiter.asked);
        self.proxies[at].waiting = asked;
        for waiter in waiting {
            match self.proxies[at].limiter.take_now(KEY, &[1, 0, 0], self.now) {
                Taken::Yes => self.pass(at),
                _ => self.proxies[at].waiting.push(waiter),
            }
        }
        if self.proxies[at].waiting.iter().any(|waiter| !waiter.asked) {
            self.borrow(at);
        }
    }

    fn step(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Tick(n) if self.proxies[n].alive => {
                let connected = self.connected(n);
                self.proxies[n].limiter.connected(&connected, now);
                if self.proxies[n].limiter.is_due(now) {
                    for sent in self.proxies[n].limiter.reports(now) {
                        self.send(n, sent);
                    }
                }
                self.look_again(n);
                self.at(now + TICK, Event::Tick(n));
            }
            Event::Request(n) if self.proxies[n].alive => {
                self.offered.push(now - self.start);
                match self.proxies[n].limiter.take(KEY, &self.caps, &[1, 0, 0], false, now) {
                    Taken::Yes => self.pass(n),
                    Taken::No(_) => {}
                    Taken::Ask => {
                        self.count += 1;
                        let request = self.count;
                        self.proxies[n].waiting.push(Waiter { request, asked: false });
                        self.at(now + BORROW, Event::GivesUp { at: n, request });
                        self.borrow(n);
                    }
                }
            }
            Event::Report { from, to, sent } if self.proxies[to].alive => {
                let caps = self.caps;
                let reply = self.proxies[to].limiter.report(self.peers[from], &sent.report, |_| Some(caps), now);
                let delay = self.rng.random_range(self.delay.clone());
                if self.rng.random_bool(self.loss) || !self.reach(from, to) {
                    self.at(now + limits::REPORT, Event::Lost { at: from, sent });
                } else {
                    self.at(now + delay, Event::Reply { to: from, sent, reply });
                }
            }
            Event::Reply { to, sent, reply } if self.proxies[to].alive => {
                self.proxies[to].limiter.answered(&sent, &reply, now);
                self.through(to, &sent);
            }
            Event::Lost { at, sent } if self.proxies[at].alive => {
                self.proxies[at].limiter.lost(&sent);
                self.through(at, &sent);
            }
            Event::GivesUp { at, request } => self.proxies[at].waiting.retain(|waiter| waiter.request != request),
            Event::See { at } if self.proxies[at].alive => {
                let connected = self.connected(at);
                self.proxies[at].limiter.connected(&connected, now);
            }
            Event::Kill(n) => {
                self.proxies[n].alive = false;
                self.proxies[n].waiting.clear();
                (0..self.peers.len()).for_each(|at| self.at(now + Duration::from_millis(5), Event::See { at }));
            }
            Event::Cut(n) => _ = self.cut.insert(n, now),
            Event::Mend(n) => _ = self.cut.remove(&n),
            _ => {}
        }
    }

    pub(super) fn run(&mut self) {
        let end = self.events.keys().rev().map(|(at, _)| *at).find(|at| *at > self.start).unwrap();
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > end {
                break;
            }
            self.now = at;
            self.step(event);
        }
    }

    /// The most that passed in any minute that ends within `within`.
    pub(super) fn most(&self, within: Range<Duration>) -> usize {
        let times: Vec<Duration> = self.passed.iter().map(|(at, _)| *at).collect();
        let mut first = 0;
        let counts = times.iter().enumerate().map(|(last, at)| {
            while times[first] + WINDOW <= *at {
                first += 1;
            }
            (at, last + 1 - first)
        });
        counts.filter(|(at, _)| within.contains(*at)).map(|(_, count)| count).max().unwrap_or(0)
    }

    /// The fewest that passed in any minute of `within`, looked at each second.
    pub(super) fn fewest(&self, within: Range<Duration>, of: &[usize]) -> usize {
        let minutes = within.start.as_secs()..=(within.end - WINDOW).as_secs();
        let count = |from: u64| {
            let window = seconds(from)..seconds(from) + WINDOW;
            self.passed.iter().filter(|(at, proxy)| window.contains(at) && of.contains(proxy)).count()
        };
        minutes.map(count).min().unwrap()
    }

    /// What one proxy alone would have let pass: how much in all.
    pub(super) fn ideal(&self, limit: usize) -> usize {
        let mut passed: Vec<Duration> = Vec::new();
        for at in &self.offered {
            if passed.len() < limit || passed[passed.len() - limit] + WINDOW <= *at {
                passed.push(*at);
            }
        }
        passed.len()
    }
}
