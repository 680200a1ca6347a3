//! Clients by the thousand that do next to nothing.

use crate::harness::{engine::DemoEngine, http::chat_body, node::Mesh, sandbox::Sandbox};
use crate::overload::{asker::open_many_files, memory::resident_kib};
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

const IDLE: usize = 5000;
/// Memory of the proxy for each of them, KiB.
const IDLE_KIB: u64 = 64;
const UNREAD: usize = 200;
/// The same for a client that reads nothing of an answer that is there: its buffer in the proxy, and its share of the hop.
const UNREAD_KIB: u64 = 384;

fn resident(mesh: &Mesh<'_>) -> u64 {
    resident_kib(mesh.proxy.process.id())
}

/// They keep their connections and say nothing: that costs little, and nobody is hindered.
#[test]
fn thousands_of_idle_connections_cost_little_and_hinder_nobody() {
    open_many_files();
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &["--tokens-per-second", "0"]);
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.endpoint.chat("demo", "hello", 4).unwrap().content();
    let before = resident(&mesh);
    let hello = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut idle: Vec<TcpStream> = (0..IDLE)
        .map(|n| {
            let mut stream = TcpStream::connect(mesh.endpoint.address).unwrap_or_else(|error| panic!("{n}: {error}"));
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream.write_all(hello).unwrap();
            stream
        })
        .collect();
    let answered = |stream: &mut TcpStream| {
        let mut answer = [0; 1024];
        let read = stream.read(&mut answer).unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200 "), "{:?}", String::from_utf8_lossy(&answer[..read]));
    };
    idle.iter_mut().for_each(answered);
    let grown = resident(&mesh).saturating_sub(before);
    println!("{IDLE} idle connections: {} KiB in the proxy, {:.1} each", grown, grown as f64 / IDLE as f64);
    assert!(grown < IDLE as u64 * IDLE_KIB, "{grown} KiB for {IDLE} idle connections");
    let since = Instant::now();
    mesh.endpoint.chat("demo", "hello", 4).unwrap().content();
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    // They are there still.
    for stream in idle.iter_mut().step_by(100) {
        stream.write_all(hello).unwrap();
        answered(stream);
    }
}

/// An answer that its client leaves unread stops at the engine: what is held for it doesn't grow.
#[test]
fn who_reads_nothing_holds_a_buffer_and_no_more() {
    open_many_files();
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &["--tokens-per-second", "0", "--slots", "256"]);
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.endpoint.chat("demo", "hello", 4).unwrap().content();
    let before = resident(&mesh);
    let body = chat_body("demo", "hello", 1_000_000, true).to_string();
    let key = mesh.endpoint.key.as_deref().unwrap();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let unread: Vec<TcpStream> = (0..UNREAD)
        .map(|_| {
            let mut stream = TcpStream::connect(mesh.endpoint.address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    let mut grown = 0;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(250));
        grown = resident(&mesh).saturating_sub(before).max(grown);
    }
    println!("{UNREAD} unread answers: {grown} KiB in the proxy, {:.1} each", grown as f64 / UNREAD as f64);
    assert!(grown < UNREAD as u64 * UNREAD_KIB, "{grown} KiB for {UNREAD} unread answers");
    drop(unread);
}
