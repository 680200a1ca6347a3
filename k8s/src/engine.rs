//! What an engine's container runs: a catalogue's entry, what the BackendRuntime puts over it, what the Playground adds.

use crate::resources::{BackendRuntime, BackendRuntimeSpec, EnvVar, Flavor, PlaygroundSpec, RuntimeChoice, Source};
use dunlin_protocol::{
    id::RuntimeName,
    runtime::{self, Catalogue, Runtime, Values},
};
use std::{collections::BTreeMap, sync::OnceLock};
use toml::{Table, Value};

/// Where the executable lies that the agent shares with the other containers.
pub const EXECUTABLE: &str = "/dunlin/dunlin";
/// Where weights lie.
pub const WEIGHTS: &str = "/models";
/// Name of the runtime that is simulated.
const DEMO: &str = "demo";
/// Runtimes that load one file.
const OF_ONE_FILE: [&str; 2] = ["llamacpp", "whisper"];

/// Why an engine can't be run as asked: says what to change.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The catalogue has no such entry.
    #[error("BackendRuntime {name}: spec.runtime: {error}")]
    Unknown {
        /// The BackendRuntime.
        name: String,
        /// Names the choices.
        error: runtime::catalogue::Unknown,
    },
    /// No entry could have such a name.
    #[error("BackendRuntime {name}: spec.runtime: {error}")]
    Name {
        /// The BackendRuntime.
        name: String,
        /// What is wrong.
        error: dunlin_protocol::id::Error,
    },
    /// What was put over the entry makes no sense.
    #[error("BackendRuntime {name}: {error}")]
    Entry {
        /// The BackendRuntime.
        name: String,
        /// What is wrong.
        error: Box<runtime::catalogue::Error>,
    },
    /// There is no image.
    #[error("BackendRuntime {0}: no image is known for this runtime: set spec.image")]
    NoImage(String),
    /// No such configuration.
    #[error("BackendRuntime {name} has no recommended configuration {config:?}; it has: {choices}")]
    NoConfig {
        /// The BackendRuntime.
        name: String,
        /// What the Playground asks for.
        config: String,
        /// What there is.
        choices: String,
    },
    /// A value is missing.
    #[error("BackendRuntime {name}: {error}")]
    Unlaunchable {
        /// The BackendRuntime.
        name: String,
        /// What is missing.
        error: runtime::launch::Unlaunchable,
    },
    /// The engine loads a file, and the source names none.
    #[error("{0} loads a single file: set source.huggingface.file of the Model, for example to a .gguf")]
    NoFile(String),
}

/// An engine that can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Engine {
    /// The resolved entry, which the agent reads.
    pub runtime: Runtime,
    /// Its port.
    pub port: u16,
    /// The image; `None` is dunlin's own.
    pub image: Option<String>,
    /// Program and arguments; `None` is the image's own entry point.
    pub command: Option<Vec<String>>,
    /// Environment, in order.
    pub env: Vec<EnvVar>,
}

/// The catalogue's entry with the BackendRuntime over it.
///
/// # Errors
/// Names the field that is wrong.
pub fn entry(name: &str, spec: &BackendRuntimeSpec) -> Result<Runtime, Error> {
    let entry_error = |error| Error::Entry { name: name.to_owned(), error: Box::new(error) };
    let mut catalogue = catalogue().map_err(entry_error)?.clone();
    let base = RuntimeName::new(&spec.runtime).map_err(|error| Error::Name { name: name.to_owned(), error })?;
    catalogue.get(&base).map_err(|error| Error::Unknown { name: name.to_owned(), error })?;
    let merged = catalogue.merge_table(&format!("BackendRuntime {name}"), table(spec)).map_err(entry_error)?;
    let runtime = catalogue.get(&merged).map_err(|error| Error::Unknown { name: name.to_owned(), error })?;
    Ok(runtime.clone())
}

/// What comes with the program, read once.
fn catalogue() -> Result<&'static Catalogue, runtime::catalogue::Error> {
    static READ: OnceLock<Catalogue> = OnceLock::new();
    if let Some(catalogue) = READ.get() {
        return Ok(catalogue);
    }
    let catalogue = Catalogue::built_in()?;
    Ok(READ.get_or_init(|| catalogue))
}

fn table(spec: &BackendRuntimeSpec) -> Table {
    let text = |text: &str| Value::String(text.to_owned());
    let texts = |list: &[String]| Value::Array(list.iter().map(|item| Value::String(item.clone())).collect());
    let mut table = Table::from_iter([("name".to_owned(), text(&spec.runtime))]);
    let mut launch = Table::new();
    if let [program, args @ ..] = spec.command.as_slice() {
        launch.insert("command".to_owned(), text(program));
        let own = spec.args.single.as_slice();
        let args: Vec<String> = args.iter().chain(own).cloned().collect();
        launch.insert("args".to_owned(), texts(&args));
        launch.insert("container".to_owned(), Value::Table(Table::from_iter([("command".to_owned(), text(program))])));
    } else if !spec.args.single.is_empty() {
        launch.insert("args".to_owned(), texts(&spec.args.single));
    }
    if !launch.is_empty() {
        table.insert("launch".to_owned(), Value::Table(launch));
    }
    if let Some(port) = spec.port {
        table.insert("port".to_owned(), Value::Integer(port.into()));
    }
    if let Some(path) = &spec.health {
        table.insert("probe".to_owned(), Value::Table(Table::from_iter([("health".to_owned(), text(path))])));
    }
    if let Some(path) = &spec.metrics {
        table.insert("metrics".to_owned(), Value::Table(Table::from_iter([("path".to_owned(), text(path))])));
    }
    table
}

/// The engine of one replica.
///
/// # Errors
/// Names the field that is wrong, and what to do.
pub fn resolve(
    name: &str,
    spec: &BackendRuntimeSpec,
    playground: &PlaygroundSpec,
    flavor: &Flavor,
    source: &Source,
    served_name: &str,
) -> Result<Engine, Error> {
    let runtime = entry(name, spec)?;
    let default_choice = RuntimeChoice::default();
    let choice = playground.runtime.as_ref().unwrap_or(&default_choice);
    let config = config(name, spec, choice.config.as_deref())?;
    let port = runtime.port.unwrap_or(8000);
    let unlaunchable = |error| Error::Unlaunchable { name: name.to_owned(), error };
    let launch = runtime.launch.as_ref().ok_or_else(|| Error::NoImage(name.to_owned()))?;
    let parallel = |explicit: Option<u16>| explicit.filter(|count| *count > 1);
    let gpus = flavor.gpu.as_ref().and_then(|gpu| u16::try_from(gpu.count).ok());
    let tensor = flavor.tensor_parallel.or(gpus.filter(|_| flavor.pipeline_parallel.is_none()));
    let config_args = config.into_iter().flat_map(|config| &config.args);
    let values = Values {
        host: if spec.binds_loopback == Some(false) { "0.0.0.0" } else { "127.0.0.1" }.to_owned(),
        port,
        model: weights(&runtime, source, served_name)?,
        served_name: Some(served_name.to_owned()),
        executable: Some(EXECUTABLE.to_owned()),
        tensor_parallel: parallel(tensor),
        pipeline_parallel: parallel(flavor.pipeline_parallel),
        args: config_args.chain(&flavor.args).chain(&choice.args).cloned().collect(),
    };
    let demo = runtime.name.as_str() == DEMO;
    // The demo engine is part of dunlin's own image; any image will do for its expansion.
    let mut complete = launch.clone();
    complete.image = spec.image.clone().or(complete.image).or(demo.then(String::new));
    let line = complete.expand_in_container(&values).map_err(|error| match error {
        runtime::launch::Unlaunchable::NoImage => Error::NoImage(name.to_owned()),
        error => unlaunchable(error),
    })?;
    let command = line.program.map(|program| std::iter::once(program).chain(line.args).collect());
    let version = choice.version.as_deref().or(spec.version.as_deref());
    let image = (!demo || spec.image.is_some()).then(|| with_version(&line.image, version));
    let config_env = config.into_iter().flat_map(|config| &config.env);
    // What the runtime needs comes last: the last of two with one name counts.
    let added = config_env.chain(&flavor.env).chain(&choice.env).chain(&spec.env).cloned();
    let own = line.env.into_iter().map(|(name, value)| EnvVar { name, value });
    Ok(Engine { port, image, command, env: last_of_each_name(added.chain(own)), runtime })
}

fn config<'s>(
    name: &str,
    spec: &'s BackendRuntimeSpec,
    wanted: Option<&str>,
) -> Result<Option<&'s crate::resources::RecommendedConfig>, Error> {
    let found = spec.recommended_configs.iter().find(|config| config.name == wanted.unwrap_or("default"));
    match (found, wanted) {
        (None, Some(config)) => Err(Error::NoConfig {
            name: name.to_owned(),
            config: config.to_owned(),
            choices: spec.recommended_configs.iter().map(|config| config.name.as_str()).collect::<Vec<_>>().join(", "),
        }),
        (found, _) => Ok(found),
    }
}

/// What the engine is told to load: `None` when it finds that out by itself.
fn weights(runtime: &Runtime, source: &Source, served_name: &str) -> Result<Option<String>, Error> {
    let name = runtime.name.as_str();
    if let Some(uri) = &source.uri
        && let Some((_, model)) = uri.split_once("ollama://").or_else(|| uri.split_once("ngc://"))
    {
        return Ok(Some(model.to_owned()));
    }
    if name == DEMO {
        return Ok(Some(served_name.to_owned()));
    }
    let repository = source.huggingface.as_ref().or(source.modelscope.as_ref());
    let in_volume = source.pvc.as_ref().and_then(|claim| claim.path.as_deref());
    let in_folder = source.host_path.as_deref().and_then(file_of);
    let in_uri = source.uri.as_deref().and_then(file_of);
    let file = repository.and_then(|repository| repository.file.as_deref()).or(in_volume).or(in_folder).or(in_uri);
    if file.is_none() && repository.is_some() && OF_ONE_FILE.contains(&name) {
        return Err(Error::NoFile(name.to_owned()));
    }
    Ok(Some(file.map_or_else(|| WEIGHTS.to_owned(), |file| format!("{WEIGHTS}/{}", file.trim_start_matches('/')))))
}

/// The last part of a path, when it looks like a file of weights.
pub(crate) fn file_of(path: &str) -> Option<&str> {
    let (_, last) = path.rsplit_once('/')?;
    [".gguf", ".bin", ".safetensors", ".nemo"].iter().any(|suffix| last.ends_with(suffix)).then_some(last)
}

/// The image with this tag or digest in place of its own.
fn with_version(image: &str, version: Option<&str>) -> String {
    let Some(version) = version else { return image.to_owned() };
    let without_digest = image.split_once('@').map_or(image, |(bare, _)| bare);
    let slash = without_digest.rfind('/').map_or(0, |at| at + 1);
    let bare = without_digest[slash..].find(':').map_or(without_digest, |at| &without_digest[..slash + at]);
    let separator = if version.starts_with("sha256:") { '@' } else { ':' };
    format!("{bare}{separator}{version}")
}

fn last_of_each_name(variables: impl Iterator<Item = EnvVar>) -> Vec<EnvVar> {
    let mut kept: Vec<EnvVar> = Vec::new();
    for variable in variables {
        kept.retain(|known| known.name != variable.name);
        kept.push(variable);
    }
    kept
}

/// The BackendRuntimes that come with the program: one for each entry of the catalogue that can be launched.
///
/// # Errors
/// The built-in catalogue is wrong, which a test rules out.
pub fn built_in() -> Result<Vec<BackendRuntime>, Error> {
    let catalogue =
        catalogue().map_err(|error| Error::Entry { name: "built in".to_owned(), error: Box::new(error) })?;
    let launchable = |runtime: &&Runtime| runtime.launch.is_some();
    Ok(catalogue.iter().filter(launchable).map(shipped).collect())
}

fn shipped(runtime: &Runtime) -> BackendRuntime {
    let image = runtime.launch.as_ref().and_then(|launch| launch.image.clone());
    let (image, version) = match image.as_deref().and_then(|image| image.rsplit_once(':')) {
        Some((image, version)) => (Some(image.to_owned()), Some(version.to_owned())),
        None => (image, None),
    };
    let name = runtime.name.as_str();
    let shared_memory = ["vllm", "sglang", "tgi", "tensorrt-llm", "parakeet"].contains(&name).then(|| "8Gi".to_owned());
    let spec = BackendRuntimeSpec {
        runtime: name.to_owned(),
        image,
        version,
        port: runtime.port,
        shared_memory,
        // Its server can't be told an address.
        binds_loopback: (name == "parakeet").then_some(false),
        ..BackendRuntimeSpec::default()
    };
    let mut shipped = BackendRuntime::new(name, spec);
    shipped.metadata.annotations =
        Some(BTreeMap::from([("dunlin.dev/description".to_owned(), runtime.description.clone())]));
    shipped
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resolved(
        runtime: &str,
        source: serde_json::Value,
        playground: serde_json::Value,
        flavor: serde_json::Value,
    ) -> Result<Engine, Error> {
        let shipped = built_in().unwrap().into_iter().find(|shipped| shipped.spec.runtime == runtime).unwrap();
        let playground = serde_json::from_value(playground).unwrap();
        let (flavor, source) = (serde_json::from_value(flavor).unwrap(), serde_json::from_value(source).unwrap());
        resolve(runtime, &shipped.spec, &playground, &flavor, &source, "org/model")
    }

    #[test]
    fn the_engine_is_told_where_weights_lie_and_how_to_split_them() {
        let flavor = json!({"name": "h100", "gpu": {"count": 4}, "args": ["--max-model-len=8192"]});
        let hub = json!({"huggingface": {"repo": "org/model"}});
        let vllm = resolved(
            "vllm",
            hub.clone(),
            json!({"model": "m", "runtime": {"args": ["--dtype", "half"]}}),
            flavor.clone(),
        );
        let command = vllm.unwrap().command.unwrap().join(" ");
        let told = "vllm serve /models --host 127.0.0.1 --port 8000 --served-model-name org/model \
                    --tensor-parallel-size 4 --max-model-len=8192 --dtype half";
        assert_eq!(command, told);
        let one =
            resolved("sglang", hub.clone(), json!({"model": "m"}), json!({"name": "l4", "gpu": {"count": 1}})).unwrap();
        assert!(!one.command.unwrap().join(" ").contains("tp-size"), "one GPU is not split");
        assert!(matches!(resolved("llamacpp", hub, json!({"model": "m"}), flavor), Err(Error::NoFile(_))));
        let gguf = json!({"huggingface": {"repo": "org/model", "file": "q4/model.gguf"}});
        let cpu = resolved("llamacpp", gguf, json!({"model": "m"}), json!({"name": "cpu"})).unwrap();
        assert!(cpu.command.unwrap().join(" ").contains("--model /models/q4/model.gguf --alias org/model"));
    }

    #[test]
    fn every_shipped_runtime_resolves_and_its_entry_reads_back() {
        let source = json!({"huggingface": {"repo": "org/model", "file": "m.gguf"}});
        for shipped in built_in().unwrap() {
            let name = shipped.spec.runtime.clone();
            let engine = resolved(&name, source.clone(), json!({"model": "m"}), json!({"name": "x"})).unwrap();
            let text = toml::to_string(&engine.runtime).unwrap();
            let read: Runtime = toml::from_str(&text).unwrap();
            assert_eq!(read, engine.runtime, "{name}");
            assert_eq!(engine.image.is_none(), name == "demo", "{name}");
        }
    }

    #[test]
    fn a_backend_runtime_goes_over_the_catalogue() {
        let spec: BackendRuntimeSpec = serde_json::from_value(json!({
            "runtime": "vllm", "image": "mirror:5000/vllm", "version": "v1", "command": ["python3", "-m", "vllm"],
            "args": {"single": ["--model", "{model}", "{args}"]}, "port": 9000, "health": "/healthz",
            "recommendedConfigs": [{"name": "default", "args": ["--a"]}, {"name": "fast", "args": ["--b"]}],
        }))
        .unwrap();
        let resolve = |playground: serde_json::Value| {
            let source = serde_json::from_value(json!({"pvc": {"claimName": "c"}})).unwrap();
            super::resolve(
                "mine",
                &spec,
                &serde_json::from_value(playground).unwrap(),
                &Flavor::default(),
                &source,
                "m",
            )
        };
        let engine = resolve(json!({"model": "m", "runtime": {"config": "fast", "version": "v2"}})).unwrap();
        assert_eq!(engine.command.unwrap(), ["python3", "-m", "vllm", "--model", "/models", "--b"]);
        assert_eq!((engine.image.as_deref(), engine.port), (Some("mirror:5000/vllm:v2"), 9000));
        let error = resolve(json!({"model": "m", "runtime": {"config": "slow"}})).unwrap_err().to_string();
        assert!(error.contains("it has: default, fast"), "{error}");
        let digest = format!("sha256:{}", "0".repeat(64));
        assert_eq!(with_version("a/b:c@sha256:1", Some(&digest)), format!("a/b@{digest}"));
    }
}
