//! `dunlin usage`: what keys have used, summed over all endpoints.

use super::{connect, keys::get};
use crate::{
    args::{Output, SpanArg, UsageArgs, UsageOutput},
    exit::Failure,
    output,
};
use anyhow::Result;
use dunlin_node::{clock, control::ClientError};
use dunlin_proxy::usage::report::{Line, csv, time};
use http::StatusCode;
use std::path::Path;

pub(crate) async fn run(args: UsageArgs, home: &Path) -> Result<()> {
    let by = match args.by {
        SpanArg::Hour => "hour",
        SpanArg::Day => "day",
        SpanArg::Month => "month",
        SpanArg::Total => "total",
    };
    let mut path = format!("/usage?by={by}");
    if let Some(since) = args.since {
        path += &format!("&from={}", clock::unix_s().saturating_sub(since.as_secs()));
    }
    for (name, value) in [("key", &args.key), ("tenant", &args.tenant), ("model", &args.model)] {
        if let Some(value) = value {
            path += &format!("&{name}={}", super::keys::path_segment(value));
        }
    }
    let lines: Vec<Line> = get(&mut connect(home).await?, &path).await.map_err(not_found)?;
    match args.output {
        UsageOutput::Csv => Ok(output::whole(csv(&lines).as_bytes())?),
        UsageOutput::Json => output::show(Output::Json, &lines, |_| String::new()),
        UsageOutput::Human => output::show(Output::Human, &lines, |lines| table(lines, args.by != SpanArg::Total)),
    }
}

/// A key or a tenant that there never was.
fn not_found(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<ClientError>() {
        Ok(ClientError::Refused { status: StatusCode::NOT_FOUND, message }) => {
            Failure::NotFound { what: "usage".into(), hint: format!(": {message}") }.into()
        }
        Ok(other) => other.into(),
        Err(error) => error,
    }
}

fn table(lines: &[Line], spans: bool) -> String {
    let rows = lines.iter().map(|line| {
        let Line {
            key, name, tenant, model, requests, errors, prompt_tokens, completion_tokens, cached_tokens, ..
        } = line;
        let cost = if line.cost > 0.0 { format!("{:.4}", line.cost) } else { String::new() };
        let counts = [requests, errors, prompt_tokens, completion_tokens, cached_tokens].map(u64::to_string);
        let [requests, errors, prompt, completion, cached] = counts;
        let from = if spans { time(line.from) } else { String::new() };
        let who = if name.is_empty() { key.clone() } else { format!("{key} {name}") };
        let seconds = format!("{:.1}", line.seconds);
        [from, who, tenant.clone(), model.clone(), requests, errors, prompt, completion, cached, seconds, cost]
    });
    output::table(
        ["FROM", "KEY", "TENANT", "MODEL", "REQUESTS", "ERRORS", "PROMPT", "COMPLETION", "CACHED", "SECONDS", "COST"],
        rows,
    )
}
