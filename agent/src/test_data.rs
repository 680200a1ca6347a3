//! Answers of real engines for unit tests: `tests/data/`, each `curl -i` of one request.

use dunlin_protocol::runtime::{Catalogue, Runtime};

/// The body of a captured answer.
pub(crate) fn body(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    // Behind the command in the first line: status line and headers, an empty line, the body.
    if !text.starts_with("# curl ") {
        return text.into();
    }
    text.split_once("\r\n\r\n").or_else(|| text.split_once("\n\n")).unwrap().1.into()
}

/// A built-in runtime.
pub(crate) fn runtime(name: &str) -> Runtime {
    Catalogue::built_in().unwrap().get(&name.parse().unwrap()).unwrap().clone()
}
