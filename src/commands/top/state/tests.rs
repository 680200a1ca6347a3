use super::*;
use crate::commands::{
    service::Process,
    top::sample::{Buckets, OfModel},
};
use dunlin_node::control::Status;
use dunlin_protocol::{
    id::{ModelId, Name, Role},
    load::{EngineLoad, Measured},
};

/// One peer without replicas and without a proxy.
pub(in crate::commands::top) fn sample(at: Instant) -> Sample {
    let peer = PeerInfo {
        peer: "12D3KooWabcdef".to_owned(),
        name: Some(Name::new("desk").unwrap()),
        roles: vec![Role::Agent, Role::Proxy],
        reachability: "self".to_owned(),
        rtt_us: None,
        addresses: Vec::new(),
        not_after: None,
        duplicate: false,
        replicas: Vec::new(),
    };
    let status = Status {
        peer: peer.peer.clone(),
        mesh: "0a0b0c0d0e0f".to_owned(),
        name: peer.name.clone(),
        roles: peer.roles.clone(),
        issuer: true,
        delegation: None,
        revoked: false,
        revoked_says: None,
        not_after: 0,
        expires_in_s: 0,
        epoch: 1,
        listen: Vec::new(),
        connected: 1,
        models: 1,
        other_meshes: Vec::new(),
        version: "1.2.3".to_owned(),
    };
    let process = Process { endpoint: None, no_auth: false, pid: 1 };
    Sample { at, status, process, peers: vec![peer], proxy: None }
}

fn replica(index: u16) -> ReplicaInfo {
    let engine = EngineLoad {
        running: Some(6),
        waiting: Some(1),
        kv_used_permille: Some(420),
        generated_tokens: None,
        ..EngineLoad::default()
    };
    ReplicaInfo {
        index,
        state: ReplicaState::Ready,
        runtime: Some("vllm".parse().unwrap()),
        slots: 8,
        in_flight: Some(6),
        report_age_ms: Some(200),
        queued: Some(0),
        measured: Some(Measured { ttft_us: Some(30_000), chunks_per_s: 77, ..Measured::default() }),
        engine: Some(engine),
        models: ["qwen", "qwen-lora"].map(|id| ModelId::new(id).unwrap()).to_vec(),
    }
}

/// A node with one busy replica, `second` seconds after `start`: 10 requests and 120 tokens each second.
pub(in crate::commands::top) fn busy(start: Instant, second: u32) -> Sample {
    let mut sample = sample(start + Duration::from_secs(second.into()));
    let mut replica = replica(0);
    if let Some(engine) = &mut replica.engine {
        engine.generated_tokens = Some(1_000 + 120 * u64::from(second));
    }
    sample.peers[0].replicas.push(replica);
    sample.process.endpoint = Some("http://127.0.0.1:8480".to_owned());
    let answered = 10.0 * f64::from(second);
    let model = OfModel {
        answered: 500.0 + answered,
        failed: 0.0,
        first_byte: Buckets(vec![(0.1, 400.0 + answered), (0.2, 500.0 + answered), (f64::INFINITY, 500.0 + answered)]),
    };
    sample.proxy = Some(Counts {
        waiting: 2.0,
        in_flight: 6.0,
        connections: 3.0,
        retries: 0.2 * f64::from(second),
        routes: BTreeMap::from([
            ("fresh".to_owned(), 500.0 + answered * 0.75),
            ("round-robin".to_owned(), answered * 0.25),
        ]),
        models: BTreeMap::from([("qwen".to_owned(), model)]),
        ..Counts::default()
    });
    sample
}

fn press(state: &mut State, code: KeyCode) -> Wish {
    state.key(KeyEvent::from(code))
}

fn column(state: &State, at: usize) -> Vec<String> {
    state.table().rows.iter().map(|row| row[at].text.clone()).collect()
}

#[test]
fn rates_are_of_the_window_and_of_one_process() {
    let start = Instant::now();
    let mut state = State::new();
    state.look(busy(start, 0));
    assert_eq!(state.flow(), None, "one look tells no rate");
    for second in 1..=100 {
        state.look(busy(start, second));
        assert!(state.samples.len() <= 11, "{}", state.samples.len());
    }
    assert!((state.flow().unwrap().answered - 10.0).abs() < 1e-6);
    let mut again = busy(start, 101);
    again.status.epoch = 2;
    state.look(again);
    assert_eq!(state.flow(), None, "the counters of another process begin anew");
    // However often is looked, what is kept is bounded.
    for _ in 0..1_000 {
        state.look(busy(start, 102));
    }
    assert!(state.samples.len() <= SAMPLES);
}

#[test]
fn engines_that_count_no_tokens_are_shown_by_their_streams() {
    let start = Instant::now();
    let mut state = State::new();
    let mut look = busy(start, 0);
    look.peers[0].replicas[0].engine = None;
    state.look(look);
    assert_eq!(column(&state, 7), ["77"]);
    assert_eq!(column(&state, 2), ["6"], "the agent's own count");
    assert_eq!(column(&state, 5), ["-"]);
}

#[test]
fn tables_are_sorted_by_any_column() {
    let mut look = sample(Instant::now());
    let names = ["b", "a", "c"];
    let mut peers = Vec::new();
    for (at, name) in (1_u16..).zip(names) {
        let mut peer = look.peers[0].clone();
        peer.name = Some(Name::new(name).unwrap());
        peer.replicas = vec![ReplicaInfo { slots: at, ..replica(0) }];
        peers.push(peer);
    }
    peers[1].replicas[0].engine = None;
    look.peers = peers;
    let mut state = State::new();
    state.look(look);
    assert_eq!(column(&state, 0), ["a/0", "b/0", "c/0"]);
    assert_eq!(press(&mut state, KeyCode::Char('r')), Wish::Go);
    assert_eq!(column(&state, 0), ["c/0", "b/0", "a/0"]);
    press(&mut state, KeyCode::Char('r'));
    for _ in 0..3 {
        press(&mut state, KeyCode::Right);
    }
    assert_eq!(column(&state, 3), ["3", "2", "1"], "numbers from the largest");
    press(&mut state, KeyCode::Right);
    press(&mut state, KeyCode::Right);
    assert_eq!(column(&state, 5), ["42 %", "42 %", "-"], "what is not known comes last");
    for _ in 0..5 {
        press(&mut state, KeyCode::Left);
    }
    press(&mut state, KeyCode::Left);
    assert_eq!(state.sorted_by().0, 10, "around the end");
}

#[test]
fn a_replica_that_is_not_reached_does_not_count() {
    let mut look = busy(Instant::now(), 0);
    look.peers[0].reachability = "disconnected".to_owned();
    let mut state = State::new();
    state.look(look);
    assert_eq!(column(&state, 1), ["disconnected"]);
    assert_eq!(state.slots(), (0, 0));
    press(&mut state, KeyCode::Char('2'));
    assert_eq!(column(&state, 1), ["0/1", "0/1"]);
}

#[test]
fn scrolling_ends_at_the_last_row_and_panes_go_round() {
    let mut look = sample(Instant::now());
    look.peers[0].replicas = (0..30).map(replica).collect();
    let mut state = State::new();
    state.look(look);
    for (code, row) in [
        (KeyCode::Up, 0),
        (KeyCode::Down, 1),
        (KeyCode::PageDown, 11),
        (KeyCode::PageUp, 1),
        (KeyCode::End, 29),
        (KeyCode::Down, 29),
        (KeyCode::Home, 0),
    ] {
        press(&mut state, code);
        assert_eq!(state.first_row(), row, "{code:?}");
    }
    press(&mut state, KeyCode::BackTab);
    assert_eq!(state.pane, Pane::Peers);
    press(&mut state, KeyCode::Tab);
    assert_eq!(state.pane, Pane::Replicas);
    assert_eq!(press(&mut state, KeyCode::Char('q')), Wish::Quit);
    assert_eq!(press(&mut state, KeyCode::Esc), Wish::Quit);
    assert_eq!(state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Wish::Quit);
    assert_eq!(press(&mut state, KeyCode::Char('c')), Wish::Go);
}
