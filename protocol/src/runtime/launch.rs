//! How an engine is started: as a child process, or in a container.

use super::{
    Invalid,
    template::{self, Argument, Template, Values},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How to start an engine. At least one of `command` and `image` is given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// The program, looked up in `PATH` when it has no slash; `None` for what comes as an image only.
    #[serde(default)]
    pub command: Option<Template>,
    /// Its arguments, in order. `{args}` stands for the user's own; a list inside the list is left out as a whole when
    /// one of its values isn't known.
    #[serde(default)]
    pub args: Vec<Argument>,
    /// Environment added to the agent's own, or to the image's.
    #[serde(default)]
    pub env: BTreeMap<String, Template>,
    /// Whether it loads a model by the name that clients use, a hub's id, unless it is told otherwise.
    #[serde(default)]
    pub loads_names: bool,
    /// Flags of the engine that say what it loads: a user who gives one decides that, not the name for clients.
    #[serde(default)]
    pub model_flags: Vec<String>,
    /// Container image; `None` for what is not published as one.
    #[serde(default)]
    pub image: Option<String>,
    /// What is different in that image.
    #[serde(default)]
    pub container: Container,
}

/// How an engine runs inside its image.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Container {
    /// The program there, where it isn't `launch.command`. With neither, the image's own entry point is run.
    pub command: Option<Template>,
    /// Folder there in which downloaded models are kept; a volume is mounted at it.
    pub cache: Option<String>,
    /// The volume that is mounted at `cache`: a name, or a folder of the machine. By default `dunlin-` and the runtime's
    /// name.
    pub volume: Option<String>,
    /// Variables of the agent's environment that are passed on when they are set: tokens for downloads.
    pub pass_env: Vec<String>,
    /// Options of `docker run` and `podman run` that it needs.
    pub options: Vec<String>,
}

/// Why an engine cannot be started so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unlaunchable {
    /// A template outside a group needs a value that isn't known.
    #[error(transparent)]
    Missing(#[from] template::Missing),
    /// There is an image and no program.
    #[error("it comes as a container image only; add --container docker or --container podman")]
    OnlyContainer,
    /// There is a program and no image.
    #[error("it has no container image; name one with --set launch.image=IMAGE")]
    NoImage,
}

/// A command line ready to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment to be added.
    pub env: BTreeMap<String, String>,
}

/// What is to run in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerLine {
    /// The image.
    pub image: String,
    /// The program; `None` for the image's own entry point.
    pub program: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment beside the image's.
    pub env: BTreeMap<String, String>,
}

impl Launch {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.command.is_none() && self.image.is_none() {
            return Err(Invalid::NothingToLaunch);
        }
        let one_text = [("launch.command", &self.command), ("launch.container.command", &self.container.command)];
        for (field, template) in one_text {
            if template.as_ref().is_some_and(Template::is_args) {
                return Err(Invalid::ArgsOutOfPlace(field.into()));
            }
        }
        for (name, value) in &self.env {
            if value.is_args() {
                return Err(Invalid::ArgsOutOfPlace(format!("launch.env.{name}")));
            }
        }
        for (index, argument) in self.args.iter().enumerate() {
            if let Argument::Group(group) = argument
                && group.iter().any(Template::is_args)
            {
                return Err(Invalid::ArgsOutOfPlace(format!("launch.args[{index}]")));
            }
        }
        Ok(())
    }

    /// What `{model}` stands for: the name that clients use, if the engine loads by name and the user's own arguments
    /// don't say what to load, be it with a flag or as a first argument without one.
    #[must_use]
    pub fn model(&self, served_name: Option<&str>, args: &[String]) -> Option<String> {
        let is_model_flag = |arg: &String| {
            let flag = arg.split_once('=').map_or(arg.as_str(), |(flag, _)| flag);
            self.model_flags.iter().any(|known| known == flag)
        };
        let told = args.first().is_some_and(|first| !first.starts_with('-')) || args.iter().any(is_model_flag);
        served_name.filter(|_| self.loads_names && !told).map(str::to_owned)
    }

    /// The command line of a child process.
    ///
    /// # Errors
    /// No program, or a value that a template needs isn't known.
    pub fn expand(&self, values: &Values) -> Result<CommandLine, Unlaunchable> {
        let program = self.command.as_ref().ok_or(Unlaunchable::OnlyContainer)?.expand(values)?;
        Ok(CommandLine { program, args: self.arguments(values)?, env: self.environment(values)? })
    }

    /// What runs in a container.
    ///
    /// # Errors
    /// No image, or a value that a template needs isn't known.
    pub fn expand_in_container(&self, values: &Values) -> Result<ContainerLine, Unlaunchable> {
        let image = self.image.clone().ok_or(Unlaunchable::NoImage)?;
        let program = self.container.command.as_ref().or(self.command.as_ref());
        let program = program.map(|template| template.expand(values)).transpose()?;
        Ok(ContainerLine { image, program, args: self.arguments(values)?, env: self.environment(values)? })
    }

    fn arguments(&self, values: &Values) -> Result<Vec<String>, template::Missing> {
        let mut args = Vec::new();
        for argument in &self.args {
            argument.expand_into(values, &mut args)?;
        }
        Ok(args)
    }

    fn environment(&self, values: &Values) -> Result<BTreeMap<String, String>, template::Missing> {
        self.env.iter().map(|(name, value)| Ok((name.clone(), value.expand(values)?))).collect()
    }
}
