//! Names for jobs, and names that are near others. Pure.

use crate::resources::PLAYGROUND_NAME;

/// Names that are offered in place of an unknown one.
const OFFERED: usize = 3;

/// A job's name for a model: the last part of its own, as Kubernetes takes it.
pub(super) fn job(model: &str) -> String {
    let last = model.rsplit('/').next().unwrap_or(model);
    let slug: String =
        last.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    let slug: String = slug.trim_matches('-').chars().take(PLAYGROUND_NAME).collect();
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() { "model".to_owned() } else { slug.to_owned() }
}

/// Those of `known` that somebody who wrote `asked` may have meant, the nearest first.
pub(super) fn near<'a>(asked: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let asked = asked.to_lowercase();
    let distance = |name: &str| {
        let name = name.to_lowercase();
        let within = name.contains(&asked) || asked.contains(&name);
        let edits = edits(&asked, &name);
        (within || edits * 3 <= asked.chars().count().max(3)).then_some(if within { 0 } else { edits })
    };
    let mut near: Vec<(usize, &str)> = known.filter_map(|name| Some((distance(name)?, name))).collect();
    near.sort();
    near.into_iter().take(OFFERED).map(|(_, name)| name).collect()
}

/// Characters to be put in, taken out or changed: Levenshtein's distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let changed = corner + usize::from(from != *to);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_after_their_models() {
        for (model, name) in [
            ("Qwen/Qwen3-8B", "qwen3-8b"),
            ("llama3.1:70b", "llama3-1-70b"),
            ("///", "model"),
            (&"x".repeat(99), &"x".repeat(PLAYGROUND_NAME)),
        ] {
            assert_eq!(job(model), name);
        }
    }

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        let known = ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B", "tiny"];
        assert_eq!(near("qwen/qwen3-8b", known.into_iter())[0], "Qwen/Qwen3-8B");
        assert_eq!(near("Qwen/Qwne3-8B", known.into_iter())[0], "Qwen/Qwen3-8B");
        assert_eq!(near("llama", known.into_iter()), ["meta-llama/Llama-3.1-8B"]);
        assert_eq!(near("gpt-4o", known.into_iter()), [""; 0]);
        assert_eq!((edits("kitten", "sitting"), edits("", "ab"), edits("ab", "")), (3, 2, 2));
    }
}
