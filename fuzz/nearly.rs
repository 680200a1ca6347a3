//! Bytes that are nearly right: seeds with a few edits. For the tests of each crate that try its parsers on a stable
//! toolchain; a fuzzer, which sees what is covered, goes further.

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
    test_runner::{Config, TestRunner},
};

/// Tries of one parser: a second or two of a debug build for the slowest.
const CASES: u32 = 400;

/// What parsers trip over.
const ODD: &[&[u8]] = &[
    b"",
    b"\0",
    b"\r",
    b"\n\n",
    b"\r\n\r\n",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\"",
    b"\\u0000",
    b"\\ud800",
    b"{}",
    b"[[[[[[[[",
    b"null",
    b"-1",
    b"1e999",
    b"NaN",
    b"18446744073709551616",
    b"data:",
    b"data: [DONE]\n\n",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
];

#[derive(Debug, Clone)]
enum Edit {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, Index),
    Repeat(Index, Index),
    End(Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let odd = select(ODD).prop_map(<[u8]>::to_vec);
    let bytes = prop_oneof![odd, vec(any::<u8>(), 1..9)];
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (any::<Index>(), bytes).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (any::<Index>(), any::<Index>()).prop_map(|(at, length)| Edit::Remove(at, length)),
        (any::<Index>(), any::<Index>()).prop_map(|(at, length)| Edit::Repeat(at, length)),
        any::<Index>().prop_map(Edit::End),
    ]
}

fn apply(bytes: &mut Vec<u8>, edit: Edit) {
    let at = |at: Index, bytes: &Vec<u8>| at.index(bytes.len() + 1);
    let range = |from: Index, length: Index, bytes: &Vec<u8>| {
        let from = at(from, bytes);
        from..from + length.index((bytes.len() - from).min(64) + 1)
    };
    match edit {
        Edit::Set(place, byte) => {
            let place = at(place, bytes);
            if let Some(old) = bytes.get_mut(place) {
                *old = byte;
            }
        }
        Edit::Insert(place, more) => {
            let place = at(place, bytes);
            bytes.splice(place..place, more);
        }
        Edit::Remove(from, length) => {
            let range = range(from, length, bytes);
            bytes.drain(range);
        }
        Edit::Repeat(from, length) => {
            let again = bytes[range(from, length, bytes)].to_vec();
            bytes.extend(again);
        }
        Edit::End(place) => bytes.truncate(at(place, bytes)),
    }
}

/// Tries `parser`, which panics where it finds something wrong, with `seeds` as they are and edited.
///
/// # Panics
/// As `parser` does, with the shortest bytes for which it does.
pub(crate) fn try_with(name: &str, seeds: &[Vec<u8>], parser: impl Fn(&[u8])) {
    seeds.iter().for_each(|seed| parser(seed));
    let edited = (select(seeds.to_vec()), vec(edit(), 1..6)).prop_map(|(mut bytes, edits)| {
        edits.into_iter().for_each(|edit| apply(&mut bytes, edit));
        bytes
    });
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let tried = TestRunner::new(config).run(&edited, |bytes| {
        parser(&bytes);
        Ok(())
    });
    if let Err(error) = tried {
        panic!("{name}: {error}");
    }
}
