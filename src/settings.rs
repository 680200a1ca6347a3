//! One path of configuration: flags and environment ([`crate::args`]) before the file, the file before the defaults,
//! all checked here, once. Nothing else reads the file.

mod engines;
#[cfg(test)]
mod keys;

pub(crate) use engines::{EngineSettings, EngineSource, catalogue, discover, engines, engines_stand_in, metrics_http};

use crate::args::{EndpointArgs, NodeArgs, ThreadArgs, values};
use crate::exit::Failure;
use anyhow::{Context, Result, bail};
use dunlin_protocol::id::{ModelId, Name};
use dunlin_proxy::{Network, TlsFiles, names::Names};
use engines::EngineFile;
use libp2p::{Multiaddr, multiaddr::Protocol};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::{
    collections::BTreeMap,
    io::Read,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

/// The mesh's port, TCP and UDP.
pub(crate) const MESH_PORT: u16 = 4480;
/// The endpoint's port.
pub(crate) const HTTP_PORT: u16 = 8480;
/// A file larger than this is not a configuration.
const FILE_BYTES: u64 = 1 << 20;

/// `--config FILE`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// Where it lies, for words about what is wrong with it.
    #[serde(skip)]
    path: Option<PathBuf>,
    name: Option<Name>,
    #[serde(deserialize_with = "multiaddrs")]
    listen: Option<Vec<Multiaddr>>,
    #[serde(deserialize_with = "multiaddrs")]
    external: Option<Vec<Multiaddr>>,
    #[serde(deserialize_with = "multiaddrs")]
    peers: Option<Vec<Multiaddr>>,
    mdns: Option<bool>,
    worker_threads: Option<usize>,
    #[serde(deserialize_with = "socket_address")]
    metrics_http: Option<SocketAddr>,
    endpoint: EndpointFile,
    discover: Option<Vec<u16>>,
    engines: Vec<EngineFile>,
    runtimes: Vec<toml::Table>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EndpointFile {
    #[serde(deserialize_with = "socket_address")]
    http: Option<SocketAddr>,
    auth: Option<bool>,
    #[serde(deserialize_with = "duration")]
    keys_max_age: Option<Duration>,
    #[serde(deserialize_with = "networks")]
    trusted_proxies: Option<Vec<Network>>,
    #[serde(deserialize_with = "socket_address")]
    admin_http: Option<SocketAddr>,
    first_byte_timeout_seconds: Option<f64>,
    inter_token_timeout_seconds: Option<f64>,
    hedged_percent: Option<u8>,
    aliases: BTreeMap<ModelId, ModelId>,
    fallbacks: BTreeMap<ModelId, Vec<ModelId>>,
    tls_certificate: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    upload_folder: Option<PathBuf>,
    upload_disk_bytes: Option<u64>,
}

/// Addresses as the flags take them, with the same words about wrong ones.
fn multiaddrs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Multiaddr>>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let addresses = texts.iter().map(|text| values::multiaddr(text).map_err(|said| format!("{text:?}: {said}")));
    addresses.collect::<Result<_, _>>().map(Some).map_err(D::Error::custom)
}

fn socket_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    values::socket_address(&text).map(Some).map_err(D::Error::custom)
}

fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Network>>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let networks = texts.iter().map(|text| text.parse().map_err(|said| format!("{text:?}: {said}")));
    networks.collect::<Result<_, _>>().map(Some).map_err(D::Error::custom)
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    values::duration(&text).map(Some).map_err(D::Error::custom)
}

impl File {
    /// Reads the file named by `--config`; without one, an empty configuration.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let place = || place(Some(path));
        let text = read_bounded(path).with_context(|| format!("can't read {}; --config FILE names it", place()))?;
        // toml's errors name line, column, the key, and the keys that are known.
        let file: Self = toml::from_str(&text).with_context(place)?;
        Ok(Self { path: Some(path.to_owned()), ..file })
    }

    /// How it is called where something in it is wrong.
    fn place(&self) -> String {
        place(self.path.as_deref())
    }
}

fn place(path: Option<&Path>) -> String {
    path.map_or_else(|| "configuration".to_owned(), |path| format!("configuration file {}", path.display()))
}

/// The text of a file that a person wrote.
fn read_bounded(path: &Path) -> Result<String> {
    let mut text = String::new();
    // What is read is counted, since pipes and devices tell no size.
    std::fs::File::open(path)?.take(FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES {
        bail!("it has more than {FILE_BYTES} bytes, which is no configuration");
    }
    Ok(text)
}

/// Threads of a process that goes on. Asked before anything runs, so that the file is read once more for it.
pub(crate) fn worker_threads(args: &ThreadArgs, config: Option<&Path>) -> Result<usize> {
    if let Some(threads) = args.worker_threads {
        return Ok(threads);
    }
    let file = File::read(config)?;
    match file.worker_threads {
        None => Ok(1),
        Some(threads @ 1..=values::WORKER_THREADS) => Ok(threads),
        Some(threads) => {
            bail!("{}: worker_threads is {threads}; give a number from 1 to {}", file.place(), values::WORKER_THREADS)
        }
    }
}

/// What every node is started with.
#[derive(Debug)]
pub(crate) struct NodeSettings {
    pub(crate) name: Option<Name>,
    pub(crate) listen: Vec<Multiaddr>,
    pub(crate) external: Vec<Multiaddr>,
    pub(crate) peers: Vec<Multiaddr>,
    pub(crate) mdns: bool,
}

impl NodeSettings {
    pub(crate) fn resolve(args: &NodeArgs, file: &File) -> Result<Self> {
        let pick = |flags: &[Multiaddr], file: &Option<Vec<Multiaddr>>| {
            if flags.is_empty() { file.clone().unwrap_or_default() } else { flags.to_vec() }
        };
        let mut listen = pick(&args.listen, &file.listen);
        if listen.is_empty() {
            // Kernels without IPv6 are common; what was not asked for must not keep the node from starting.
            listen = default_listen(TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok());
        }
        for address in &listen {
            check_listen(address)?;
        }
        let peers = pick(&args.peer, &file.peers);
        if let Some(address) = peers.iter().find(|a| !matches!(a.iter().last(), Some(Protocol::P2p(_)))) {
            bail!(Failure::Usage(format!(
                "peer address {address} has to end with /p2p/PEER_ID, as in \
                 /ip4/192.0.2.7/tcp/4480/p2p/12D3KooW..."
            )));
        }
        Ok(Self {
            name: args.name.clone().or_else(|| file.name.clone()),
            listen,
            external: pick(&args.external, &file.external),
            peers,
            mdns: !args.no_mdns && file.mdns.unwrap_or(true),
        })
    }
}

fn default_listen(has_ipv6: bool) -> Vec<Multiaddr> {
    let v4 = Multiaddr::empty().with(Protocol::Ip4(Ipv4Addr::UNSPECIFIED));
    let v6 = Multiaddr::empty().with(Protocol::Ip6(Ipv6Addr::UNSPECIFIED));
    let on = |ip: Multiaddr| {
        let quic = ip.clone().with(Protocol::Udp(MESH_PORT)).with(Protocol::QuicV1);
        [ip.with(Protocol::Tcp(MESH_PORT)), quic]
    };
    on(v4).into_iter().chain(on(v6).into_iter().filter(|_| has_ipv6)).collect()
}

fn check_listen(address: &Multiaddr) -> Result<()> {
    let parts: Vec<_> = address.iter().collect();
    let fits = matches!(
        parts.as_slice(),
        [Protocol::Ip4(_) | Protocol::Ip6(_), Protocol::Tcp(_)]
            | [Protocol::Ip4(_) | Protocol::Ip6(_), Protocol::Udp(_), Protocol::QuicV1]
    ) || parts.iter().any(|part| matches!(part, Protocol::P2pCircuit));
    if !fits {
        bail!(Failure::Usage(format!(
            "can't listen on {address}; write /ip4/ADDRESS/tcp/PORT or /ip4/ADDRESS/udp/PORT/quic-v1 (or ip6), \
             port 0 for any free one"
        )));
    }
    Ok(())
}

/// The endpoint as configured.
#[derive(Debug)]
pub(crate) struct EndpointSettings {
    pub(crate) http: SocketAddr,
    pub(crate) no_auth: bool,
    pub(crate) keys_max_age: Option<Duration>,
    pub(crate) trusted_proxies: Vec<Network>,
    pub(crate) admin: Option<SocketAddr>,
    /// `None`: as the runtimes say.
    pub(crate) first_byte_timeout: Option<Duration>,
    /// The same.
    pub(crate) inter_token_timeout: Option<Duration>,
    pub(crate) hedged_percent: u8,
    pub(crate) names: Names,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) upload_folder: Option<PathBuf>,
    pub(crate) upload_disk_bytes: u64,
}

impl EndpointSettings {
    pub(crate) fn resolve(args: &EndpointArgs, file: &File) -> Result<Self> {
        let seconds = |name: &str, value: Option<f64>| match value {
            Some(value) if value > 0.0 && value <= 86_400.0 => Ok(Some(Duration::from_secs_f64(value))),
            Some(value) => {
                bail!("{}: endpoint.{name} is {value}; give a number above 0, up to 86400", file.place())
            }
            None => Ok(None),
        };
        let first_byte = seconds("first_byte_timeout_seconds", file.endpoint.first_byte_timeout_seconds)?;
        let inter_token = seconds("inter_token_timeout_seconds", file.endpoint.inter_token_timeout_seconds)?;
        // A flag takes the place of the file's entry of the same name.
        let (mut aliases, mut fallbacks) = (file.endpoint.aliases.clone(), file.endpoint.fallbacks.clone());
        aliases.extend(told_once("--alias", &args.aliases)?);
        fallbacks.extend(told_once("--fallback", &args.fallbacks)?);
        let names = Names::new(aliases, fallbacks).map_err(|error| Failure::Usage(error.to_string()))?;
        let certificate = args.tls_certificate.clone().or_else(|| file.endpoint.tls_certificate.clone());
        let key = args.tls_key.clone().or_else(|| file.endpoint.tls_key.clone());
        let tls = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (None, None) => None,
            _ => bail!("{}: endpoint.tls_certificate and endpoint.tls_key go together", file.place()),
        };
        let hedged = file.endpoint.hedged_percent;
        if let Some(percent) = hedged.filter(|percent| *percent > 100) {
            bail!("{}: endpoint.hedged_percent is {percent}; give a number from 0 to 100", file.place());
        }
        let usual = dunlin_proxy::Config::default();
        let disk = args.upload_disk_bytes.or(file.endpoint.upload_disk_bytes);
        Ok(Self {
            tls,
            upload_folder: args.upload_folder.clone().or_else(|| file.endpoint.upload_folder.clone()),
            upload_disk_bytes: disk.unwrap_or(usual.upload_disk),
            hedged_percent: args.hedged_percent.or(hedged).unwrap_or(usual.hedged_percent),
            names,
            http: args.http.or(file.endpoint.http).unwrap_or((Ipv4Addr::LOCALHOST, HTTP_PORT).into()),
            no_auth: args.no_auth || file.endpoint.auth == Some(false),
            keys_max_age: args.keys_max_age.or(file.endpoint.keys_max_age),
            trusted_proxies: match args.trusted_proxies.as_slice() {
                [] => file.endpoint.trusted_proxies.clone().unwrap_or_default(),
                told => told.to_vec(),
            },
            admin: args.admin_http.or(file.endpoint.admin_http),
            first_byte_timeout: args.first_byte_timeout.or(first_byte),
            inter_token_timeout: args.inter_token_timeout.or(inter_token),
        })
    }
}

/// What a flag that may be repeated says of each name; which of two would count is nobody's to guess.
fn told_once<T: Clone>(flag: &str, told: &[(ModelId, T)]) -> Result<BTreeMap<ModelId, T>> {
    let mut once = BTreeMap::new();
    for (name, value) in told {
        if once.insert(name.clone(), value.clone()).is_some() {
            bail!(Failure::Usage(format!("{flag} {name}=... is given twice; say all of {name} in one")));
        }
    }
    Ok(once)
}

/// The state directory.
pub(crate) fn home(flag: Option<&Path>) -> Result<PathBuf> {
    use etcetera::BaseStrategy;
    if let Some(home) = flag {
        if home.as_os_str().is_empty() {
            bail!(Failure::Usage("--home (or DUNLIN_HOME) is empty".into()));
        }
        return Ok(home.to_owned());
    }
    let base = etcetera::choose_base_strategy()
        .context("can't tell where this user's data directory is; name one with --home DIR (or DUNLIN_HOME)")?;
    Ok(base.data_dir().join("dunlin"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::EngineArgs;

    fn file(text: &str) -> Result<File> {
        let dir = std::env::temp_dir().join(format!("dunlin-settings-{}-{}", std::process::id(), text.len()));
        std::fs::write(&dir, text)?;
        let file = File::read(Some(&dir));
        std::fs::remove_file(&dir)?;
        file
    }

    #[test]
    fn flags_go_before_the_file_and_the_file_before_defaults() {
        let text = "name = 'box'\nmdns = false\n[endpoint]\nhttp = '127.0.0.1:9000'\nauth = false\n";
        let file = file(text).unwrap();
        let node = NodeSettings::resolve(&NodeArgs::default(), &file).unwrap();
        assert_eq!(node.name.unwrap().as_str(), "box");
        assert!(!node.mdns);
        assert!(node.listen.starts_with(&default_listen(false)));
        let flags = EndpointArgs { http: Some("127.0.0.1:1".parse().unwrap()), ..Default::default() };
        let endpoint = EndpointSettings::resolve(&flags, &file).unwrap();
        assert_eq!(endpoint.http.port(), 1);
        assert!(endpoint.no_auth);
        assert_eq!(EndpointSettings::resolve(&EndpointArgs::default(), &file).unwrap().http.port(), 9000);
    }

    #[test]
    fn names_of_flags_go_before_those_of_the_file_and_circles_are_refused() {
        let file = file("[endpoint.aliases]\n'gpt-4o' = 'a'\nother = 'a'\n[endpoint.fallbacks]\na = ['b']\n").unwrap();
        let id = |name: &str| ModelId::new(name).unwrap();
        let args =
            |alias: &str, model: &str| EndpointArgs { aliases: vec![(id(alias), id(model))], ..Default::default() };
        let names = EndpointSettings::resolve(&args("gpt-4o", "c"), &file).unwrap().names;
        let expected =
            Names::new([(id("gpt-4o"), id("c")), (id("other"), id("a"))].into(), [(id("a"), vec![id("b")])].into());
        assert_eq!(names, expected.unwrap());
        let error = EndpointSettings::resolve(&args("x", "other"), &file).unwrap_err().to_string();
        assert!(error.contains("`x` stands for `other`"), "{error}");
        let twice = EndpointArgs { aliases: vec![(id("x"), id("a")), (id("x"), id("c"))], ..Default::default() };
        let error = EndpointSettings::resolve(&twice, &file).unwrap_err().to_string();
        assert!(error.contains("--alias x=... is given twice"), "{error}");
        let of = |other: &str| (id("a"), vec![id(other)]);
        let twice = EndpointArgs { fallbacks: vec![of("b"), of("c")], ..Default::default() };
        assert!(EndpointSettings::resolve(&twice, &file).is_err());
    }

    #[test]
    fn the_documented_example_holds() {
        let file: File = toml::from_str(include_str!("../examples/dunlin.toml")).unwrap();
        let node = NodeSettings::resolve(&NodeArgs::default(), &file).unwrap();
        assert_eq!(node.listen, default_listen(true), "the example shows the default");
        assert_eq!(EndpointSettings::resolve(&EndpointArgs::default(), &file).unwrap().http.port(), HTTP_PORT);
        assert_eq!(engines(&EngineArgs::default(), file).unwrap().len(), 2);
    }

    #[test]
    fn threads_are_those_of_the_flag_then_of_the_file() {
        let path = std::env::temp_dir().join(format!("dunlin-threads-{}.toml", std::process::id()));
        let of = |flag: Option<usize>, text: &str| {
            std::fs::write(&path, text).unwrap();
            worker_threads(&ThreadArgs { worker_threads: flag }, Some(&path))
        };
        let told = [
            of(None, "").unwrap(),
            of(None, "worker_threads = 3\n").unwrap(),
            of(Some(2), "worker_threads = 3\n").unwrap(),
        ];
        let refused = of(None, "worker_threads = 0\n").unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(told, [1, 3, 2]);
        assert!(refused.contains("from 1 to 256") && refused.contains(&*path.to_string_lossy()), "{refused}");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_without_end_is_not_read_to_its_end() {
        let error = format!("{:#}", File::read(Some(Path::new("/dev/zero"))).unwrap_err());
        assert!(error.contains("/dev/zero") && error.contains("more than 1048576 bytes"), "{error}");
    }

    #[test]
    fn a_deadline_of_nothing_is_answered_with_the_right_range() {
        for name in ["first_byte_timeout_seconds", "inter_token_timeout_seconds"] {
            let file = file(&format!("[endpoint]\n{name} = 0.0\n")).unwrap();
            let error = EndpointSettings::resolve(&EndpointArgs::default(), &file).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("above 0"), "{error}");
        }
    }

    #[test]
    fn a_share_above_all_is_refused() {
        let error = |percent: u8| {
            let file = file(&format!("[endpoint]\nhedged_percent = {percent}\n")).unwrap();
            EndpointSettings::resolve(&EndpointArgs::default(), &file).map(|it| it.hedged_percent)
        };
        assert_eq!(error(0).unwrap(), 0);
        let said = error(101).unwrap_err().to_string();
        assert!(said.contains("hedged_percent is 101") && said.contains("from 0 to 100"), "{said}");
    }

    #[test]
    fn unknown_keys_are_named_with_their_place() {
        let error = format!("{:#}", file("nmae = 'x'\n").unwrap_err());
        assert!(error.contains("nmae") && error.contains("line 1") && error.contains("name"), "{error}");
        let error = format!("{:#}", file("[[engines]]\nurl = 'http://x'\nrun = 1\n").unwrap_err());
        assert!(error.contains("unknown field `run`"), "{error}");
    }

    #[test]
    fn a_wrong_address_in_the_file_is_answered_with_a_right_one() {
        for (text, right) in [
            ("listen = ['127.0.0.1:4480']\n", "/ip4/192.0.2.7/tcp/4480"),
            ("[endpoint]\nhttp = 'localhost'\n", "127.0.0.1:8480"),
        ] {
            let error = format!("{:#}", file(text).unwrap_err());
            assert!(error.contains(right) && error.contains("line "), "{error}");
        }
    }

    #[test]
    fn addresses_that_cannot_be_listened_on_are_refused_in_words() {
        let args = NodeArgs { listen: vec!["/dns4/example.com/tcp/1".parse().unwrap()], ..Default::default() };
        let error = NodeSettings::resolve(&args, &File::default()).unwrap_err().to_string();
        assert!(error.contains("/ip4/ADDRESS/tcp/PORT"), "{error}");
    }
}
