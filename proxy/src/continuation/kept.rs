//! What is kept of a stream while it goes by, so that it could go on elsewhere: its text, and by what name it goes.
//!
//! An event is parsed only when it looks otherwise than the one before it: of most only the text differs, and that is
//! seen by comparing bytes.

use super::{
    Endpoint, KEPT_TEXT, Refusal, Way,
    chunk::Chunk,
    question::{Question, Rest},
    splice::Splice,
};
use crate::http::sse;
use dunlin_node::hop::{Budget, Reservation};
use memchr::memmem;

/// Room for text that is taken at least, bytes.
const LEAST: usize = 1 << 10;
/// Largest event, but for its text, whose look is remembered, bytes: what engines put around a token is a tenth of that.
const SHAPE: usize = 4 << 10;

/// By what name a stream goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) id: Option<String>,
    pub(super) created: Option<u64>,
    pub(super) model: Option<String>,
    pub(super) fingerprint: Option<String>,
}

impl Head {
    fn of(chunk: &Chunk<'_>) -> Self {
        let owned = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().map(str::to_owned);
        let (id, model, fingerprint) = (owned(&chunk.id), owned(&chunk.model), owned(&chunk.system_fingerprint));
        Self { id, created: chunk.created, model, fingerprint }
    }
}

/// What the client has of a stream.
#[derive(Debug)]
pub(crate) struct Kept {
    endpoint: Endpoint,
    head: Option<Head>,
    /// Choices whose first event, with the role, is there: one bit each.
    begun: u128,
    text: String,
    /// Where the memory for the text comes from, and what was taken for its capacity.
    memory: Budget,
    taken: Option<Reservation>,
    /// Why it can't go on any more; then nothing is kept.
    spoilt: Option<Refusal>,
    shape: Option<Shape>,
}

/// For a second replica that is asked beside the first. Takes as much room again, and keeps nothing where there is none.
impl Clone for Kept {
    fn clone(&self) -> Self {
        let taken = self.memory.reserve(self.text.len());
        let mut copy = Self {
            endpoint: self.endpoint,
            head: self.head.clone(),
            begun: self.begun,
            text: String::new(),
            memory: self.memory.clone(),
            taken: None,
            spoilt: self.spoilt.clone(),
            shape: self.shape.clone(),
        };
        match taken {
            Some(taken) => (copy.text, copy.taken) = (self.text.clone(), Some(taken)),
            None => copy.spoil(Refusal::NoMemory),
        }
        copy
    }
}

impl Kept {
    /// Of a stream of which nothing is there. What will be takes its room out of `memory`.
    pub(crate) fn new(endpoint: Endpoint, memory: Budget) -> Self {
        Self { endpoint, head: None, begun: 0, text: String::new(), memory, taken: None, spoilt: None, shape: None }
    }

    /// Whole events have gone to the client.
    pub(crate) fn saw(&mut self, events: &[u8]) {
        for data in sse::data_of(events) {
            if self.spoilt.is_some() {
                return;
            }
            if let Some(text) = self.shape.as_ref().and_then(|shape| shape.text(data)) {
                self.push(text);
            } else if data != b"[DONE]" {
                self.read(data);
            }
        }
    }

    fn read(&mut self, data: &[u8]) {
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else { return self.spoil(Refusal::Unreadable) };
        if self.head.is_none() {
            self.head = Some(Head::of(&chunk));
        }
        for choice in &chunk.choices {
            if choice.has_more() || (choice.index != 0 && !choice.text().is_empty()) {
                return self.spoil(Refusal::NotText);
            }
            self.begun |= 1u128.checked_shl(choice.index).unwrap_or(0);
            self.push(choice.text());
        }
        self.shape = Shape::of(data, &chunk, self.endpoint);
    }

    fn push(&mut self, text: &str) {
        let length = self.text.len() + text.len();
        if length > KEPT_TEXT {
            return self.spoil(Refusal::LongAnswer);
        }
        if !self.has_room(length) {
            return self.spoil(Refusal::NoMemory);
        }
        self.text.push_str(text);
    }

    /// Takes room for a text of this length, with some to spare, if there is any.
    fn has_room(&mut self, length: usize) -> bool {
        let capacity = self.text.capacity();
        if length <= capacity {
            return true;
        }
        let wanted = length.next_power_of_two().clamp(LEAST, KEPT_TEXT);
        let more = wanted.saturating_sub(capacity);
        let taken = match &mut self.taken {
            Some(taken) => taken.grow(more),
            None => {
                self.taken = self.memory.reserve(more);
                self.taken.is_some()
            }
        };
        if taken {
            self.text.reserve_exact(wanted - self.text.len());
        }
        taken
    }

    fn spoil(&mut self, why: Refusal) {
        (self.text, self.taken, self.shape, self.spoilt) = (String::new(), None, None, Some(why));
    }

    /// How the stream goes on that `body` asked for.
    ///
    /// # Errors
    /// It doesn't.
    pub(crate) fn way(&self, body: &[u8]) -> Result<Way, Refusal> {
        if let Some(why) = &self.spoilt {
            return Err(why.clone());
        }
        if self.text.is_empty() {
            return Ok(Way::Again);
        }
        let question = Question::read(self.endpoint, body)?;
        Ok(Way::On(Box::new(Rest::of(question, &self.text)?)))
    }

    /// Joins an answer that was asked for from the start to what the client has: nothing, or no more than its head.
    pub(crate) fn splice_again(&self) -> Option<Splice> {
        self.head.clone().map(|head| Splice::again(head, self.begun))
    }

    /// Joins the rest of the answer to what the client has.
    pub(crate) fn splice(&self, rest: &Rest, sent: u64) -> Option<Splice> {
        self.head.clone().map(|head| Splice::on(head, self.begun, rest, sent))
    }
}

/// What an event looks like but for its text: the bytes before and after that.
#[derive(Debug, Clone)]
struct Shape {
    before: Box<[u8]>,
    after: Box<[u8]>,
}

impl Shape {
    /// Of an event that adds plain text to the first choice and says nothing else.
    fn of(data: &[u8], chunk: &Chunk<'_>, endpoint: Endpoint) -> Option<Self> {
        let [choice] = chunk.choices.as_slice() else { return None };
        let text = choice.text();
        if text.is_empty()
            || data.len() - text.len() > SHAPE
            || choice.finish_reason.is_some()
            || !is_plain(text.as_bytes())
        {
            return None;
        }
        let name: &[u8] = match endpoint {
            Endpoint::Chat => b"\"content\":",
            Endpoint::Completions => b"\"text\":",
        };
        let mut places = memmem::find_iter(data, name);
        let after_name = places.next()? + name.len();
        if places.next().is_some() {
            return None;
        }
        let start = after_name + memchr::memchr(b'"', &data[after_name..])? + 1;
        let rest = data[start..].strip_prefix(text.as_bytes())?;
        let same = data[after_name..start - 1].iter().all(u8::is_ascii_whitespace) && rest.starts_with(b"\"");
        same.then(|| Self { before: data[..start].into(), after: rest.into() })
    }

    /// The text of an event that looks like this. What stands between is a JSON string's inside, without escapes, so that
    /// whoever parsed the event would find the same text at the same place.
    fn text<'a>(&self, data: &'a [u8]) -> Option<&'a str> {
        let text = data.strip_prefix(&*self.before)?.strip_suffix(&*self.after)?;
        is_plain(text).then(|| std::str::from_utf8(text).ok()).flatten()
    }
}

/// Whether these bytes stand for themselves in a JSON string.
fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|&byte| byte >= b' ' && byte != b'"' && byte != b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMACPP: &str = r#"{"choices":[{"finish_reason":null,"index":0,"delta":{"content":"TEXT"}}],"created":1,"id":"a","model":"m","object":"chat.completion.chunk"}"#;

    fn kept(events: &[&str]) -> Kept {
        let mut kept = Kept::new(Endpoint::Chat, Budget::new(1 << 20));
        for event in events {
            kept.saw(format!("data: {event}\n\n").as_bytes());
        }
        kept
    }

    #[test]
    fn events_that_look_alike_are_parsed_once() {
        let event = |text: &str| LLAMACPP.replace("TEXT", text);
        let mut kept = kept(&[&event("Hello"), &event(" wörld")]);
        assert_eq!(kept.text, "Hello wörld");
        let shape = kept.shape.as_ref().unwrap();
        assert_eq!(shape.text(event("x").as_bytes()), Some("x"));
        // What would have to be read otherwise is not taken for plain text.
        for odd in ["\\n", "a\",\"b\":\"c", "\u{1}", "a\\"] {
            assert_eq!(shape.text(event(odd).as_bytes()), None, "{odd:?}");
        }
        kept.saw(format!("data: {}\n\n", event("\\n\\\"x")).as_bytes());
        assert_eq!(kept.text, "Hello wörld\n\"x");
        kept.saw(b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n\n");
        assert_eq!(kept.spoilt, Some(Refusal::Unreadable));
    }

    #[test]
    fn only_text_of_one_choice_is_kept() {
        let spoilt = |event: &str| kept(&[event]).spoilt;
        assert_eq!(
            spoilt(r#"{"choices":[{"delta":{"role":"assistant","content":null,"reasoning_content":null}}]}"#),
            None
        );
        assert_eq!(spoilt(r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#), Some(Refusal::NotText));
        assert_eq!(spoilt(r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#), Some(Refusal::NotText));
        assert_eq!(spoilt(r#"{"choices":[{"index":1,"delta":{"content":"b"}}]}"#), Some(Refusal::NotText));
        assert_eq!(spoilt(r#"{"choices":[{"delta":{"content":7}}]}"#), Some(Refusal::Unreadable));
        assert_eq!(spoilt(r#"{"type":"message_start"}"#), Some(Refusal::Unreadable));
        let long = LLAMACPP.replace("TEXT", &"x".repeat(KEPT_TEXT / 2));
        assert_eq!(kept(&[&long, &long]).spoilt, None);
        assert_eq!(kept(&[&long, &long, &long]).spoilt, Some(Refusal::LongAnswer));
    }

    #[test]
    fn what_all_streams_keep_is_bounded_and_given_back() {
        let memory = Budget::new(4 * LEAST);
        let begin = || Kept::new(Endpoint::Chat, memory.clone());
        let say = |kept: &mut Kept, bytes: usize| {
            kept.saw(format!("data: {}\n\n", LLAMACPP.replace("TEXT", &"x".repeat(bytes))).as_bytes());
        };
        let (mut one, mut other) = (begin(), begin());
        say(&mut one, LEAST);
        say(&mut one, 1);
        assert_eq!((memory.used(), one.text.capacity()), (2 * LEAST, 2 * LEAST));
        say(&mut other, 3 * LEAST);
        assert_eq!((other.spoilt.as_ref(), memory.used()), (Some(&Refusal::NoMemory), 2 * LEAST));
        assert!(other.text.capacity() == 0 && other.way(b"{}").is_err());
        say(&mut one, 2 * LEAST - 1);
        assert_eq!((one.spoilt.as_ref(), memory.used()), (None, 4 * LEAST));
        // Who asks a second replica has the text twice.
        let copy = one.clone();
        assert_eq!((copy.spoilt.as_ref(), copy.text.len(), one.spoilt.as_ref()), (Some(&Refusal::NoMemory), 0, None));
        drop(one);
        assert_eq!(memory.used(), 0);
        let mut one = begin();
        say(&mut one, LEAST);
        let copy = one.clone();
        assert_eq!((&copy.text, memory.used()), (&one.text, 2 * LEAST));
        drop((one, copy));
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn what_has_no_text_yet_is_asked_again_whatever_it_asks_for() {
        let role = r#"{"id":"a","choices":[{"delta":{"role":"assistant","content":""}}]}"#;
        for events in [&[][..], &[role], &[role, role]] {
            assert!(matches!(kept(events).way(br#"{"tools":[1]}"#), Ok(Way::Again)), "{events:?}");
        }
        assert!(kept(&[]).splice_again().is_none() && kept(&[role]).splice_again().is_some());
    }
}
