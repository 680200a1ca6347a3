//! What reads what clients and engines send. The first byte chooses the parser, so that the corpus of one does not drown the others.
#![no_main]

use dunlin_proxy::fuzz::PARSERS;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some((kind, bytes)) = data.split_first() {
        PARSERS[usize::from(*kind) % PARSERS.len()].1(bytes);
    }
});
