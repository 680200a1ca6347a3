//! `dunlin crds`: the definitions of the custom resources, to apply.

use crate::{args::CrdsArgs, output};
use anyhow::Result;
use dunlin_k8s::{
    engine,
    resources::{crds, to_yaml},
};

pub(crate) fn run(args: &CrdsArgs) -> Result<()> {
    let mut documents: Vec<String> = Vec::new();
    for crd in crds() {
        documents.push(to_yaml(&serde_json::to_value(crd)?));
    }
    if args.runtimes {
        for runtime in engine::built_in()? {
            documents.push(to_yaml(&serde_json::to_value(runtime)?));
        }
    }
    Ok(output::whole(documents.join("---\n").as_bytes())?)
}
