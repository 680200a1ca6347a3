//! Command lines and files of examples/ and docs/, held against the command line as it is.

use crate::{args::Args, exit};
use clap::{CommandFactory, Parser};
use serde_json::Value;
use std::{collections::BTreeSet, path::Path, time::Duration};

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[track_caller]
fn assert_is_understood(line: &[String]) {
    if let Err(error) = Args::try_parse_from(line) {
        panic!("{line:?}: {error}");
    }
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// Variables that are heeded.
fn variables() -> BTreeSet<String> {
    fn of(command: &clap::Command, found: &mut BTreeSet<String>) {
        found.extend(command.get_arguments().filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned())));
        command.get_subcommands().for_each(|command| of(command, found));
    }
    let mut found = BTreeSet::from(["DUNLIN_LOG", "DUNLIN_LOG_FORMAT"].map(str::to_owned));
    of(&Args::command(), &mut found);
    found
}

#[test]
fn containers_are_started_by_command_lines_that_exist() {
    let compose = yaml("examples/deploy/compose.yaml");
    let dunlin = &compose["services"]["dunlin"];
    assert_is_understood(&[vec!["dunlin".to_owned()], words(&dunlin["command"])].concat());
    let health = words(&dunlin["healthcheck"]["test"]);
    assert_eq!(health[0], "CMD");
    assert_is_understood(&health[1..]);
    for name in dunlin["environment"].as_object().unwrap().keys() {
        assert!(variables().contains(name), "{name}");
    }
    let seconds = |text: &Value| text.as_str().unwrap().trim_end_matches('s').parse().map(Duration::from_secs).unwrap();
    assert!(seconds(&dunlin["stop_grace_period"]) > dunlin_proxy::Config::default().drain);
    let chat = &compose["services"]["open-webui"];
    assert!(chat["environment"]["OPENAI_API_BASE_URL"].as_str().unwrap().ends_with("dunlin:8480/v1"));
    let volumes = compose["volumes"].as_object().unwrap();
    for service in [dunlin, chat] {
        for volume in words(&service["volumes"]) {
            assert!(volumes.contains_key(volume.split(':').next().unwrap()), "{volume}");
        }
    }

    let dockerfile = read("examples/deploy/Dockerfile");
    let line = |name: &str| {
        let line = dockerfile.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        words(&serde_json::from_str(line).unwrap())
    };
    assert_is_understood(&[line("ENTRYPOINT "), line("CMD ")].concat());
    let built = dunlin["build"]["dockerfile"].as_str().unwrap();
    assert_eq!(built, "examples/deploy/Dockerfile");
}

/// Keys of a unit file with all their values.
fn settings(unit: &str) -> Vec<(&str, &str)> {
    let lines = unit.lines().filter(|line| !line.starts_with(['#', '[']) && !line.is_empty());
    lines.map(|line| line.split_once('=').unwrap_or_else(|| panic!("{line}"))).collect()
}

#[test]
fn units_start_and_stop_as_the_program_does() {
    for role in ["up", "agent", "proxy"] {
        let text = read(&format!("examples/deploy/systemd/dunlin-{role}.service"));
        let settings = settings(&text);
        let all =
            |key: &str| settings.iter().filter(|(name, _)| *name == key).map(|(_, value)| *value).collect::<Vec<_>>();
        let one = |key: &str| match all(key)[..] {
            [value] => value,
            _ => panic!("{role}: {key} stands {} times", all(key).len()),
        };
        let mut line: Vec<String> = one("ExecStart").split(' ').map(str::to_owned).collect();
        assert_eq!(line[0], "/usr/local/bin/dunlin");
        assert_eq!(line[1], role);
        line[0] = "dunlin".to_owned();
        assert_is_understood(&line);
        for setting in all("Environment") {
            let (name, _) = setting.split_once('=').unwrap();
            assert!(variables().contains(name), "{name}");
        }
        // Engines get their SIGTERM from the agent, after the requests.
        assert_eq!(one("KillMode"), "mixed");
        let patience: u64 = one("TimeoutStopSec").trim_end_matches('s').parse().unwrap();
        assert!(Duration::from_secs(patience) > dunlin_proxy::Config::default().drain + dunlin_agent::config::DRAIN);
        let usage = exit::Failure::Usage(String::new());
        assert_eq!(one("RestartPreventExitStatus"), usage.code().to_string());
        assert!(all("ExecReload").is_empty(), "nothing is read again");
    }
}

#[test]
fn prometheus_finds_the_rules_and_asks_the_right_ports() {
    let config = yaml("examples/deploy/prometheus/prometheus.yml");
    for file in words(&config["rule_files"]) {
        yaml(&format!("examples/deploy/prometheus/{file}"));
    }
    let jobs = config["scrape_configs"].as_array().unwrap();
    let port = |name: &str| {
        let job = jobs.iter().find(|job| job["job_name"] == name).unwrap();
        words(&job["static_configs"][0]["targets"])[0].rsplit(':').next().unwrap().parse::<u16>().unwrap()
    };
    assert_eq!(port("dunlin-proxy"), crate::settings::HTTP_PORT);
    let unit = read("examples/deploy/systemd/dunlin-agent.service");
    assert!(unit.contains(&format!("--metrics-http 127.0.0.1:{}\n", port("dunlin-agent"))));
}

/// Every `dunlin ...` line in the code blocks of the documentation.
#[test]
fn command_lines_of_the_documentation_are_understood() {
    let mut count = 0;
    for page in [
        "README.md",
        "docs/engines.md",
        "docs/routing.md",
        "docs/configuration.md",
        "docs/kubernetes.md",
        "docs/keys.md",
        "examples/README.md",
    ] {
        let text = read(page);
        let mut shell = false;
        for line in text.lines() {
            if let Some(language) = line.strip_prefix("```") {
                shell = !shell && matches!(language, "sh" | "bash");
                continue;
            }
            let line = line.split(" #").next().unwrap_or_default();
            for command in line.split("&&").map(str::trim).filter(|_| shell) {
                if !command.starts_with("dunlin ") || command.contains(['$', '|', '\'', '"', '\\', '<']) {
                    continue;
                }
                let known = command.replace("TOKEN", "dunlin1abc");
                assert_is_understood(&known.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
                count += 1;
            }
        }
    }
    assert!(count >= 5, "only {count} found");
}

/// README.md promises it.
#[test]
fn the_help_of_every_command_has_examples() {
    fn check(command: &clap::Command) {
        let leaves: Vec<_> = command.get_subcommands().collect();
        for leaf in &leaves {
            check(leaf);
        }
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(!leaves.is_empty() || help.contains("Example"), "{}", command.get_name());
    }
    check(&Args::command());
}
