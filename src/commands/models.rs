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
        table(models)
    })
}

fn table(models: &[ModelInfo]) -> String {
    let header = ["MODEL", "STATE", "READY", "RUNNING", "SLOTS", "RUNTIME", "ADAPTS"];
    output::table(header, models.iter().map(row))
}

fn row(model: &ModelInfo) -> [String; 7] {
    let runtimes: Vec<_> = model.runtimes.iter().map(|runtime| runtime.as_str()).collect();
    let state = match model {
        ModelInfo { ready: 1.., unhealthy: 0, .. } => "ready",
        ModelInfo { ready: 1.., .. } => "degraded",
        ModelInfo { unhealthy: 1.., .. } => "unhealthy",
        ModelInfo { starting: 1.., .. } => "starting",
        // Killed, switched off, or cut off: nobody has said farewell.
        ModelInfo { lost: 1.., .. } => "unreachable",
        _ => "leaving",
    };
    [
        model.model.to_string(),
        state.to_owned(),
        format!("{}/{}", model.ready, model.replicas),
        model.in_flight.to_string(),
        model.slots.to_string(),
        output::or_none(Some(runtimes.join(","))),
        output::or_none(model.parent.as_ref().map(ToString::to_string)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_told_by_its_best_replicas_and_its_worst() {
        let model = |ready, unhealthy, starting, lost| ModelInfo {
            model: "m".parse().unwrap(),
            parent: None,
            runtimes: Vec::new(),
            replicas: 2,
            ready,
            unhealthy,
            starting,
            lost,
            exact: 0,
            slots: 4,
            in_flight: 3,
        };
        let text = table(&[
            model(2, 0, 0, 0),
            model(1, 1, 0, 0),
            model(0, 1, 1, 0),
            model(0, 0, 1, 1),
            model(0, 0, 0, 2),
            model(0, 0, 0, 0),
        ]);
        let rows: Vec<Vec<_>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["m", "ready", "2/2", "3", "4", "-", "-"]);
        let states: Vec<_> = rows.iter().map(|row| row[1]).collect();
        assert_eq!(states, ["ready", "degraded", "unhealthy", "starting", "unreachable", "leaving"]);
    }
}
