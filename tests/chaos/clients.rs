//! Clients that know what the answer must be.

use crate::harness::{
    http::{Endpoint, Streamed, chat_body},
    load::{PAUSE, Workers},
};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// Different questions; each client asks them all in its own order.
const QUESTIONS: usize = 64;
const TOKENS: u32 = 80;
/// Wrong answers that are kept to be shown.
const SHOWN: usize = 10;

/// What became of all requests.
#[derive(Debug, Default, Clone)]
pub(super) struct Counts {
    requests: usize,
    /// Whole, to the letter.
    whole: usize,
    /// An error before the first byte of the answer.
    failed: usize,
    /// Ended with an error in words after some of the answer.
    told: usize,
    /// Ended after some of the answer without a word.
    silent: usize,
    /// Another text than the engine's.
    different: usize,
    slowest_first: Duration,
    longest_gap: Duration,
    /// The first of those that should not be.
    pub(super) wrong: Vec<String>,
}

impl Counts {
    /// Whether every answer was whole, but for one in a thousand that ended in words after a right beginning.
    pub(super) fn is_right(&self) -> bool {
        self.failed == 0
            && self.silent == 0
            && self.different == 0
            && self.requests > 0
            && self.told <= self.requests / 1000
    }

    fn add(&mut self, asked: Asked) {
        self.requests += 1;
        self.slowest_first = self.slowest_first.max(asked.first);
        self.longest_gap = self.longest_gap.max(asked.gap);
        let (count, wrong) = match asked.end {
            End::Whole => (&mut self.whole, None),
            End::Told(why) => (&mut self.told, Some(why)),
            End::Failed(why) => (&mut self.failed, Some(why)),
            End::Silent(why) => (&mut self.silent, Some(why)),
            End::Different(why) => (&mut self.different, Some(why)),
        };
        *count += 1;
        if self.wrong.len() < SHOWN {
            self.wrong.extend(wrong);
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, whole, failed, told, silent, different, slowest_first, longest_gap, .. } = self;
        write!(
            f,
            "{requests} requests: {whole} whole, {failed} failed before the first byte, {told} ended with an error event, \
             {silent} ended silently, {different} had other text; slowest first byte {slowest_first:.2?}, longest gap \
             {longest_gap:.2?}"
        )
    }
}

struct Asked {
    first: Duration,
    /// Longest time between two events.
    gap: Duration,
    end: End,
}

enum End {
    Whole,
    Told(String),
    Failed(String),
    Silent(String),
    Different(String),
}

/// Running clients.
pub(super) struct Clients(Workers<Asked>);

impl Clients {
    /// Asks `reference` for the right answers first.
    pub(super) fn start(endpoint: &Endpoint, reference: &Endpoint, clients: usize) -> Self {
        let answers: Arc<[String]> =
            (0..QUESTIONS).map(|n| reference.chat("demo", &question(n), TOKENS).unwrap().content()).collect();
        let endpoint = endpoint.clone();
        Self(Workers::start(clients, move |number, count| {
            let n = (number * 7 + count) % QUESTIONS;
            let asked = ask(&endpoint, &question(n), &answers[n]);
            if !matches!(asked.end, End::Whole) {
                std::thread::sleep(PAUSE);
            }
            asked
        }))
    }

    /// Lets the requests that are under way end.
    pub(super) fn finish(self) -> Counts {
        let mut counts = Counts::default();
        for asked in self.0.finish() {
            counts.add(asked);
        }
        counts
    }
}

fn question(n: usize) -> String {
    format!("Question {n}: why do dunlins fly in flocks?")
}

fn ask(endpoint: &Endpoint, question: &str, right: &str) -> Asked {
    let start = Instant::now();
    let failed = |why: String| Asked { first: start.elapsed(), gap: Duration::ZERO, end: End::Failed(why) };
    let answer = match endpoint.start("/v1/chat/completions", &chat_body("demo", question, TOKENS, true)) {
        Ok(answer) if answer.status == 200 => answer,
        Ok(answer) => {
            let status = answer.status;
            let text = answer.whole().map_or_else(|error| error.to_string(), |whole| whole.text());
            return failed(format!("{status}: {text}"));
        }
        Err(error) => return failed(error.to_string()),
    };
    let replica = answer.header("x-dunlin-replica").unwrap_or("?").to_owned();
    let (mut streamed, mut broken, mut first, mut gap) = (Streamed::default(), None, None, Duration::ZERO);
    let mut last = start;
    for event in answer.events() {
        match event {
            Ok(data) => streamed.take(&data),
            Err(error) => {
                broken = Some(error.to_string());
                break;
            }
        }
        match first {
            None => first = Some(start.elapsed()),
            Some(_) => gap = gap.max(last.elapsed()),
        }
        last = Instant::now();
    }
    let seen = || format!("{question}: {streamed:?} from {replica}, connection {broken:?}, right is {right:?}");
    let end = if !right.starts_with(&streamed.text) || (streamed.is_whole() && streamed.text != right) {
        End::Different(seen())
    } else if streamed.is_whole() && broken.is_none() {
        End::Whole
    } else if streamed.text.is_empty() {
        End::Failed(seen())
    } else if streamed.error.is_some() && !streamed.done {
        End::Told(seen())
    } else {
        End::Silent(seen())
    };
    Asked { first: first.unwrap_or_else(|| start.elapsed()), gap, end }
}
