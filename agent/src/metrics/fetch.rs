//! Gets a page of metrics.

use crate::engine::{Client, EngineUrl, client::Error};
use bytes::Buf;
use http::Request;
use http_body_util::BodyExt;

/// Largest page that is read, bytes: engines with many adapters or ranks stay below 1 MiB.
const PAGE_BYTES: usize = 4 << 20;

/// The page at `path`, into a buffer that is used again and again; empty when there is none. Has no deadline of its own.
///
/// # Errors
/// No connection, a broken one, or a page that is too long.
pub async fn fetch(client: &Client, url: &EngineUrl, path: &str, page: &mut Vec<u8>) -> Result<(), Error> {
    page.clear();
    let request = Request::get(url.join(path)?).body(axum::body::Body::empty())?;
    let answer = client.send(request).await?;
    let found = answer.status().is_success();
    let mut body = answer.into_body();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| Error::Body(error.into()))?.into_data() else { continue };
        if page.len() + data.remaining() > PAGE_BYTES {
            return Err(Error::TooLarge(PAGE_BYTES));
        }
        // Read to its end even when it is an error's, so that the connection can be used again.
        if found {
            page.extend_from_slice(&data);
        }
    }
    Ok(())
}
