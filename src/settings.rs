//! One path of configuration: flags and environment ([`crate::args`]) before the file, the file before the defaults,
//! all checked here, once. Nothing else reads the file.

use crate::args::{EndpointArgs, EngineArgs, NodeArgs, values};
use crate::exit::Failure;
use anyhow::{Context, Result, bail};
use dunlin_agent::Patience;
use dunlin_protocol::id::{ModelId, Name, RuntimeName};
use libp2p::{Multiaddr, multiaddr::Protocol};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

/// The mesh's port, TCP and UDP.
pub(crate) const MESH_PORT: u16 = 4480;
/// The endpoint's port.
pub(crate) const HTTP_PORT: u16 = 8480;
pub(crate) const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(120);
/// A file larger than this is not a configuration.
const FILE_BYTES: u64 = 1 << 20;
/// Engines of one agent.
const MAX_ENGINES: usize = 64;

/// `--config FILE`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    name: Option<Name>,
    #[serde(deserialize_with = "multiaddrs")]
    listen: Option<Vec<Multiaddr>>,
    #[serde(deserialize_with = "multiaddrs")]
    external: Option<Vec<Multiaddr>>,
    #[serde(deserialize_with = "multiaddrs")]
    peers: Option<Vec<Multiaddr>>,
    mdns: Option<bool>,
    #[serde(deserialize_with = "socket_address")]
    metrics_http: Option<SocketAddr>,
    endpoint: EndpointFile,
    engines: Vec<EngineFile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EndpointFile {
    #[serde(deserialize_with = "socket_address")]
    http: Option<SocketAddr>,
    auth: Option<bool>,
    first_byte_timeout_seconds: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EngineFile {
    url: Option<String>,
    launch: Option<RuntimeName>,
    args: Vec<String>,
    runtime: Option<RuntimeName>,
    models: Vec<ModelId>,
    slots: Option<u16>,
    hang_timeout_seconds: Option<f64>,
    start_timeout_seconds: Option<f64>,
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

impl File {
    /// Reads the file named by `--config`; without one, an empty configuration.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let place = || format!("configuration file {}", path.display());
        let size = std::fs::metadata(path).with_context(place)?.len();
        if size > FILE_BYTES {
            bail!("{} has {size} bytes; at most {FILE_BYTES} are read", place());
        }
        let text = std::fs::read_to_string(path).with_context(place)?;
        // toml's errors name line, column, the key, and the keys that are known.
        toml::from_str(&text).with_context(place)
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

/// One engine as configured.
#[derive(Debug, Clone)]
pub(crate) struct EngineSettings {
    pub(crate) source: EngineSource,
    pub(crate) runtime: Option<RuntimeName>,
    pub(crate) models: Vec<ModelId>,
    pub(crate) slots: Option<u16>,
    pub(crate) patience: Patience,
}

/// Where an engine comes from.
#[derive(Debug, Clone)]
pub(crate) enum EngineSource {
    /// It runs already.
    Attach(String),
    /// The agent starts it.
    Launch(RuntimeName, Vec<String>),
}

/// Where an agent serves its metrics.
pub(crate) fn metrics_http(args: &EngineArgs, file: &File) -> Option<SocketAddr> {
    args.metrics_http.or(file.metrics_http)
}

/// The engines that were asked for, none if it was left to what is found.
pub(crate) fn engines(args: &EngineArgs, file: File) -> Result<Vec<EngineSettings>> {
    let common = |source| EngineSettings {
        source,
        runtime: args.runtime.clone(),
        models: args.models.clone(),
        slots: args.slots,
        patience: patience(args.hang_timeout, args.start_timeout),
    };
    let mut engines: Vec<_> = args.engine.iter().cloned().map(EngineSource::Attach).map(common).collect();
    if let Some(runtime) = &args.launch {
        engines.push(common(EngineSource::Launch(runtime.clone(), args.launch_args.clone())));
    }
    if engines.is_empty() {
        engines = file.engines.into_iter().enumerate().map(|(i, e)| from_file(i, e)).collect::<Result<_>>()?;
    }
    if engines.is_empty() && (args.runtime.is_some() || !args.models.is_empty() || args.slots.is_some()) {
        bail!(Failure::Usage(
            "--runtime, --model and --slots describe an engine: give --engine URL or --launch too".into()
        ));
    }
    if engines.len() > MAX_ENGINES {
        bail!(Failure::Usage(format!("{} engines; one agent takes at most {MAX_ENGINES}", engines.len())));
    }
    if engines.iter().any(|engine| engine.slots == Some(0)) {
        bail!(Failure::Usage("an engine needs at least one slot".into()));
    }
    Ok(engines)
}

fn from_file(index: usize, engine: EngineFile) -> Result<EngineSettings> {
    let source = match (engine.url, engine.launch) {
        (Some(url), None) if engine.args.is_empty() => EngineSource::Attach(url),
        (Some(_), None) => bail!("engines[{index}]: `args` are for `launch`, not for `url`"),
        (None, Some(runtime)) => EngineSource::Launch(runtime, engine.args),
        _ => bail!("engines[{index}]: give either `url` or `launch`"),
    };
    let timeout = |field, value: Option<f64>| match value {
        Some(value) if !(0.0..=604_800.0).contains(&value) => {
            bail!("engines[{index}]: {field} is {value}; give seconds up to 604800, 0 for never")
        }
        value => Ok(value.map(Duration::from_secs_f64)),
    };
    let hang = timeout("hang_timeout_seconds", engine.hang_timeout_seconds)?;
    let start = timeout("start_timeout_seconds", engine.start_timeout_seconds)?;
    let patience = patience(hang, start);
    Ok(EngineSettings { source, runtime: engine.runtime, models: engine.models, slots: engine.slots, patience })
}

/// What was not said is as the agent has it; zero is for ever.
fn patience(hang: Option<Duration>, start: Option<Duration>) -> Patience {
    let or = |said: Option<Duration>, usual| said.map_or(usual, |said| (!said.is_zero()).then_some(said));
    let usual = Patience::default();
    Patience { hang: or(hang, usual.hang), start: or(start, usual.start) }
}

/// The endpoint as configured.
#[derive(Debug)]
pub(crate) struct EndpointSettings {
    pub(crate) http: SocketAddr,
    pub(crate) no_auth: bool,
    pub(crate) first_byte_timeout: Duration,
}

impl EndpointSettings {
    pub(crate) fn resolve(args: &EndpointArgs, file: &File) -> Result<Self> {
        let of_file = match file.endpoint.first_byte_timeout_seconds {
            Some(value) if value > 0.0 && value <= 86_400.0 => Some(Duration::from_secs_f64(value)),
            Some(value) => bail!("endpoint.first_byte_timeout_seconds is {value}; give a number from 0 to 86400"),
            None => None,
        };
        Ok(Self {
            http: args.http.or(file.endpoint.http).unwrap_or((Ipv4Addr::LOCALHOST, HTTP_PORT).into()),
            no_auth: args.no_auth || file.endpoint.auth == Some(false),
            first_byte_timeout: args.first_byte_timeout.or(of_file).unwrap_or(FIRST_BYTE_TIMEOUT),
        })
    }
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
    fn the_documented_example_holds() {
        let file: File = toml::from_str(include_str!("../examples/dunlin.toml")).unwrap();
        let node = NodeSettings::resolve(&NodeArgs::default(), &file).unwrap();
        assert_eq!(node.listen, default_listen(true), "the example shows the default");
        assert_eq!(EndpointSettings::resolve(&EndpointArgs::default(), &file).unwrap().http.port(), HTTP_PORT);
        assert_eq!(engines(&EngineArgs::default(), file).unwrap().len(), 2);
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
    fn an_engine_is_attached_or_launched() {
        let none = EngineArgs::default();
        for bad in ["[[engines]]\n", "[[engines]]\nurl='a'\nlaunch='vllm'\n", "[[engines]]\nurl='a'\nargs=['x']\n"] {
            assert!(engines(&none, file(bad).unwrap()).is_err(), "{bad}");
        }
        let two = "[[engines]]\nurl='http://a'\n[[engines]]\nlaunch='llamacpp'\nargs=['-m','f']\nmodels=['m']\n";
        assert_eq!(engines(&none, file(two).unwrap()).unwrap().len(), 2);
        let patient = "[[engines]]\nlaunch='vllm'\nhang_timeout_seconds=0\nstart_timeout_seconds=90.5\n";
        let patience = engines(&none, file(patient).unwrap()).unwrap()[0].patience;
        assert_eq!(patience, Patience { hang: None, start: Some(Duration::from_millis(90_500)) });
        assert!(engines(&none, file("[[engines]]\nlaunch='vllm'\nhang_timeout_seconds=-1\n").unwrap()).is_err());
        let flags = EngineArgs { slots: Some(2), ..Default::default() };
        assert!(engines(&flags, File::default()).is_err(), "slots of nothing");
    }

    #[test]
    fn addresses_that_cannot_be_listened_on_are_refused_in_words() {
        let args = NodeArgs { listen: vec!["/dns4/example.com/tcp/1".parse().unwrap()], ..Default::default() };
        let error = NodeSettings::resolve(&args, &File::default()).unwrap_err().to_string();
        assert!(error.contains("/ip4/ADDRESS/tcp/PORT"), "{error}");
    }
}
