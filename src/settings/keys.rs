//! The keys of the configuration file as the code has them, held against docs/configuration.md and examples/dunlin.toml.

use super::{EndpointFile, EndpointSettings, File, NodeSettings, engines, engines::EngineFile, worker_threads};
use crate::args::{Args, EndpointArgs, EngineArgs, NodeArgs, ThreadArgs};
use clap::CommandFactory;
use serde::{
    Deserialize,
    de::{self, Error as _, Visitor},
    forward_to_deserialize_any,
};
use std::collections::{BTreeMap, BTreeSet};

/// Finds the names of a structure's fields: what it is asked to deserialize, it notes and refuses.
struct Fields<'a>(&'a mut &'static [&'static str]);

impl<'de> de::Deserializer<'de> for Fields<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("not a structure"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(Self::Error::custom("only its fields are wanted"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn fields<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut found: &[&str] = &[];
    assert!(T::deserialize(Fields(&mut found)).is_err());
    assert!(!found.is_empty());
    found
}

/// Every key, as the documentation writes it.
fn keys() -> BTreeSet<String> {
    let top = fields::<File>().iter().filter(|key| !["endpoint", "engines"].contains(key)).map(|key| (*key).to_owned());
    let endpoint = fields::<EndpointFile>().iter().map(|key| format!("endpoint.{key}"));
    let engines = fields::<EngineFile>().iter().map(|key| format!("engines[].{key}"));
    top.chain(endpoint).chain(engines).collect()
}

/// A row of a table: its cells by the head of their column.
type Row = BTreeMap<String, String>;

fn rows() -> Vec<Row> {
    let mut header: Vec<String> = Vec::new();
    let mut rows = Vec::new();
    for line in include_str!("../../docs/configuration.md").lines() {
        let Some(line) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            header.clear();
            continue;
        };
        let cells: Vec<String> = line.split(" | ").map(str::to_owned).collect();
        if header.is_empty() {
            header = cells;
        } else if !line.starts_with("---") {
            assert_eq!(cells.len(), header.len(), "{line}");
            rows.push(header.iter().cloned().zip(cells).collect());
        }
    }
    rows
}

/// What stands in backticks in a cell.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_key_is_documented_and_no_other() {
    let documented: Vec<String> =
        rows().iter().filter_map(|row| quoted(row.get("key")?).first().map(|key| (*key).to_owned())).collect();
    let unique: BTreeSet<String> = documented.iter().cloned().collect();
    assert_eq!(unique.len(), documented.len(), "a key twice");
    assert_eq!(unique, keys());
}

#[test]
fn every_key_stands_in_the_example() {
    let example = include_str!("../../examples/dunlin.toml");
    let names: BTreeSet<&str> = example
        .lines()
        .filter_map(|line| line.trim_start_matches("# ").split_once('=').map(|(key, _)| key.trim()))
        .collect();
    for key in keys() {
        let last = key.rsplit(['.', ']']).next().unwrap();
        assert!(names.contains(last) || example.contains(&format!("[[{last}]]")), "{key}");
    }
}

/// Flags with their variables, as clap has them, are those of the tables.
#[test]
fn every_flag_of_a_service_is_documented_with_its_variable() {
    let command = Args::command();
    let mut documented: BTreeMap<String, String> = BTreeMap::new();
    for row in rows() {
        let variable = quoted(&row["environment"]).first().map(|name| (*name).to_owned()).unwrap_or_default();
        let flags: Vec<&str> = quoted(&row["flag"]).into_iter().filter(|flag| flag.len() > 2).collect();
        for flag in &flags {
            // Of several flags in one row, the last is the one with a variable.
            let variable = if Some(flag) == flags.last() { variable.clone() } else { String::new() };
            documented.insert(flag.trim_start_matches("--").to_owned(), variable);
        }
    }
    let mut real: BTreeMap<String, String> = BTreeMap::new();
    let services = ["up", "agent", "proxy", "relay"].map(|name| command.find_subcommand(name).unwrap());
    for arg in services.into_iter().chain([&command]).flat_map(clap::Command::get_arguments) {
        let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some(long) = arg.get_long().filter(|long| !["help", "version"].contains(long)) {
            real.insert(long.to_owned(), variable);
        }
    }
    // Of short commands.
    for other in ["output", "key"] {
        documented.remove(other).unwrap();
    }
    assert_eq!(documented, real);
}

#[test]
fn documented_defaults_are_the_real_ones() {
    let default: BTreeMap<String, String> = rows()
        .iter()
        .filter_map(|row| Some((quoted(row.get("key")?).first()?.to_string(), row["default"].clone())))
        .collect();
    let of = |key: &str| quoted(&default[key]).first().map(|value| (*value).to_owned()).unwrap();
    let file = File::default();
    let node = NodeSettings::resolve(&NodeArgs::default(), &file).unwrap();
    let endpoint = EndpointSettings::resolve(&EndpointArgs::default(), &file).unwrap();
    let launched: File = toml::from_str("[[engines]]\nlaunch = 'vllm'\n").unwrap();
    let engine = engines::engines(&EngineArgs::default(), launched).unwrap().remove(0);
    let seconds = |time: Option<std::time::Duration>| time.unwrap().as_secs().to_string();
    assert_eq!(of("mdns"), node.mdns.to_string());
    assert_eq!(of("worker_threads"), worker_threads(&ThreadArgs::default(), None).unwrap().to_string());
    assert_eq!(of("endpoint.http"), endpoint.http.to_string());
    assert_eq!(of("endpoint.auth"), (!endpoint.no_auth).to_string());
    assert_eq!(endpoint.first_byte_timeout.or(endpoint.inter_token_timeout), None);
    for timeout in ["first_byte", "inter_token"] {
        assert_eq!(default[&format!("endpoint.{timeout}_timeout_seconds")], "what the runtime says");
    }
    assert_eq!(of("endpoint.upload_disk_bytes"), endpoint.upload_disk_bytes.to_string());
    assert_eq!(of("engines[].hang_timeout_seconds"), seconds(engine.patience.hang));
    assert_eq!(of("engines[].start_timeout_seconds"), seconds(engine.patience.start));
    assert!(default["listen"].contains(&super::MESH_PORT.to_string()));
    assert_eq!(default["metrics_http"], "nowhere");
    assert_eq!(engines::metrics_http(&EngineArgs::default(), &file), None);
}
