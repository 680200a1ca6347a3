//! What commands print. Results go to standard output, words about them to standard error, so that scripts can take
//! the one and people read both. A reader that goes away (`dunlin peers | head`) is no error; any other failure is.

use crate::args::Output;
use comfy_table::{Table, presets};
use serde::Serialize;
use std::io::{self, Write};

/// Standard output took no more.
#[derive(Debug, thiserror::Error)]
#[error("the result could not be written to standard output: {0}")]
pub(crate) struct Unwritten(io::Error);

impl Unwritten {
    /// Whether nobody reads any more, which is the reader's to decide.
    pub(crate) fn is_unread(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Prints a line of the result.
pub(crate) fn line(text: &str) -> Result<(), Unwritten> {
    whole(format!("{text}\n").as_bytes())
}

/// Prints lines of the result in one piece: log lines, which go to standard error, come before or after them where both end
/// up in one place. A service does its work whether or not that can be written.
pub(crate) fn block(lines: &[String]) {
    let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
    if let Err(error) = whole(text.as_bytes()) {
        note(&format!("warning: {error}"));
    }
}

/// Prints all of a result.
pub(crate) fn whole(text: &[u8]) -> Result<(), Unwritten> {
    piece(text).or_else(|error| if error.is_unread() { Ok(()) } else { Err(error) })
}

/// Prints a piece of a streamed result at once. That nobody reads any more is an error here, so that the stream ends.
pub(crate) fn piece(text: &[u8]) -> Result<(), Unwritten> {
    let mut out = io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).map_err(Unwritten)
}

/// Prints a remark for a person.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Shows how far something has come, in one line of a terminal that the next one replaces; an empty one clears it.
pub(crate) fn status(text: &str) {
    let mut error = io::stderr().lock();
    let _ = write!(error, "\r\x1b[2K{text}").and_then(|()| error.flush());
}

/// Prints an error.
pub(crate) fn error_line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints `value` as JSON or in the words that `human` finds for it.
pub(crate) fn show<T: Serialize>(output: Output, value: &T, human: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    match output {
        Output::Json => line(&serde_json::to_string_pretty(value)?)?,
        Output::Human => line(human(value).trim_end())?,
    }
    Ok(())
}

/// A table with a header, columns two spaces apart.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.to_string().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// What a cell says of something that is not there, so that every row has every column.
pub(crate) fn or_none(text: Option<String>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned())
}

/// `just now`, `5 minutes ago`, `3 hours ago`, `2 days ago`: how long `seconds` are.
pub(crate) fn ago(seconds: u64) -> String {
    let (count, unit) = match seconds {
        ..60 => return "just now".to_owned(),
        60..3_600 => (seconds / 60, "minute"),
        3_600..86_400 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{} ago", counted(usize::try_from(count).unwrap_or(usize::MAX), unit))
}

/// `90 minutes`, `47 hours`, `30 days`: how long `seconds` are, in a unit of which there are two at least, if any.
pub(crate) fn span(seconds: u64) -> String {
    unit(seconds, "")
}

/// `90 more minutes`, `47 more hours`, `30 more days`.
pub(crate) fn more(seconds: u64) -> String {
    unit(seconds, "more ")
}

fn unit(seconds: u64, word: &str) -> String {
    let (count, unit) = match seconds {
        ..7_200 => (seconds / 60, "minute"),
        7_200..172_800 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    counted(usize::try_from(count).unwrap_or(usize::MAX), &format!("{word}{unit}"))
}

/// `512 B`, `1.5 GB`: in units of a thousand, as disks and networks are sold.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1_000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1e3;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `1 model`, `2 models`.
pub(crate) fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_in_a_unit_that_says_something() {
        let told = [0, 60, 3_599, 7_199, 7_200, 172_799, 172_800, 2_592_000].map(more);
        let right = [
            "0 more minutes",
            "1 more minute",
            "59 more minutes",
            "119 more minutes",
            "2 more hours",
            "47 more hours",
            "2 more days",
            "30 more days",
        ];
        assert_eq!(told, right);
        assert_eq!(span(86_400), "24 hours");
    }

    #[test]
    fn sizes_are_told_in_units_that_fit() {
        let told = [0, 999, 1_000, 999_949, 999_950, 16_381_470_720, u64::MAX].map(bytes);
        assert_eq!(told, ["0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "16.4 GB", "18446744.1 TB"]);
    }

    #[test]
    fn ages_are_told_in_the_largest_unit() {
        let told = [0, 59, 60, 119, 7_199, 86_399, 86_400, 864_000].map(ago);
        let right = [
            "just now",
            "just now",
            "1 minute ago",
            "1 minute ago",
            "1 hour ago",
            "23 hours ago",
            "1 day ago",
            "10 days ago",
        ];
        assert_eq!(told, right);
    }
}
