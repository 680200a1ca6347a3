//! A request's body as it is sent to replicas, perhaps to several.

use crate::upload::Upload;
use bytes::Bytes;
use dunlin_node::hop::Body;
use dunlin_protocol::id::ModelId;

/// A body.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// All of it, in memory.
    Whole(Bytes),
    /// A form that may still be arriving, with a name to go out for its `model`, if not its own.
    Upload(Upload, Option<ModelId>),
}

impl Payload {
    /// Bytes that have come.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Upload(upload, _) => usize::try_from(upload.len()).unwrap_or(usize::MAX),
        }
    }

    /// The bytes, where they are in memory.
    pub(crate) fn whole(&self) -> Option<&Bytes> {
        match self {
            Self::Whole(bytes) => Some(bytes),
            Self::Upload(..) => None,
        }
    }

    /// All of it, for one replica.
    pub(crate) fn body(&self) -> Body {
        match self {
            Self::Whole(bytes) => Body::from(bytes.clone()),
            Self::Upload(upload, name) => upload.body(name.as_ref()),
        }
    }

    /// Ends when no more comes.
    pub(crate) async fn arrived(&self) {
        if let Self::Upload(upload, _) = self {
            upload.arrived().await;
        }
    }
}
