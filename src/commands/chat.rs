//! `dunlin chat`: one question, or a conversation, with a model of the mesh.

use super::door::Door;
use crate::{args::ChatArgs, exit::Failure, http, http::Target, output, sse::Events};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Method, Response, body::Incoming};
use rustyline::{DefaultEditor, error::ReadlineError};
use serde::{Deserialize, Serialize};
use std::{future::Future, io::Read, path::Path, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

/// Longest question, bytes: an endpoint refuses more anyway.
const PROMPT_BYTES: u64 = 16 << 20;

/// Longest that a person hears nothing.
const WORDLESS: Duration = Duration::from_secs(2);

/// What ends a conversation, as other programs of this kind have it.
const ENDS: [&str; 3] = ["/exit", "/quit", "/bye"];

#[derive(Clone, Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}
#[derive(Deserialize)]
struct Model {
    id: String,
}

pub(crate) async fn run(args: ChatArgs, home: &Path) -> Result<()> {
    let door = match &args.endpoint {
        Some(url) => Door::elsewhere(Target::endpoint(url, args.key.clone())?),
        None => Door::open(home).await?,
    };
    let talked = talk(args, &door).await;
    door.close().await?;
    talked
}

async fn talk(args: ChatArgs, door: &Door) -> Result<()> {
    let target = door.target.clone();
    let model = or_interrupted(pick_model(&target, args.model.as_deref())).await?;
    let mut talk = Talk { target, model, max_tokens: args.max_tokens, messages: Vec::new() };
    if !args.prompt.is_empty() {
        return or_interrupted(talk.ask(args.prompt.join(" "))).await;
    }
    if !std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        return or_interrupted(async { talk.ask(piped().await?).await }).await;
    }
    talk.converse(door).await
}

/// Ends early with Ctrl-C: the request is hung up on, so that no engine goes on for nobody, and the node of this command says
/// farewell.
async fn or_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        done = work => done,
        _ = interrupt.recv() => Err(Failure::Interrupted.into()),
    }
}

/// A question from a pipe. Read on a thread that nobody waits for: the pipe may never end, and the process is to end without.
async fn piped() -> Result<String> {
    let (told, reading) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut prompt = String::new();
        let read = std::io::stdin().take(PROMPT_BYTES).read_to_string(&mut prompt);
        let _ = told.send(read.map(|_| prompt));
    });
    reading.await?.context("standard input")
}

/// The model that was named, or the only one there is.
async fn pick_model(target: &Target, named: Option<&str>) -> Result<String> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let models: Models = target.json(Method::GET, "/v1/models", &()).await?;
    match models.data.as_slice() {
        [only] => Ok(only.id.clone()),
        [] => bail!(Failure::NoModel),
        several => {
            let names: Vec<_> = several.iter().map(|model| model.id.as_str()).collect();
            bail!(Failure::Usage(format!("name one of the models: {}", names.join(", "))))
        }
    }
}

struct Talk {
    target: Target,
    model: String,
    max_tokens: Option<u32>,
    messages: Vec<Message>,
}

impl Talk {
    async fn converse(&mut self, door: &Door) -> Result<()> {
        output::note(&format!("{} - end with /exit or Ctrl-D, stop an answer with Ctrl-C", self.model));
        let mut editor = DefaultEditor::new()?;
        loop {
            // Waiting for a person must not stop a node that runs in this process.
            let (returned, line) = tokio::task::spawn_blocking(move || {
                let line = editor.readline("> ");
                (editor, line)
            })
            .await?;
            editor = returned;
            match line {
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) if ENDS.contains(&line.trim()) => return Ok(()),
                Ok(line) => {
                    let _ = editor.add_history_entry(&line);
                    let before = self.messages.len();
                    match or_interrupted(self.ask(line)).await {
                        Ok(()) => {}
                        Err(error) if matches!(error.downcast_ref(), Some(Failure::Interrupted)) => {
                            self.messages.truncate(before);
                            output::note("\nstopped");
                            // The signal was the node's too, where it is in this process.
                            if door.is_own() {
                                return Ok(());
                            }
                        }
                        Err(error) => output::error_line(&format!("error: {error:#}")),
                    }
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks, prints the answer as it comes, and keeps both for the next turn. A question that failed is forgotten.
    async fn ask(&mut self, question: String) -> Result<()> {
        self.messages.push(Message { role: "user", content: question });
        match self.stream().await {
            Ok(answer) => {
                self.messages.push(Message { role: "assistant", content: answer });
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// Sends the question; says what is waited for when nothing comes for a while.
    async fn send(&self, body: Bytes) -> Result<Response<Incoming>> {
        let told = async {
            tokio::time::sleep(WORDLESS).await;
            output::note(&self.waited_for().await);
            std::future::pending::<Result<_>>().await
        };
        tokio::select! {
            answered = self.target.send(Method::POST, "/v1/chat/completions", body) => answered,
            never = told => never,
        }
    }

    async fn waited_for(&self) -> String {
        let model = &self.model;
        match self.target.json::<Models>(Method::GET, "/v1/models", &()).await {
            Ok(models) if models.data.iter().any(|listed| listed.id == *model) => {
                format!("waiting for {model}: its replicas are busy, or still read the question")
            }
            Ok(_) => {
                format!("waiting for a replica of {model}: none is ready now; `dunlin models` shows what there is")
            }
            Err(error) => format!("waiting for {model}: {error:#}"),
        }
    }

    async fn stream(&self) -> Result<String> {
        let mut body = serde_json::json!({ "model": self.model, "messages": self.messages, "stream": true });
        if let Some(max_tokens) = self.max_tokens {
            body["max_tokens"] = max_tokens.into();
        }
        let body = Bytes::from(serde_json::to_vec(&body)?);
        let response = self.send(body).await?;
        let status = response.status();
        if !status.is_success() {
            let said = http::message(status, &http::whole(response.into_body()).await?);
            if status == hyper::StatusCode::NOT_FOUND {
                let hint = format!(
                    "\n  {said}\n  the model comes first: dunlin chat MODEL 'a question'; `dunlin models` lists them"
                );
                bail!(Failure::NotFound { what: format!("model {:?}", self.model), hint });
            }
            bail!(said);
        }
        let mut answer = String::new();
        let mut events = Events::default();
        let mut incoming = response.into_body();
        while let Some(frame) = incoming.frame().await {
            let frame = frame.context("the answer broke off")?;
            let Some(bytes) = frame.data_ref() else { continue };
            for event in events.push(bytes)? {
                if event == b"[DONE]" {
                    output::piece(b"\n")?;
                    return Ok(answer);
                }
                let text = delta(&event)?;
                output::piece(text.as_bytes())?;
                answer.push_str(&text);
            }
        }
        output::piece(b"\n")?;
        bail!("the answer broke off before its end")
    }
}

/// The text that one event adds.
fn delta(event: &[u8]) -> Result<String> {
    let event: serde_json::Value = serde_json::from_slice(event).context("the stream has an event that is not JSON")?;
    if let Some(error) = event.get("error") {
        bail!("{}", error.get("message").and_then(|m| m.as_str()).unwrap_or("the engine reported an error"));
    }
    Ok(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned())
}
