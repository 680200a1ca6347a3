//! Bodies of the demo engine's answers: whole ones, and streams that are written as they are read.

use super::{
    answer::{self, Events, Usage},
    config::Speed,
    faults::{Death, Strike},
    metrics::Ending,
    request::{Endpoint, Job},
    scheduler::{Waiting, Work},
    server::Line,
    writer::{Finish, Writer},
};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep};

/// The engine ends an answer in the middle, as ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the demo engine died in the middle of an answer, as ordered")]
pub(super) struct Died;

/// The body of any answer.
#[derive(Debug)]
pub(super) enum Body {
    /// All there is.
    Whole(Option<Bytes>),
    /// Events.
    Stream(Box<Stream>),
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Died;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Died>>> {
        match self.get_mut() {
            Self::Whole(bytes) => {
                Poll::Ready(bytes.take().filter(|bytes| !bytes.is_empty()).map(|b| Ok(Frame::data(b))))
            }
            Self::Stream(stream) => stream.poll(cx).map(|next| next.map(|bytes| bytes.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

type Begin = Pin<Box<dyn Future<Output = Option<Work>> + Send>>;

enum Phase {
    /// In the queue.
    Queued(Begin),
    /// The first event of a chat comes with the first token.
    First,
    /// Token after token.
    Tokens,
    /// Nothing more.
    Over,
}

impl fmt::Debug for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queued(_) => "Queued",
            Self::First => "First",
            Self::Tokens => "Tokens",
            Self::Over => "Over",
        })
    }
}

/// A stream of events.
#[derive(Debug)]
pub(super) struct Stream {
    phase: Phase,
    work: Option<Work>,
    writer: Writer,
    events: Events,
    /// The answer so far, where the prefix cache wants it.
    answer: Option<String>,
    chat: bool,
    include_usage: bool,
    usage: Usage,
    strike: Option<Strike>,
    line: Line,
    speed: Speed,
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether the last poll gave a chunk: then other streams come first, and what is buffered goes out.
    gave: bool,
}

impl Stream {
    pub(super) fn new(
        job: &Job,
        waiting: Waiting,
        events: Events,
        strike: Option<Strike>,
        speed: Speed,
        line: Line,
    ) -> Self {
        let keeps = waiting.caches();
        let (phase, work) = match waiting.try_begin() {
            Ok(work) => (Phase::First, Some(work)),
            Err(waiting) => (Phase::Queued(Box::pin(waiting.begin())), None),
        };
        Self {
            phase,
            work,
            writer: Writer::new(job),
            events,
            answer: keeps.then(String::new),
            chat: job.endpoint == Endpoint::Chat,
            include_usage: job.include_usage,
            usage: Usage { prompt_tokens: job.prompt_tokens, ..Usage::default() },
            strike,
            line,
            speed,
            timer: None,
            gave: false,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Died>>> {
        if std::mem::take(&mut self.gave) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            match &mut self.phase {
                Phase::Queued(begin) => {
                    self.work = ready!(begin.as_mut().poll(cx));
                    self.phase = Phase::First;
                }
                Phase::First | Phase::Tokens => {
                    if let Some(end) = ready!(self.poll_death()) {
                        return Poll::Ready(end);
                    }
                    ready!(self.poll_timer(cx));
                    if let Some(bytes) = self.advance() {
                        self.gave = true;
                        return Poll::Ready(Some(Ok(bytes)));
                    }
                }
                Phase::Over => return Poll::Ready(None),
            }
        }
    }

    /// What an ordered fault makes of the stream here, if anything.
    fn poll_death(&mut self) -> Poll<Option<Option<Result<Bytes, Died>>>> {
        let Some(Strike::Die { after, death, before_role }) = self.strike else { return Poll::Ready(None) };
        let first = matches!(self.phase, Phase::First);
        if self.usage.completion_tokens < after || (first && !before_role && self.chat) {
            return Poll::Ready(None);
        }
        if death == Death::Hang {
            return Poll::Pending;
        }
        self.end(Ending::Error);
        Poll::Ready(Some(self.line.die(death)))
    }

    /// Waits until the next token is due.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(work) = &self.work else { return Poll::Ready(()) };
        let after = self.speed.until_token(work.prefill_tokens(), self.usage.completion_tokens as usize);
        if after == Duration::ZERO {
            return Poll::Ready(());
        }
        let due = Instant::from_std(work.started) + after;
        let timer = match &mut self.timer {
            Some(timer) => {
                if timer.deadline() != due {
                    timer.as_mut().reset(due);
                }
                timer
            }
            None => self.timer.insert(Box::pin(tokio::time::sleep_until(due))),
        };
        timer.as_mut().poll(cx)
    }

    /// The next events; `None` when a step gave nothing to say.
    fn advance(&mut self) -> Option<Bytes> {
        if matches!(self.phase, Phase::First) {
            self.phase = Phase::Tokens;
            if self.chat {
                self.events.role();
                if matches!(self.strike, Some(Strike::Die { after: 0, .. })) {
                    return Some(self.events.take());
                }
            }
        }
        let step = self.writer.step();
        if step.token {
            self.usage.completion_tokens += 1;
            if let Some(work) = &mut self.work {
                work.generated(1);
            }
        }
        if let Some(answer) = &mut self.answer {
            answer.push_str(&step.text);
        }
        if !step.json.is_empty() || step.finish.is_some() {
            self.events.step(&step);
        }
        if let Some(finish) = step.finish {
            self.finish(&finish);
        }
        let bytes = self.events.take();
        (!bytes.is_empty()).then_some(bytes)
    }

    fn finish(&mut self, finish: &Finish) {
        if self.include_usage {
            self.usage.cached_tokens = self.answer.is_some().then(|| self.work.as_ref().map_or(0, |w| w.cached_tokens));
            self.events.usage(&self.usage);
        }
        self.events.done();
        self.end(Ending::from(finish));
    }

    fn end(&mut self, ending: Ending) {
        self.phase = Phase::Over;
        if let Some(mut work) = self.work.take() {
            work.finish(ending, self.answer.as_deref().unwrap_or_default());
        }
    }
}

impl From<&Finish> for Ending {
    fn from(finish: &Finish) -> Self {
        match finish {
            Finish::Length => Self::Length,
            Finish::Stop(_) => Self::Stop,
        }
    }
}

/// Writes an answer that isn't a stream, and waits as long as its tokens take.
///
/// # Errors
/// It died on the way, as ordered: the connection shall go too.
pub(super) async fn whole(
    job: &Job,
    waiting: Waiting,
    id: &str,
    created: u64,
    strike: Option<Strike>,
    speed: Speed,
) -> Result<Bytes, Death> {
    let keeps = waiting.caches();
    let mut work = match waiting.try_begin() {
        Ok(work) => work,
        Err(waiting) => waiting.begin().await.ok_or(Death::Close)?,
    };
    let death = match strike {
        Some(Strike::Die { after, death, .. }) => Some((after, death)),
        _ => None,
    };
    let mut writer = Writer::new(job);
    let (mut text, mut json, mut tokens) = (String::new(), String::new(), 0);
    let finish = loop {
        if let Some((_, death)) = death.filter(|&(after, _)| tokens >= after) {
            return Err(die_after(work, tokens, death, speed).await);
        }
        let step = writer.step();
        tokens += u32::from(step.token);
        json.push_str(&step.json);
        if keeps {
            text.push_str(&step.text);
        }
        if let Some(finish) = step.finish {
            break finish;
        }
    };
    work_through(&mut work, tokens, speed).await;
    let cached_tokens = keeps.then_some(work.cached_tokens);
    work.finish(Ending::from(&finish), &text);
    let usage = Usage { prompt_tokens: job.prompt_tokens, completion_tokens: tokens, cached_tokens };
    Ok(answer::whole(job, id, created, &json, &finish, &usage))
}

/// Takes the time of `tokens` tokens.
async fn work_through(work: &mut Work, tokens: u32, speed: Speed) {
    let started = Instant::from_std(work.started);
    let mut counted = 0;
    for index in [0, tokens.saturating_sub(1)] {
        let after = speed.until_token(work.prefill_tokens(), index as usize);
        if after > Duration::ZERO {
            tokio::time::sleep_until(started + after).await;
        }
        let done = (index + 1).min(tokens);
        work.generated(done - counted);
        counted = done;
    }
}

async fn die_after(mut work: Work, tokens: u32, death: Death, speed: Speed) -> Death {
    work_through(&mut work, tokens, speed).await;
    if death == Death::Hang {
        std::future::pending::<()>().await;
    }
    work.finish(Ending::Error, "");
    death
}
