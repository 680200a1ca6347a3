//! The examples: what their objects become, word for word.
//!
//! `DUNLIN_GOLDEN=write cargo test -p dunlin-k8s --test scenarios examples` writes the expected files anew.

use dunlin_k8s::{
    engine,
    manifest::{self, Making, Owner},
    needs,
    plan::Vocabulary,
    resources::{BackendRuntime, Model, Playground, ReplicaState, crds, to_yaml},
    revision::{Revision, Snapshot},
    settings::Settings,
};
use dunlin_k8s_fake::Fake;
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let parts =
        text.split("\n---\n").filter(|part| part.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#')));
    parts
        .map(|part| serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        .collect()
}

fn examples() -> Vec<PathBuf> {
    let folder = root().join("examples/kubernetes");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    assert!(paths.len() >= 4);
    paths
}

fn find<K: serde::de::DeserializeOwned>(documents: &[Value], kind: &str) -> Vec<K> {
    let of_kind = documents.iter().filter(|document| document["kind"] == kind);
    of_kind.map(|document| serde_json::from_value(document.clone()).unwrap()).collect()
}

fn expect(path: &Path, is: &str) {
    if std::env::var("DUNLIN_GOLDEN").is_ok_and(|value| value == "write") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, is).unwrap();
    }
    let was = fs::read_to_string(path).unwrap_or_default();
    assert!(was == is, "{} is not what is made now:\n{is}", path.display());
}

#[test]
fn every_example_becomes_what_is_expected() {
    for path in examples() {
        let documents = documents(&path);
        let models: Vec<Model> = find(&documents, "Model");
        let mut runtimes: Vec<BackendRuntime> = find(&documents, "BackendRuntime");
        runtimes.extend(engine::built_in().unwrap());
        let settings = Settings {
            image: "ghcr.io/dunlin/dunlin:1".to_owned(),
            mesh: Some("ab".repeat(32)),
            ..Settings::default()
        };
        let mut text = String::new();
        for mut playground in find::<Playground>(&documents, "Playground") {
            playground.metadata.uid = Some("00000000-0000-4000-8000-000000000001".to_owned());
            playground.metadata.namespace = Some("default".to_owned());
            let wanted = playground.spec.main_model().unwrap();
            let model =
                models.iter().find(|model| model.name_any() == wanted || model.spec.served_name == wanted).unwrap();
            let runtime = runtimes.iter().find(|runtime| runtime.name_any() == playground.spec.runtime_name()).unwrap();
            let snapshot =
                Snapshot::of(&playground, (&model.name_any(), &model.spec), (&runtime.name_any(), &runtime.spec));
            let name = playground.name_any();
            // A fixed name, so that what is expected does not change with every field that a resource gains.
            let revision = Revision { name: format!("{name}-0123456789abcdef"), number: 1, snapshot };
            let owner = Owner::of(&playground);
            let making = Making { owner: &owner, revision: &revision, settings: &settings };
            for need in needs::flavors(making, &mut Vocabulary::default()) {
                let flavor = need.name.to_string();
                let (name, node) = (format!("{name}-0-1"), Some("node-1".to_owned()));
                let state = ReplicaState { name, node, flavor: Some(flavor.clone()), ..ReplicaState::default() };
                let pod = manifest::pod(making, &state).unwrap();
                text.push_str(&format!(
                    "# {} on {flavor}\n{}---\n",
                    state.name,
                    to_yaml(&serde_json::to_value(pod).unwrap())
                ));
            }
            let objects = [
                serde_json::to_value(manifest::network_policy(&owner).unwrap()).unwrap(),
                serde_json::to_value(manifest::disruption_budget(&owner).unwrap()).unwrap(),
            ];
            objects.iter().for_each(|object| text.push_str(&format!("{}---\n", to_yaml(object))));
        }
        let golden = path.file_stem().unwrap().to_string_lossy().into_owned();
        expect(&root().join(format!("k8s/tests/golden/{golden}.yaml")), &text);
    }
}

#[tokio::test]
async fn an_api_server_takes_every_example() {
    for path in examples() {
        let fake = Fake::new(&crds());
        let client = fake.client("test");
        for document in documents(&path) {
            match document["kind"].as_str().unwrap_or_default() {
                "Model" => drop(
                    Api::<Model>::all(client.clone())
                        .create(&PostParams::default(), &serde_json::from_value(document).unwrap())
                        .await
                        .unwrap(),
                ),
                "BackendRuntime" => drop(
                    Api::<BackendRuntime>::all(client.clone())
                        .create(&PostParams::default(), &serde_json::from_value(document).unwrap())
                        .await
                        .unwrap(),
                ),
                "Playground" => drop(
                    Api::<Playground>::namespaced(client.clone(), "default")
                        .create(&PostParams::default(), &serde_json::from_value(document).unwrap())
                        .await
                        .unwrap(),
                ),
                other => panic!("{}: an example of {other}?", path.display()),
            }
        }
    }
}

/// The chart carries copies, since Helm can't run programs.
#[test]
fn the_charts_copies_are_what_the_program_prints() {
    let template = |body: String| format!("{{{{- if .Values.crds.install }}}}\n{body}{{{{- end }}}}\n");
    let definitions: String = crds()
        .into_iter()
        .map(|mut crd| {
            let keep = ("helm.sh/resource-policy".to_owned(), "keep".to_owned());
            crd.metadata.annotations.get_or_insert_default().extend([keep]);
            // What braces there are would be taken for the chart's own.
            to_yaml(&serde_json::to_value(crd).unwrap()).replace("{{", "{{ \"{{\" }}") + "---\n"
        })
        .collect();
    expect(&root().join("k8s/chart/templates/crds.yaml"), &template(definitions));
    let runtimes: String = engine::built_in()
        .unwrap()
        .iter()
        .map(|runtime| to_yaml(&serde_json::to_value(runtime).unwrap()) + "---\n")
        .collect();
    let template = format!("{{{{- if .Values.runtimes.install }}}}\n{runtimes}{{{{- end }}}}\n");
    expect(&root().join("k8s/chart/templates/runtimes.yaml"), &template);
}
