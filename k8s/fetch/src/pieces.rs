//! Which pieces of a file are here. Pure.

use std::fmt::Write;

/// Size of a piece, bytes: what a kill costs at most on each connection.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;
/// Pieces that are asked for at once: hubs redirect each request, and count them.
const PIECES_AT_ONCE: usize = 16;

/// The pieces of one version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pieces {
    size: u64,
    here: Vec<bool>,
}

impl Pieces {
    pub(crate) fn none(size: u64) -> Self {
        let count = usize::try_from(size.div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX);
        Self { size, here: vec![false; count] }
    }

    /// First byte, and the one after the last.
    pub(crate) fn range(&self, index: usize) -> (u64, u64) {
        let first = index as u64 * PIECE_BYTES;
        (first, self.size.min(first + PIECE_BYTES))
    }

    /// Pieces that are missing side by side, as they are asked for: the first and the one after the last.
    pub(crate) fn missing(&self) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for index in (0..self.here.len()).filter(|&index| !self.here[index]) {
            match runs.last_mut() {
                Some((first, end)) if *end == index && index - *first < PIECES_AT_ONCE => *end += 1,
                _ => runs.push((index, index + 1)),
            }
        }
        runs
    }

    pub(crate) fn bytes(&self) -> u64 {
        let length = |index: usize| {
            let (first, end) = self.range(index);
            end - first
        };
        self.here.iter().enumerate().filter(|(_, here)| **here).map(|(index, _)| length(index)).sum()
    }

    /// What a record begins with: it is of this version of the file, and of no other.
    pub(crate) fn header(size: u64, version: &str) -> String {
        let mut text = String::new();
        // Writing to a String never fails.
        let _ = writeln!(text, "dunlin-fetch 1 {size} {PIECE_BYTES} {version}");
        text
    }

    /// The line with which a run begins: what it notes counts for whoever runs under the same boot of the machine.
    pub(crate) fn run(boot: &str) -> String {
        // In front, the end of a line that a kill may have cut off.
        format!("\nboot {boot}\n")
    }

    /// The line that notes a piece which is here.
    pub(crate) fn here(index: usize) -> String {
        format!("{index}\n")
    }

    /// The line that notes a piece which will be here after a power cut too.
    pub(crate) fn safe(index: usize) -> String {
        format!("safe {index}\n")
    }

    /// What a record says to whoever reads it under `boot`; `None` when it is of another version. A last line without its
    /// end was never finished.
    pub(crate) fn read(record: &str, size: u64, version: &str, boot: &str) -> Option<Self> {
        let lines = record.strip_prefix(&Self::header(size, version))?;
        let mut pieces = Self::none(size);
        let finished = lines.rfind('\n').map_or("", |end| &lines[..end]);
        let mut of_this_boot = false;
        for line in finished.lines() {
            let noted = match line.split_once(' ') {
                Some(("boot", of)) => {
                    of_this_boot = of == boot;
                    continue;
                }
                Some(("safe", index)) => index,
                None if of_this_boot => line,
                _ => continue,
            };
            if let Some(here) = noted.parse::<usize>().ok().and_then(|index| pieces.here.get_mut(index)) {
                *here = true;
            }
        }
        Some(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = PIECE_BYTES * 2 + 5;

    #[test]
    fn a_record_is_read_up_to_where_it_was_cut() {
        let begun = Pieces::header(SIZE, "v1") + &Pieces::run("b");
        let whole = format!("{begun}{}{}", Pieces::here(2), Pieces::here(0));
        let read = |record: &str| Pieces::read(record, SIZE, "v1", "b").unwrap();
        assert_eq!((read(&whole).missing(), read(&whole).bytes()), (vec![(1, 2)], PIECE_BYTES + 5));
        assert_eq!(read(&whole[..whole.len() - 1]).missing(), [(0, 2)]);
        assert_eq!(read(&format!("{begun}9\nx\nsafe\n1\n")).missing(), [(0, 1), (2, 3)]);
        // The next run's first line ends the one that was cut.
        assert_eq!(read(&format!("{begun}0{}1\n", Pieces::run("b"))).missing(), [(2, 3)]);
    }

    #[test]
    fn what_was_not_synced_counts_until_the_machine_starts_anew() {
        let record = format!("{}{}0\n1\n{}", Pieces::header(SIZE, "v1"), Pieces::run("b"), Pieces::safe(1));
        let missing = |boot: &str| Pieces::read(&record, SIZE, "v1", boot).unwrap().missing();
        assert_eq!(missing("b"), [(2, 3)]);
        assert_eq!(missing("another"), [(0, 1), (2, 3)]);
    }

    #[test]
    fn another_version_counts_for_nothing() {
        let record = Pieces::header(SIZE, "v1") + "safe 0\n";
        assert_eq!(Pieces::read(&record, SIZE, "v2", "b"), None);
        assert_eq!(Pieces::read(&record, SIZE + 1, "v1", "b"), None);
        assert_eq!(Pieces::read("", SIZE, "v1", "b"), None);
    }

    #[test]
    fn much_is_asked_for_at_once_and_not_too_much() {
        let pieces = Pieces::none(PIECE_BYTES * 40);
        assert_eq!(pieces.missing(), [(0, 16), (16, 32), (32, 40)]);
    }

    #[test]
    fn an_empty_file_has_no_pieces() {
        assert_eq!(Pieces::none(0).missing(), []);
        assert_eq!(Pieces::none(1).range(0), (0, 1));
    }
}
