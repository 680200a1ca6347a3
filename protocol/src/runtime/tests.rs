use super::*;
use crate::id::RuntimeName;

fn name(text: &str) -> RuntimeName {
    RuntimeName::new(text).unwrap()
}

fn refusal(text: &str) -> String {
    let mut catalogue = Catalogue::built_in().unwrap();
    let before = catalogue.clone();
    let error = catalogue.merge("mine.toml", text).unwrap_err();
    assert_eq!(catalogue, before, "a refused entry changed the catalogue");
    error.to_string()
}

#[test]
fn built_in_files_are_named_after_their_runtimes() {
    let catalogue = Catalogue::built_in().unwrap();
    let names: Vec<_> = catalogue.iter().map(|runtime| runtime.name.as_str()).collect();
    assert_eq!(names, ["demo", "llamacpp", "ollama", "openai", "vllm"]);
}

#[test]
fn an_unknown_runtime_is_refused_with_the_choices() {
    let error = Catalogue::built_in().unwrap().get(&name("vlm")).unwrap_err().to_string();
    assert_eq!(error, "unknown runtime `vlm`; choose from: demo, llamacpp, ollama, openai, vllm");
}

#[test]
fn launching_llamacpp_puts_the_users_arguments_last_and_leaves_unknown_groups_out() {
    let catalogue = Catalogue::built_in().unwrap();
    let launch = catalogue.get(&name("llamacpp")).unwrap().launch.clone().unwrap();
    let values = Values {
        host: "127.0.0.1".into(),
        port: 9001,
        served_name: Some("tiny".into()),
        args: vec!["-m".into(), "a {file}.gguf".into()],
        ..Values::default()
    };
    let line = launch.expand(&values).unwrap();
    assert_eq!(line.program, "llama-server");
    let expected =
        ["--host", "127.0.0.1", "--port", "9001", "--metrics", "--slots", "--alias", "tiny", "-m", "a {file}.gguf"];
    assert_eq!(line.args, expected);
}

#[test]
fn environment_is_expanded_and_a_missing_value_is_named() {
    let catalogue = Catalogue::built_in().unwrap();
    let ollama = catalogue.get(&name("ollama")).unwrap().launch.clone().unwrap();
    let values = Values { host: "::1".into(), port: 1, ..Values::default() };
    assert_eq!(ollama.expand(&values).unwrap().env["OLLAMA_HOST"], "::1:1");
    let demo = catalogue.get(&name("demo")).unwrap().launch.clone().unwrap();
    let missing = demo.expand(&values).unwrap_err().to_string();
    assert_eq!(missing, "`{self}` needs a value for `{self}`, and none was given");
}

#[test]
fn braces_can_be_written_and_wrong_ones_are_refused() {
    let values = Values { port: 7, ..Values::default() };
    assert_eq!(Template::parse("{{\"port\": {port}}}").unwrap().expand(&values).unwrap(), "{\"port\": 7}");
    for wrong in ["{port", "port}", "{", "}", "{}", "{ port}", "x{args}", "{args}{port}"] {
        assert!(Template::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_override_replaces_fields_and_keeps_the_rest() {
    let mut catalogue = Catalogue::built_in().unwrap();
    let text =
        "name = \"vllm\"\nport = 9000\n[slots]\ndefault = 256\n[metrics.names]\nrunning = [\"mine{kind=\\\"a\\\"}\"]";
    catalogue.merge("mine.toml", text).unwrap();
    let vllm = catalogue.get(&name("vllm")).unwrap();
    assert_eq!((vllm.port, vllm.slots.default), (Some(9000), 256));
    assert_eq!(vllm.probe.health.as_ref().unwrap().as_str(), "/health");
    let names = &vllm.metrics.as_ref().unwrap().names;
    assert_eq!(names[&Quantity::Running][0].labels, [("kind".to_owned(), "a".to_owned())]);
    assert_eq!(names[&Quantity::Waiting][0].name, "vllm:num_requests_waiting");
}

#[test]
fn a_new_runtime_needs_only_a_name_probes_and_slots() {
    let mut catalogue = Catalogue::built_in().unwrap();
    let added = catalogue.merge("mine.toml", "name = \"mine\"\n[probe]\n[slots]\ndefault = 2").unwrap();
    assert_eq!(catalogue.get(&added).unwrap().slots.default, 2);
}

/// What later runtimes need: other metric paths, selectors, ranks that repeat a number, no list of models.
#[test]
fn the_format_suits_engines_that_are_not_built_in_yet() {
    let mut catalogue = Catalogue::built_in().unwrap();
    for entry in [
        "name = \"tensorrt-llm\"\nport = 8000\n[probe]\nhealth = \"/health\"\n[slots]\ndefault = 64\n[metrics]\n\
         path = \"/prometheus/metrics\"\n[metrics.names]\nwaiting = [\"trtllm_num_requests_waiting\", \
         'nv_trt_llm_request_metrics{request_type=\"waiting\"}']",
        "name = \"sglang\"\nport = 30000\n[launch]\ncommand = \"python3\"\nargs = [\"-m\", \"sglang.launch_server\", \
         [\"--model-path\", \"{model}\"], \"--enable-metrics\", \"{args}\"]\n[probe]\nmodels = \"/v1/models\"\n[slots]\n\
         default = 64\n[metrics]\npath = \"/metrics\"\nsum_over = [\"dp_rank\", \"priority\"]\n[metrics.names]\n\
         kv_used = [\"sglang:num_used_tokens\"]\nkv_capacity = [\"sglang:max_total_num_tokens\"]",
        "name = \"parakeet\"\nport = 9000\n[probe]\nhealth = \"/v1/health/ready\"\n[slots]\ndefault = 2",
    ] {
        catalogue.merge("later.toml", entry).unwrap();
    }
    let series = &catalogue.get(&name("tensorrt-llm")).unwrap().metrics.as_ref().unwrap().names[&Quantity::Waiting];
    assert_eq!(series[1].to_string(), "nv_trt_llm_request_metrics{request_type=\"waiting\"}");
}

#[test]
fn refusals_name_the_file_the_field_and_the_choices() {
    for (entry, wanted) in [
        ("name = ", vec!["mine.toml", "line 1"]),
        ("port = 1", vec!["mine.toml", "`name` is missing", "llamacpp"]),
        ("name = \"vllm\"\nprot = 1", vec!["mine.toml", "`vllm`", "unknown field `prot`", "`port`"]),
        (
            "name = \"vllm\"\n[metrics.names]\nrunnning = []",
            vec!["mine.toml", "runnning", "`running`", "metrics.names"],
        ),
        ("name = \"vllm\"\nport = \"http\"", vec!["mine.toml", "invalid type", "port"]),
        ("name = \"vllm\"\nport = 0", vec!["mine.toml", "port"]),
        (
            "name = \"vllm\"\n[probe]\nhealth = \"health\"",
            vec!["mine.toml", "\"health\" is not a path", "probe.health"],
        ),
        ("name = \"vllm\"\n[launch]\nargs = [\"{modell}\"]", vec!["{modell}", "choose from: host, port, model"]),
        ("name = \"vllm\"\n[launch]\nargs = [[\"-x\", \"{args}\"]]", vec!["launch.args[0]", "`{args}`"]),
        ("name = \"vllm\"\n[drain]\nsignal = \"SIGKILL\"", vec!["SIGKILL", "`SIGTERM`", "`SIGINT`"]),
        ("name = \"vllm\"\n[slots]\ndefault = 0", vec!["slots.default"]),
        ("name = \"new\"\n[slots]\ndefault = 1", vec!["`new`", "missing field `probe`"]),
        ("name = \"Bad Name\"\n[probe]\n[slots]\ndefault = 1", vec!["mine.toml", "runtime name contains 'B'"]),
        ("name = \"vllm\"\n[[probe.identify]]\npath = \"/\"", vec!["probe.identify[0]", "`pointer`", "`header`"]),
    ] {
        let message = refusal(entry);
        for part in wanted {
            assert!(message.contains(part), "{entry:?} was refused with {message:?}, which lacks {part:?}");
        }
    }
}
