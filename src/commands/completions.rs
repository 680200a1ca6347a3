//! `dunlin completions SHELL`: the script by which a shell asks this program how a command line goes on.

use crate::{complete::VARIABLE, output};
use anyhow::{Context, Result};
use clap::ValueEnum;
use clap_complete::{aot::Shell, env::Shells};

pub(crate) fn run(shell: Shell) -> Result<()> {
    let name = shell.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let shells = Shells::builtins();
    let script = shells.completer(&name).with_context(|| format!("no completions are made for {name}"))?;
    let mut text = Vec::new();
    script.write_registration(VARIABLE, "dunlin", "dunlin", &completer()?, &mut text)?;
    Ok(output::whole(&text)?)
}

/// How the shell starts this program: as it was started now.
fn completer() -> Result<String> {
    let called = std::env::args_os().next().unwrap_or_default();
    if std::path::Path::new(&called).components().count() <= 1 {
        return Ok("dunlin".to_owned());
    }
    Ok(std::env::current_exe().context("where this program lies")?.to_string_lossy().into_owned())
}
