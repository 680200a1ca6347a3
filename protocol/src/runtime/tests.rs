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
    let expected =
        ["demo", "llamacpp", "ollama", "openai", "parakeet", "sglang", "tensorrt-llm", "tgi", "vllm", "whisper"];
    assert_eq!(names, expected);
}

#[test]
fn an_unknown_runtime_is_refused_with_the_choices() {
    let error = Catalogue::built_in().unwrap().get(&name("vlm")).unwrap_err().to_string();
    assert_eq!(
        error,
        "unknown runtime `vlm`; choose from: demo, llamacpp, ollama, openai, parakeet, \
                       sglang, tensorrt-llm, tgi, vllm, whisper"
    );
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

/// What each launch comes to with a name for clients and nothing else.
#[test]
fn engines_that_load_by_name_are_given_the_name() {
    let catalogue = Catalogue::built_in().unwrap();
    let line = |runtime: &str, args: &[&str]| {
        let launch = catalogue.get(&name(runtime)).unwrap().launch.clone().unwrap();
        let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
        let (host, port, served_name) = ("127.0.0.1".into(), 1, Some("org/m".to_owned()));
        let model = launch.model(served_name.as_deref(), &args);
        let CommandLine { program, args, .. } =
            launch.expand(&Values { host, port, model, served_name, args, ..Values::default() }).unwrap();
        format!("{program} {}", args.join(" "))
    };
    for (runtime, args, expected) in [
        ("vllm", &["-tp", "2"][..], "vllm serve org/m --host 127.0.0.1 --port 1 --served-model-name org/m -tp 2"),
        ("vllm", &["/models/m"], "vllm serve --host 127.0.0.1 --port 1 --served-model-name org/m /models/m"),
        ("vllm", &["--model=/m"], "vllm serve --host 127.0.0.1 --port 1 --served-model-name org/m --model=/m"),
        (
            "sglang",
            &[],
            "python3 -m sglang.launch_server --model-path org/m --host 127.0.0.1 --port 1 --served-model-name org/m \
             --enable-metrics",
        ),
        ("tgi", &[], "text-generation-launcher --model-id org/m --hostname 127.0.0.1 --port 1"),
        ("tensorrt-llm", &[], "trtllm-serve org/m --host 127.0.0.1 --port 1"),
        ("llamacpp", &["-m", "f"], "llama-server --host 127.0.0.1 --port 1 --metrics --slots --alias org/m -m f"),
        ("ollama", &[], "ollama serve"),
        (
            "whisper",
            &["-m", "f"],
            "whisper-server --host 127.0.0.1 --port 1 --inference-path /v1/audio/transcriptions -m f",
        ),
    ] {
        assert_eq!(line(runtime, args), expected, "{runtime} {args:?}");
    }
}

#[test]
fn a_container_has_its_own_program_or_none() {
    let mut catalogue = Catalogue::built_in().unwrap();
    let values = Values { host: "0.0.0.0".into(), port: 9, executable: Some("dunlin".into()), ..Values::default() };
    let launch = |catalogue: &Catalogue, runtime: &str| catalogue.get(&name(runtime)).unwrap().launch.clone().unwrap();
    let program = |runtime: &str| launch(&catalogue, runtime).expand_in_container(&values).unwrap().program;
    assert_eq!(program("vllm").as_deref(), Some("vllm"));
    assert_eq!(program("llamacpp").as_deref(), Some("/app/llama-server"));
    assert_eq!(program("parakeet"), None);
    let nim = launch(&catalogue, "parakeet");
    assert_eq!(nim.expand(&values), Err(launch::Unlaunchable::OnlyContainer));
    assert_eq!(nim.expand_in_container(&values).unwrap().env["NIM_HTTP_API_PORT"], "9");
    assert_eq!(launch(&catalogue, "demo").expand_in_container(&values), Err(launch::Unlaunchable::NoImage));
    catalogue.set("--set", &name("demo"), "launch.image", "demo:1").unwrap();
    assert_eq!(launch(&catalogue, "demo").expand_in_container(&values).unwrap().image, "demo:1");
}

#[test]
fn single_fields_are_set_as_toml_or_as_a_bare_text() {
    let mut catalogue = Catalogue::built_in().unwrap();
    let vllm = name("vllm");
    for (key, value) in [
        ("slots.default", "256"),
        ("launch.image", "vllm/vllm-openai:v0.9.1"),
        ("launch.env.HF_HOME", "/models"),
        ("metrics.names.running", "[\"mine\"]"),
        ("metrics.port", "8002"),
        ("drain", "{ signal = \"SIGINT\", grace_s = 3 }"),
        ("probe.health", "/ping"),
    ] {
        catalogue.set("--set", &vllm, key, value).unwrap();
    }
    let entry = catalogue.get(&vllm).unwrap();
    let (launch, metrics) = (entry.launch.as_ref().unwrap(), entry.metrics.as_ref().unwrap());
    assert_eq!((entry.slots.default, metrics.port), (256, Some(8002)));
    assert_eq!(launch.image.as_deref(), Some("vllm/vllm-openai:v0.9.1"));
    assert_eq!(launch.env["HF_HOME"].to_string(), "/models");
    assert_eq!(metrics.names[&Quantity::Running][0].name, "mine");
    assert_eq!(metrics.names[&Quantity::Waiting][0].name, "vllm:num_requests_waiting");
    assert_eq!((entry.drain.signal, entry.drain.grace_s), (StopSignal::Int, 3));
}

#[test]
fn a_wrong_setting_names_place_field_and_choices() {
    let mut catalogue = Catalogue::built_in().unwrap();
    let before = catalogue.clone();
    for (runtime, key, value, wanted) in [
        ("vllm", "slot.default", "1", vec!["--set", "`vllm`", "unknown field `slot`", "`slots`"]),
        ("vllm", "slots.default", "many", vec!["--set", "invalid type", "slots.default"]),
        ("vllm", "slots.default", "0", vec!["--set", "slots.default"]),
        ("vllm", "metrics.names.runing", "[]", vec!["runing", "`running`", "metrics.names"]),
        ("vllm", "name", "other", vec!["--set", "\"name\"", "no field"]),
        ("vllm", "", "1", vec!["--set", "no field"]),
        ("vllm", "slots..default", "1", vec!["--set", "no field"]),
        ("vlm", "slots.default", "1", vec!["unknown runtime `vlm`", "vllm"]),
    ] {
        let message = catalogue.set("--set", &name(runtime), key, value).unwrap_err().to_string();
        for part in wanted {
            assert!(message.contains(part), "{key}={value} was refused with {message:?}, which lacks {part:?}");
        }
    }
    assert_eq!(catalogue, before);
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
        ("name = \"new\"\n[probe]\n[slots]\ndefault = 1\n[launch]", vec!["launch", "`command`", "`image`"]),
        ("name = \"Bad Name\"\n[probe]\n[slots]\ndefault = 1", vec!["mine.toml", "runtime name contains 'B'"]),
        ("name = \"vllm\"\n[[probe.identify]]\npath = \"/\"", vec!["probe.identify[0]", "`pointer`", "`header`"]),
    ] {
        let message = refusal(entry);
        for part in wanted {
            assert!(message.contains(part), "{entry:?} was refused with {message:?}, which lacks {part:?}");
        }
    }
}
