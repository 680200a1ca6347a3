//! `dunlin chat` and Ctrl-C: an answer that nobody wants any more ends, and nothing is left behind.

use crate::harness::{
    PATIENCE,
    node::{Home, Mesh},
    sandbox::Sandbox,
    terminal::Terminal,
    wait_for,
};
use rustix::process::{Pid, Signal};
use std::{
    io::Read,
    process::{Child, Stdio},
};

const SLOW: [&str; 7] = ["--launch", "demo", "--", "--tokens-per-second", "5", "--slots", "4"];

fn running(home: &Home<'_>) -> u64 {
    home.list(&["models"])[0]["in_flight"].as_u64().unwrap()
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::INT).unwrap();
}

/// The code that shells give, some of an answer, and an engine that is free again.
#[test]
fn an_interrupted_question_ends_its_request() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("a", &SLOW);
    mesh.proxy.wait_for_replicas("demo", 1);
    let home = &mesh.proxy.home;
    let mut command = home.command(&["chat", "--max-tokens", "1000", "demo", "hello"]);
    let mut chat = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    chat.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    wait_for("the request to run", PATIENCE, || (running(home) == 1).then_some(()));
    interrupt(&chat);
    let output = chat.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.as_str()), (Some(130), "error: interrupted\n"));
    wait_for("the engine to stop", PATIENCE, || (running(home) == 0).then_some(()));

    // One that waits for a question that never comes.
    let mut command = home.command(&["chat", "demo"]);
    let mut chat = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    interrupt(&chat);
    let status = wait_for("the end", PATIENCE, || chat.try_wait().unwrap());
    assert_eq!(status.code(), Some(130));
}

#[test]
fn an_interrupted_answer_is_not_the_end_of_a_conversation() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("a", &SLOW);
    mesh.proxy.wait_for_replicas("demo", 1);
    let mut chat = Terminal::start(&mesh.proxy.home, &["chat", "--max-tokens", "1000", "demo"]);
    for question in 1..=2 {
        wait_for("the prompt", PATIENCE, || chat.is_raw().then_some(()));
        chat.types(b"hello\r");
        wait_for("the answer to begin", PATIENCE, || (!chat.is_raw() && running(&mesh.proxy.home) == 1).then_some(()));
        chat.signal(Signal::INT);
        wait_for("the word that it stopped", PATIENCE, || {
            (chat.shown().matches("stopped").count() == question).then_some(())
        });
        wait_for("the engine to stop", PATIENCE, || (running(&mesh.proxy.home) == 0).then_some(()));
    }
    wait_for("the prompt", PATIENCE, || chat.is_raw().then_some(()));
    // At the prompt it is a key, and the end.
    chat.types(&[3]);
    let status = wait_for("the end", PATIENCE, || chat.child.try_wait().unwrap());
    assert!(status.success(), "{status}: {}", chat.shown());
    assert!(!chat.is_raw(), "the terminal is as it was");
}

/// A node that was started for one question says farewell, and its folder is free again.
#[test]
fn a_node_of_a_command_ends_with_it() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("a", &SLOW);
    mesh.proxy.wait_for_replicas("demo", 1);
    let token = mesh.proxy.home.ask(&["invite", "--role", "proxy"]);
    let guest = Home::new(&sandbox, "guest");
    guest.join(&token);
    let mut command = guest.command(&["chat", "--max-tokens", "1000", "demo", "hello"]);
    let mut chat = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    chat.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    interrupt(&chat);
    let output = chat.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    wait_for("the engine to stop", PATIENCE, || (running(&mesh.proxy.home) == 0).then_some(()));
    assert_eq!(guest.run(&["status"]).status.code(), Some(3), "no node is left");
}
