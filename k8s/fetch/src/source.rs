//! What is asked for. Pure.

use crate::Error;
use std::{fmt, path::PathBuf, str::FromStr};
use url::Url;

/// Longest source as text, bytes.
const TEXT_BYTES: usize = 2048;

/// Where weights come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A repository of the Hugging Face hub.
    HuggingFace(Repository),
    /// A repository of ModelScope.
    ModelScope(Repository),
    /// Everything below a prefix of a bucket.
    Bucket {
        /// Whose API.
        store: Store,
        /// The bucket.
        bucket: String,
        /// The prefix, without slashes at its ends; or the whole name of one object.
        prefix: String,
    },
    /// One file.
    Http {
        /// Where.
        url: Url,
        /// What it must have, hex in lower case.
        sha256: Option<String>,
    },
    /// A folder or file of this machine: a volume that is mounted.
    Local(PathBuf),
}

/// A repository of a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// `ORG/MODEL`, or `MODEL`.
    pub name: String,
    /// A branch, tag or commit; `None` for the hub's usual branch.
    pub revision: Option<String>,
}

/// Stores with buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// S3, or what speaks like it.
    S3,
    /// Google's, by its S3-compatible API.
    Gcs,
    /// Alibaba's, by its S3-compatible API.
    Oss,
}

impl Store {
    fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Oss => "oss",
        }
    }
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|problem| {
            // What is shown must not hold what is signed, nor a password.
            let given = text.split(['?', '#']).next().unwrap_or_default().chars().take(200).collect::<String>();
            let given = match given.split_once("://") {
                Some((scheme, rest)) if rest.contains('@') && scheme.starts_with("http") => format!("{scheme}://..."),
                _ => given,
            };
            Error::Source { given, problem }
        })
    }
}

fn parse(text: &str) -> Result<Source, String> {
    if text.len() > TEXT_BYTES || text.chars().any(char::is_control) {
        return Err("it is too long, or has control characters".to_owned());
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return match text.strip_prefix('/') {
            Some(_) => Ok(Source::Local(text.into())),
            None => Err("it has no scheme".to_owned()),
        };
    };
    match scheme {
        "hf" | "huggingface" => repository(rest).map(Source::HuggingFace),
        "modelscope" | "ms" => repository(rest).map(Source::ModelScope),
        "s3" => bucket(Store::S3, rest),
        "gs" | "gcs" => bucket(Store::Gcs, rest),
        "oss" => bucket(Store::Oss, rest),
        "http" | "https" => http(text),
        "file" | "pvc" => match rest.starts_with('/') {
            true => Ok(Source::Local(rest.into())),
            false => Err("it needs a whole path: file:///models/qwen".to_owned()),
        },
        other => Err(format!("{other}:// is not known")),
    }
}

fn repository(text: &str) -> Result<Repository, String> {
    let (name, revision) = match text.split_once('@') {
        Some((name, revision)) => (name, Some(revision)),
        None => (text, None),
    };
    let is_word = |word: &str| {
        let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !word.is_empty() && word.len() <= 96 && !word.starts_with('.') && word.chars().all(fine)
    };
    let words: Vec<&str> = name.split('/').collect();
    if words.len() > 2 || !words.iter().all(|word| is_word(word)) {
        return Err("a repository is ORG/MODEL, of letters, digits, and any of - _ .".to_owned());
    }
    if revision.is_some_and(|revision| revision.is_empty() || !revision.split('/').all(is_word)) {
        return Err("after @ comes a branch, a tag or a commit".to_owned());
    }
    Ok(Repository { name: name.to_owned(), revision: revision.map(str::to_owned) })
}

fn bucket(store: Store, text: &str) -> Result<Source, String> {
    let (bucket, prefix) = text.split_once('/').unwrap_or((text, ""));
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if bucket.is_empty() || bucket.len() > 222 || !bucket.chars().all(fine) || bucket.contains("..") {
        return Err("a bucket's name has small letters, digits, and any of - _ .".to_owned());
    }
    Ok(Source::Bucket { store, bucket: bucket.to_owned(), prefix: prefix.trim_matches('/').to_owned() })
}

fn http(text: &str) -> Result<Source, String> {
    let mut url = Url::parse(text).map_err(|error| error.to_string())?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a URL with a name and password in it would end up in logs".to_owned());
    }
    let sha256 = match url.fragment() {
        None => None,
        Some(fragment) => {
            let hex = fragment.strip_prefix("sha256=").ok_or("after # comes sha256=HEX")?;
            if hex.len() != 64 || !hex.chars().all(|c| c.is_ascii_hexdigit()) {
                return Err("a SHA-256 has 64 hexadecimal digits".to_owned());
            }
            Some(hex.to_ascii_lowercase())
        }
    };
    url.set_fragment(None);
    Ok(Source::Http { url, sha256 })
}

/// For people: no query, no fragment.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HuggingFace(repository) => write!(f, "hf://{repository}"),
            Self::ModelScope(repository) => write!(f, "modelscope://{repository}"),
            Self::Bucket { store, bucket, prefix } => write!(f, "{}://{bucket}/{prefix}", store.scheme()),
            Self::Http { url, .. } => f.write_str(&bare(url)),
            Self::Local(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))
    }
}

/// A URL as it may be shown: queries are signed.
pub(crate) fn bare(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Neither fails for a URL with a host.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_and_shown() {
        for (text, shown) in [
            ("hf://Qwen/Qwen3-8B", "hf://Qwen/Qwen3-8B"),
            ("huggingface://gpt2@refs/pr/1", "hf://gpt2@refs/pr/1"),
            ("modelscope://qwen/Qwen3-8B@master", "modelscope://qwen/Qwen3-8B@master"),
            ("s3://weights/qwen/8b/", "s3://weights/qwen/8b"),
            ("gs://weights", "gs://weights/"),
            ("oss://weights/a b", "oss://weights/a b"),
            ("https://host/file.gguf?X-Signature=abc", "https://host/file.gguf"),
            ("file:///models/qwen", "/models/qwen"),
            ("/models/qwen", "/models/qwen"),
        ] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_secrets() {
        for wrong in [
            "",
            "qwen",
            "hf://",
            "hf://a/b/c",
            "hf://../x",
            "hf://a/b@",
            "s3://",
            "s3://UPPER/x",
            "ftp://x/y",
            "file://relative",
            "https://host/x#md5=1",
            "https://host/x#sha256=12",
            "hf://a/b\n",
        ] {
            let error = wrong.parse::<Source>().unwrap_err().to_string();
            assert!(error.contains("hf://ORG/MODEL"), "{error}");
        }
        let error = "https://me:hunter2@host/x?sig=hunter3".parse::<Source>().unwrap_err().to_string();
        assert!(!error.contains("hunter"), "{error}");
    }

    #[test]
    fn a_hash_may_stand_behind_a_url() {
        let hash = "AB".repeat(32);
        let Source::Http { url, sha256 } = format!("https://h/x?a=b#sha256={hash}").parse().unwrap() else { panic!() };
        assert_eq!((url.as_str(), sha256), ("https://h/x?a=b", Some(hash.to_lowercase())));
    }
}
