//! What opens doors, and where the doors are. Nothing here is ever printed.

use std::fmt;

/// Tokens and keys, each for its own hosts.
#[derive(Clone, Default)]
pub struct Secrets {
    /// For the Hugging Face hub.
    pub huggingface: Option<String>,
    /// For ModelScope.
    pub modelscope: Option<String>,
    /// For a bucket.
    pub bucket: Option<Keys>,
}

/// Keys for a bucket.
#[derive(Clone)]
pub struct Keys {
    /// Which key.
    pub id: String,
    /// The key.
    pub secret: String,
    /// Goes with keys that end soon.
    pub session: Option<String>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |secret: bool| if secret { "set" } else { "none" };
        f.debug_struct("Secrets")
            .field("huggingface", &has(self.huggingface.is_some()))
            .field("modelscope", &has(self.modelscope.is_some()))
            .field("bucket", &has(self.bucket.is_some()))
            .finish()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// Where hubs and buckets are, where that isn't the usual place.
#[derive(Debug, Clone, Default)]
pub struct Endpoints {
    /// Of the Hugging Face hub, or a mirror of it.
    pub huggingface: Option<String>,
    /// Of ModelScope.
    pub modelscope: Option<String>,
    /// Of buckets.
    pub bucket: Option<String>,
    /// The bucket's region.
    pub region: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let keys = Keys { id: "AKIA".into(), secret: "s3cret".into(), session: Some("sess".into()) };
        let secrets = Secrets { huggingface: Some("hf_token".into()), modelscope: None, bucket: Some(keys.clone()) };
        let shown = format!("{secrets:?} {keys:?}");
        assert!(["AKIA", "s3cret", "sess", "hf_token"].iter().all(|secret| !shown.contains(secret)), "{shown}");
    }
}
