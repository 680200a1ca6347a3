//! The demo engine's words. Each entry is one token, for the generator and for the tokenizer alike, so that counting
//! the tokens of an answer gives what was counted while it was made.

use std::{collections::HashMap, sync::LazyLock};

/// How every answer begins.
const OPENING: [&str; 13] =
    ["This", " is", " a", " demo", ":", " the", " dunlin", " demo", " engine", " is", " no", " model", "."];

/// Words that may begin a sentence.
const STARTERS: [&str; 24] = [
    "The",
    "A",
    "Every",
    "Some",
    "No",
    "One",
    "Each",
    "Many",
    "Small",
    "Grey",
    "Quiet",
    "Early",
    "Late",
    "North",
    "Waders",
    "Flocks",
    "Tides",
    "Gulls",
    "Peers",
    "Waves",
    "Winds",
    "Shores",
    "Estuaries",
    "Birds",
];

/// Words inside a sentence.
const WORDS: [&str; 96] = [
    "dunlin", "flock", "tide", "shore", "wader", "wing", "feather", "mud", "sand", "salt", "marsh", "estuary", "wind",
    "wave", "foam", "stone", "shell", "worm", "beak", "call", "turn", "flight", "sky", "cloud", "light", "dusk",
    "dawn", "winter", "summer", "north", "south", "coast", "island", "river", "mouth", "bank", "pool", "reed", "grass",
    "nest", "egg", "chick", "leader", "mesh", "peer", "path", "signal", "echo", "pattern", "thousand", "hundred",
    "together", "apart", "away", "home", "over", "under", "along", "across", "between", "beside", "without", "with",
    "into", "from", "toward", "before", "after", "until", "while", "and", "or", "but", "never", "always", "often",
    "seldom", "slowly", "quickly", "turns", "follows", "finds", "leaves", "returns", "gathers", "scatters", "listens",
    "answers", "carries", "the", "a", "its", "their", "every", "small", "silver",
];

/// What stands in a text now and then, so that nothing down the line may assume one byte per character.
const RARE: [&str; 10] = [" 🐦", " 🌊", " 🪶", " 鳥", " 海", " 浜", "ハ", "マ", " ü", " é"];

/// Punctuation and white space.
const MARKS: [&str; 4] = [".", ",", "\n", ":"];

/// Words that only the opening needs.
const OPENING_ONLY: [&str; 6] = ["This", "is", "demo", "engine", "no", "model"];

/// A token of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    /// What it stands for.
    pub(super) text: &'static str,
    /// The same inside a JSON string.
    pub(super) json: &'static str,
}

impl Token {
    /// What an id stands for that is none.
    pub(super) const NOTHING: Self = Self { text: "", json: "" };
}

/// What a token does to a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Begins a line.
    LineStarter,
    /// Begins a sentence after another.
    Starter,
    /// Goes on with it.
    Word,
    /// Odd, but allowed wherever a word is.
    Rare,
}

/// All tokens, and where to find which.
pub(super) struct Vocabulary {
    tokens: Vec<Token>,
    ids: HashMap<&'static str, u32>,
    /// At the beginning of a line.
    line_starters: Vec<u32>,
    /// After a full stop.
    starters: Vec<u32>,
    words: Vec<u32>,
    rare: Vec<u32>,
    opening: Vec<u32>,
    opening_text: String,
    full_stop: u32,
    comma: u32,
    new_line: u32,
}

/// The one vocabulary. Leaks a few kilobytes once.
pub(super) static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(Vocabulary::new);

impl Vocabulary {
    fn new() -> Self {
        let mut tokens = Builder::default();
        let [full_stop, comma, new_line, ..] = MARKS.map(|mark| tokens.add(mark));
        let starters: Vec<_> = STARTERS.iter().map(|word| tokens.add_word(word)).collect();
        let words = WORDS.iter().map(|word| tokens.add_word(word).1).collect();
        for word in OPENING_ONLY {
            tokens.add_word(word);
        }
        Self {
            line_starters: starters.iter().map(|ids| ids.0).collect(),
            starters: starters.iter().map(|ids| ids.1).collect(),
            words,
            rare: RARE.iter().map(|text| tokens.add(text)).collect(),
            opening: OPENING.iter().map(|text| tokens.add(text)).collect(),
            opening_text: OPENING.concat(),
            full_stop,
            comma,
            new_line,
            ids: tokens.ids,
            tokens: tokens.tokens,
        }
    }

    /// The token that a text is as a whole.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// A token by id.
    pub(super) fn token(&self, id: u32) -> Option<&Token> {
        self.tokens.get(id as usize)
    }

    /// Ids of the first sentence of every answer.
    pub(super) fn opening(&self) -> &[u32] {
        &self.opening
    }

    /// The first sentence of every answer.
    pub(super) fn opening_text(&self) -> &str {
        &self.opening_text
    }

    /// `.`
    pub(super) fn full_stop(&self) -> u32 {
        self.full_stop
    }

    /// `,`
    pub(super) fn comma(&self) -> u32 {
        self.comma
    }

    /// The end of a line.
    pub(super) fn new_line(&self) -> u32 {
        self.new_line
    }

    /// One of the tokens of a kind, by any number.
    pub(super) fn pick(&self, kind: Kind, number: u64) -> u32 {
        let list = match kind {
            Kind::LineStarter => &self.line_starters,
            Kind::Starter => &self.starters,
            Kind::Word => &self.words,
            Kind::Rare => &self.rare,
        };
        let index = number % (list.len().max(1) as u64);
        list.get(usize::try_from(index).unwrap_or(0)).copied().unwrap_or(self.full_stop)
    }
}

#[derive(Default)]
struct Builder {
    tokens: Vec<Token>,
    ids: HashMap<&'static str, u32>,
}

impl Builder {
    /// The word at the beginning of a line, and after a space.
    fn add_word(&mut self, word: &'static str) -> (u32, u32) {
        let spaced: &'static str = Box::leak(format!(" {word}").into_boxed_str());
        (self.add(word), self.add(spaced))
    }

    fn add(&mut self, text: &'static str) -> u32 {
        if let Some(&known) = self.ids.get(text) {
            return known;
        }
        let id = u32::try_from(self.tokens.len()).unwrap_or(u32::MAX);
        let json = if text == "\n" { "\\n" } else { text };
        self.tokens.push(Token { text, json });
        self.ids.insert(text, id);
        id
    }
}
