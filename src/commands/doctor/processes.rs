//! Engines among the processes of this machine, and where they listen: for one that runs where nobody looks for it.

use dunlin_protocol::runtime::{Catalogue, Runtime};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// A process that looks like an engine.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EngineProcess {
    pub(super) pid: u32,
    pub(super) runtime: String,
    /// Where it listens, as far as this user may see.
    pub(super) listens: BTreeSet<SocketAddr>,
}

/// Engines that run here, the demo engine aside. Empty where there is no `/proc`.
pub(super) fn engines(catalogue: &Catalogue) -> Vec<EngineProcess> {
    let marks: Vec<_> =
        catalogue.iter().filter_map(|runtime| Some((mark(runtime)?, runtime.name.to_string()))).collect();
    let sockets = listening();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let words: Vec<_> = line.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
        if let Some((_, runtime)) = marks.iter().find(|(mark, _)| is_marked(&words, mark)) {
            found.push(EngineProcess { pid, runtime: runtime.clone(), listens: listens(pid, &sockets) });
        }
    }
    found
}

/// By what a command line is known: the program's name, or the module that Python runs.
fn mark(runtime: &Runtime) -> Option<String> {
    let launch = runtime.launch.as_ref()?;
    let program = launch.command.as_ref()?.to_string();
    if program.contains('{') {
        return None;
    }
    if !program.starts_with("python") {
        return Some(program);
    }
    let args: Vec<String> = launch.args.iter().filter_map(|argument| argument.text()).collect();
    args.iter().position(|arg| arg == "-m").and_then(|at| args.get(at + 1)).cloned()
}

/// Whether one of the first words is the mark: Python comes before what it runs.
fn is_marked(words: &[std::borrow::Cow<'_, str>], mark: &str) -> bool {
    words.iter().take(4).any(|word| word == mark || word.rsplit('/').next() == Some(mark))
}

fn listens(pid: u32, sockets: &HashMap<u64, SocketAddr>) -> BTreeSet<SocketAddr> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inode = |link: std::path::PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    descriptors.filter_map(|entry| sockets.get(&inode(fs::read_link(entry.path()).ok()?)?).copied()).collect()
}

/// Listening TCP sockets by inode.
fn listening() -> HashMap<u64, SocketAddr> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(listener).collect()
}

/// One line of `/proc/net/tcp`: number, local address, remote address, state (0A: listening), ..., inode at the tenth place.
fn listener(line: &str) -> Option<(u64, SocketAddr)> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    if *fields.get(3)? != "0A" {
        return None;
    }
    let (address, port) = fields.get(1)?.split_once(':')?;
    let address = SocketAddr::new(ip(address)?, u16::from_str_radix(port, 16).ok()?);
    Some((fields.get(9)?.parse().ok()?, address))
}

/// Words of four bytes, each in the machine's byte order.
fn ip(hex: &str) -> Option<IpAddr> {
    let words = hex.as_bytes().chunks(8).map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok());
    let words = words.collect::<Option<Vec<_>>>()?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

/// Groups what was found by kind, for one line each.
pub(super) fn by_runtime(processes: Vec<EngineProcess>) -> BTreeMap<String, Vec<EngineProcess>> {
    let mut groups: BTreeMap<String, Vec<EngineProcess>> = BTreeMap::new();
    for process in processes {
        groups.entry(process.runtime.clone()).or_default().push(process);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_known_by_program_or_module() {
        let catalogue = Catalogue::built_in().unwrap();
        let marks: BTreeMap<_, _> =
            catalogue.iter().filter_map(|runtime| Some((runtime.name.to_string(), mark(runtime)?))).collect();
        let of = |runtime: &str| marks.get(runtime).map(String::as_str);
        assert_eq!((of("vllm"), of("sglang")), (Some("vllm"), Some("sglang.launch_server")));
        assert_eq!((of("llamacpp"), of("demo"), of("parakeet")), (Some("llama-server"), None, None));
        let words = |line: &'static str| line.split(' ').map(Into::into).collect::<Vec<_>>();
        assert!(is_marked(&words("/usr/bin/python3 /opt/venv/bin/vllm serve m"), "vllm"));
        assert!(is_marked(&words("python3 -m sglang.launch_server --port 1"), "sglang.launch_server"));
        assert!(!is_marked(&words("grep -r x in vllm"), "vllm"));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn listening_sockets_are_read() {
        let line =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0";
        assert_eq!(listener(line), Some((12345, "127.0.0.1:8080".parse().unwrap())));
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        let line = line.replace("0100007F", "00000000000000000000000001000000");
        assert_eq!(listener(&line), Some((12345, "[::1]:8080".parse().unwrap())));
        assert_eq!(listener("sl local_address"), None);
    }

    #[test]
    fn this_process_listens_where_it_does() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let seen = listens(std::process::id(), &listening());
        assert!(seen.contains(&socket.local_addr().unwrap()), "{seen:?}");
    }
}
