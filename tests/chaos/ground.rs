//! Where it all happens: a host for the proxy, and one for each replica; or, where no hosts can be made, loopback.

use super::{ENGINE, script::Fault};
use crate::harness::{
    engine::DemoEngine,
    http::Endpoint,
    load::Workers,
    netns::{Host, Lab, within},
    node::{Home, LOOPBACK, Node},
    sandbox::Sandbox,
};
use rustix::process::Signal;
use std::{net::SocketAddr, time::Duration};

const RESTART: Duration = Duration::from_secs(60);
/// Share of packets that a slow cable loses, each way.
const LOSS_PERCENT: u32 = 15;

/// The hosts.
pub(super) struct Ground<'a> {
    sandbox: &'a Sandbox,
    lab: Option<(Lab, Vec<Host>)>,
}

impl<'a> Ground<'a> {
    /// So many hosts: the proxy's, and the replicas'.
    pub(super) fn new(sandbox: &'a Sandbox, hosts: usize) -> Self {
        let lab = Lab::new(sandbox).map(|mut lab| {
            let names: Vec<String> = (0..hosts).map(|n| format!("h{n}")).collect();
            let hosts = lab.star(&names.iter().map(String::as_str).collect::<Vec<_>>());
            (lab, hosts)
        });
        Self { sandbox, lab }
    }

    /// Whether cables can be cut.
    pub(super) fn has_network(&self) -> bool {
        self.lab.is_some()
    }

    pub(super) fn home(&self, name: &str, host: usize) -> Home<'a> {
        match &self.lab {
            Some((_, hosts)) => Home::within(self.sandbox, name, &hosts[host].namespace),
            None => Home::new(self.sandbox, name),
        }
    }

    /// Arguments that say where a node listens.
    pub(super) fn listen(&self, host: usize) -> Vec<String> {
        match &self.lab {
            Some((_, hosts)) => {
                let (tcp, quic) = (hosts[host].address.clone(), hosts[host].address.clone());
                let (tcp, quic) = (format!("/ip4/{tcp}/tcp/0"), format!("/ip4/{quic}/udp/0/quic-v1"));
                vec!["--no-mdns".into(), "--listen".into(), tcp, "--listen".into(), quic]
            }
            None => LOOPBACK.map(str::to_owned).into(),
        }
    }

    pub(super) fn engine(&self, name: &str, host: usize, at: Option<SocketAddr>, args: &[&str]) -> DemoEngine {
        match (&self.lab, at) {
            (Some((_, hosts)), at) => {
                let address = at.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8000)));
                DemoEngine::start_within(self.sandbox, name, &hosts[host].namespace, address, args)
            }
            (None, Some(at)) => DemoEngine::start_at(self.sandbox, name, at, args),
            (None, None) => DemoEngine::start(self.sandbox, name, args),
        }
    }

    /// Runs `action` on that host, and the threads that it starts.
    pub(super) fn on<T: Send>(&self, host: usize, action: impl FnOnce() -> T + Send) -> T {
        match &self.lab {
            Some((_, hosts)) => within(&hosts[host].namespace, action),
            None => action(),
        }
    }

    fn cable(&self, host: usize, action: impl FnOnce(&Lab, &str)) {
        let (lab, hosts) = self.lab.as_ref().unwrap();
        action(lab, &hosts[host].namespace);
    }
}

/// One replica: an engine and the agent beside it.
pub(super) struct Replica<'a> {
    number: usize,
    host: usize,
    address: SocketAddr,
    args: Vec<String>,
    /// Its state directory, while no agent runs there.
    home: Option<Home<'a>>,
    running: Option<(DemoEngine, Node<'a>)>,
    fill: Option<Workers<()>>,
    /// Names the logs of those started again.
    starts: usize,
}

impl<'a> Replica<'a> {
    /// Invited by `proxy`, not running.
    pub(super) fn new(ground: &Ground<'a>, proxy: &Node<'a>, number: usize) -> Self {
        let host = number + 1;
        // Its port is known from then on.
        let engine = ground.engine(&format!("engine-{number}"), host, None, &ENGINE);
        let home = ground.home(&format!("agent-{number}"), host);
        home.join(&proxy.home.ask(&["invite", "--role", "agent"]));
        let mut args = vec!["agent".to_owned(), "--engine".to_owned(), engine.url()];
        args.extend(ground.listen(host));
        Self { number, host, address: engine.address, args, home: Some(home), running: None, fill: None, starts: 0 }
    }

    /// Engine and agent.
    pub(super) fn start(&mut self, ground: &Ground<'a>) {
        let engine = self.start_engine(ground);
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let agent = self.home.take().unwrap().start(&args);
        self.running = Some((engine, agent));
    }

    fn start_engine(&mut self, ground: &Ground<'a>) -> DemoEngine {
        self.starts += 1;
        let name = format!("engine-{}-{}", self.number, self.starts);
        ground.engine(&name, self.host, Some(self.address), &ENGINE)
    }

    fn engine(&mut self) -> &mut DemoEngine {
        &mut self.running.as_mut().unwrap().0
    }

    fn agent(&mut self) -> &mut Node<'a> {
        &mut self.running.as_mut().unwrap().1
    }

    pub(super) fn begin(&mut self, fault: Fault, ground: &Ground<'a>) {
        match fault {
            Fault::KillEngine => self.engine().process.kill(),
            Fault::StopEngine => self.engine().process.signal(Signal::STOP),
            Fault::FillEngine => self.fill = Some(ground.on(self.host, || fill(self.address))),
            Fault::KillAgent => self.agent().process.kill(),
            Fault::StopAgent => self.agent().process.signal(Signal::STOP),
            Fault::DrainAgent => self.agent().process.signal(Signal::TERM),
            Fault::Cut => ground.cable(self.host, Lab::cut),
            Fault::Slow => ground.cable(self.host, |lab, host| lab.lose(host, LOSS_PERCENT)),
            Fault::Add => self.start(ground),
        }
    }

    pub(super) fn end(&mut self, fault: Fault, ground: &Ground<'a>) {
        match fault {
            Fault::StopEngine => self.engine().process.signal(Signal::CONT),
            Fault::FillEngine => drop(self.fill.take()),
            Fault::StopAgent => self.agent().process.signal(Signal::CONT),
            Fault::KillEngine => *self.engine() = self.start_engine(ground),
            Fault::KillAgent => self.restart_agent(),
            Fault::DrainAgent => {
                self.assert_drained();
                self.restart_agent();
            }
            Fault::Cut | Fault::Slow => ground.cable(self.host, Lab::mend),
            Fault::Add => {
                self.agent().process.signal(Signal::TERM);
                self.assert_drained();
                self.home = self.running.take().map(|(_, agent)| agent.home);
            }
        }
    }

    fn assert_drained(&mut self) {
        let ended = self.agent().process.wait(RESTART);
        assert!(ended.success(), "a drained agent ended with {ended}");
    }

    fn restart_agent(&mut self) {
        let args = self.args.clone();
        self.agent().restart(&args.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// Takes all slots of an engine, past the mesh, and more.
fn fill(address: SocketAddr) -> Workers<()> {
    let engine = Endpoint::open(address);
    Workers::start(super::SLOTS + 4, move |_, _| {
        if let Ok(answer) = engine.chat_stream("demo", "Others ask too", 100) {
            answer.events().collect_chat();
        }
    })
}
