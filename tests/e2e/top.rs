//! `dunlin top` on a terminal of its own.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    node::{Home, Mesh},
    sandbox::Sandbox,
    terminal::Terminal,
    wait_for,
};
use rustix::process::Signal;

/// What ends the alternate screen (xterm's control sequences, DECSET 1049).
const LEAVES_SCREEN: &str = "\x1b[?1049l";

/// `dunlin top` on a terminal.
struct Top(Terminal);

impl Top {
    fn start(home: &Home<'_>, args: &[&str]) -> Self {
        Self(Terminal::start(home, &[&["top"], args].concat()))
    }

    fn shown(&self) -> String {
        self.0.shown()
    }

    fn wait_until_drawn(&self) {
        wait_for("the screen to be drawn", PATIENCE, || self.shown().contains("Peers").then_some(()));
        assert!(self.0.is_raw());
    }

    #[track_caller]
    fn assert_ended_and_restored(mut self) {
        let status = wait_for("`dunlin top` to end", PATIENCE, || self.0.child.try_wait().unwrap());
        assert!(status.success(), "{status}: {}", self.shown());
        assert!(!self.0.is_raw(), "the terminal is as it was");
        wait_for("the end of the alternate screen", PATIENCE, || self.shown().contains(LEAVES_SCREEN).then_some(()));
    }
}

#[test]
fn top_shows_the_mesh_and_gives_the_terminal_back() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    for _ in 0..3 {
        mesh.endpoint.chat("demo", "hello", 4).unwrap().content();
    }

    let mut by_key = Top::start(&mesh.proxy.home, &["--interval", "0.2"]);
    by_key.wait_until_drawn();
    // The counters of the proxy, and what the agent says.
    // Words: between them the cursor jumps.
    wait_for("rates", PATIENCE, || by_key.shown().contains("p50").then_some(()));
    assert!(by_key.shown().contains("fresh"), "{}", by_key.shown());
    by_key.0.types(b"\t");
    wait_for("the other table", PATIENCE, || by_key.shown().contains("REQ/S").then_some(()));
    by_key.0.types(b"q");
    by_key.assert_ended_and_restored();

    for ends in [Signal::TERM, Signal::INT, Signal::HUP] {
        let by_signal = Top::start(&mesh.proxy.home, &[]);
        by_signal.wait_until_drawn();
        by_signal.0.signal(ends);
        by_signal.assert_ended_and_restored();
    }

    // It outlives the node, and says so.
    let mut alone = Top::start(&mesh.proxy.home, &["--interval", "0.2"]);
    alone.wait_until_drawn();
    let Mesh { proxy, .. } = mesh;
    drop(proxy.process);
    wait_for("the end of the node to be told", PATIENCE, || alone.shown().contains("again").then_some(()));
    // Ctrl-C of a terminal in raw mode.
    alone.0.types(&[3]);
    alone.assert_ended_and_restored();
}

#[test]
fn without_a_terminal_top_names_what_programs_read() {
    let sandbox = Sandbox::new();
    let output = Home::new(&sandbox, "nobody").run(&["top"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("dunlin status --output json"), "{output:?}");
    let top = Top::start(&Home::new(&sandbox, "nobody"), &[]);
    let mut top = top.0;
    let status = wait_for("`dunlin top` to end", PATIENCE, || top.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(3), "no node runs");
    let said = top.shown();
    assert!(!said.contains("\x1b[?1049h"), "the screen was not taken: {said:?}");
}
