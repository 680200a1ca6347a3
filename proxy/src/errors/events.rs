//! Paths of the engine's host in errors that an engine says within a running stream. Pure.

use super::paths::without_paths;
use bytes::Bytes;
use serde_json::Value;
use std::borrow::Cow;

/// Where engines put an error's words into an event: OpenAI's chat and Anthropic's messages, TGI, OpenAI's responses
/// (`error` and `response.failed`), FastAPI.
const WORDS: [&str; 5] = ["/error/message", "/error", "/message", "/response/error/message", "/detail"];

/// `events`, which hold an error, with only the last part of each path in what that says. All else stays to the letter.
/// `kept`: see [`without_paths`].
pub(crate) fn cleaned(events: Bytes, kept: &str) -> Bytes {
    let mut out = Vec::new();
    let mut done = 0;
    let mut at = 0;
    for line in events.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
        let start = at;
        at += line.len();
        let Some(data) = line.strip_prefix(b"data:") else { continue };
        let (data, end) = data.split_at(data.trim_ascii_end().len());
        let Some(cleaned) = of_data(data, kept) else { continue };
        out.extend_from_slice(&events[done..start]);
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(cleaned.as_bytes());
        out.extend_from_slice(end);
        done = at;
    }
    if done == 0 {
        return events;
    }
    out.extend_from_slice(&events[done..]);
    out.into()
}

/// `None`: it names no file, or is no error.
fn of_data(data: &[u8], kept: &str) -> Option<String> {
    memchr::memchr2(b'/', b'\\', data)?;
    let mut json: Value = serde_json::from_slice(data).ok()?;
    let mut changed = false;
    for place in WORDS {
        if let Some(Value::String(words)) = json.pointer_mut(place)
            && let Cow::Owned(cleaned) = without_paths(words, kept)
        {
            *words = cleaned;
            changed = true;
        }
    }
    changed.then(|| json.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(events: &str) -> String {
        String::from_utf8(cleaned(Bytes::copy_from_slice(events.as_bytes()), "/models/mine").to_vec()).unwrap()
    }

    #[test]
    fn every_dialects_error_loses_the_folders_of_its_files() {
        for (said, expected) in [
            (r#"{"error":{"message":"File \"/usr/lib/vllm/engine.py\", line 3"}}"#, r#"File \"engine.py\", line 3"#),
            (r#"{"error":{"message":"no \/srv\/x\/y.bin"}}"#, "no y.bin"),
            (r#"{"error":"a\nC:\\Users\\me\\x.gguf is gone"}"#, r"a\nx.gguf is gone"),
            (r#"{"type":"error","error":{"type":"api_error","message":"in /a/b"}}"#, "in b"),
            (r#"{"type":"error","code":null,"message":"in /a/b.py"}"#, "in b.py"),
            (r#"{"type":"response.failed","response":{"error":{"message":"in /a/b"},"output":[]}}"#, "in b"),
            (r#"{"detail":"in /a/b"}"#, "in b"),
        ] {
            for end in ["\n", "\r\n", "\r"] {
                let before = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"/etc/x/y\"}}}}]}}{end}{end}");
                let events = format!("{before}event: error{end}data:{said}{end}{end}data: [DONE]{end}{end}");
                let cleaned = of(&events);
                assert!(cleaned.starts_with(&before), "{cleaned}");
                assert!(cleaned.ends_with(&format!("{end}{end}data: [DONE]{end}{end}")), "{cleaned}");
                assert!(cleaned.contains(expected), "{cleaned}");
                assert_eq!(cleaned.lines().count(), events.lines().count());
            }
        }
    }

    #[test]
    fn what_names_no_file_is_not_touched() {
        for said in [
            "data: {\"error\": {\"message\": \"too long for /v1/chat/completions\"} }\n\n",
            "data: {\"error\":{\"message\":\"`/models/mine` failed\"}}\n\n",
            "data: {\"response\":{\"output\":\"/a/b\",\"error\":null}}\n\n",
            "data: {\"error\":{\"message\":\"/a/b",
            ": /a/b\n\n",
            "data: /a/b\n\n",
        ] {
            assert_eq!(of(said), said);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in "(data:|event:|\\{|\\}|\"error\"|\"message\"|:|\"/a/b\"|\\n|\\r| ){0,20}") {
            let _ = of(&bytes);
        }
    }
}
