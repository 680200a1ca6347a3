//! Hosts of our own on this machine: network namespaces, links between them that can be cut or slowed, and a NAT.

use super::{PATIENCE, process::Process, sandbox::Sandbox, skipped, wait_for};
use rustix::{
    process::{Pid, test_kill_process},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    fs::File,
    io::Write,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What the names of all our namespaces start with.
const PREFIX: &str = "dunlin";

/// Two hosts, more behind NATs, or as many as one likes around a router. Removed on drop.
pub(crate) struct Lab {
    prefix: String,
    names: Vec<String>,
}

/// A host of a [`Lab::star`].
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) namespace: String,
    /// The only one beside loopback.
    pub(crate) address: String,
    /// The router's end of its cable.
    port: String,
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/net").join(name)
}

#[track_caller]
fn must(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Why this machine can't have namespaces; none if it can.
fn unavailable(prefix: &str) -> Option<String> {
    let probe = format!("{prefix}probe");
    for (program, args) in [("ip", ["netns", "add", &probe]), ("ip", ["netns", "del", &probe])] {
        match Command::new(program).args(args).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Some(format!("network namespaces are not allowed here: {why}"));
            }
            Err(error) => return Some(format!("`ip` (iproute2): {error}")),
        }
    }
    match Command::new("nft").arg("--version").output() {
        Ok(_) => None,
        Err(error) => Some(format!("`nft` (nftables): {error}")),
    }
}

/// Removes what test runs left that were killed.
fn remove_stale() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok());
        if let Some(pid) = owner.and_then(Pid::from_raw)
            && test_kill_process(pid).is_err()
        {
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

impl Lab {
    /// Nothing but a name, where namespaces can be made; else says that the test is skipped.
    pub(crate) fn new(sandbox: &Sandbox) -> Option<Self> {
        let prefix = format!("{PREFIX}{}-", sandbox.mark());
        if let Some(why) = unavailable(&prefix) {
            skipped(&why);
            return None;
        }
        remove_stale();
        Some(Self { prefix, names: Vec::new() })
    }

    /// The namespace of a host.
    pub(crate) fn host(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn add(&mut self, name: &str) -> String {
        let namespace = self.host(name);
        must("ip", &["netns", "add", &namespace]);
        self.names.push(namespace.clone());
        must("ip", &["-n", &namespace, "link", "set", "lo", "up"]);
        namespace
    }

    /// Two hosts without a link.
    fn pair(&mut self, a: &str, b: &str) -> (String, String) {
        (self.add(a), self.add(b))
    }

    /// Two hosts on one cable: `a` has 10.78.0.1, `b` has 10.78.0.2.
    pub(crate) fn cable(&mut self, a: &str, b: &str) -> (String, String) {
        let (one, two) = self.pair(a, b);
        must("ip", &["link", "add", "e0", "netns", &one, "type", "veth", "peer", "name", "e0", "netns", &two]);
        for (host, address) in [(&one, "10.78.0.1/24"), (&two, "10.78.0.2/24")] {
            must("ip", &["-n", host, "addr", "add", address, "dev", "e0"]);
            must("ip", &["-n", host, "link", "set", "e0", "up"]);
        }
        (one, two)
    }

    /// Two hosts on a link on which every packet takes `delay_ms`: 10.78.0.1 and 10.78.0.2. `None`, said loudly, where
    /// such links can't be made.
    pub(crate) fn slow_link(&mut self, sandbox: &Sandbox, delay_ms: u32) -> Option<(String, String, Process)> {
        if !Path::new("/dev/net/tun").exists() {
            skipped("no /dev/net/tun: can't make a slow link");
            return None;
        }
        let (one, two) = self.pair("near", "far");
        let mut command = sandbox.command("python3");
        command.arg(script("wanlink.py")).args([&one, "10.78.0.1/24", &two, "10.78.0.2/24"]);
        command.args(["--delay-ms", &delay_ms.to_string()]);
        let mut link = sandbox.start("wanlink", command);
        wait_for("the slow link", PATIENCE, || {
            link.assert_running();
            link.output().contains("wanlink up").then_some(())
        });
        Some((one, two, link))
    }

    /// A host `inside` behind a NAT that lets connections out and none in, and a host `outside`, which has 203.0.113.9.
    pub(crate) fn behind_nat(&mut self) -> (String, String) {
        let names = ["inside", "nat", "outside"].map(|name| self.host(name));
        self.names.extend(names.iter().cloned());
        let [inside, nat, outside] = &names;
        let script = script("natlab.sh");
        must("bash", &[&script.to_string_lossy(), inside, nat, outside]);
        (inside.clone(), outside.clone())
    }

    /// Hosts on cables to one router, each on a network of its own.
    pub(crate) fn star(&mut self, names: &[&str]) -> Vec<Host> {
        let hub = self.add("hub");
        must("ip", &["netns", "exec", &hub, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
        let cable = |(number, name): (usize, &&str)| {
            let (namespace, port) = (self.add(name), format!("port{number}"));
            let (address, router) = (format!("10.78.{number}.2"), format!("10.78.{number}.1"));
            must(
                "ip",
                &["link", "add", "e0", "netns", &namespace, "type", "veth", "peer", "name", &port, "netns", &hub],
            );
            for (host, device, address) in [(&namespace, "e0", &address), (&hub, &port, &router)] {
                must("ip", &["-n", host, "addr", "add", &format!("{address}/24"), "dev", device]);
                must("ip", &["-n", host, "link", "set", device, "up"]);
            }
            must("ip", &["-n", &namespace, "route", "add", "default", "via", &router]);
            Host { namespace, address, port }
        };
        names.iter().enumerate().map(cable).collect()
    }

    /// The router of a [`Lab::star`] passes nothing between the two groups any more: nobody is told.
    pub(crate) fn part(&self, one: &[&Host], other: &[&Host]) {
        let set =
            |hosts: &[&Host]| hosts.iter().map(|host| format!("\"{}\"", host.port)).collect::<Vec<_>>().join(", ");
        let (one, other) = (set(one), set(other));
        let rules = format!(
            "table inet cut {{
                chain between {{
                    type filter hook forward priority -300;
                    iifname {{ {one} }} oifname {{ {other} }} drop
                    iifname {{ {other} }} oifname {{ {one} }} drop
                }}
            }}"
        );
        filter(&self.host("hub"), &rules);
    }

    /// Undoes [`Lab::part`].
    pub(crate) fn join(&self) {
        self.mend(&self.host("hub"));
    }

    /// Drops every packet that `host` sends or would receive, as if its cable had been pulled: nobody is told.
    pub(crate) fn cut(&self, host: &str) {
        filter(host, &rules_for("drop"));
    }

    /// Drops that share of the packets, each way, chosen at random.
    pub(crate) fn lose(&self, host: &str, percent: u32) {
        filter(host, &rules_for(&format!("numgen random mod 100 < {percent} drop")));
    }

    /// Undoes `cut` and `lose`.
    pub(crate) fn mend(&self, host: &str) {
        must("ip", &["netns", "exec", host, "nft", "delete", "table", "inet", "cut"]);
    }
}

/// Rules for a host's packets but those to itself.
fn rules_for(what: &str) -> String {
    format!(
        "table inet cut {{
            chain into {{
                type filter hook input priority -300;
                iifname != \"lo\" {what}
            }}
            chain out {{
                type filter hook output priority -300;
                oifname != \"lo\" {what}
            }}
        }}"
    )
}

fn filter(host: &str, rules: &str) {
    let mut nft = Command::new("ip");
    nft.args(["netns", "exec", host, "nft", "-f", "-"]).stdin(Stdio::piped());
    let mut child = nft.spawn().unwrap();
    child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "nft in {host}: {rules}");
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Runs `action` on a thread that lives in `namespace`, and so do the threads that it starts.
pub(crate) fn within<T: Send>(namespace: &str, action: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let file = File::open(Path::new("/run/netns").join(namespace)).unwrap();
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            action()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
