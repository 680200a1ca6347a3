//! Clients that ask one question after another until they are told to stop, and what became of each.

use super::http::Endpoint;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How one request went.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// Replica that answered, as the response says.
    pub(crate) replica: Option<String>,
    /// When it started.
    pub(crate) started: Instant,
    /// Until the first byte of the answer's body, or the failure before it.
    pub(crate) first_byte: Duration,
    pub(crate) end: End,
}

/// Where it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The whole answer came.
    Whole,
    /// It broke off after its first byte.
    Broken(String),
    /// Nothing came: what a client must never see while there is another replica.
    Failed(String),
}

/// What the clients ask.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) clients: usize,
    pub(crate) model: String,
    pub(crate) tokens: u32,
    pub(crate) stream: bool,
}

/// After a request that was not answered whole: a client that is refused at once must not turn into a flood.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// Threads that ask again and again until they are told to stop, and all that came of it.
pub(crate) struct Workers<T> {
    stop: Arc<AtomicBool>,
    outcomes: Arc<Mutex<Vec<T>>>,
    threads: Vec<JoinHandle<()>>,
}

impl<T: Send + 'static> Workers<T> {
    /// `ask` gets the number of the client, and of its question.
    pub(crate) fn start(clients: usize, ask: impl FnMut(usize, usize) -> T + Clone + Send + 'static) -> Self {
        let (stop, outcomes) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<T>>>::default());
        let client = |number: usize| {
            let (mut ask, stop, outcomes) = (ask.clone(), stop.clone(), outcomes.clone());
            move || {
                for count in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let outcome = ask(number, count);
                    outcomes.lock().unwrap().push(outcome);
                }
            }
        };
        let threads = (0..clients).map(|number| std::thread::spawn(client(number))).collect();
        Self { stop, outcomes, threads }
    }

    /// Outcomes so far.
    pub(crate) fn count(&self) -> usize {
        self.outcomes.lock().unwrap().len()
    }

    /// Lets the requests that are under way end, and gives all outcomes.
    pub(crate) fn finish(mut self) -> Vec<T> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        std::mem::take(&mut self.outcomes.lock().unwrap())
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Running clients.
pub(crate) struct Load(Workers<Outcome>);

impl Load {
    pub(crate) fn start(endpoint: &Endpoint, plan: &Plan) -> Self {
        Self::start_at(std::slice::from_ref(endpoint), plan)
    }

    /// Clients that go to each endpoint in turn, and to the next where no answer begins.
    pub(crate) fn start_at(endpoints: &[Endpoint], plan: &Plan) -> Self {
        let (mut endpoints, plan) = (endpoints.to_vec(), plan.clone());
        Self(Workers::start(plan.clients, move |number, count| {
            endpoints.rotate_left(1);
            let outcome = ask(&endpoints, &plan, &format!("client {number}, question {count}"));
            if outcome.end != End::Whole {
                std::thread::sleep(PAUSE);
            }
            outcome
        }))
    }

    /// Answers so far.
    pub(crate) fn count(&self) -> usize {
        self.0.count()
    }

    /// Waits until so many more answers have come.
    #[track_caller]
    pub(crate) fn wait_for_more(&self, answers: usize) {
        let target = self.count() + answers;
        super::wait_for(&format!("{answers} more answers"), super::PATIENCE, || (self.count() >= target).then_some(()));
    }

    /// Lets the requests that are under way end, and gives all outcomes.
    pub(crate) fn finish(self) -> Report {
        Report { outcomes: self.0.finish() }
    }
}

fn ask(endpoints: &[Endpoint], plan: &Plan, prompt: &str) -> Outcome {
    let started = Instant::now();
    let outcome = |replica, first_byte, end| Outcome { replica, started, first_byte, end };
    let body = super::http::chat_body(&plan.model, prompt, plan.tokens, plan.stream);
    let (first, others) = endpoints.split_first().unwrap();
    let tried = first.start("/v1/chat/completions", &body);
    let answer =
        others.iter().fold(tried, |tried, other| tried.or_else(|_| other.start("/v1/chat/completions", &body)));
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return outcome(None, started.elapsed(), End::Failed(error.to_string())),
    };
    let replica = answer.header("x-dunlin-replica").map(str::to_owned);
    if answer.status != 200 {
        let status = answer.status;
        let body = answer.whole().map(|whole| whole.text()).unwrap_or_else(|error| error.to_string());
        return outcome(replica, started.elapsed(), End::Failed(format!("{status}: {body}")));
    }
    if !plan.stream {
        let end = match answer.whole() {
            Ok(whole) if !whole.content().is_empty() => End::Whole,
            Ok(whole) => End::Broken(whole.text()),
            Err(error) => End::Broken(error.to_string()),
        };
        return outcome(replica, started.elapsed(), end);
    }
    let mut events = answer.events().peekable();
    match events.peek() {
        Some(Ok(_)) => {}
        Some(Err(error)) => return outcome(replica, started.elapsed(), End::Failed(error.to_string())),
        None => return outcome(replica, started.elapsed(), End::Failed("an empty answer".to_owned())),
    }
    let first_byte = started.elapsed();
    let mut streamed = super::http::Streamed::default();
    for event in events {
        match event {
            Ok(data) => streamed.take(&data),
            Err(error) => {
                // A broken connection gives the same error for ever.
                streamed.error = Some(error.to_string());
                break;
            }
        }
    }
    let end = if streamed.is_whole() { End::Whole } else { End::Broken(format!("{streamed:?}")) };
    outcome(replica, first_byte, end)
}

/// All outcomes of a load.
pub(crate) struct Report {
    pub(crate) outcomes: Vec<Outcome>,
}

impl Report {
    /// # Panics
    /// A request got nothing at all.
    #[track_caller]
    pub(crate) fn assert_none_failed(&self) {
        let failed: Vec<_> = self.outcomes.iter().filter(|o| matches!(o.end, End::Failed(_))).collect();
        assert!(failed.is_empty(), "{} of {} failed: {failed:#?}", failed.len(), self.outcomes.len());
    }

    /// # Panics
    /// A request did not get its whole answer.
    #[track_caller]
    pub(crate) fn assert_all_whole(&self) {
        let bad: Vec<_> = self.outcomes.iter().filter(|o| o.end != End::Whole).collect();
        assert!(bad.is_empty(), "{} of {} not whole: {bad:#?}", bad.len(), self.outcomes.len());
    }

    pub(crate) fn slowest_first_byte(&self) -> Duration {
        self.outcomes.iter().map(|o| o.first_byte).max().unwrap_or_default()
    }

    /// Whole answers of each replica.
    pub(crate) fn by_replica(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for outcome in self.outcomes.iter().filter(|o| o.end == End::Whole) {
            *counts.entry(outcome.replica.clone().unwrap_or_default()).or_default() += 1;
        }
        counts
    }
}
