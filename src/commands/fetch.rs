//! `dunlin fetch SOURCE --to DIR`: weights before an engine, told to a person or to the agent of the pod.

use super::engine;
use crate::{
    args::{DoorArgs, FetchArgs},
    output,
};
use anyhow::Result;
use dunlin_agent::pod::fetching::Teller;
use dunlin_fetch::{Endpoints, Keys, Order, Progress, Secrets, Source, client::Client, progress::Seen};
use dunlin_node::clock;
use dunlin_protocol::pod::{FetchProgress, bounded};
use std::{
    convert::Infallible,
    io::IsTerminal,
    path::PathBuf,
    time::{Duration, Instant},
};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Between two words on how far it has come, to an agent or on a terminal.
const TOLD: Duration = Duration::from_secs(1);
/// And in a log.
const LOGGED: Duration = Duration::from_secs(15);
/// An agent that isn't there is looked for so long each time.
const CONNECT: Duration = Duration::from_secs(2);

pub(crate) async fn run(args: FetchArgs) -> Result<()> {
    let source: Source = args.source.parse()?;
    let socket = args.socket.or_else(|| engine::beside_this_executable().ok().filter(|socket| socket.exists()));
    let (secrets, endpoints) = doors(args.doors);
    let allow = [args.allow, args.file].concat();
    let (ignore, connections) = (args.ignore, usize::from(args.connections));
    let order = Order { source, into: args.to, allow, ignore, connections, secrets, endpoints };
    let (client, progress) = (Client::new(clock::unix_s)?, Progress::default());
    let mut voice =
        Voice { source: order.source.to_string(), socket, teller: None, started: Instant::now(), before: 0 };
    let ended = tokio::select! {
        ended = dunlin_fetch::fetch(&order, &client, &progress) => ended,
        never = voice.go_on(&progress) => match never {},
    };
    let problem = ended.as_ref().err().map(ToString::to_string);
    voice.tell(&Seen { problem, ..progress.seen() }, true).await;
    voice.clear();
    let fetched = ended?;
    let (files, bytes) = (output::counted(fetched.files, "file"), output::bytes(fetched.bytes));
    output::line(&format!("{files}, {bytes}, in {}", fetched.folder.display()))?;
    Ok(())
}

fn doors(args: DoorArgs) -> (Secrets, Endpoints) {
    // What is set and empty in a pod's environment is not there.
    let set = |text: Option<String>| text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let session = set(args.bucket_session);
    let bucket = set(args.bucket_key).zip(set(args.bucket_secret)).map(|(id, secret)| Keys { id, secret, session });
    let secrets = Secrets { huggingface: set(args.hf_token), modelscope: set(args.modelscope_token), bucket };
    let endpoints = Endpoints {
        huggingface: set(args.hf_endpoint),
        modelscope: set(args.modelscope_endpoint),
        bucket: set(args.bucket_endpoint),
        region: set(args.bucket_region),
    };
    (secrets, endpoints)
}

/// Tells how far it has come.
struct Voice {
    source: String,
    socket: Option<PathBuf>,
    teller: Option<Teller>,
    started: Instant,
    /// Bytes that were here at the start.
    before: u64,
}

impl Voice {
    async fn go_on(&mut self, progress: &Progress) -> Infallible {
        let terminal = std::io::stderr().is_terminal();
        let mut tick = interval(TOLD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut logged = Instant::now();
        loop {
            tick.tick().await;
            let seen = progress.seen();
            if self.started.elapsed() < TOLD * 2 {
                self.before = seen.bytes_done;
            }
            self.tell(&seen, false).await;
            if terminal {
                output::status(&self.line(&seen));
            } else if logged.elapsed() >= LOGGED {
                logged = Instant::now();
                output::note(&self.line(&seen));
            }
        }
    }

    fn line(&self, seen: &Seen) -> String {
        let mut line = format!("{}: {} of {}", self.source, output::bytes(seen.bytes_done), output::bytes(seen.bytes));
        if seen.files > 1 {
            line.push_str(&format!(", {} of {} files", seen.files_done, seen.files));
        }
        let rate = seen.bytes_done.saturating_sub(self.before) as f64 / self.started.elapsed().as_secs_f64();
        if rate > 0.0 {
            line.push_str(&format!(", {}/s", output::bytes(rate as u64)));
        }
        seen.problem.as_ref().map_or(line.clone(), |problem| format!("{line}; {problem}"))
    }

    /// To the agent, where there is one. It may come and go.
    async fn tell(&mut self, seen: &Seen, ended: bool) {
        let Some(socket) = &self.socket else { return };
        let news = FetchProgress {
            source: bounded(&self.source),
            files_done: seen.files_done,
            files: seen.files,
            bytes_done: seen.bytes_done,
            bytes: seen.bytes,
            problem: seen.problem.as_deref().map(bounded),
            ended,
        };
        let told = match &mut self.teller {
            Some(teller) => teller.tell(&news).await.is_ok(),
            None => match timeout(CONNECT, Teller::connect(socket, news)).await {
                Ok(Ok(teller)) => {
                    self.teller = Some(teller);
                    true
                }
                _ => false,
            },
        };
        if !told {
            self.teller = None;
        }
    }

    fn clear(&self) {
        if std::io::stderr().is_terminal() {
            output::status("");
        }
    }
}
