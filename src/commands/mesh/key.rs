//! `dunlin mesh key export|import`.

use crate::{
    args::{KeyCommand, Output},
    exit::Failure,
    output,
};
use anyhow::{Context, Result, anyhow, bail};
use dunlin_node::{clock, mesh, mesh::key, state::StateDir};
use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, IsTerminal, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// More than a key ever takes.
const TEXT_BYTES: u64 = 4096;

pub(super) fn run(command: KeyCommand, home: &Path) -> Result<()> {
    let state = StateDir::open(home)?;
    match command {
        KeyCommand::Export { file, remove } => export(&state, file.as_deref(), remove),
        KeyCommand::Import { file, listing } => import(&state, file.as_deref(), listing.output),
    }
}

fn export(state: &StateDir, file: Option<&Path>, remove: bool) -> Result<()> {
    if remove {
        key::may_remove(state, clock::unix_s())?;
        // What is written to a pipe, or to nowhere, may have reached nobody, and it is the only copy.
        if file.is_none() && !std::io::stdout().is_terminal() {
            bail!(Failure::Usage(
                "--remove takes --file FILE, or a terminal to show the key on: whether anything else kept the key can't be known, and nothing is removed".into()
            ));
        }
    }
    let (text, mesh) = key::export(state)?;
    match file {
        Some(file) => {
            write_new(file, &text).with_context(|| format!("the key can't be written to {}", file.display()))?
        }
        // Nothing may be removed that did not get out.
        None => output::piece(format!("{text}\n").as_bytes())?,
    }
    if !remove {
        output::note(&format!("this is the key of mesh {mesh}: keep it where nobody else can read it"));
        return Ok(());
    }
    key::remove(state, clock::unix_s())?;
    output::note(&format!(
        "the key of mesh {mesh} is gone from this machine, which can't be undone: what was exported is the only copy.\nWithout it nobody can name another machine that issues, nor take that right back; keep it safe.\nIt comes back with: dunlin mesh key import"
    ));
    Ok(())
}

/// Never over a file that exists: it could be another mesh's key. On the disk, with its name, and read back.
fn write_new(path: &Path, text: &str) -> Result<()> {
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => anyhow!("it exists, and nothing is written over; name another file"),
            _ => error.into(),
        })?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).context("its folder can't be synced")?;
    let mut kept = String::new();
    File::open(path)?.take(TEXT_BYTES).read_to_string(&mut kept)?;
    if kept.trim_end() != text {
        bail!("it holds something else than what was written to it; nothing is removed");
    }
    Ok(())
}

fn import(state: &StateDir, file: Option<&Path>, output: Output) -> Result<()> {
    let mut text = String::new();
    match file {
        Some(path) => {
            let unread = || {
                format!(
                    "the key can't be read from {}; name the file that `dunlin mesh key export` wrote",
                    path.display()
                )
            };
            let file = File::open(path).with_context(unread)?;
            file.take(TEXT_BYTES).read_to_string(&mut text).with_context(unread)?
        }
        None => std::io::stdin().lock().take(TEXT_BYTES).read_to_string(&mut text).context("standard input")?,
    };
    if text.trim().is_empty() {
        bail!(Failure::Usage("no key was given; name the file that `dunlin mesh key export` wrote".into()));
    }
    let own = key::import(state, &text, super::first_roles(), None, clock::unix_s()).map_err(explain)?;
    super::show(output, &super::Shown::of_holder(&own))
}

fn explain(error: mesh::Error) -> anyhow::Error {
    match error {
        mesh::Error::KeyText(error) => Failure::Usage(error.to_string()).into(),
        other => other.into(),
    }
}
