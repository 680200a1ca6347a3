//! What can go wrong, and what to do. No message has a token, nor a query, which may be signed.

use std::{io, path::PathBuf};

/// Why weights could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a source.
    #[error(
        "{given:?} is no source of weights: {problem}; write hf://ORG/MODEL[@REVISION], modelscope://ORG/MODEL[@REVISION], \
         s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, oss://BUCKET/PREFIX, https://HOST/FILE[#sha256=HEX], or file:///PATH"
    )]
    Source {
        /// As given.
        given: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An endpoint or a proxy that can't be used.
    #[error("{given:?} is no address of a server: {problem}")]
    Endpoint {
        /// As given.
        given: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The files of a source have a name that would leave the folder.
    #[error("{source_name} has a file called {name:?}, which cannot be kept in a folder of this machine")]
    Name {
        /// Of what.
        source_name: String,
        /// As it said.
        name: String,
    },
    /// Nothing is left to be fetched.
    #[error("{source_name} has no file to fetch{hint}")]
    Nothing {
        /// Of what.
        source_name: String,
        /// What to do.
        hint: String,
    },
    /// More files than anybody wants.
    #[error("{source_name} has more than {limit} files; name those that are wanted with --allow")]
    TooMany {
        /// Of what.
        source_name: String,
        /// The bound.
        limit: usize,
    },
    /// The server's answer can't be used, and asking again would not help.
    #[error("{url}: {problem}")]
    Refused {
        /// Without its query.
        url: String,
        /// What it said, and what to do.
        problem: String,
        /// The status, if there was one.
        status: Option<u16>,
    },
    /// The server did not answer well, again and again.
    #[error("{url}: {problem} (tried {tries} times)")]
    Unreachable {
        /// Without its query.
        url: String,
        /// The last problem.
        problem: String,
        /// How often.
        tries: u32,
    },
    /// What was fetched is not what the source says that it has.
    #[error("{name} is damaged: {problem}")]
    Damaged {
        /// The file.
        name: String,
        /// What differs.
        problem: String,
    },
    /// A file or folder of this machine.
    #[error("{path}: {error}")]
    Disk {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl Error {
    /// For `map_err` on what was done with `path`.
    pub(crate) fn disk(path: &std::path::Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |error| Self::Disk { path, error }
    }
}
