//! Which names are nearest to one that nobody has: for words about a model that does not exist. Pure.

/// Names that are told at most.
const TOLD: usize = 3;
/// Names that are compared at most.
const COMPARED: usize = 1024;
/// Longer ones are not compared, characters.
const LONGEST: usize = 128;

/// Those of `names` that may have been meant by `asked`, nearest first.
pub(super) fn near<'a>(asked: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let asked = folded(asked);
    let mut found: Vec<(usize, &str)> =
        names.take(COMPARED).filter_map(|name| Some((distance(&asked, &folded(name))?, name))).collect();
    found.sort_unstable();
    found.dedup();
    found.truncate(TOLD);
    found.into_iter().map(|(_, name)| name).collect()
}

/// Lower case, and one kind of separator.
fn folded(name: &str) -> Vec<char> {
    let one = |letter: char| if matches!(letter, '_' | ' ' | ':' | '.') { '-' } else { letter };
    name.chars().flat_map(char::to_lowercase).map(one).collect()
}

/// How far a name is from what was asked; `None` when it was hardly meant.
fn distance(asked: &[char], name: &[char]) -> Option<usize> {
    if asked.is_empty() || asked.len() > LONGEST || name.len() > LONGEST {
        return None;
    }
    // Without its owner, or with its tag or size left out.
    let after_owner = |name: &[char]| name.iter().rposition(|letter| *letter == '/').map_or(0, |slash| slash + 1);
    let (short_asked, short_name) = (&asked[after_owner(asked)..], &name[after_owner(name)..]);
    if short_asked == short_name || (short_asked.len() >= 3 && short_name.starts_with(short_asked)) {
        return Some(0);
    }
    let allowed = asked.len().div_ceil(4).max(1);
    let edits = edits(asked, name, allowed).into_iter().chain(edits(short_asked, short_name, allowed)).min()?;
    (edits <= allowed).then_some(edits)
}

/// Letters to change, add or leave out to make one of the other; `None` when there are more than `most`.
fn edits(a: &[char], b: &[char], most: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] =
        ["Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "llama3.1:8b", "llama3.1:70b", "whisper-base", "nomic-embed-text"];

    fn near_to(asked: &str) -> Vec<&'static str> {
        near(asked, NAMES.into_iter())
    }

    #[test]
    fn who_mistypes_is_helped() {
        assert_eq!(near_to("qwen3-8b"), ["Qwen/Qwen3-8B"]);
        assert_eq!(near_to("Qwen/Qwen3_8B"), ["Qwen/Qwen3-8B"]);
        assert_eq!(near_to("Qwne/Qwen3-8B"), ["Qwen/Qwen3-8B"]);
        assert_eq!(near_to("meta/llama3.1"), ["llama3.1:70b", "llama3.1:8b"]);
        assert_eq!(near_to("whisper-basse"), ["whisper-base"]);
    }

    #[test]
    fn what_is_far_is_not_suggested() {
        for asked in ["gpt-4o", "", "x", "mistral", &"q".repeat(500)] {
            assert!(near_to(asked).is_empty(), "{asked}");
        }
    }

    #[test]
    fn edits_are_counted() {
        let count = |a: &str, b: &str| edits(&folded(a), &folded(b), 9);
        assert_eq!(count("kitten", "sitting"), Some(3));
        assert_eq!(count("", "abc"), Some(3));
        assert_eq!(count("abc", "abc"), Some(0));
        assert_eq!(edits(&folded("a"), &folded("abcdef"), 2), None);
    }
}
