//! Compressed bodies, within the bounds that hold for others: what a body grows to is counted, not what came.

use super::{Error, Share};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::{HeaderMap, header};
use std::io::Read;
use tokio::task::spawn_blocking;

/// Bytes that are inflated at once.
const STEP: usize = 64 << 10;

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    /// As RFC 9110 names zlib's format.
    Deflate,
}

/// The coding that the head names; `None` for a body as it is.
///
/// # Errors
/// Another one, as written there.
pub(crate) fn coding(headers: &HeaderMap) -> Result<Option<Coding>, String> {
    let mut named = headers.get_all(header::CONTENT_ENCODING).iter();
    let Some(first) = named.next() else { return Ok(None) };
    let said = String::from_utf8_lossy(&first.as_bytes()[..first.len().min(32)]).trim().to_ascii_lowercase();
    match said.as_str() {
        _ if named.next().is_some() => Err("several".to_owned()),
        "" | "identity" => Ok(None),
        "gzip" | "x-gzip" => Ok(Some(Coding::Gzip)),
        "deflate" => Ok(Some(Coding::Deflate)),
        _ => Err(said),
    }
}

/// The body that `packed` stands for, of at most `limit` bytes.
///
/// # Errors
/// It is larger, there is no room for it, or it isn't so compressed.
pub(crate) async fn inflated(
    packed: Bytes,
    coding: Coding,
    limit: usize,
    mut share: Share,
) -> Result<(Bytes, Share), Error> {
    let work = move || {
        let mut reader: Box<dyn Read> = match coding {
            Coding::Gzip => Box::new(MultiGzDecoder::new(&packed[..])),
            Coding::Deflate => Box::new(ZlibDecoder::new(&packed[..])),
        };
        let mut out = Vec::new();
        loop {
            if out.len() == out.capacity() {
                let more = out.capacity().clamp(STEP, limit.max(STEP));
                if !share.grow(more) {
                    return Err(Error::NoRoom);
                }
                out.reserve_exact(more);
            }
            let room = (out.capacity() - out.len()) as u64;
            let before = out.len();
            reader.by_ref().take(room).read_to_end(&mut out).map_err(|_| Error::NotCompressed)?;
            if out.len() > limit {
                return Err(Error::TooLarge(limit));
            }
            if out.len() == before || out.len() < out.capacity() {
                return Ok((Bytes::from(out), share));
            }
        }
    };
    // Not for the node's only thread: a few bytes may stand for megabytes.
    spawn_blocking(work).await.unwrap_or(Err(Error::Broken))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{auth::Tenant, request::body::Shares};
    use flate2::{
        Compression,
        write::{GzEncoder, ZlibEncoder},
    };
    use http::HeaderValue;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap().into()
    }

    async fn inflate(packed: Bytes, coding: Coding, limit: usize, room: usize) -> Result<(Bytes, Share), Error> {
        let share = Shares::new(room).open(Tenant::Owner).unwrap();
        inflated(packed, coding, limit, share).await
    }

    #[tokio::test]
    async fn what_was_packed_comes_out() {
        for text in ["", "{}", &"{\"model\":\"m\"}".repeat(40_000)] {
            let (out, _) = inflate(gzip(text.as_bytes()), Coding::Gzip, 1 << 20, 64 << 20).await.unwrap();
            assert!(out == text);
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text.as_bytes()).unwrap();
            let packed = encoder.finish().unwrap().into();
            assert!(inflate(packed, Coding::Deflate, 1 << 20, 64 << 20).await.unwrap().0 == text);
        }
        let two = [gzip(b"a"), gzip(b"b")].concat().into();
        assert_eq!(inflate(two, Coding::Gzip, 9, 64 << 20).await.unwrap().0, "ab");
    }

    /// 64 MiB of zeros come in 64 KiB.
    #[tokio::test]
    async fn a_bomb_is_stopped_at_the_limit_and_by_the_room_that_there_is() {
        let bomb = gzip(&vec![0; 64 << 20]);
        assert!(bomb.len() < (100 << 10));
        let over = inflate(bomb.clone(), Coding::Gzip, 1 << 20, 512 << 20).await;
        assert!(matches!(over, Err(Error::TooLarge(limit)) if limit == 1 << 20));
        let shares = Shares::new(8 << 20);
        let share = shares.open(Tenant::Owner).unwrap();
        assert!(matches!(inflated(bomb, Coding::Gzip, 64 << 20, share).await, Err(Error::NoRoom)));
        assert_eq!(shares.used(), 0);
    }

    #[tokio::test]
    async fn what_is_not_so_compressed_is_refused() {
        let cut = gzip(b"hello hello hello");
        for (bytes, coding) in [
            (Bytes::from_static(b"{\"model\":\"m\"}"), Coding::Gzip),
            (Bytes::from_static(b"{\"model\":\"m\"}"), Coding::Deflate),
            (cut.slice(..cut.len() - 5), Coding::Gzip),
        ] {
            assert!(matches!(inflate(bytes, coding, 1 << 20, 64 << 20).await, Err(Error::NotCompressed)));
        }
    }

    #[test]
    fn codings_are_told_apart() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(value));
            }
            coding(&headers)
        };
        assert_eq!((of(&[]), of(&["identity"]), of(&["GZIP"])), (Ok(None), Ok(None), Ok(Some(Coding::Gzip))));
        assert_eq!(of(&["deflate"]), Ok(Some(Coding::Deflate)));
        assert_eq!((of(&["br"]), of(&["gzip, gzip"])), (Err("br".to_owned()), Err("gzip, gzip".to_owned())));
        assert!(of(&["identity", "gzip"]).is_err());
    }
}
