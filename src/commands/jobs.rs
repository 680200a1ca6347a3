//! `dunlin deploy`, `jobs`, `job`, `scale`, `delete`, `rollout`, `apply`: jobs of the clusters in the mesh.

use super::operator::ask;
use crate::{
    args::{AddModelArgs, ApplyArgs, DeployArgs, JobArgs, ListingArgs, Output, RolloutArgs, RolloutVerb, ScaleArgs},
    exit::Failure,
    output,
};
use anyhow::{Context, Result, bail};
use dunlin_node::clock;
use dunlin_protocol::jobs::{
    APPLY_PATH, AddModel, CLUSTER_PATH, Deploy, Job, JobModel, JobName, JobReplica, MODELS_PATH, PATH, Rollout,
    RolloutState, RolloutStatus, Scale,
};
use http::Method;
use serde_json::{Value, json};
use std::{
    io::{IsTerminal, Read},
    path::Path,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Between two looks at a job that is waited for.
const LOOK: Duration = Duration::from_secs(2);
/// A file larger than this is no manifest.
const FILE_BYTES: u64 = 1 << 20;

fn path_of(job: &JobName) -> String {
    format!("{PATH}/{job}")
}

/// The one answer of the cluster that a job names.
async fn one(home: &Path, method: Method, path: &str, body: Value) -> Result<Job> {
    let mut answers: Vec<Job> = ask(home, method, path, body).await?;
    answers.pop().context("no answer")
}

pub(crate) async fn deploy(args: DeployArgs, home: &Path) -> Result<()> {
    if let Some(file) = &args.file {
        let mut manifest = documents(file)?;
        let [Value::Object(_)] = manifest.as_slice() else {
            bail!(Failure::Usage(
                "-f takes a file with one Playground; `dunlin apply -f` takes several objects".into()
            ));
        };
        let manifest = manifest.remove(0);
        let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        let cluster = chosen(args.cluster, home).await?;
        apply_one(home, &cluster, &manifest).await?;
        let namespace = namespace.unwrap_or_else(|| args.namespace.clone());
        let jobs: Vec<Vec<Job>> = ask(home, Method::GET, PATH, Value::Null).await?;
        let is_it = |job: &Job| {
            job.id.cluster == cluster && job.id.namespace == namespace && Some(&job.id.name) == name.as_ref()
        };
        let job = jobs.into_iter().flatten().find(is_it).context("the job was applied, and is not to be seen yet")?;
        return after(job, args.wait, home).await;
    }
    let Some(model) = args.model else {
        bail!(Failure::Usage("name a model, or give a Playground with -f FILE".into()));
    };
    let order = Deploy {
        cluster: Some(chosen(args.cluster, home).await?),
        namespace: args.namespace,
        name: args.name,
        model,
        replicas: args.replicas,
        runtime: args.runtime,
        flavors: args.flavors,
    };
    let job = one(home, Method::POST, PATH, json!(order)).await?;
    after(job, args.wait, home).await
}

/// Several clusters must not all start it: the first by name whose orchestrator answers, unless one is named.
async fn chosen(named: Option<String>, home: &Path) -> Result<String> {
    if let Some(cluster) = named {
        return Ok(cluster);
    }
    let clusters: Vec<String> = ask(home, Method::GET, CLUSTER_PATH, Value::Null).await?;
    clusters.into_iter().min().context("no cluster")
}

async fn after(job: Job, wait: bool, home: &Path) -> Result<()> {
    output::line(&job.id.to_string())?;
    if wait {
        wait_for_first(job, home).await
    } else {
        output::note(&format!("see: dunlin job {}", job.id));
        Ok(())
    }
}

/// Says how it goes until the first replica serves.
async fn wait_for_first(mut job: Job, home: &Path) -> Result<()> {
    let terminal = std::io::stderr().is_terminal();
    let (mut said, started) = (String::new(), Instant::now());
    loop {
        let news = news(&job);
        if terminal {
            output::status(&format!("{news} ({} s)", started.elapsed().as_secs()));
        } else if news != said {
            output::note(&news);
        }
        said = news;
        if job.ready > 0 || job.wanted == 0 {
            break;
        }
        sleep(LOOK).await;
        match one(home, Method::GET, &path_of(&job.id), Value::Null).await {
            Ok(newer) => job = newer,
            // An orchestrator that is replaced is away for a while.
            Err(error) => said = format!("{error:#}"),
        }
    }
    if terminal {
        output::status("");
    }
    output::note(&format!("{}: {} of {} replicas serve {}", job.id, job.ready, job.wanted, job.model));
    Ok(())
}

fn news(job: &Job) -> String {
    let furthest = job.replicas.iter().max_by_key(|replica| stage(&replica.phase));
    let replica = furthest.map_or_else(|| "no replica yet".to_owned(), replica_line);
    let message = if job.message.is_empty() { String::new() } else { format!("; {}", job.message) };
    format!("{}: {replica}{message}", job.id)
}

fn stage(phase: &str) -> usize {
    ["Failed", "Draining", "Pending", "Placing", "Pulling", "Loading", "Ready"]
        .iter()
        .position(|one| *one == phase)
        .unwrap_or(0)
}

fn replica_line(replica: &JobReplica) -> String {
    let JobReplica { name, phase, flavor, node, progress, message, .. } = replica;
    let on = node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let kind = flavor.as_ref().map(|flavor| format!(" ({flavor})")).unwrap_or_default();
    let progress = progress.map(|percent| format!(" {percent} %")).unwrap_or_default();
    let message = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
    format!("{name} {phase}{progress}{on}{kind}{message}")
}

pub(crate) async fn list(args: ListingArgs, home: &Path) -> Result<()> {
    let jobs: Vec<Vec<Job>> = ask(home, Method::GET, PATH, Value::Null).await?;
    let mut jobs: Vec<Job> = jobs.into_iter().flatten().collect();
    jobs.sort_by(|a, b| a.id.cmp(&b.id));
    let now = clock::unix_s();
    output::show(args.output, &jobs, |jobs| {
        let rows = jobs.iter().map(|job| {
            let state = if job.ending {
                "ending"
            } else if job.paused {
                "paused"
            } else {
                job.message.as_str()
            };
            let made = output::ago(now.saturating_sub(job.created));
            [job.id.to_string(), job.model.clone(), format!("{}/{}", job.ready, job.wanted), made, state.to_owned()]
        });
        output::table(["JOB", "MODEL", "READY", "MADE", "STATE"], rows)
    })
}

pub(crate) async fn show(args: JobArgs, home: &Path) -> Result<()> {
    let job = one(home, Method::GET, &path_of(&args.job), Value::Null).await?;
    print(&job, args.listing.output)
}

fn print(job: &Job, output: Output) -> Result<()> {
    output::show(output, job, |job| {
        let mut lines = vec![
            format!("job       {}", job.id),
            format!("model     {}", job.model),
            format!("runtime   {}", job.runtime),
            format!("replicas  {} of {} serve, {} of the newest revision", job.ready, job.wanted, job.updated),
        ];
        lines.extend((!job.message.is_empty()).then(|| format!("state     {}", job.message)));
        lines.extend(job.replicas.iter().map(|replica| {
            let peer = replica.peer.as_ref().map(|peer| format!(", peer {peer}")).unwrap_or_default();
            format!("replica   {}{peer}", replica_line(replica))
        }));
        lines.join("\n")
    })
}

pub(crate) async fn scale(args: ScaleArgs, home: &Path) -> Result<()> {
    let job =
        one(home, Method::POST, &format!("{}/scale", path_of(&args.job)), json!(Scale { replicas: args.replicas }))
            .await?;
    Ok(output::line(&format!("{}: {} replicas wanted, {} serve", job.id, job.wanted, job.ready))?)
}

pub(crate) async fn delete(job: &JobName, home: &Path) -> Result<()> {
    let _: Vec<JobName> = ask(home, Method::DELETE, &path_of(job), Value::Null).await?;
    Ok(output::line(&format!("{job} ends; its replicas finish their requests"))?)
}

pub(crate) async fn rollout(args: RolloutArgs, home: &Path) -> Result<()> {
    if args.to.is_some() && args.what != RolloutVerb::Undo {
        bail!(Failure::Usage("--to goes with undo".into()));
    }
    let path = format!("{}/rollout", path_of(&args.job));
    let what = match args.what {
        RolloutVerb::Status => return progress(&args.job, &path, home).await,
        RolloutVerb::Undo => Rollout::Undo { to: args.to },
        RolloutVerb::Restart => Rollout::Restart,
        RolloutVerb::Pause => Rollout::Pause,
        RolloutVerb::Resume => Rollout::Resume,
    };
    let job = one(home, Method::POST, &path, json!(what)).await?;
    Ok(output::line(&format!("{}: {} of {} replicas are of the newest revision", job.id, job.updated, job.wanted))?)
}

async fn progress(job: &JobName, path: &str, home: &Path) -> Result<()> {
    let mut answers: Vec<RolloutStatus> = ask(home, Method::GET, path, Value::Null).await?;
    let RolloutStatus { state, message, revisions } = answers.pop().context("no answer")?;
    let word = match state {
        RolloutState::Unseen => "waits",
        RolloutState::Going => "goes on",
        RolloutState::Stuck => "is stuck",
        RolloutState::Done => "is done",
    };
    output::line(&format!("{job}: the rollout {word}: {message}"))?;
    for revision in revisions {
        let mark = if revision.current { " (wanted now)" } else { "" };
        output::line(&format!("revision  {} {}{mark}", revision.number, revision.name))?;
    }
    match state {
        RolloutState::Stuck => bail!("the rollout of {job} is stuck"),
        _ => Ok(()),
    }
}

pub(crate) async fn models(args: ListingArgs, home: &Path) -> Result<()> {
    let models: Vec<Vec<JobModel>> = ask(home, Method::GET, MODELS_PATH, Value::Null).await?;
    let mut models: Vec<JobModel> = models.into_iter().flatten().collect();
    models.sort_by(|a, b| (&a.cluster, &a.served).cmp(&(&b.cluster, &b.served)));
    output::show(args.output, &models, |models| {
        let row = |model: &JobModel| {
            [
                model.served.clone(),
                model.cluster.clone(),
                model.name.clone(),
                model.source.clone(),
                model.flavors.join(","),
            ]
        };
        output::table(["MODEL", "CLUSTER", "OBJECT", "SOURCE", "FLAVORS"], models.iter().map(row))
    })
}

pub(crate) async fn add_model(args: AddModelArgs, home: &Path) -> Result<()> {
    let cluster = chosen(args.cluster, home).await?;
    let order = AddModel { served: args.model, source: args.source, file: args.file, flavors_of: args.flavors_of };
    let added: Vec<String> = ask(home, Method::POST, &format!("{MODELS_PATH}/{cluster}"), json!(order)).await?;
    for name in added {
        output::line(&format!("{} is Model {name} of cluster {cluster}", order.served))?;
    }
    Ok(())
}

/// A job, for those who want its replicas.
pub(super) async fn job(job: &JobName, home: &Path) -> Result<Job> {
    one(home, Method::GET, &path_of(job), Value::Null).await
}

pub(crate) async fn apply(args: ApplyArgs, home: &Path) -> Result<()> {
    let documents = documents(&args.file)?;
    let cluster = chosen(args.cluster, home).await?;
    for document in documents {
        apply_one(home, &cluster, &document).await?;
    }
    Ok(())
}

async fn apply_one(home: &Path, cluster: &str, document: &Value) -> Result<()> {
    let applied: Vec<String> = ask(home, Method::POST, &format!("{APPLY_PATH}/{cluster}"), document.clone()).await?;
    for name in applied {
        output::line(&format!("{name} applied"))?;
    }
    Ok(())
}

/// The objects in a file of YAML or JSON; `-` for standard input.
fn documents(file: &Path) -> Result<Vec<Value>> {
    let mut text = String::new();
    let read = match file.to_str() {
        Some("-") => std::io::stdin().take(FILE_BYTES).read_to_string(&mut text),
        _ => std::fs::File::open(file).and_then(|file| file.take(FILE_BYTES).read_to_string(&mut text)),
    };
    read.with_context(|| format!("{} can't be read", file.display()))?;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text)
        .with_context(|| format!("{}: this is neither YAML nor JSON", file.display()))?;
    let objects: Vec<Value> = objects.into_iter().filter(|object| !object.is_null()).collect();
    if objects.is_empty() {
        bail!("{} has no object in it", file.display());
    }
    Ok(objects)
}
