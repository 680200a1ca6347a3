//! An engine in a container, through the command line of docker or podman: nothing else is needed on the machine, and what
//! its user has set up (contexts, rootless podman, registries' credentials) holds here too.
//!
//! The command line runs in the foreground, so that it is supervised like any child and its output is the engine's. The
//! container itself belongs to a daemon, or to nobody: killing the command line does not end it. So every container
//! carries its agent's label, is removed by name when its command line ends, and by label when an agent starts.

use crate::config::{ContainerConfig, ContainerTool, Gpus};
use dunlin_protocol::runtime::{CommandLine, ContainerLine, launch};
use rand::{RngExt, rngs::SmallRng};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    process::{self, Stdio},
    time::Duration,
};
use tokio::{process::Command, time::timeout};

/// Label with the agent's own secret, which tells its containers from those of other agents on the same daemon.
const OWNER_LABEL: &str = "dev.dunlin.agent";
/// File of the agent's directory with that secret.
const OWNER_FILE: &str = "container-owner";
/// Addresses inside a container; outside, the port is published on loopback alone.
pub(super) const HOST: &str = "0.0.0.0";
/// Removing containers, or listing them.
const DEADLINE: Duration = Duration::from_secs(20);

/// A container that was started, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    /// `docker` or `podman`.
    program: String,
    name: String,
}

impl Named {
    fn remove(&self) -> process::Command {
        let mut command = process::Command::new(&self.program);
        command.args(["rm", "--force", &self.name]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Ends and removes it, if it is there.
    pub(crate) async fn end(&self) {
        run(self.remove().into(), &self.program).await;
    }

    /// The same for a process that is about to end: waits for nothing.
    pub(crate) fn end_unseen(&self) {
        if let Err(error) = self.remove().spawn() {
            tracing::warn!(container = self.name, %error, "container could not be removed");
        }
    }

    pub(crate) fn program(&self) -> &str {
        &self.program
    }
}

/// The secret of the agent in `directory`; made at first use.
pub(crate) fn owner(directory: &Path) -> io::Result<String> {
    let path = directory.join(OWNER_FILE);
    match fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut rng: SmallRng = rand::make_rng();
    let owner = format!("{:032x}", rng.random::<u128>());
    fs::write(path, &owner)?;
    Ok(owner)
}

/// The command line that runs `line` and ends with it, and the container's name. `passed` are variables of the agent's
/// environment that go on, by name: their values stay out of the command line.
pub(super) fn foreground(
    config: &ContainerConfig,
    entry: &launch::Container,
    line: ContainerLine,
    place: &Place<'_>,
    passed: &[String],
) -> (CommandLine, Named) {
    let name = format!("dunlin-{}", place.mark);
    let mut args: Vec<String> = ["run", "--rm", "--name", &name].map(str::to_owned).into();
    let mut flag = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
    flag("--label", format!("{OWNER_LABEL}={}", place.owner));
    flag("--publish", format!("127.0.0.1:{0}:{0}", place.port));
    flag("--stop-timeout", place.grace_s.to_string());
    for gpus in config.gpus.iter().flat_map(|gpus| gpu_flags(config.tool, gpus)) {
        flag(gpus.0, gpus.1);
    }
    if let Some(cache) = &entry.cache {
        let volume = entry.volume.clone().unwrap_or_else(|| format!("dunlin-{}", place.runtime));
        flag("--volume", format!("{volume}:{cache}"));
    }
    for (variable, value) in &line.env {
        flag("--env", format!("{variable}={value}"));
    }
    for variable in passed {
        flag("--env", variable.clone());
    }
    if let Some(program) = line.program {
        flag("--entrypoint", program);
    }
    if config.tool == ContainerTool::Docker {
        // Brings a small init along, which passes signals on and reaps; podman needs one to be installed.
        args.push("--init".to_owned());
    }
    args.extend(entry.options.iter().chain(&config.options).cloned());
    args.push(line.image);
    args.extend(line.args);
    let program = config.program.clone();
    (CommandLine { program: program.clone(), args, env: BTreeMap::new() }, Named { program, name })
}

/// What a container needs to know of its launch.
pub(super) struct Place<'a> {
    pub(super) runtime: &'a str,
    pub(super) port: u16,
    pub(super) mark: &'a str,
    pub(super) owner: &'a str,
    pub(super) grace_s: u64,
}

/// Docker has a flag of its own; podman takes devices as the Container Device Interface names them.
fn gpu_flags(tool: ContainerTool, gpus: &Gpus) -> Vec<(&'static str, String)> {
    let cdi = |device: &str| ("--device", format!("nvidia.com/gpu={device}"));
    match (tool, gpus) {
        (ContainerTool::Docker, Gpus::All) => vec![("--gpus", "all".to_owned())],
        (ContainerTool::Docker, Gpus::Count(count)) => vec![("--gpus", count.to_string())],
        // Quoted: the value is a list of settings, and this one has commas in it.
        (ContainerTool::Docker, Gpus::Devices(ids)) => vec![("--gpus", format!("\"device={}\"", ids.join(",")))],
        (ContainerTool::Podman, Gpus::All) => vec![cdi("all")],
        (ContainerTool::Podman, Gpus::Count(count)) => (0..*count).map(|index| cdi(&index.to_string())).collect(),
        (ContainerTool::Podman, Gpus::Devices(ids)) => ids.iter().map(|id| cdi(id)).collect(),
    }
}

/// Ends every container that an earlier agent with this directory left behind. `programs` are the command lines to ask.
pub(crate) async fn reap(directory: &Path, programs: impl IntoIterator<Item = String>) {
    // Without a secret there never was a container.
    let Ok(owner) = fs::read_to_string(directory.join(OWNER_FILE)) else { return };
    for program in programs {
        let mut list = Command::new(&program);
        list.args(["ps", "--all", "--quiet", "--filter", &format!("label={OWNER_LABEL}={}", owner.trim())]);
        list.stdin(Stdio::null()).stderr(Stdio::null());
        let Some(output) = run(list, &program).await else { continue };
        let ids: Vec<_> = String::from_utf8_lossy(&output).split_whitespace().map(str::to_owned).collect();
        if ids.is_empty() {
            continue;
        }
        tracing::warn!(containers = ids.len(), program, "ending containers that an earlier agent left behind");
        let mut remove = Command::new(&program);
        remove.args(["rm", "--force"]).args(ids).stdin(Stdio::null()).stderr(Stdio::null());
        run(remove, &program).await;
    }
}

/// Standard output of a short command; nothing when it fails, which is logged.
async fn run(mut command: Command, program: &str) -> Option<Vec<u8>> {
    match timeout(DEADLINE, command.kill_on_drop(true).output()).await {
        Ok(Ok(output)) if output.status.success() => Some(output.stdout),
        Ok(Ok(output)) => {
            tracing::debug!(program, status = %output.status, "container command failed");
            None
        }
        Ok(Err(error)) => {
            tracing::warn!(program, %error, "container command could not be run");
            None
        }
        Err(_) => {
            tracing::warn!(program, "container command took too long");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::runtime::Values;

    fn line(tool: ContainerTool, runtime: &str, gpus: Option<Gpus>) -> String {
        let runtime = crate::test_data::runtime(runtime);
        let launch = runtime.launch.unwrap();
        let (host, port) = (HOST.to_owned(), 8123);
        let served_name = Some("org/m".to_owned());
        let values = Values { host, port, model: served_name.clone(), served_name, ..Values::default() };
        let line = launch.expand_in_container(&values).unwrap();
        let config = ContainerConfig { gpus, options: vec!["--memory=9g".into()], ..ContainerConfig::new(tool) };
        let place =
            Place { runtime: runtime.name.as_str(), port, mark: "m1", owner: "o1", grace_s: runtime.drain.grace_s };
        let (command, named) = foreground(&config, &launch.container, line, &place, &launch.container.pass_env);
        assert_eq!(named, Named { program: tool.program().into(), name: "dunlin-m1".into() });
        format!("{} {}", command.program, command.args.join(" "))
    }

    #[test]
    fn docker_runs_vllm_with_its_gpus_and_cache() {
        assert_eq!(
            line(ContainerTool::Docker, "vllm", Some(Gpus::Devices(vec!["0".into(), "2".into()]))),
            "docker run --rm --name dunlin-m1 --label dev.dunlin.agent=o1 --publish 127.0.0.1:8123:8123 --stop-timeout 30 \
             --gpus \"device=0,2\" --volume dunlin-huggingface:/root/.cache/huggingface --env HF_TOKEN --entrypoint vllm \
             --init --ipc=host --memory=9g vllm/vllm-openai:latest serve org/m --host 0.0.0.0 --port 8123 \
             --served-model-name org/m"
        );
    }

    #[test]
    fn podman_runs_an_images_own_entry_point() {
        assert_eq!(
            line(ContainerTool::Podman, "parakeet", Some(Gpus::Count(2))),
            "podman run --rm --name dunlin-m1 --label dev.dunlin.agent=o1 --publish 127.0.0.1:8123:8123 --stop-timeout 20 \
             --device nvidia.com/gpu=0 --device nvidia.com/gpu=1 --volume dunlin-parakeet:/opt/nim/.cache \
             --env NIM_HTTP_API_PORT=8123 --env NGC_API_KEY --env NIM_TAGS_SELECTOR --shm-size=8g --memory=9g \
             nvcr.io/nim/nvidia/parakeet-ctc-1.1b-asr:latest"
        );
        let all = |tool| line(tool, "ollama", Some(Gpus::All));
        assert!(all(ContainerTool::Podman).contains("--device nvidia.com/gpu=all "));
        assert!(all(ContainerTool::Docker).contains("--gpus all "));
        assert!(all(ContainerTool::Docker).contains("--env OLLAMA_HOST=0.0.0.0:8123 --entrypoint /bin/ollama"));
    }

    #[test]
    fn an_agents_secret_stays() {
        let directory = tempfile::tempdir().unwrap();
        let first = owner(directory.path()).unwrap();
        assert_eq!(first.len(), 32);
        assert_eq!(owner(directory.path()).unwrap(), first);
    }
}
