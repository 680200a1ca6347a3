//! The command line of one launch.

use super::container::{self, Named, Place};
use crate::config::ContainerConfig;
use dunlin_protocol::{
    id::ModelId,
    runtime::{CommandLine, Runtime, Values, launch},
};
use std::{io, net::TcpListener};

/// Where launched engines listen: nobody but this agent talks to them.
const HOST: &str = "127.0.0.1";
/// How engines call the flag for their port. A user who gives it decides the port.
const PORT_FLAG: &str = "--port";

/// Why an engine cannot be launched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The runtime has no launch entry.
    #[error("runtime `{0}` cannot be launched, only attached to with --engine URL")]
    NoLaunch(String),
    /// A template lacks a value, or there is no program.
    #[error(transparent)]
    Unlaunchable(#[from] launch::Unlaunchable),
    /// The user's `--port` makes no sense.
    #[error("{0:?} is not a port")]
    Port(String),
    /// No free port.
    #[error("no free port: {0}")]
    NoPort(#[source] io::Error),
}

/// A launch ready to be made.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) port: u16,
    pub(crate) command: CommandLine,
    /// The container that the command runs.
    pub(crate) container: Option<Named>,
}

/// What is launched, as the agent's user wants it.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// The user's own arguments.
    pub(crate) args: Vec<String>,
    /// Run it in a container, which carries this agent's label.
    pub(crate) container: Option<(ContainerConfig, String)>,
}

/// Makes a command line with a free port, or the user's. `mark` tells this launch from all others.
pub(crate) fn plan(runtime: &Runtime, models: &[ModelId], order: &Order, mark: &str) -> Result<Plan, Error> {
    let args = &order.args;
    let launch = runtime.launch.as_ref().ok_or_else(|| Error::NoLaunch(runtime.name.to_string()))?;
    let port = match port_in(args)? {
        Some(port) => port,
        None => free_port().map_err(Error::NoPort)?,
    };
    let values = Values {
        host: if order.container.is_some() { container::HOST } else { HOST }.to_owned(),
        port,
        model: launch.model(models.first().map(ModelId::as_str), args),
        served_name: models.first().map(ModelId::to_string),
        executable: std::env::current_exe().ok().map(|path| path.to_string_lossy().into_owned()),
        args: args.clone(),
        ..Values::default()
    };
    let Some((config, owner)) = &order.container else {
        return Ok(Plan { port, command: launch.expand(&values)?, container: None });
    };
    let line = launch.expand_in_container(&values)?;
    let is_set = |variable: &&String| std::env::var_os(variable.as_str()).is_some();
    let passed: Vec<_> = launch.container.pass_env.iter().filter(is_set).cloned().collect();
    let place = Place { runtime: runtime.name.as_str(), port, mark, owner, grace_s: runtime.drain.grace_s };
    let (command, named) = container::foreground(config, &launch.container, line, &place, &passed);
    Ok(Plan { port, command, container: Some(named) })
}

/// The user's own choice of port: `--port N` or `--port=N`, the last one as engines take it.
fn port_in(args: &[String]) -> Result<Option<u16>, Error> {
    let mut found = None;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(rest) = arg.strip_prefix(PORT_FLAG) else { continue };
        let text = match rest.strip_prefix('=') {
            Some(text) => text,
            None if rest.is_empty() => args.next().map_or("", String::as_str),
            None => continue,
        };
        found = match text.parse() {
            Ok(0) => None,
            Ok(port) => Some(port),
            Err(_) => return Err(Error::Port(text.to_owned())),
        };
    }
    Ok(found)
}

/// A port that was free a moment ago. Should someone take it first, the engine ends and the next try has another.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((HOST, 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::runtime;

    fn args(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn order(text: &str) -> Order {
        Order { args: args(text), container: None }
    }

    #[test]
    fn llamacpp_with_the_users_arguments() {
        let models = [ModelId::new("tiny").unwrap()];
        let plan = plan(&runtime("llamacpp"), &models, &order("-m tiny.gguf -ngl 0"), "m").unwrap();
        let line = plan.command.args.join(" ");
        assert_eq!(plan.command.program, "llama-server");
        assert!(line.contains(&format!("--host 127.0.0.1 --port {}", plan.port)), "{line}");
        assert!(line.contains("--alias tiny") && line.ends_with("-m tiny.gguf -ngl 0"), "{line}");
    }

    #[test]
    fn the_users_port_counts() {
        assert_eq!(port_in(&args("--port 81 --x")).unwrap(), Some(81));
        assert_eq!(port_in(&args("--port=81 --port 82")).unwrap(), Some(82));
        assert_eq!(port_in(&args("--port 0")).unwrap(), None);
        assert_eq!(port_in(&args("--portable -p 3")).unwrap(), None);
        assert!(matches!(port_in(&args("--port x")), Err(Error::Port(_))));
        assert!(matches!(port_in(&args("--port")), Err(Error::Port(_))));
        assert_eq!(plan(&runtime("llamacpp"), &[], &order("--port 1234"), "m").unwrap().port, 1234);
    }

    #[test]
    fn what_cannot_be_launched_says_so() {
        assert!(matches!(plan(&runtime("openai"), &[], &order(""), "m"), Err(Error::NoLaunch(_))));
    }
}
