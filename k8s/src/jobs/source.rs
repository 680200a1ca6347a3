//! Where a model's weights come from, as one text. Pure.

use crate::resources::{Repository, Source};

/// What `text` means; `file` is the one file of a hub's repository that is wanted.
///
/// # Errors
/// It means nothing: what to write instead.
pub(super) fn of(text: &str, file: Option<&str>) -> Result<Source, String> {
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    let repository = || {
        let (repo, revision) = rest.split_once('@').map_or((rest, None), |(repo, revision)| (repo, Some(revision)));
        Repository {
            repo: repo.to_owned(),
            revision: revision.map(str::to_owned),
            file: file.map(str::to_owned),
            ..Repository::default()
        }
    };
    match scheme {
        "hf" => Ok(Source { huggingface: Some(repository()), ..Source::default() }),
        "modelscope" => Ok(Source { modelscope: Some(repository()), ..Source::default() }),
        "s3" | "gs" | "oss" | "https" | "ollama" | "ngc" if file.is_none() => {
            Ok(Source { uri: Some(text.to_owned()), ..Source::default() })
        }
        "s3" | "gs" | "oss" | "https" | "ollama" | "ngc" => {
            Err(format!("{text:?} names its file itself: leave out the file"))
        }
        _ => Err(format!(
            "{text:?} is no source of weights: write hf://ORG/NAME, modelscope://ORG/NAME, s3://, gs:// or \
             oss://BUCKET/PREFIX, https://HOST/FILE, or ollama://NAME"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_one_source() {
        let hub = of("hf://Qwen/Qwen3-8B-GGUF@main", Some("q4.gguf")).unwrap().huggingface.unwrap();
        assert_eq!((hub.repo.as_str(), hub.revision.as_deref()), ("Qwen/Qwen3-8B-GGUF", Some("main")));
        assert_eq!(hub.file.as_deref(), Some("q4.gguf"));
        assert!(
            of("modelscope://a/b", None).unwrap().modelscope.is_some_and(|repository| repository.revision.is_none())
        );
        assert_eq!(of("s3://b/p", None).unwrap().uri.as_deref(), Some("s3://b/p"));
        for (wrong, file) in [("Qwen/Qwen3-8B", None), ("ftp://a/b", None), ("", None), ("s3://b/p", Some("f"))] {
            assert!(of(wrong, file).is_err(), "{wrong}");
        }
    }
}
