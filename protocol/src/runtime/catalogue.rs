//! The catalogue: the built-in runtimes, and what users put over them.

use super::{Invalid, Runtime};
use crate::id::RuntimeName;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Built-in entries: file name and text.
const BUILT_IN: [(&str, &str); 10] = [
    ("demo.toml", include_str!("../../runtimes/demo.toml")),
    ("llamacpp.toml", include_str!("../../runtimes/llamacpp.toml")),
    ("ollama.toml", include_str!("../../runtimes/ollama.toml")),
    ("openai.toml", include_str!("../../runtimes/openai.toml")),
    ("parakeet.toml", include_str!("../../runtimes/parakeet.toml")),
    ("sglang.toml", include_str!("../../runtimes/sglang.toml")),
    ("tensorrt-llm.toml", include_str!("../../runtimes/tensorrt-llm.toml")),
    ("tgi.toml", include_str!("../../runtimes/tgi.toml")),
    ("vllm.toml", include_str!("../../runtimes/vllm.toml")),
    ("whisper.toml", include_str!("../../runtimes/whisper.toml")),
];

/// Why an entry was refused. Every variant names the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not TOML.
    #[error("{file}: {error}")]
    Syntax {
        /// Where the text came from.
        file: String,
        /// With line and column.
        error: Box<toml::de::Error>,
    },
    /// No name, so nothing to put it over.
    #[error("{file}: `name` is missing or not a text; built in are: {known}")]
    NoName {
        /// Where the text came from.
        file: String,
        /// Names of the catalogue's runtimes.
        known: String,
    },
    /// An unknown field, or a value of the wrong kind. Names the field and the choices.
    #[error("{file}: runtime `{name}`: {error}")]
    Field {
        /// Where the text came from.
        file: String,
        /// The runtime that it is about.
        name: String,
        /// What is wrong and where.
        error: Box<toml::de::Error>,
    },
    /// Readable, but makes no sense.
    #[error("{file}: runtime `{name}`: {error}")]
    Invalid {
        /// Where the text came from.
        file: String,
        /// The runtime that it is about.
        name: String,
        /// What is wrong and where.
        error: Invalid,
    },
}

/// A runtime that the catalogue lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown runtime `{name}`; choose from: {choices}")]
pub struct Unknown {
    /// What was asked for.
    pub name: RuntimeName,
    /// What there is, comma-separated.
    pub choices: String,
}

/// Why a single field was not set.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The field or its value.
    #[error(transparent)]
    Entry(#[from] Error),
    /// No such runtime.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// Not a path of field names.
    #[error("{place}: {key:?} is no field of a runtime; write it like slots.default or launch.image")]
    Key {
        /// Where the text came from.
        place: String,
        /// The key.
        key: String,
    },
}

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    /// As written, so that an override replaces fields and not the whole.
    source: Table,
    runtime: Runtime,
}

/// All known runtimes by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Catalogue {
    entries: BTreeMap<RuntimeName, Entry>,
}

impl Catalogue {
    /// The runtimes that come with the program.
    ///
    /// # Errors
    /// A built-in file is wrong, which a test rules out.
    pub fn built_in() -> Result<Self, Error> {
        let mut catalogue = Self::default();
        for (file, text) in BUILT_IN {
            catalogue.merge(file, text)?;
        }
        Ok(catalogue)
    }

    /// Reads an entry and puts it over the one of the same name, field by field: tables merge, anything else replaces.
    /// A new name adds a runtime. `file` is for messages only.
    ///
    /// # Errors
    /// Not TOML, no name, an unknown field, a value that its field can't have. The catalogue is unchanged then.
    pub fn merge(&mut self, file: &str, text: &str) -> Result<RuntimeName, Error> {
        let table =
            text.parse::<Table>().map_err(|error| Error::Syntax { file: file.to_owned(), error: Box::new(error) })?;
        self.merge_table(file, table)
    }

    /// [`Catalogue::merge`] for an entry that lies inside a larger file.
    ///
    /// # Errors
    /// As [`Catalogue::merge`].
    pub fn merge_table(&mut self, file: &str, over: Table) -> Result<RuntimeName, Error> {
        let Some(name) = over.get("name").and_then(Value::as_str).map(str::to_owned) else {
            return Err(Error::NoName { file: file.to_owned(), known: self.names() });
        };
        let mut source = self.entries.get(name.as_str()).map(|entry| entry.source.clone()).unwrap_or_default();
        put_over(&mut source, over);
        let runtime: Runtime = source.clone().try_into().map_err(|error| Error::Field {
            file: file.to_owned(),
            name: name.clone(),
            error: Box::new(error),
        })?;
        runtime.check().map_err(|error| Error::Invalid { file: file.to_owned(), name, error })?;
        let name = runtime.name.clone();
        self.entries.insert(name.clone(), Entry { source, runtime });
        Ok(name)
    }

    /// Sets one field, as on a command line: `key` is a path such as `slots.default` or `launch.env.HF_HOME`, `value` is
    /// TOML, or else a text without quotes. `place` is for messages only.
    ///
    /// # Errors
    /// As [`Catalogue::merge`]; an unknown runtime; a key that is none.
    pub fn set(&mut self, place: &str, runtime: &RuntimeName, key: &str, value: &str) -> Result<(), SetError> {
        self.get(runtime)?;
        let bad_key = || SetError::Key { place: place.to_owned(), key: key.to_owned() };
        let bare = |segment: &str| {
            !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        };
        if !key.split('.').all(bare) {
            return Err(bad_key());
        }
        let parsed = format!("value = {value}").parse::<Table>().ok().filter(|table| table.len() == 1);
        let value =
            parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::String(value.to_owned()));
        let nested =
            key.rsplit('.').fold(value, |value, segment| Value::Table(Table::from_iter([(segment.to_owned(), value)])));
        let Value::Table(mut over) = nested else { return Err(bad_key()) };
        // A name that differs would add a runtime instead of changing this one.
        if over.insert("name".to_owned(), Value::String(runtime.to_string())).is_some() {
            return Err(bad_key());
        }
        self.merge_table(place, over)?;
        Ok(())
    }

    /// A runtime by name.
    ///
    /// # Errors
    /// Names the choices.
    pub fn get(&self, name: &RuntimeName) -> Result<&Runtime, Unknown> {
        let entry = self.entries.get(name);
        entry.map(|entry| &entry.runtime).ok_or_else(|| Unknown { name: name.clone(), choices: self.names() })
    }

    /// All runtimes in order of name.
    pub fn iter(&self) -> impl Iterator<Item = &Runtime> {
        self.entries.values().map(|entry| &entry.runtime)
    }

    /// All names, comma-separated, for messages.
    #[must_use]
    pub fn names(&self) -> String {
        self.entries.keys().map(RuntimeName::as_str).collect::<Vec<_>>().join(", ")
    }
}

fn put_over(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => put_over(below, above),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}
