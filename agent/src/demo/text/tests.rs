use super::*;
use proptest::prelude::*;

fn prompt(text: &str) -> Context {
    Context::EMPTY.with(text)
}

/// The answer's tokens, until it ends by itself or after `limit`.
fn answer(mut generator: Generator, limit: usize) -> Vec<&'static str> {
    let mut tokens = Vec::new();
    while !generator.at_end() && tokens.len() < limit {
        tokens.push(generator.next().text);
    }
    tokens
}

fn continued(prompt: Context, written: &str, limit: usize) -> String {
    let (generator, missing) = Generator::resume(prompt, written);
    let head = missing.map_or("", |piece| piece.text);
    head.to_owned() + &answer(generator, limit).concat()
}

#[test]
fn every_answer_says_first_that_it_is_a_demo() {
    for text in ["", "a", "Hello, who are you?", "鳥"] {
        let words = answer(Generator::new(prompt(text)), 200).concat();
        assert!(words.starts_with("This is a demo: the dunlin demo engine is no model."), "{words}");
    }
}

#[test]
fn answers_end_differ_and_contain_more_than_ascii() {
    let answers: Vec<_> = (0..200).map(|n| answer(Generator::new(prompt(&format!("{n}"))), 5000)).collect();
    let lengths: Vec<_> = answers.iter().map(Vec::len).collect();
    assert!(lengths.iter().all(|&length| length > 13 && length < 5000), "{lengths:?}");
    let mean = lengths.iter().sum::<usize>() / lengths.len();
    assert!((40..200).contains(&mean), "mean length {mean}");
    let distinct: std::collections::HashSet<_> = answers.iter().collect();
    assert_eq!(distinct.len(), answers.len());
    let text = answers.concat().concat();
    for part in ["鳥", "🐦", "\nThe", ", ", " dunlin"] {
        assert!(text.contains(part), "no {part:?} in 200 answers");
    }
}

#[test]
fn the_tokenizer_counts_what_was_generated() {
    for n in 0..200 {
        let tokens = answer(Generator::new(prompt(&n.to_string())), 1000);
        for cut in [1, 5, 13, 14, tokens.len() / 2, tokens.len()] {
            let cut = cut.min(tokens.len());
            let text = tokens[..cut].concat();
            assert_eq!(super::super::tokenizer::count(&text), cut, "{text:?}");
        }
    }
}

#[test]
fn a_finished_answer_has_no_rest() {
    for n in 0..50 {
        let whole = answer(Generator::new(prompt(&n.to_string())), 5000).concat();
        assert_eq!(continued(prompt(&n.to_string()), &whole, 5000), "");
    }
}

fn goes_on_the_same_way(text: &str, strange: &str) -> Result<(), TestCaseError> {
    let (generator, missing) = Generator::resume(prompt(text), strange);
    // By chance it is how this engine would have begun, cut in a token: then the rest of that comes first.
    let mut tokens: Vec<_> = missing.map(|piece| piece.text).into_iter().collect();
    tokens.extend(answer(generator, 60));
    for cut in 0..tokens.len() {
        let written = strange.to_owned() + &tokens[..cut].concat();
        let rest = continued(prompt(text), &written, 60);
        prop_assert!(rest.starts_with(&tokens[cut..].concat()));
    }
    Ok(())
}

#[test]
fn a_text_that_is_this_engines_own_by_chance_goes_on_the_same_way() {
    goes_on_the_same_way("", "T").unwrap();
}

proptest! {
    #[test]
    fn an_answer_cut_anywhere_goes_on_as_if_it_had_not_been(text in "\\PC{0,30}", share in 0.0..1.0f64) {
        let whole = answer(Generator::new(prompt(&text)), 400).concat();
        let boundaries: Vec<_> = whole.char_indices().map(|(at, _)| at).collect();
        let cut = boundaries[(share * boundaries.len() as f64) as usize];
        let rest = continued(prompt(&text), &whole[..cut], 400);
        prop_assert!(rest.starts_with(&whole[cut..]), "{:?} went on with {:?}", &whole[..cut], rest);
    }

    #[test]
    fn somebody_elses_text_goes_on_the_same_way_at_every_token(text in "\\PC{0,30}", strange in "\\PC{1,30}") {
        goes_on_the_same_way(&text, &strange)?;
    }

    #[test]
    fn a_plain_prompt_goes_on_the_same_way_wherever_it_is_cut(text in "[ a-zT.]{0,20}(This is( a demo)?)?") {
        let write = |text: &str| {
            let (before, written) = split_prompt(text);
            continued(prompt(before), written, 80)
        };
        let whole = write(&text);
        for (cut, _) in whole.char_indices() {
            prop_assert!(write(&(text.clone() + &whole[..cut])).starts_with(&whole[cut..]));
        }
    }
}
