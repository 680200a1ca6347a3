//! Command lines as templates: `{name}` stands for a value, `{{` and `}}` for braces.

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, SeqAccess, Visitor},
};
use std::fmt;

/// What a placeholder can stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Host,
    Port,
    Model,
    Served,
    Executable,
    TensorParallel,
    PipelineParallel,
    Args,
}

impl Name {
    const ALL: [Self; 8] = [
        Self::Host,
        Self::Port,
        Self::Model,
        Self::Served,
        Self::Executable,
        Self::TensorParallel,
        Self::PipelineParallel,
        Self::Args,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Port => "port",
            Self::Model => "model",
            Self::Served => "served_name",
            Self::Executable => "self",
            Self::TensorParallel => "tensor_parallel",
            Self::PipelineParallel => "pipeline_parallel",
            Self::Args => "args",
        }
    }
}

/// The values of one launch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// `{host}`: the address that the engine shall listen on.
    pub host: String,
    /// `{port}`: the port that the engine shall listen on.
    pub port: u16,
    /// `{model}`: what the engine shall load: a file, or a name that it can resolve.
    pub model: Option<String>,
    /// `{served_name}`: the name that clients use.
    pub served_name: Option<String>,
    /// `{self}`: path of the running `dunlin` executable.
    pub executable: Option<String>,
    /// `{tensor_parallel}`: how many GPUs share each layer, where an orchestrator says so.
    pub tensor_parallel: Option<u16>,
    /// `{pipeline_parallel}`: how many stages the layers are divided into, where an orchestrator says so.
    pub pipeline_parallel: Option<u16>,
    /// `{args}`: the user's own arguments.
    pub args: Vec<String>,
}

impl Values {
    fn get(&self, name: Name) -> Option<String> {
        match name {
            Name::Host => Some(self.host.clone()),
            Name::Port => Some(self.port.to_string()),
            Name::Model => self.model.clone(),
            Name::Served => self.served_name.clone(),
            Name::Executable => self.executable.clone(),
            Name::TensorParallel => self.tensor_parallel.map(|count| count.to_string()),
            Name::PipelineParallel => self.pipeline_parallel.map(|count| count.to_string()),
            // Refused where one text is wanted: see `Template::parse` and `Launch::check`.
            Name::Args => None,
        }
    }
}

/// Why a text is not a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A placeholder that nothing is known for.
    #[error("unknown placeholder `{{{found}}}` in {template:?}; choose from: {}", choices())]
    Unknown {
        /// The name between the braces.
        found: String,
        /// The whole template.
        template: String,
    },
    /// `{` without `}` or the other way round.
    #[error("unmatched brace in {0:?}; write `{{{{` or `}}}}` for a brace itself")]
    Brace(String),
    /// `{args}` inside a longer text.
    #[error("`{{args}}` must stand alone, not as in {0:?}")]
    ArgsNotAlone(String),
}

fn choices() -> String {
    Name::ALL.map(Name::as_str).join(", ")
}

/// A value that a template needs and that isn't known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{template}` needs a value for `{{{name}}}`, and none was given")]
pub struct Missing {
    /// The placeholder's name.
    pub name: &'static str,
    /// The template that needs it.
    pub template: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Value(Name),
}

/// A text with placeholders, checked when it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template {
    source: String,
    pieces: Vec<Piece>,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// Unmatched braces, an unknown placeholder, `{args}` inside a longer text.
    pub fn parse(source: &str) -> Result<Self, Error> {
        let brace = || Error::Brace(source.to_owned());
        let mut pieces = Vec::new();
        let mut text = String::new();
        let mut rest = source;
        while let Some(at) = rest.find(['{', '}']) {
            text.push_str(&rest[..at]);
            let brace_here = &rest[at..=at];
            let after = &rest[at + 1..];
            if let Some(escaped) = after.strip_prefix(brace_here) {
                text.push_str(brace_here);
                rest = escaped;
                continue;
            }
            if brace_here == "}" {
                return Err(brace());
            }
            let (name, tail) = after.split_once('}').ok_or_else(brace)?;
            let known = Name::ALL.into_iter().find(|known| known.as_str() == name);
            let name = known.ok_or_else(|| Error::Unknown { found: name.to_owned(), template: source.to_owned() })?;
            if !text.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
            }
            pieces.push(Piece::Value(name));
            rest = tail;
        }
        text.push_str(rest);
        if !text.is_empty() {
            pieces.push(Piece::Text(text));
        }
        if pieces.len() > 1 && pieces.contains(&Piece::Value(Name::Args)) {
            return Err(Error::ArgsNotAlone(source.to_owned()));
        }
        Ok(Self { source: source.to_owned(), pieces })
    }

    /// Whether this is `{args}`: a list, not a text.
    #[must_use]
    pub fn is_args(&self) -> bool {
        self.pieces == [Piece::Value(Name::Args)]
    }

    /// The text for `values`.
    ///
    /// # Errors
    /// A value isn't known.
    pub fn expand(&self, values: &Values) -> Result<String, Missing> {
        let mut expanded = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => expanded.push_str(text),
                Piece::Value(name) => {
                    let value = values
                        .get(*name)
                        .ok_or_else(|| Missing { name: name.as_str(), template: self.source.clone() })?;
                    expanded.push_str(&value);
                }
            }
        }
        Ok(expanded)
    }
}

impl TryFrom<String> for Template {
    type Error = Error;
    fn try_from(source: String) -> Result<Self, Error> {
        Self::parse(&source)
    }
}
impl From<Template> for String {
    fn from(template: Template) -> String {
        template.source
    }
}
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

/// One element of an argument list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Argument {
    /// One argument, or `{args}` for the user's own.
    One(Template),
    /// Arguments that are left out together when a value isn't known, for example `["--model", "{model}"]`.
    Group(Vec<Template>),
}

impl Argument {
    /// The argument as it is written in the entry, when it is a single one.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Self::One(template) => Some(template.to_string()),
            Self::Group(_) => None,
        }
    }

    /// Appends what this stands for.
    ///
    /// # Errors
    /// A value outside a group isn't known.
    pub fn expand_into(&self, values: &Values, arguments: &mut Vec<String>) -> Result<(), Missing> {
        match self {
            Self::One(template) if template.is_args() => arguments.extend_from_slice(&values.args),
            Self::One(template) => arguments.push(template.expand(values)?),
            Self::Group(group) => {
                let expanded: Result<Vec<_>, _> = group.iter().map(|template| template.expand(values)).collect();
                arguments.extend(expanded.unwrap_or_default());
            }
        }
        Ok(())
    }
}

// By hand: a derived untagged enum would swallow what is wrong with a template.
impl<'de> Deserialize<'de> for Argument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ArgumentVisitor)
    }
}

struct ArgumentVisitor;

impl<'de> Visitor<'de> for ArgumentVisitor {
    type Value = Argument;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a template, or a list of templates that belong together")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Argument, E> {
        Template::parse(text).map(Argument::One).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Argument, A::Error> {
        let mut group = Vec::new();
        while let Some(template) = list.next_element()? {
            group.push(template);
        }
        Ok(Argument::Group(group))
    }
}
