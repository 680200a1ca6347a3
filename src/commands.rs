//! One file per command; this one only chooses.

mod adapters;
mod agent;
mod chat;
mod completions;
mod crds;
mod demo_engine;
mod doctor;
mod door;
mod engine;
mod fetch;
mod invite;
mod jobs;
mod join;
mod keys;
mod logs;
mod mesh;
mod models;
mod operator;
mod orchestrator;
mod peers;
mod pod_join;
mod prices;
mod proxy;
mod relay;
mod revoke;
mod service;
mod status;
mod tenants;
mod top;
mod up;
mod usage;
mod who;

use crate::{
    args::{Args, Command, ModelsCommand},
    exit::Failure,
    settings,
};
use anyhow::Result;
use dunlin_node::control::{Client, ClientError};
use std::path::Path;

/// Runs the command that was chosen.
pub(crate) async fn run(args: Args) -> Result<()> {
    let home = settings::home(args.home.as_deref())?;
    let home = home.as_path();
    match args.command {
        Command::Up(args) => Box::pin(up::run(*args, home)).await,
        Command::Mesh { command } => mesh::run(command, home).await,
        Command::Invite(args) => invite::run(args, home).await,
        Command::Join { token, name } => join::run(&token, name, home).await,
        Command::Revoke { peer } => revoke::run(&peer, home).await,
        Command::Agent(args) => agent::run(args, home).await,
        Command::Proxy(args) => proxy::run(args, home).await,
        Command::Relay(args) => relay::run(args, home).await,
        Command::Deploy(args) => jobs::deploy(args, home).await,
        Command::Jobs(listing) => jobs::list(listing, home).await,
        Command::Job(args) => jobs::show(args, home).await,
        Command::Scale(args) => jobs::scale(args, home).await,
        Command::Delete { job } => jobs::delete(&job, home).await,
        Command::Rollout(args) => jobs::rollout(args, home).await,
        Command::Apply(args) => jobs::apply(args, home).await,
        Command::Orchestrator(args) => Box::pin(orchestrator::run(args, home)).await,
        Command::Crds(args) => crds::run(&args),
        Command::DemoEngine(args) => demo_engine::run(args).await,
        Command::Engine(args) => engine::run(args).await,
        Command::Fetch(args) => Box::pin(fetch::run(args)).await,
        Command::Peers(listing) => peers::run(home, listing.output).await,
        Command::Adapters { command } => adapters::run(command, home).await,
        Command::Models(args) => match args.command {
            None => models::run(home, args.listing.output).await,
            Some(ModelsCommand::List(listing)) => jobs::models(listing, home).await,
            Some(ModelsCommand::Add(args)) => jobs::add_model(args, home).await,
        },
        Command::Status(listing) => status::run(home, listing.output).await,
        Command::Top(args) => top::run(args, home).await,
        Command::Completions { shell } => completions::run(shell),
        Command::Chat(args) => chat::run(args, home).await,
        Command::Logs(args) => logs::run(args, home).await,
        Command::Keys(args) => keys::run(args, home).await,
        Command::Tenants(args) => tenants::run(args, home).await,
        Command::Usage(args) => usage::run(args, home).await,
        Command::Prices(args) => prices::run(args, home).await,
        Command::Doctor(listing) => doctor::run(home, listing.output).await,
    }
}

/// The running node of this machine.
async fn connect(home: &Path) -> Result<Client> {
    match Client::connect(home).await {
        Ok(client) => Ok(client),
        Err(ClientError::NotRunning(_)) => Err(Failure::NotRunning { home: home.display().to_string() }.into()),
        Err(error) => Err(error.into()),
    }
}
