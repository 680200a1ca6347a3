//! `dunlin models`: what the mesh serves.

use super::connect;
use crate::{args::Output, output};
use anyhow::Result;
use dunlin_node::control::ModelInfo;
use std::path::Path;

pub(crate) async fn run(home: &Path, output: Output) -> Result<()> {
    let models: Vec<ModelInfo> = connect(home).await?.get("/models").await?;
    output::show(output, &models, |models| {
        if models.is_empty() {
            return "no model is served yet; `dunlin doctor` looks for the reason".to_owned();
        }
        output::table(["MODEL", "RUNTIME", "READY", "IN FLIGHT", "SLOTS"], models.iter().map(row))
    })
}

fn row(model: &ModelInfo) -> [String; 5] {
    let runtimes: Vec<_> = model.runtimes.iter().map(|runtime| runtime.as_str()).collect();
    let name = match &model.parent {
        Some(parent) => format!("{} (adapts {parent})", model.model),
        None => model.model.to_string(),
    };
    let mut ready = format!("{}/{}", model.ready, model.replicas);
    if model.unhealthy > 0 {
        ready.push_str(&format!(" ({} unhealthy)", model.unhealthy));
    }
    [name, runtimes.join(","), ready, model.in_flight.to_string(), model.slots.to_string()]
}
