//! Takes the paths of an engine's host out of what the engine says. Pure.

use std::borrow::Cow;

/// How a path of an HTTP API begins, which is no secret of a host.
fn is_of_an_api(first: &str) -> bool {
    let version =
        first.strip_prefix('v').is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()));
    version || matches!(first, "api" | "inference" | "generate")
}

/// What a path is made of.
fn in_path(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '/' | '\\' | '.' | '_' | '-' | '+' | '@' | '~' | '%' | '=' | '*')
}

/// `text` with only the last part of each absolute path. `kept` is left as it is wherever it stands: a name that the
/// client itself used.
pub(super) fn without_paths<'a>(text: &'a str, kept: &str) -> Cow<'a, str> {
    let mut out = String::new();
    let mut done = 0;
    let mut at = 0;
    while let Some(start) = text[at..].find(['/', '\\']).map(|found| at + found) {
        let end = text[start..].find(|letter| !in_path(letter)).map_or(text.len(), |length| start + length);
        // The slashes of a URL are looked at one by one.
        at = if text[start + 1..].starts_with('/') { start + 1 } else { end.max(start + 1) };
        let Some(start) = begins(text, start) else { continue };
        let path = text[start..end].trim_end_matches('.');
        if path == kept
            || (!kept.is_empty() && kept.ends_with(path) && text[..start].ends_with(&kept[..kept.len() - path.len()]))
        {
            continue;
        }
        let mut parts = path.split(['/', '\\']).filter(|part| !part.is_empty() && !part.ends_with(':'));
        let (Some(first), Some(last)) = (parts.next(), parts.next_back()) else { continue };
        if is_of_an_api(first) {
            continue;
        }
        out.push_str(&text[done..start]);
        out.push_str(last);
        done = start + path.len();
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

/// Where the absolute path begins whose first separator is at `slash`; `None` when it is none: part of a word, a
/// fraction, a URL.
fn begins(text: &str, slash: usize) -> Option<usize> {
    let (before, after) = (&text[..slash], &text[slash + 1..]);
    if before.ends_with("file://") {
        return Some(slash);
    }
    if !after.starts_with(|letter: char| letter.is_alphanumeric() || matches!(letter, '.' | '_' | '~' | '-')) {
        return None;
    }
    let mut letters = before.chars().rev();
    match letters.next() {
        None => Some(slash),
        // A drive.
        Some(':') if letters.next().is_some_and(|drive| drive.is_ascii_uppercase()) && !before_word(&mut letters) => {
            Some(slash - 2)
        }
        // A folder of a user.
        Some('~') => Some(slash - 1),
        Some(letter) => (!letter.is_alphanumeric()
            && !matches!(letter, '/' | '\\' | '.' | '_' | '-' | '<' | '}' | ')'))
        .then_some(slash),
    }
}

fn before_word(letters: &mut impl Iterator<Item = char>) -> bool {
    letters.next().is_some_and(char::is_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cleaned(text: &str) -> String {
        without_paths(text, "/models/mine").into_owned()
    }

    #[test]
    fn only_the_last_part_of_a_path_is_left() {
        for (text, expected) in [
            (
                "File \"/usr/lib/python3/site-packages/sglang/srt/http_server.py\", line 7",
                "File \"http_server.py\", line 7",
            ),
            ("cannot open '/root/.cache/huggingface/hub/models--a--b/x.bin'.", "cannot open 'x.bin'."),
            ("/opt/app/main.py failed", "main.py failed"),
            ("path=/data/llm/model.gguf;", "path=model.gguf;"),
            ("Error:/home/me/x", "Error:x"),
            ("at file:///srv/models/a.bin", "at file://a.bin"),
            ("in ~/models/a.bin", "in a.bin"),
            ("C:\\Users\\me\\model.gguf is gone", "model.gguf is gone"),
            ("C:/Users/me/model.gguf is gone", "model.gguf is gone"),
            ("(/a/b, /c/d)", "(b, d)"),
            ("see /var/log/.", "see log."),
        ] {
            assert_eq!(cleaned(text), expected);
        }
    }

    #[test]
    fn what_is_no_path_of_a_host_stays() {
        for text in [
            "no model Qwen/Qwen3-8B here",
            "POST /v1/chat/completions",
            "and/or 1/2 tokens/s",
            "see https://docs.vllm.ai/en/latest/x.html",
            "/tokenize",
            "the model `/models/mine` does not exist",
            "</body></html>",
            "\\n is a newline",
            "",
        ] {
            assert_eq!(cleaned(text), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in ".{0,80}") {
            let _ = without_paths(&text, "m");
        }

        #[test]
        fn no_folder_survives(folders in prop::collection::vec("[a-z]{2,8}", 2..5), quote in "[\"' (]") {
            prop_assume!(!is_of_an_api(&folders[0]));
            let text = format!("x {quote}/{}/file.py, line 3", folders.join("/"));
            let cleaned = cleaned(&text);
            prop_assert!(!cleaned.contains('/'), "{}", cleaned);
        }
    }
}
