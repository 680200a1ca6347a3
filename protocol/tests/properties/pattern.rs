//! Model patterns against the obvious definition of what they mean.

use crate::generate;
use dunlin_protocol::{
    id::ModelId,
    pattern::{Models, Pattern},
};
use proptest::{collection::vec, prelude::*};

/// What a pattern means: try every length for each `*`.
fn matches_by_definition(pattern: &[char], text: &[char]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some(('*', rest)) => (0..=text.len()).any(|taken| matches_by_definition(rest, &text[taken..])),
        Some((literal, rest)) => text.first() == Some(literal) && matches_by_definition(rest, &text[1..]),
    }
}

fn chars(text: &str) -> Vec<char> {
    text.chars().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn matches_what_the_definition_matches(pattern in "[abé/*]{1,7}", text in "[abé/*]{0,9}") {
        let expected = matches_by_definition(&chars(&pattern), &chars(&text));
        prop_assert_eq!(Pattern::new(&pattern).unwrap().matches(&text), expected);
    }

    /// A certificate that was narrowed never allows what the wider one does not.
    #[test]
    fn covers_is_sound(wide in generate::pattern(), narrow in generate::pattern(), text in "[ab/]{0,9}") {
        if wide.covers(&narrow) && narrow.matches(&text) {
            prop_assert!(wide.matches(&text));
        }
    }

    /// Not only on chance texts: those that are made from the narrower pattern.
    #[test]
    fn covers_is_sound_on_texts_of_the_narrower(
        wide in generate::pattern(),
        narrow in generate::pattern(),
        runs in vec("[ab/]{0,3}", 8),
    ) {
        let mut runs = runs.iter();
        let text: String = narrow
            .as_str()
            .chars()
            .map(|c| if c == '*' { runs.next().unwrap().clone() } else { c.to_string() })
            .collect();
        prop_assert!(narrow.matches(&text));
        if wide.covers(&narrow) {
            prop_assert!(wide.matches(&text));
        }
    }

    #[test]
    fn covers_itself_and_everything_covers_less(pattern in generate::pattern()) {
        prop_assert!(pattern.covers(&pattern));
        prop_assert!(Pattern::new("*").unwrap().covers(&pattern));
    }

    #[test]
    fn lists_cover_soundly(wide in generate::models(), narrow in generate::models(), text in "[ab/]{1,6}") {
        let model = ModelId::new(&text).unwrap();
        if wide.covers(&narrow) && narrow.allows(&model) {
            prop_assert!(wide.allows(&model));
        }
    }
}

#[test]
fn absent_allows_all_and_empty_allows_none() {
    let model = ModelId::new("any/model").unwrap();
    assert!(Models::Any.allows(&model));
    assert!(!Models::Only(Vec::new()).allows(&model));
    assert!(!Models::Only(Vec::new()).covers(&Models::Any));
}

#[test]
fn case_counts_and_slashes_do_not_stop_a_star() {
    let pattern = Pattern::new("Qwen/*").unwrap();
    assert!(pattern.matches("Qwen/Qwen3-8B/lora/x"));
    assert!(!pattern.matches("qwen/Qwen3-8B"));
    assert!(!pattern.matches("Qwen"));
}

/// Many stars over a long text that nearly matches: quadratic is fine, exponential would not end.
#[test]
fn no_backtracking_blow_up() {
    let pattern = Pattern::new(&"a*".repeat(128)).unwrap();
    assert!(!pattern.matches(&format!("{}b", "a".repeat(100))));
    let pattern = Pattern::new(&format!("{}b", "*a".repeat(100))).unwrap();
    assert!(!pattern.matches(&"a".repeat(256)));
}
