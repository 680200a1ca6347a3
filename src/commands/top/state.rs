//! What `dunlin top` shows: the last looks at the node, which table, how it is sorted. Pure: keys and looks come in, tables
//! go out.

use super::sample::{Buckets, Counts, Sample};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use dunlin_node::{PeerInfo, ReplicaInfo};
use dunlin_protocol::announcement::ReplicaState;
use std::{
    cmp::Ordering,
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// Rates and latencies are of this time.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// Looks that are kept at most, however often one is taken.
const SAMPLES: usize = 64;
/// Rows by which a page key moves.
const PAGE: usize = 10;

/// Which table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    Replicas,
    Models,
    Peers,
}

impl Pane {
    pub(super) const ALL: [Self; 3] = [Self::Replicas, Self::Models, Self::Peers];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Replicas => "Replicas",
            Self::Models => "Models",
            Self::Peers => "Peers",
        }
    }

    fn header(self) -> &'static [&'static str] {
        match self {
            Self::Replicas => {
                &["REPLICA", "STATE", "RUN", "SLOTS", "WAIT", "KV", "TTFT", "TOK/S", "AGE", "RUNTIME", "SERVES"]
            }
            Self::Models => &["MODEL", "READY", "RUN", "SLOTS", "WAIT", "REQ/S", "FAIL/S", "P50", "P95", "TOK/S"],
            Self::Peers => &["PEER", "NAME", "STATE", "RTT", "ROLES", "REPLICAS"],
        }
    }
}

/// What a key asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Go,
    Quit,
}

/// One cell: what is shown, and what it is sorted by.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    number: Option<f64>,
    /// Worth a look.
    pub(super) mood: Mood,
}

/// How a cell is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    Plain,
    Wait,
    Bad,
}

impl Cell {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None, mood: Mood::Plain }
    }
    fn number(number: Option<f64>, show: impl Fn(f64) -> String) -> Self {
        Self { text: number.map_or_else(|| "-".to_owned(), show), number, mood: Mood::Plain }
    }
    fn count(number: impl Into<f64>) -> Self {
        Self::number(Some(number.into()), |count| format!("{count:.0}"))
    }
    fn mood(self, mood: Mood) -> Self {
        Self { mood, ..self }
    }

    /// Numbers from the largest, texts by the alphabet; what is not known comes last.
    fn before(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(a), Some(b)) => b.total_cmp(&a),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => self.text.cmp(&other.text),
        }
    }
}

/// A table, sorted.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) header: &'static [&'static str],
    pub(super) rows: Vec<Vec<Cell>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Order {
    column: usize,
    reversed: bool,
}

/// Everything that the screen shows.
#[derive(Debug)]
pub(super) struct State {
    samples: VecDeque<Sample>,
    /// Why the last look failed.
    pub(super) problem: Option<String>,
    pub(super) pane: Pane,
    orders: [Order; 3],
    first_rows: [usize; 3],
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            samples: VecDeque::new(),
            problem: None,
            pane: Pane::Replicas,
            orders: Default::default(),
            first_rows: [0; 3],
        }
    }

    /// Takes a look in. One at another process of the node starts anew: its counters did.
    pub(super) fn look(&mut self, sample: Sample) {
        self.problem = None;
        if self.newest().is_some_and(|newest| newest.status.epoch != sample.status.epoch) {
            self.samples.clear();
        }
        let now = sample.at;
        self.samples.push_back(sample);
        // The oldest that is kept is the last one from before the window, so that rates are of the whole of it.
        while self.samples.len() > SAMPLES
            || self.samples.get(1).is_some_and(|second| now.saturating_duration_since(second.at) >= WINDOW)
        {
            self.samples.pop_front();
        }
    }

    /// The node did not answer.
    pub(super) fn fail(&mut self, problem: String) {
        self.problem = Some(problem);
    }

    pub(super) fn newest(&self) -> Option<&Sample> {
        self.samples.back()
    }

    fn oldest(&self) -> Option<&Sample> {
        self.samples.front().filter(|_| self.samples.len() > 1)
    }

    pub(super) fn sorted_by(&self) -> (usize, bool) {
        let order = self.orders[self.pane as usize];
        (order.column, order.reversed)
    }

    pub(super) fn first_row(&self) -> usize {
        self.first_rows[self.pane as usize]
    }

    /// Does what a key stands for.
    pub(super) fn key(&mut self, key: KeyEvent) -> Wish {
        let pane = self.pane as usize;
        let columns = self.pane.header().len();
        let order = &mut self.orders[pane];
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Tab => self.pane = Pane::ALL[(pane + 1) % Pane::ALL.len()],
            KeyCode::BackTab => self.pane = Pane::ALL[(pane + Pane::ALL.len() - 1) % Pane::ALL.len()],
            KeyCode::Char(digit @ '1'..='3') => self.pane = Pane::ALL[digit as usize - '1' as usize],
            KeyCode::Right => order.column = (order.column + 1) % columns,
            KeyCode::Left => order.column = (order.column + columns - 1) % columns,
            KeyCode::Char('r') => order.reversed = !order.reversed,
            KeyCode::Down => self.scroll(1),
            KeyCode::PageDown => self.scroll(PAGE),
            KeyCode::Up => self.first_rows[pane] = self.first_rows[pane].saturating_sub(1),
            KeyCode::PageUp => self.first_rows[pane] = self.first_rows[pane].saturating_sub(PAGE),
            KeyCode::Home => self.first_rows[pane] = 0,
            KeyCode::End => self.scroll(usize::MAX),
            _ => {}
        }
        Wish::Go
    }

    fn scroll(&mut self, rows: usize) {
        let last = self.table().rows.len().saturating_sub(1);
        let first = &mut self.first_rows[self.pane as usize];
        *first = first.saturating_add(rows).min(last);
    }

    /// The table of the pane that is shown.
    pub(super) fn table(&self) -> Table {
        let header = self.pane.header();
        let Some(newest) = self.newest() else { return Table { header, rows: Vec::new() } };
        let mut rows = match self.pane {
            Pane::Replicas => self.replicas(newest),
            Pane::Models => self.models(newest),
            Pane::Peers => newest.peers.iter().map(peer_row).collect(),
        };
        let (column, reversed) = self.sorted_by();
        // Equals stay in the order of their first column.
        rows.sort_by(|a, b| a[0].before(&b[0]));
        rows.sort_by(|a, b| a[column].before(&b[column]));
        if reversed {
            rows.reverse();
        }
        Table { header, rows }
    }

    fn replicas(&self, newest: &Sample) -> Vec<Vec<Cell>> {
        let of_peer = |peer: &PeerInfo| -> Vec<Vec<Cell>> {
            peer.replicas.iter().map(|replica| self.replica_row(newest.at, peer, replica)).collect()
        };
        newest.peers.iter().flat_map(of_peer).collect()
    }

    fn replica_row(&self, now: Instant, peer: &PeerInfo, replica: &ReplicaInfo) -> Vec<Cell> {
        let (state, mood) = standing(peer, replica.state);
        let kv = replica.engine.and_then(|engine| engine.kv_used_permille).map(|permille| f64::from(permille) / 10.0);
        let ttft = replica.measured.and_then(|measured| measured.ttft_us).map(|us| f64::from(us) / 1e6);
        let models: Vec<_> = replica.models.iter().map(ToString::to_string).collect();
        let age = replica.report_age_ms.map(|ms| ms as f64 / 1e3);
        let stale = age.is_some_and(|age| age > 1.5);
        vec![
            Cell::text(format!("{}/{}", who(peer), replica.index)),
            Cell::text(state).mood(mood),
            Cell::count(running(replica)),
            Cell::count(replica.slots),
            Cell::count(waiting(replica)).mood(if waiting(replica) > 0 { Mood::Wait } else { Mood::Plain }),
            Cell::number(kv, |percent| format!("{percent:.0} %")).mood(if kv > Some(90.0) {
                Mood::Bad
            } else {
                Mood::Plain
            }),
            Cell::number(ttft, seconds),
            Cell::number(self.tokens_per_s(now, &peer.peer, replica), |rate| format!("{rate:.0}")),
            Cell::number(age, seconds).mood(if stale { Mood::Wait } else { Mood::Plain }),
            Cell::text(replica.runtime.as_ref().map(ToString::to_string).unwrap_or_default()),
            Cell::text(models.join(" ")),
        ]
    }

    /// Generated tokens per second over the window where the engine counts them, else the streamed chunks of the last second.
    fn tokens_per_s(&self, now: Instant, peer: &str, replica: &ReplicaInfo) -> Option<f64> {
        let generated = |replica: &ReplicaInfo| replica.engine.and_then(|engine| engine.generated_tokens);
        let before = self.oldest().and_then(|oldest| {
            let peer = oldest.peers.iter().find(|other| other.peer == peer)?;
            let replica = peer.replicas.iter().find(|other| other.index == replica.index)?;
            Some((oldest.at, generated(replica)?))
        });
        match (before, generated(replica)) {
            (Some((then, old)), Some(new)) if new >= old => {
                Some((new - old) as f64 / now.saturating_duration_since(then).as_secs_f64().max(1e-3))
            }
            _ => replica.measured.map(|measured| f64::from(measured.chunks_per_s)),
        }
    }

    fn models(&self, newest: &Sample) -> Vec<Vec<Cell>> {
        #[derive(Default)]
        struct Row {
            ready: u32,
            known: u32,
            running: u32,
            slots: u32,
            waiting: u32,
            tokens_per_s: Option<f64>,
        }
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        for peer in &newest.peers {
            for replica in &peer.replicas {
                for model in &replica.models {
                    let row = rows.entry(model.to_string()).or_default();
                    row.known += 1;
                    row.running += running(replica);
                    row.waiting += waiting(replica);
                    if replica.state == ReplicaState::Ready && is_reached(peer) {
                        row.ready += 1;
                        row.slots += u32::from(replica.slots);
                    }
                    let rate = self.tokens_per_s(newest.at, &peer.peer, replica);
                    row.tokens_per_s = rate.map(|rate| rate + row.tokens_per_s.unwrap_or(0.0)).or(row.tokens_per_s);
                }
            }
        }
        let flow = self.flow();
        let cells = |(model, row): (String, Row)| {
            let of_model = flow.as_ref().and_then(|flow| flow.models.get(&model));
            let latency = |quantile| of_model.and_then(|of_model| of_model.first_byte.quantile(quantile));
            let rate = |count: fn(&ModelFlow) -> f64| flow.as_ref().map(|_| of_model.map_or(0.0, count));
            let failing = rate(|of_model| of_model.failed).is_some_and(|rate| rate > 0.0);
            let ready = Cell {
                text: format!("{}/{}", row.ready, row.known),
                number: Some(f64::from(row.ready)),
                mood: if row.ready == 0 { Mood::Bad } else { Mood::Plain },
            };
            vec![
                Cell::text(model),
                ready,
                Cell::count(row.running),
                Cell::count(row.slots),
                Cell::count(row.waiting).mood(if row.waiting > 0 { Mood::Wait } else { Mood::Plain }),
                Cell::number(rate(|of_model| of_model.answered), per_second),
                Cell::number(rate(|of_model| of_model.failed), per_second).mood(if failing {
                    Mood::Bad
                } else {
                    Mood::Plain
                }),
                Cell::number(latency(0.5), seconds),
                Cell::number(latency(0.95), seconds),
                Cell::number(row.tokens_per_s, |rate| format!("{rate:.0}")),
            ]
        };
        rows.into_iter().map(cells).collect()
    }

    /// What passed through the proxy within the window; `None` without a proxy, and before the second look.
    pub(super) fn flow(&self) -> Option<Flow> {
        let (newest, oldest) = (self.newest()?, self.oldest()?);
        let time = newest.at.saturating_duration_since(oldest.at).as_secs_f64().max(1e-3);
        Some(Flow::between(oldest.proxy.as_ref()?, newest.proxy.as_ref()?, time))
    }

    /// Requests running and slots of all replicas that serve.
    pub(super) fn slots(&self) -> (u32, u32) {
        let peers = self.newest().map_or(&[][..], |newest| &newest.peers);
        let serving = peers.iter().filter(|peer| is_reached(peer)).flat_map(|peer| &peer.replicas);
        let serving = serving.filter(|replica| replica.state == ReplicaState::Ready);
        serving.fold((0, 0), |(busy, slots), replica| (busy + running(replica), slots + u32::from(replica.slots)))
    }
}

/// Rates of a proxy, per second, and latencies of the same time.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Flow {
    pub(super) answered: f64,
    pub(super) refused: f64,
    pub(super) retries: f64,
    pub(super) first_byte: Buckets,
    /// Shares of the answers by step of the routing ladder.
    pub(super) routes: BTreeMap<String, f64>,
    models: BTreeMap<String, ModelFlow>,
}

#[derive(Debug, Default, PartialEq)]
struct ModelFlow {
    answered: f64,
    failed: f64,
    first_byte: Buckets,
}

impl Flow {
    fn between(old: &Counts, new: &Counts, seconds: f64) -> Self {
        let rate = |new: f64, old: f64| ((new - old) / seconds).max(0.0);
        let mut flow = Self {
            refused: rate(new.refused, old.refused),
            retries: rate(new.retries, old.retries),
            ..Self::default()
        };
        for (name, model) in &new.models {
            let before = old.models.get(name);
            let was = |count: fn(&super::sample::OfModel) -> f64| before.map_or(0.0, count);
            let first_byte = model.first_byte.since(before.map(|before| &before.first_byte));
            flow.first_byte.add(&first_byte);
            let model = ModelFlow {
                answered: rate(model.answered, was(|before| before.answered)),
                failed: rate(model.failed, was(|before| before.failed)),
                first_byte,
            };
            flow.answered += model.answered;
            flow.models.insert(name.clone(), model);
        }
        for (route, count) in &new.routes {
            let share =
                rate(*count, old.routes.get(route).copied().unwrap_or(0.0)) / flow.answered.max(f64::MIN_POSITIVE);
            flow.routes.insert(route.clone(), share.min(1.0));
        }
        flow
    }
}

fn peer_row(peer: &PeerInfo) -> Vec<Cell> {
    let roles: Vec<_> = peer.roles.iter().map(|role| role.as_str()).collect();
    let mood = match peer.reachability.as_str() {
        "suspect" | "relayed" => Mood::Wait,
        "disconnected" | "revoked" => Mood::Bad,
        _ => Mood::Plain,
    };
    vec![
        Cell::text(&peer.peer),
        Cell::text(peer.name.as_ref().map(ToString::to_string).unwrap_or_default()),
        Cell::text(&peer.reachability).mood(mood),
        Cell::number(peer.rtt_us.map(|us| us as f64 / 1e6), seconds),
        Cell::text(roles.join(",")),
        Cell::count(u32::try_from(peer.replicas.len()).unwrap_or(u32::MAX)),
    ]
}

/// The name of a peer, or the end of its id: the starts of all ids are alike.
pub(super) fn who(peer: &PeerInfo) -> String {
    let id = &peer.peer;
    let end = || format!("..{}", id.get(id.len().saturating_sub(6)..).unwrap_or(id));
    peer.name.as_ref().map_or_else(end, ToString::to_string)
}

fn is_reached(peer: &PeerInfo) -> bool {
    matches!(peer.reachability.as_str(), "self" | "connected" | "relayed")
}

fn standing(peer: &PeerInfo, state: ReplicaState) -> (String, Mood) {
    match state {
        _ if !is_reached(peer) => (peer.reachability.clone(), Mood::Bad),
        ReplicaState::Ready => ("ready".to_owned(), Mood::Plain),
        ReplicaState::Starting => ("starting".to_owned(), Mood::Wait),
        ReplicaState::Unhealthy => ("unhealthy".to_owned(), Mood::Bad),
        ReplicaState::Draining => ("draining".to_owned(), Mood::Wait),
        ReplicaState::Gone => ("gone".to_owned(), Mood::Bad),
    }
}

/// Requests that the engine works on, whoever sent them where it tells.
fn running(replica: &ReplicaInfo) -> u32 {
    let told = replica.engine.and_then(|engine| engine.running);
    told.unwrap_or_else(|| u32::from(replica.in_flight.unwrap_or(0)))
}

/// Requests that wait at the agent and inside the engine.
fn waiting(replica: &ReplicaInfo) -> u32 {
    u32::from(replica.queued.unwrap_or(0)) + replica.engine.and_then(|engine| engine.waiting).unwrap_or(0)
}

/// `340 ms`, `1.2 s`.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        ..0.01 => format!("{:.1} ms", seconds * 1e3),
        0.01..1.0 => format!("{:.0} ms", seconds * 1e3),
        1.0..100.0 => format!("{seconds:.1} s"),
        _ => format!("{seconds:.0} s"),
    }
}

/// `0.4`, `12`.
pub(super) fn per_second(rate: f64) -> String {
    if rate < 9.95 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

#[cfg(test)]
pub(super) mod tests;
