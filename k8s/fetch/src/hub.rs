//! Hubs of models: what files a repository has, of which sizes, with which hashes.
//!
//! Sources: the Hugging Face Hub API (`GET /api/models/REPO/revision/REV?blobs=true`, files at `/REPO/resolve/COMMIT/FILE`),
//! and what ModelScope's own kit asks for (`/api/v1/models/REPO/repo/files`, files at `/api/v1/models/REPO/repo`).

use crate::{
    Error,
    bucket::sign::encode_path,
    client::{Ask, Client, Credentials},
    fetch::Order,
    listing::{Check, FileSpec, Origin},
    source::{Repository, bare},
};
use serde::{Deserialize, de::DeserializeOwned};
use url::Url;

const HUGGINGFACE: &str = "https://huggingface.co";
const MODELSCOPE: &str = "https://modelscope.cn";
/// Branches that each takes unless told otherwise.
const HUGGINGFACE_BRANCH: &str = "main";
const MODELSCOPE_BRANCH: &str = "master";

#[derive(Deserialize)]
struct HuggingFaceModel {
    /// The commit.
    sha: String,
    #[serde(default)]
    siblings: Vec<HuggingFaceFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HuggingFaceFile {
    #[serde(rename = "rfilename")]
    name: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: String,
    size: u64,
}

/// Files of a repository as of one commit: a branch that moves meanwhile mixes nothing.
pub(crate) async fn huggingface(
    client: &Client,
    order: &Order,
    repository: &Repository,
) -> Result<Vec<FileSpec>, Error> {
    let base = endpoint(order.endpoints.huggingface.as_deref(), HUGGINGFACE)?;
    let credentials = order.secrets.huggingface.clone().map_or(Credentials::None, Credentials::Bearer);
    let revision = encode_whole(repository.revision.as_deref().unwrap_or(HUGGINGFACE_BRANCH));
    let name = &repository.name;
    let url = join(&base, &format!("api/models/{name}/revision/{revision}?blobs=true"))?;
    let model: HuggingFaceModel = json(client, &Ask::new(url, credentials.clone())).await?;
    let file = |file: HuggingFaceFile| {
        let commit = encode_whole(&model.sha);
        let url = join(&base, &format!("{name}/resolve/{commit}/{}", encode_path(&file.name)))?;
        let (size, check) = match (file.lfs, file.blob_id) {
            (Some(large), _) if is_hex(&large.sha256, 64) => (Some(large.size), Check::Sha256(large.sha256)),
            (None, Some(blob)) if is_hex(&blob, 40) => (file.size, Check::GitBlob(blob)),
            _ => (file.size, Check::None),
        };
        Ok(FileSpec {
            name: file.name,
            from: Origin::Web { url, credentials: credentials.clone() },
            size,
            check,
            tag: None,
        })
    };
    model.siblings.into_iter().map(file).collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ModelScopeAnswer {
    data: Option<ModelScopeData>,
    message: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ModelScopeData {
    files: Vec<ModelScopeFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ModelScopeFile {
    path: String,
    #[serde(rename = "Type")]
    kind: String,
    size: Option<u64>,
    sha256: Option<String>,
}

/// Files of a repository. ModelScope names no commit for the listing: the hashes hold it together.
pub(crate) async fn modelscope(
    client: &Client,
    order: &Order,
    repository: &Repository,
) -> Result<Vec<FileSpec>, Error> {
    let base = endpoint(order.endpoints.modelscope.as_deref(), MODELSCOPE)?;
    let credentials = order.secrets.modelscope.clone().map_or(Credentials::None, Credentials::ModelScope);
    let revision = repository.revision.as_deref().unwrap_or(MODELSCOPE_BRANCH);
    let repo = join(&base, &format!("api/v1/models/{}/repo", repository.name))?;
    let mut listing = join(&base, &format!("api/v1/models/{}/repo/files", repository.name))?;
    listing.query_pairs_mut().append_pair("Revision", revision).append_pair("Recursive", "true");
    let answer: ModelScopeAnswer = json(client, &Ask::new(listing.clone(), credentials.clone())).await?;
    let Some(data) = answer.data else {
        let said: String = answer.message.unwrap_or_default().chars().take(200).collect();
        let problem = format!("it lists no files: {said:?}");
        return Err(Error::Refused { url: bare(&listing), problem, status: None });
    };
    let file = |file: ModelScopeFile| {
        let mut url = repo.clone();
        url.query_pairs_mut().append_pair("Revision", revision).append_pair("FilePath", &file.path);
        let check = file.sha256.map(|hash| hash.to_ascii_lowercase()).filter(|hash| is_hex(hash, 64));
        let check = check.map_or(Check::None, Check::Sha256);
        FileSpec {
            name: file.path,
            from: Origin::Web { url, credentials: credentials.clone() },
            size: file.size,
            check,
            tag: None,
        }
    };
    Ok(data.files.into_iter().filter(|file| file.kind == "blob").map(file).collect())
}

async fn json<T: DeserializeOwned>(client: &Client, ask: &Ask) -> Result<T, Error> {
    let text = client.text(ask).await?;
    serde_json::from_slice(&text).map_err(|error| Error::Refused {
        url: bare(&ask.url),
        problem: format!("its answer is not what a hub says: {error}"),
        status: None,
    })
}

/// An address of a server, with a slash at its end.
pub(crate) fn endpoint(given: Option<&str>, usual: &str) -> Result<Url, Error> {
    let text = given.unwrap_or(usual).trim_end_matches('/');
    let wrong = |problem: String| Error::Endpoint { given: text.chars().take(200).collect(), problem };
    let url: Url = format!("{text}/").parse().map_err(|error: url::ParseError| wrong(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() || url.password().is_some() {
        return Err(Error::Endpoint {
            given: "...".to_owned(),
            problem: "write https://HOST, without a password".to_owned(),
        });
    }
    Ok(url)
}

pub(crate) fn join(base: &Url, path: &str) -> Result<Url, Error> {
    base.join(path).map_err(|error| Error::Endpoint { given: bare(base), problem: error.to_string() })
}

/// As one word of a path.
fn encode_whole(text: &str) -> String {
    encode_path(text).replace('/', "%2F")
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
