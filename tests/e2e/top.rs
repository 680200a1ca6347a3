//! `dunlin top` on a terminal of its own.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    node::{Home, Mesh},
    sandbox::Sandbox,
    wait_for,
};
use rustix::{
    process::{Pid, Signal},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
};

/// What ends the alternate screen (xterm's control sequences, DECSET 1049).
const LEAVES_SCREEN: &str = "\x1b[?1049l";

/// `dunlin top` in a pseudo-terminal of 120 x 30.
struct Top {
    child: Child,
    keyboard: File,
    /// The program's side.
    terminal: File,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Top {
    fn start(home: &Home<'_>, args: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let terminal = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        tcsetwinsize(&terminal, Winsize { ws_row: 30, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let side = || Stdio::from(OwnedFd::from(terminal.try_clone().unwrap()));
        let child =
            home.command(&[&["top"], args].concat()).stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        let keyboard = File::from(master);
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, sink) = (keyboard.try_clone().unwrap(), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Ends with an error when nobody has the other side open any more.
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                sink.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self { child, keyboard, terminal, written }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    fn wait_until_drawn(&self) {
        wait_for("the screen to be drawn", PATIENCE, || self.shown().contains("Peers").then_some(()));
        assert!(self.is_raw());
    }

    #[track_caller]
    fn assert_ended_and_restored(mut self) {
        let status = wait_for("`dunlin top` to end", PATIENCE, || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}: {}", self.shown());
        assert!(!self.is_raw(), "the terminal is as it was");
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
    by_key.keyboard.write_all(b"\t").unwrap();
    wait_for("the other table", PATIENCE, || by_key.shown().contains("REQ/S").then_some(()));
    by_key.keyboard.write_all(b"q").unwrap();
    by_key.assert_ended_and_restored();

    for ends in [Signal::TERM, Signal::INT, Signal::HUP] {
        let by_signal = Top::start(&mesh.proxy.home, &[]);
        by_signal.wait_until_drawn();
        let pid = Pid::from_raw(i32::try_from(by_signal.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, ends).unwrap();
        by_signal.assert_ended_and_restored();
    }

    // It outlives the node, and says so.
    let mut alone = Top::start(&mesh.proxy.home, &["--interval", "0.2"]);
    alone.wait_until_drawn();
    let Mesh { proxy, .. } = mesh;
    drop(proxy.process);
    wait_for("the end of the node to be told", PATIENCE, || alone.shown().contains("again").then_some(()));
    // Ctrl-C of a terminal in raw mode.
    alone.keyboard.write_all(&[3]).unwrap();
    alone.assert_ended_and_restored();
}

#[test]
fn without_a_terminal_top_names_what_programs_read() {
    let sandbox = Sandbox::new();
    let output = Home::new(&sandbox, "nobody").run(&["top"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("dunlin status --output json"), "{output:?}");
    let top = Top::start(&Home::new(&sandbox, "nobody"), &[]);
    let mut child = top.child;
    let status = wait_for("`dunlin top` to end", PATIENCE, || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(3), "no node runs");
    let said = String::from_utf8_lossy(&top.written.lock().unwrap()).into_owned();
    assert!(!said.contains("\x1b[?1049h"), "the screen was not taken: {said:?}");
}
