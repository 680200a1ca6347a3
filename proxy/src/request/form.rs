//! A look into a form (`multipart/form-data`, RFC 7578) as it arrives, for its field `model`. Pure.
//!
//! Everything is refused that two parsers might read in two ways: what is checked here must be what the engine sees.

use dunlin_protocol::id::{self, ModelId};
use memchr::memmem;
use std::ops::Range;

/// Headers of one part, bytes.
const HEAD: usize = 8 << 10;
/// Longest value of a field that is read.
const VALUE: usize = 1 << 10;
/// Parts of one form.
const PARTS: usize = 1024;
/// Longest boundary (RFC 2046, 5.1.1).
const BOUNDARY: usize = 70;

/// Where the line break stands that the first boundary needs not have.
const BEFORE: i64 = -2;
const PREAMBLE: Error = Error::Syntax("it does not begin with its boundary");

/// Why a form can't be routed. The messages go to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// Another content type.
    #[error("this endpoint takes a form: content-type `multipart/form-data` with its boundary")]
    NotAForm,
    /// Against the rules, or readable in two ways.
    #[error("the form is not valid: {0}")]
    Syntax(&'static str),
    /// It ends before its closing boundary.
    #[error("the form ends before its closing boundary")]
    Incomplete,
    /// The field is missing.
    #[error("you must provide a `model` field in the form; GET /v1/models lists what is served")]
    NoModel,
    /// Engines differ in which of the two they take.
    #[error("the form has more than one `model`; give it once")]
    Duplicate,
    /// No text, or too much.
    #[error("the form's `model` must be a short text")]
    ModelNotAText,
    /// No name that a model can have.
    #[error("{0}")]
    BadModel(#[from] id::Error),
    /// The header says otherwise.
    #[error("the form's `model` is not the one of the header x-dunlin-model")]
    AnotherModel,
}

impl Error {
    /// Whether the field `model` is at fault.
    pub(crate) fn is_about_the_model(&self) -> bool {
        !matches!(self, Self::NotAForm | Self::Syntax(_) | Self::Incomplete)
    }
}

/// The field as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) model: ModelId,
    /// Where its value stands in the body.
    pub(crate) at: Range<u64>,
}

/// The parser of one form.
#[derive(Debug)]
pub(crate) struct Form {
    /// What stands before each part but for the first line, and at the end.
    delimiter: Vec<u8>,
    state: State,
    /// What has come and isn't understood yet.
    held: Vec<u8>,
    /// Where that begins in the body; below 0 for the line break that the first delimiter needs not have.
    offset: i64,
    parts: usize,
    model: Option<Field>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In a part, or before the first, that is of no interest.
    Skip,
    /// Behind a boundary.
    Boundary,
    Head,
    Model,
    End,
}

impl Form {
    /// Of a request with this content type.
    ///
    /// # Errors
    /// It is no form.
    pub(crate) fn of(content_type: &[u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(content_type).map_err(|_| Error::NotAForm)?;
        let (kind, parameters) = text.split_once(';').ok_or(Error::NotAForm)?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return Err(Error::NotAForm);
        }
        let mut found = None;
        for (name, value) in Parameters(parameters) {
            if name.eq_ignore_ascii_case("boundary") && found.replace(value.ok_or(Error::NotAForm)?).is_some() {
                return Err(Error::Syntax("two boundaries in the content type"));
            }
        }
        let boundary =
            found.filter(|boundary| !boundary.is_empty() && boundary.len() <= BOUNDARY).ok_or(Error::NotAForm)?;
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        let (state, held, offset) = (State::Skip, b"\r\n".to_vec(), BEFORE);
        Ok(Self { delimiter, state, held, offset, parts: 0, model: None })
    }

    /// Takes the next piece of the body.
    ///
    /// # Errors
    /// The form is wrong.
    pub(crate) fn push(&mut self, mut piece: &[u8]) -> Result<(), Error> {
        // Within a file, what is there of it needs no copy.
        if self.state == State::Skip
            && self.parts > 0
            && self.held.len() < self.delimiter.len()
            && piece.len() > self.delimiter.len()
        {
            let seam = piece.len().min(self.delimiter.len() - 1);
            self.held.extend_from_slice(&piece[..seam]);
            if memmem::find(&self.held, &self.delimiter).is_none() && memmem::find(piece, &self.delimiter).is_none() {
                let kept = piece.len() - (self.delimiter.len() - 1);
                self.offset += (self.held.len() - seam + kept) as i64;
                self.held.clear();
                self.held.extend_from_slice(&piece[kept..]);
                return Ok(());
            }
            piece = &piece[seam..];
        }
        self.held.extend_from_slice(piece);
        while self.step()? {}
        Ok(())
    }

    /// Whether more of what is held can be understood.
    fn step(&mut self) -> Result<bool, Error> {
        match self.state {
            State::Skip => match memmem::find(&self.held, &self.delimiter) {
                Some(at) if self.parts == 0 && self.offset + at as i64 != BEFORE => Err(PREAMBLE),
                Some(at) => {
                    self.take(at + self.delimiter.len());
                    self.state = State::Boundary;
                    Ok(true)
                }
                None if self.parts == 0 && self.held.len() >= self.delimiter.len() => Err(PREAMBLE),
                None => {
                    self.take((self.held.len() + 1).saturating_sub(self.delimiter.len()));
                    Ok(false)
                }
            },
            State::Boundary => self.boundary(),
            State::Head => self.head(),
            State::Model => self.value(),
            State::End => {
                self.take(self.held.len());
                Ok(false)
            }
        }
    }

    fn take(&mut self, bytes: usize) {
        self.held.drain(..bytes);
        self.offset += bytes as i64;
    }

    fn boundary(&mut self) -> Result<bool, Error> {
        let Some(next) = self.held.get(..2) else { return Ok(false) };
        match next {
            b"--" => self.state = State::End,
            b"\r\n" => {
                self.parts += 1;
                if self.parts > PARTS {
                    return Err(Error::Syntax("it has more than 1024 parts"));
                }
                self.state = State::Head;
            }
            _ => return Err(Error::Syntax("a boundary is followed by neither a line's end nor `--`")),
        }
        self.take(2);
        Ok(true)
    }

    fn head(&mut self) -> Result<bool, Error> {
        let Some(end) = memmem::find(&self.held, b"\r\n\r\n") else {
            if self.held.len() > HEAD {
                return Err(Error::Syntax("the head of a part is longer than 8 KiB"));
            }
            return Ok(false);
        };
        let head = std::str::from_utf8(&self.held[..end]).map_err(|_| Error::Syntax("a part's head is not UTF-8"))?;
        let is_model = is_model(head)?;
        self.take(end + 4);
        self.state = if is_model { State::Model } else { State::Skip };
        Ok(true)
    }

    fn value(&mut self) -> Result<bool, Error> {
        let Some(end) = memmem::find(&self.held, &self.delimiter) else {
            if self.held.len() > VALUE + self.delimiter.len() {
                return Err(Error::ModelNotAText);
            }
            return Ok(false);
        };
        if end > VALUE {
            return Err(Error::ModelNotAText);
        }
        let text = std::str::from_utf8(&self.held[..end]).map_err(|_| Error::ModelNotAText)?;
        let model = ModelId::new(text)?;
        let start = u64::try_from(self.offset).unwrap_or(0);
        if self.model.replace(Field { model, at: start..start + end as u64 }).is_some() {
            return Err(Error::Duplicate);
        }
        self.state = State::Skip;
        Ok(true)
    }

    /// The field, once its end has come.
    pub(crate) fn model(&self) -> Option<&Field> {
        self.model.as_ref()
    }

    /// So many bytes of the body have been understood: what is before is no part of a `model` that isn't known.
    pub(crate) fn settled(&self) -> u64 {
        u64::try_from(self.offset).unwrap_or(0)
    }

    /// The body has come.
    ///
    /// # Errors
    /// It has no end.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        if self.state == State::End { Ok(()) } else { Err(Error::Incomplete) }
    }
}

/// Whether this is the head of the field `model`.
fn is_model(head: &str) -> Result<bool, Error> {
    let mut disposition = None;
    let mut encoded = false;
    for line in head.split("\r\n") {
        if line.starts_with([' ', '\t']) || line.contains(['\r', '\n', '\0']) {
            return Err(Error::Syntax("a part's head has a broken line"));
        }
        let (name, value) = line.split_once(':').ok_or(Error::Syntax("a part's head has a line without a colon"))?;
        if name.ends_with([' ', '\t']) {
            return Err(Error::Syntax("a part's head has a blank before a colon"));
        }
        if name.eq_ignore_ascii_case("content-disposition") && disposition.replace(value).is_some() {
            return Err(Error::Syntax("a part has two content-dispositions"));
        }
        encoded |= name.eq_ignore_ascii_case("content-transfer-encoding");
    }
    let disposition = disposition.ok_or(Error::Syntax("a part has no content-disposition"))?;
    let (_, parameters) = disposition.split_once(';').ok_or(Error::Syntax("a part has no name"))?;
    let (mut named, mut is_file) = (None, false);
    for (name, value) in Parameters(parameters) {
        let value = value.ok_or(Error::Syntax("a part's content-disposition can't be read"))?;
        match name.to_ascii_lowercase().as_str() {
            "name" if named.replace(value).is_some() => return Err(Error::Syntax("a part has two names")),
            "name" => {}
            "name*" => return Err(Error::Syntax("a part's name is encoded")),
            "filename" | "filename*" => is_file = true,
            _ => {}
        }
    }
    let is_model = named.ok_or(Error::Syntax("a part has no name"))? == "model";
    if is_model && (is_file || encoded) { Err(Error::ModelNotAText) } else { Ok(is_model) }
}

/// `; name=value; name="quoted"`: a value that can't be read is `None`, and the last.
struct Parameters<'a>(&'a str);

impl<'a> Iterator for Parameters<'a> {
    type Item = (&'a str, Option<String>);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.0.trim_start_matches([' ', '\t', ';']);
        if rest.is_empty() {
            return None;
        }
        let Some((name, value)) = rest.split_once('=') else {
            self.0 = "";
            return Some((rest, None));
        };
        let (value, after) = match value.strip_prefix('"') {
            None => {
                let end = value.find(';').unwrap_or(value.len());
                (Some(value[..end].trim_end().to_owned()), &value[end..])
            }
            Some(quoted) => match unquoted(quoted) {
                Some((text, after)) => (Some(text), after),
                None => (None, ""),
            },
        };
        let follows = after.trim_start_matches([' ', '\t']);
        let well = follows.is_empty() || follows.starts_with(';');
        self.0 = if well { follows } else { "" };
        Some((name.trim(), value.filter(|_| well)))
    }
}

/// A quoted text and what follows it. Browsers write a quote as `%22`, others as `\"`.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((text, &quoted[at + 1..])),
            '\\' => text.push(letters.next()?.1),
            other => text.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIND: &[u8] = b"multipart/form-data; boundary=XX";

    fn part(name: &str, value: &str) -> String {
        format!("--XX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    fn file(content: &str) -> String {
        format!(
            "--XX\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a \\\"b.wav\"\r\nContent-Type: audio/wav\r\n\r\n{content}\r\n"
        )
    }

    fn read(body: &str, size: usize) -> Result<Form, Error> {
        let mut form = Form::of(KIND)?;
        body.as_bytes().chunks(size).try_for_each(|piece| form.push(piece))?;
        form.finish()?;
        Ok(form)
    }

    #[test]
    fn the_model_is_found_wherever_it_stands_and_however_it_is_cut() {
        let audio = "RIFF\r\n--X\r\n\r\n--\r\nXX--XX";
        for body in [
            [&part("model", "whisper-1"), &file(audio), "--XX--\r\n"].concat(),
            [&file(audio), &part("response_format", ""), &part("model", "whisper-1"), "--XX--"].concat(),
            [&file(""), &part("model", "whisper-1"), &part("temperature", "0"), "--XX--\r\nepilogue"].concat(),
        ] {
            for size in (1..40).chain([body.len()]) {
                let form = read(&body, size).unwrap();
                let field = form.model().unwrap();
                assert_eq!(field.model.as_str(), "whisper-1");
                assert_eq!(&body[field.at.start as usize..field.at.end as usize], "whisper-1", "pieces of {size}");
            }
        }
    }

    #[test]
    fn a_file_takes_no_memory() {
        let mut form = Form::of(KIND).unwrap();
        let head = file("");
        form.push(head.strip_suffix("\r\n").unwrap().as_bytes()).unwrap();
        for _ in 0..200 {
            form.push(&vec![b'\r'; 64 << 10]).unwrap();
            assert!(form.held.len() < 64 && form.held.capacity() < (256 << 10), "{}", form.held.capacity());
        }
        form.push(format!("\r\n{}--XX--", part("model", "m")).as_bytes()).unwrap();
        assert_eq!(form.model().unwrap().model.as_str(), "m");
        assert!(form.settled() > 200 * (64 << 10));
    }

    #[test]
    fn what_two_parsers_might_read_in_two_ways_is_refused() {
        let model = part("model", "m");
        let with = |head: &str| format!("--XX\r\n{head}\r\n\r\nm\r\n--XX--");
        for (body, error) in [
            ([model.as_str(), &model, "--XX--"].concat(), Error::Duplicate),
            (with("Content-Disposition: form-data; name=model; name=other"), Error::Syntax("a part has two names")),
            (with("Content-Disposition: form-data; name*=utf-8''model"), Error::Syntax("a part's name is encoded")),
            (with("Content-Disposition: form-data; name=\"model\"; filename=\"x\""), Error::ModelNotAText),
            (
                with("Content-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: base64"),
                Error::ModelNotAText,
            ),
            (with("Content-Disposition: form-data;\r\n name=model"), Error::Syntax("a part's head has a broken line")),
            (
                with("Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=model"),
                Error::Syntax("a part has two content-dispositions"),
            ),
            (format!("preamble\r\n{model}--XX--"), PREAMBLE),
            (with("X: 1"), Error::Syntax("a part has no content-disposition")),
            (
                with("Content-Disposition: form-data; name=\"model\"x"),
                Error::Syntax("a part's content-disposition can't be read"),
            ),
            (
                format!("--XXY\r\n{}", &model[6..]),
                Error::Syntax("a boundary is followed by neither a line's end nor `--`"),
            ),
            (model.replace("\r\n", "\n"), Error::Syntax("a boundary is followed by neither a line's end nor `--`")),
            (model.clone(), Error::Incomplete),
            (part("model", &"m".repeat(3000)) + "--XX--", Error::ModelNotAText),
            (part("model", "") + "--XX--", Error::BadModel(ModelId::new("").unwrap_err())),
            (String::new(), Error::Incomplete),
        ] {
            for size in [1, 7, body.len().max(1)] {
                assert_eq!(read(&body, size).map(|_| ()), Err(error.clone()), "{body:?}");
            }
        }
        assert!(read(&"--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n".repeat(2000), 4096).is_err());
    }

    #[test]
    fn boundaries_are_read_as_they_are_written() {
        for (kind, delimiter) in [
            ("multipart/form-data; boundary=abc", "\r\n--abc"),
            ("Multipart/Form-Data; charset=utf-8; Boundary=\"a b:c\"", "\r\n--a b:c"),
        ] {
            assert_eq!(Form::of(kind.as_bytes()).unwrap().delimiter, delimiter.as_bytes(), "{kind}");
        }
        for kind in [
            "application/json",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=\"abc",
            "multipart/mixed; boundary=abc",
            "multipart/form-data; boundary=a; boundary=b",
        ] {
            assert!(Form::of(kind.as_bytes()).is_err(), "{kind}");
        }
    }

    proptest! {
        #[test]
        fn any_body_is_taken(body in "(\r\n|--XX|--|:|Content-Disposition: form-data; name=|model|\"|;|x){0,30}", size in 1usize..9) {
            let _ = read(&body, size);
        }

        #[test]
        fn how_it_is_cut_makes_no_difference(content in "(\r\n|\r|\n|-|--X|XX|a){0,40}", size in 1usize..30) {
            prop_assume!(!content.contains("\r\n--XX") && !format!("\r\n{content}\r\n").contains("\r\n--XX"));
            let body = [&file(&content), &part("model", "m"), "--XX--"].concat();
            let (whole, cut) = (read(&body, body.len()).unwrap(), read(&body, size).unwrap());
            prop_assert_eq!(whole.model(), cut.model());
            prop_assert_eq!(whole.settled(), cut.settled());
        }
    }
}
