//! Clients that know what the answer must be.

use super::counts::{Asked, Counts, End, Move, Wrong};
use crate::harness::{
    http::{Endpoint, Streamed, chat_body},
    load::{PAUSE, Workers},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Different questions; each client asks them all in its own order.
const QUESTIONS: usize = 64;

/// Running clients.
pub(super) struct Clients(Workers<Asked>);

impl Clients {
    /// Asks `reference` for the right answers, of so many tokens, first.
    pub(super) fn start(endpoint: &Endpoint, reference: &Endpoint, clients: usize, tokens: u32) -> Self {
        let answers: Arc<[String]> =
            (0..QUESTIONS).map(|n| reference.chat("demo", &question(n), tokens).unwrap().content()).collect();
        let endpoint = endpoint.clone();
        Self(Workers::start(clients, move |number, count| {
            let n = (number * 7 + count) % QUESTIONS;
            let asked = ask(&endpoint, &question(n), tokens, &answers[n]);
            if !matches!(asked.end, End::Whole) {
                std::thread::sleep(PAUSE);
            }
            asked
        }))
    }

    /// Answers so far.
    pub(super) fn count(&self) -> usize {
        self.0.count()
    }

    /// Lets the requests that are under way end.
    pub(super) fn finish(self) -> Counts {
        let mut counts = Counts::default();
        self.0.finish().into_iter().for_each(|asked| counts.add(asked));
        counts
    }
}

fn question(n: usize) -> String {
    format!("Question {n}: why do dunlins fly in flocks?")
}

fn ask(endpoint: &Endpoint, question: &str, tokens: u32, right: &str) -> Asked {
    let start = Instant::now();
    let failed = |why| Asked { first: start.elapsed(), gap: Duration::ZERO, moves: Vec::new(), end: End::Failed(why) };
    let answer = match endpoint.start("/v1/chat/completions", &chat_body("demo", question, tokens, true)) {
        Ok(answer) if answer.status == 200 => answer,
        Ok(answer) => {
            let status = answer.status;
            let text = answer.whole().map_or_else(|error| error.to_string(), |whole| whole.text());
            return failed(format!("{status}: {text}"));
        }
        Err(error) => return failed(error.to_string()),
    };
    let replica = answer.header("x-dunlin-replica").unwrap_or("?").to_owned();
    let (mut streamed, mut broken, mut first) = (Streamed::default(), None, None);
    let (mut gap, mut moves, mut comments, mut last) = (Duration::ZERO, Vec::new(), 0, start);
    let mut events = answer.events();
    while let Some(event) = events.next() {
        match event {
            Ok(data) => streamed.take(&data),
            Err(error) => {
                broken = Some(error.to_string());
                break;
            }
        }
        if first.is_some() {
            gap = gap.max(last.elapsed());
        }
        let news = events.comments[comments..].iter();
        let moved = |comment: &String| {
            let continued = comment.starts_with("continued by");
            (continued || comment.starts_with("asked again by")).then_some(Move { continued, gap: last.elapsed() })
        };
        moves.extend(news.filter_map(moved));
        comments = events.comments.len();
        first.get_or_insert_with(|| start.elapsed());
        last = Instant::now();
    }
    let comments = &events.comments;
    let seen =
        || format!("{question}: {streamed:?} from {replica}, {comments:?}, connection {broken:?}, right is {right:?}");
    let end = if streamed.is_whole() && streamed.text != right {
        End::Different { what: seen(), wrong: Wrong::between(right, &streamed.text) }
    } else if !right.starts_with(&streamed.text) {
        let upto = right.chars().take(streamed.text.chars().count()).collect::<String>();
        End::Different { what: seen(), wrong: Wrong::between(&upto, &streamed.text) }
    } else if streamed.is_whole() && broken.is_none() {
        End::Whole
    } else if streamed.text.is_empty() {
        End::Failed(seen())
    } else if streamed.error.is_some() && !streamed.done {
        End::Told(seen())
    } else {
        End::Silent(seen())
    };
    Asked { first: first.unwrap_or_else(|| start.elapsed()), gap, moves, end }
}
