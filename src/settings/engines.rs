//! Engines as configured, and what is said of their runtimes.

use super::{File, read_bounded};
use crate::{
    args::{EngineArgs, Tool, values},
    exit::Failure,
};
use anyhow::{Context, Result, anyhow, bail};
use dunlin_agent::{ContainerConfig, ContainerTool, Gpus, Patience};
use dunlin_protocol::{
    id::{ModelId, RuntimeName},
    runtime::Catalogue,
};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Engines of one agent.
const MAX_ENGINES: usize = 64;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EngineFile {
    url: Option<String>,
    launch: Option<RuntimeName>,
    args: Vec<String>,
    container: Option<Tool>,
    gpus: Option<String>,
    container_args: Vec<String>,
    runtime: Option<RuntimeName>,
    models: Vec<ModelId>,
    adapters: BTreeMap<ModelId, String>,
    slots: Option<u16>,
    flavor_rank: u8,
    hang_timeout_seconds: Option<f64>,
    start_timeout_seconds: Option<f64>,
}

/// One engine as configured.
#[derive(Debug, Clone)]
pub(crate) struct EngineSettings {
    pub(crate) source: EngineSource,
    pub(crate) runtime: Option<RuntimeName>,
    pub(crate) models: Vec<ModelId>,
    pub(crate) adapters: Vec<(ModelId, String)>,
    pub(crate) slots: Option<u16>,
    pub(crate) flavor: u8,
    pub(crate) patience: Patience,
}

/// Where an engine comes from.
#[derive(Debug, Clone)]
pub(crate) enum EngineSource {
    /// It runs already.
    Attach(String),
    /// `dunlin engine` runs it in another container of this pod.
    Sidecar { url: String, folder: PathBuf },
    /// The agent starts it.
    Launch { runtime: RuntimeName, args: Vec<String>, container: Option<ContainerConfig> },
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
        adapters: args.adapters.clone(),
        slots: args.slots,
        flavor: args.flavor_rank.unwrap_or_default(),
        patience: patience(args.hang_timeout, args.start_timeout),
    };
    let source = |url| match &args.sidecar {
        Some(folder) => EngineSource::Sidecar { url, folder: folder.clone() },
        None => EngineSource::Attach(url),
    };
    let mut engines: Vec<_> = args.engine.iter().cloned().map(source).map(common).collect();
    if args.sidecar.is_some() && (engines.len() != 1 || args.launch.is_some()) {
        bail!(Failure::Usage(
            "--sidecar is for one engine in another container: give one --engine URL, where it listens".into()
        ));
    }
    if let Some(runtime) = &args.launch {
        let container =
            args.container.map(|tool| container(tool, args.gpus.as_deref(), &args.container_arg)).transpose()?;
        let (runtime, args) = (runtime.clone(), args.launch_args.clone());
        engines.push(common(EngineSource::Launch { runtime, args, container }));
    }
    if engines.is_empty() {
        let at = |index: usize| format!("{}: engines[{index}]", super::place(file.path.as_deref()));
        engines = file.engines.into_iter().enumerate().map(|(i, e)| from_file(&at(i), e)).collect::<Result<_>>()?;
    }
    if engines.is_empty() && describes_engine(args) {
        bail!(Failure::Usage(
            "--runtime, --model, --slots and --flavor-rank describe an engine: give --engine URL or --launch too"
                .into()
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

/// Where engines stand that the file names, unless flags take their place.
pub(crate) fn engines_stand_in(args: &EngineArgs, file: &File) -> Option<String> {
    (args.engine.is_empty() && args.launch.is_none() && !file.engines.is_empty()).then(|| file.place())
}

fn describes_engine(args: &EngineArgs) -> bool {
    args.runtime.is_some() || !args.models.is_empty() || args.slots.is_some() || args.flavor_rank.is_some()
}

/// `at` says where it stands.
fn from_file(at: &str, engine: EngineFile) -> Result<EngineSettings> {
    let source = match (engine.url, engine.launch) {
        (Some(url), None) if engine.args.is_empty() => EngineSource::Attach(url),
        (Some(_), None) => bail!("{at}: `args` are for `launch`, not for `url`"),
        (None, Some(runtime)) => {
            let of_file = |tool| container(tool, engine.gpus.as_deref(), &engine.container_args);
            let container = engine.container.map(of_file).transpose().with_context(|| at.to_owned())?;
            EngineSource::Launch { runtime, args: engine.args, container }
        }
        _ => bail!("{at}: give either `url` or `launch`"),
    };
    let timeout = |field, value: Option<f64>| match value {
        Some(value) if !(0.0..=604_800.0).contains(&value) => {
            bail!("{at}: {field} is {value}; give seconds up to 604800, 0 for never")
        }
        value => Ok(value.map(Duration::from_secs_f64)),
    };
    let hang = timeout("hang_timeout_seconds", engine.hang_timeout_seconds)?;
    let start = timeout("start_timeout_seconds", engine.start_timeout_seconds)?;
    let patience = patience(hang, start);
    for source in engine.adapters.values() {
        values::adapter_source(source).map_err(|error| anyhow!("{at}: adapters: {error}"))?;
    }
    let adapters = engine.adapters.into_iter().collect();
    let EngineFile { runtime, models, slots, flavor_rank: flavor, .. } = engine;
    Ok(EngineSettings { source, runtime, models, adapters, slots, flavor, patience })
}

/// What was not said is as the agent has it; zero is for ever.
fn patience(hang: Option<Duration>, start: Option<Duration>) -> Patience {
    let or = |said: Option<Duration>, usual| said.map_or(usual, |said| (!said.is_zero()).then_some(said));
    let usual = Patience::default();
    Patience { hang: or(hang, usual.hang), start: or(start, usual.start) }
}

/// Where the driver of NVIDIA's GPUs shows itself.
const NVIDIA: &str = "/dev/nvidiactl";

fn container(tool: Tool, gpus: Option<&str>, options: &[String]) -> Result<ContainerConfig> {
    let tool = match tool {
        Tool::Docker => ContainerTool::Docker,
        Tool::Podman => ContainerTool::Podman,
    };
    let gpus = match gpus {
        Some(text) => parse_gpus(text)?,
        None => Path::new(NVIDIA).exists().then_some(Gpus::All),
    };
    Ok(ContainerConfig { gpus, options: options.to_vec(), ..ContainerConfig::new(tool) })
}

fn parse_gpus(text: &str) -> Result<Option<Gpus>> {
    let devices = text.strip_prefix("device=");
    let devices = devices.map(|list| list.split(',').map(|id| id.trim().to_owned()).collect::<Vec<_>>());
    Ok(match (text, devices) {
        ("all", _) => Some(Gpus::All),
        ("none" | "0", _) => None,
        (_, Some(devices)) if devices.iter().all(|id| !id.is_empty()) => Some(Gpus::Devices(devices)),
        _ => match text.parse() {
            Ok(count) => Some(Gpus::Count(count)),
            Err(_) => bail!(Failure::Usage(format!("gpus {text:?}: write all, none, a number, or device=0,1"))),
        },
    })
}

/// The local ports at which engines are looked for; `None` for the usual ones.
pub(crate) fn discover(args: &EngineArgs, file: &File) -> Result<Option<BTreeSet<u16>>> {
    let ports = match (args.discover.is_empty(), &file.discover) {
        (false, _) => args.discover.iter().copied().collect::<BTreeSet<_>>(),
        (true, Some(ports)) => ports.iter().copied().collect(),
        (true, None) => return Ok(None),
    };
    if ports.contains(&0) {
        let place = match args.discover.is_empty() {
            true => format!("{}: discover", file.place()),
            false => "--discover".to_owned(),
        };
        bail!("{place}: 0 is no port");
    }
    Ok(Some(ports))
}

/// The built-in runtimes with what files and `--set` put over them: the configuration's `[[runtimes]]`, then the files of
/// `--runtime-file`, then `--set`.
pub(crate) fn catalogue(args: &EngineArgs, file: &File) -> Result<Catalogue> {
    let mut catalogue = Catalogue::built_in()?;
    for (index, table) in file.runtimes.iter().enumerate() {
        catalogue.merge_table(&format!("{}, runtimes[{index}]", file.place()), table.clone())?;
    }
    for path in &args.runtime_file {
        let place = path.display().to_string();
        let text = read_bounded(path).with_context(|| format!("runtime file {place}"))?;
        catalogue.merge(&place, &text)?;
    }
    for setting in &args.set {
        set(&mut catalogue, args, setting)?;
    }
    Ok(catalogue)
}

fn set(catalogue: &mut Catalogue, args: &EngineArgs, setting: &str) -> Result<()> {
    let usage = |problem: String| Failure::Usage(format!("--set {setting}: {problem}"));
    let Some((path, value)) = setting.split_once('=') else {
        bail!(usage("write it as FIELD=VALUE, for example slots.default=16".into()));
    };
    let named = path.split_once('.').and_then(|(name, key)| Some((name.parse::<RuntimeName>().ok()?, key)));
    let (runtime, key) = match named.filter(|(name, _)| catalogue.get(name).is_ok()) {
        Some(named) => named,
        None => {
            let Some(runtime) = args.launch.clone().or_else(|| args.runtime.clone()) else {
                let names = catalogue.names();
                bail!(usage(format!(
                    "whose field? Put a runtime's name in front ({names}), or give --launch or --runtime"
                )));
            };
            (runtime, path)
        }
    };
    Ok(catalogue.set(&format!("--set {setting}"), &runtime, key, value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<File> {
        Ok(toml::from_str(text)?)
    }

    #[test]
    fn an_engine_is_attached_or_launched() {
        let none = EngineArgs::default();
        for bad in ["[[engines]]\n", "[[engines]]\nurl='a'\nlaunch='vllm'\n", "[[engines]]\nurl='a'\nargs=['x']\n"] {
            assert!(engines(&none, file(bad).unwrap()).is_err(), "{bad}");
        }
        let two = "[[engines]]\nurl='http://a'\n[[engines]]\nlaunch='llamacpp'\nargs=['-m','f']\nmodels=['m']\nflavor_rank=2\n";
        let flavors: Vec<u8> = engines(&none, file(two).unwrap()).unwrap().iter().map(|engine| engine.flavor).collect();
        assert_eq!(flavors, [0, 2]);
        let patient = "[[engines]]\nlaunch='vllm'\nhang_timeout_seconds=0\nstart_timeout_seconds=90.5\n";
        let patience = engines(&none, file(patient).unwrap()).unwrap()[0].patience;
        assert_eq!(patience, Patience { hang: None, start: Some(Duration::from_millis(90_500)) });
        assert!(engines(&none, file("[[engines]]\nlaunch='vllm'\nhang_timeout_seconds=-1\n").unwrap()).is_err());
        let flags = EngineArgs { slots: Some(2), ..Default::default() };
        assert!(engines(&flags, File::default()).is_err(), "slots of nothing");
        let flags = EngineArgs { flavor_rank: Some(1), ..Default::default() };
        assert!(engines(&flags, File::default()).is_err(), "flavor of nothing");
        let flags = EngineArgs { engine: vec!["http://a".into()], ..flags };
        assert_eq!(engines(&flags, File::default()).unwrap()[0].flavor, 1);
    }

    #[test]
    fn gpus_are_written_as_docker_does() {
        let parsed = |text: &str| parse_gpus(text).ok();
        assert_eq!(parsed("all"), Some(Some(Gpus::All)));
        assert_eq!((parsed("none"), parsed("0")), (Some(None), Some(None)));
        assert_eq!(parsed("2"), Some(Some(Gpus::Count(2))));
        assert_eq!(parsed("device=0, GPU-1"), Some(Some(Gpus::Devices(vec!["0".into(), "GPU-1".into()]))));
        for wrong in ["", "some", "-1", "device=", "device=0,,1"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
        let text = "[[engines]]\nlaunch = 'vllm'\ncontainer = 'podman'\ngpus = '1'\ncontainer_args = ['--network=x']\n";
        let engines = engines(&EngineArgs::default(), file(text).unwrap()).unwrap();
        let EngineSource::Launch { container: Some(container), .. } = &engines[0].source else { panic!("a container") };
        assert_eq!((container.program.as_str(), &container.gpus), ("podman", &Some(Gpus::Count(1))));
        assert_eq!(container.options, ["--network=x"]);
    }

    fn with_settings(launch: Option<&str>, settings: &[&str]) -> Result<Catalogue> {
        let set = settings.iter().map(|&text| text.to_owned()).collect();
        let launch = launch.map(|name| name.parse().unwrap());
        catalogue(&EngineArgs { set, launch, ..Default::default() }, &File::default())
    }

    #[test]
    fn runtimes_are_changed_by_the_file_then_by_runtime_files_then_by_flags() {
        let configured =
            file("[[runtimes]]\nname = 'vllm'\nport = 1\nslots.default = 2\nprobe.health = '/a'\n").unwrap();
        let path = std::env::temp_dir().join(format!("dunlin-runtime-{}.toml", std::process::id()));
        std::fs::write(&path, "name = 'vllm'\nslots.default = 3\nprobe.health = '/b'\n").unwrap();
        let args = EngineArgs {
            runtime_file: vec![path.clone()],
            set: vec!["vllm.probe.health=/c".into()],
            ..Default::default()
        };
        let catalogue = catalogue(&args, &configured);
        std::fs::remove_file(&path).unwrap();
        let catalogue = catalogue.unwrap();
        let vllm = catalogue.get(&"vllm".parse().unwrap()).unwrap();
        let health = vllm.probe.health.as_ref().unwrap().as_str();
        assert_eq!((vllm.port, vllm.slots.default, health), (Some(1), 3, "/c"));
    }

    #[test]
    fn a_setting_is_for_the_launched_runtime_or_for_the_one_it_names() {
        let catalogue = with_settings(Some("vllm"), &["slots.default=7", "ollama.slots.default=8"]).unwrap();
        let slots = |name: &str| catalogue.get(&name.parse().unwrap()).unwrap().slots.default;
        assert_eq!((slots("vllm"), slots("ollama")), (7, 8));
        for (launch, setting, wanted) in [
            (None, "slots.default=7", "whose field?"),
            (Some("vllm"), "slots.default", "FIELD=VALUE"),
            (Some("vllm"), "slots.defaults=7", "unknown field `defaults`"),
            (Some("vlm"), "slots.default=7", "unknown runtime `vlm`"),
        ] {
            let error = format!("{:#}", with_settings(launch, &[setting]).unwrap_err());
            assert!(error.contains(wanted), "{setting}: {error}");
        }
    }
}
