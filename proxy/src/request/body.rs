//! Reading a request's body into memory, within bounds: of one body, of all bodies together, and of a client's time.

pub(crate) mod inflate;
mod progress;
mod shares;

pub(crate) use progress::Progress;
pub(crate) use shares::{Share, Shares};

use crate::auth::Tenant;
use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Shortest time a body gets however small it is.
const SHORTEST: Duration = Duration::from_secs(10);
/// Bytes per second that the largest body must come with in all.
const SLOWEST: usize = 16 * 1024;
/// Bytes of an unwanted body that are read and thrown away, so that a client that still sends gets to read the answer
/// instead of a reset connection.
const DISCARDED: usize = 4 << 20;
/// How long that may take.
const DISCARD: Duration = Duration::from_secs(2);

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Over the limit, bytes.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// All bodies together, or those of this tenant, fill the memory that they may take.
    #[error("too many request bodies are in memory, or too many of this client's; retry later")]
    NoRoom,
    /// The same of the disk, for forms.
    #[error("too many forms are on the disk, or too many of this client's; retry later")]
    NoDisk,
    /// The disk fails.
    #[error("the form could not be kept on the disk; whoever runs this endpoint finds the reason in its log")]
    Disk,
    /// Not in the way that its head says.
    #[error("the body is not compressed as content-encoding says, or broke off")]
    NotCompressed,
    /// The client sends too slowly, or has stopped.
    #[error("the body did not arrive in time")]
    TooSlow,
    /// The client went away, or broke HTTP.
    #[error("the body broke off")]
    Broken,
}

/// What bodies may take.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    /// One body, bytes.
    pub(crate) body: usize,
    /// Longest pause between two pieces.
    pub(crate) pause: Duration,
    /// All bodies together.
    pub(crate) shares: Shares,
}

/// Reads `body` of `tenant` to its end.
///
/// # Errors
/// One of the bounds is passed, or the client went away.
pub(crate) async fn read<B>(body: &mut B, tenant: Tenant, bounds: &Bounds) -> Result<(Bytes, Share), Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if expected > bounds.body {
        return Err(Error::TooLarge(bounds.body));
    }
    let mut share = bounds.shares.open(tenant).ok_or(Error::NoRoom)?;
    let in_all = SHORTEST + Duration::from_secs((bounds.body / SLOWEST) as u64);
    let bytes = timeout(in_all, collect(body, bounds, &mut share)).await.map_err(|_| Error::TooSlow)??;
    Ok((bytes, share))
}

async fn collect<B>(body: &mut B, bounds: &Bounds, share: &mut Share) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut pieces = Pieces::default();
    let mut progress = Progress::new(bounds.pause, Instant::now());
    loop {
        let frame = timeout_at(progress.deadline(), body.frame()).await;
        if progress.is_stuck(Instant::now()) && !matches!(frame, Ok(None)) {
            return Err(Error::TooSlow);
        }
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(pieces.whole()),
            Err(_) => continue,
        };
        let Ok(piece) = frame.map_err(|_| Error::Broken)?.into_data() else { continue };
        progress.came(piece.len(), Instant::now());
        if pieces.len() + piece.len() > bounds.body {
            return Err(Error::TooLarge(bounds.body));
        }
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(0).min(bounds.body);
        if !pieces.push(piece, announced, share) {
            return Err(Error::NoRoom);
        }
    }
}

/// What has come of a body: the first piece as it came, which often is all; with a second one, all in one buffer. What is
/// allocated is reserved before, so that a client can't make more of it by announcing a body that it never sends.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    joined: Vec<u8>,
}

impl Pieces {
    fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    /// Takes a piece, after which `announced` more bytes are expected; `false`, and the piece lost, when `share` can't
    /// have the memory.
    fn push(&mut self, piece: Bytes, announced: usize, share: &mut Share) -> bool {
        if self.len() == 0 {
            self.first = piece;
            return share.grow(self.first.len());
        }
        let needed = self.len() + piece.len();
        if needed > self.joined.capacity() {
            let capacity = needed.max((needed * 2).min(needed + announced));
            let reserved = self.first.len() + self.joined.capacity();
            if !share.grow(capacity - reserved) {
                return false;
            }
            self.joined.reserve_exact(capacity - self.joined.len());
        }
        if !self.first.is_empty() {
            self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.joined.extend_from_slice(&piece);
        true
    }

    fn whole(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.into() }
    }
}

/// Throws away what a client still sends of a body that nobody wants, within bounds.
pub(crate) async fn discard<B>(body: &mut B)
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut left = DISCARDED;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(less) => left = less,
                None => break,
            }
        }
    };
    // Whether it ended in time makes no difference to the answer.
    let _ = timeout(DISCARD, reading).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};
    use std::convert::Infallible;

    fn pieces(pieces: &[&'static str]) -> impl Body<Data = Bytes> + Unpin + use<> {
        let frames: Vec<_> =
            pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::from_static(piece.as_bytes())))).collect();
        StreamBody::new(stream::iter(frames))
    }

    fn bounds() -> Bounds {
        Bounds { body: 10, pause: Duration::from_millis(50), shares: Shares::new(15) }
    }

    async fn read<B: Body<Data = Bytes> + Unpin>(body: &mut B, bounds: &Bounds) -> Result<(Bytes, Share), Error> {
        super::read(body, Tenant::Owner, bounds).await
    }

    #[tokio::test]
    async fn pieces_are_joined_in_order() {
        let (bytes, _) = read(&mut pieces(&["a", "bc", "", "def"]), &bounds()).await.unwrap();
        assert_eq!(bytes, "abcdef");
    }

    /// A client that announces much and sends little must get no more memory than is counted.
    #[test]
    fn what_is_allocated_is_reserved() {
        let shares = Shares::new(1 << 20);
        let mut share = shares.open(Tenant::Owner).unwrap();
        let mut pieces = Pieces::default();
        for sent in 1..=50 {
            assert!(pieces.push(Bytes::from_static(b"ab"), (64 << 20) - 2 * sent, &mut share));
            assert_eq!(pieces.first.len() + pieces.joined.capacity(), shares.used());
            assert!(shares.used() <= 4 * sent, "{} for {} bytes", shares.used(), 2 * sent);
        }
        // The end is known: no more is taken than it needs.
        while pieces.len() < 150 {
            assert!(pieces.push(Bytes::from_static(b"ab"), 148 - pieces.len(), &mut share));
        }
        assert!(shares.used() <= 200, "{}", shares.used());
        assert_eq!(pieces.whole(), "ab".repeat(75));
    }

    #[tokio::test]
    async fn one_piece_is_not_copied() {
        let whole = Bytes::from_static(b"0123456789");
        let (bytes, _) = read(&mut Full::new(whole.clone()), &bounds()).await.unwrap();
        assert_eq!(bytes.as_ptr(), whole.as_ptr());
    }

    #[tokio::test]
    async fn too_much_is_refused_announced_or_not() {
        let announced = read(&mut Full::new(Bytes::from_static(b"0123456789a")), &bounds()).await;
        assert!(matches!(announced, Err(Error::TooLarge(10))));
        assert!(matches!(read(&mut pieces(&["012345", "6789a"]), &bounds()).await, Err(Error::TooLarge(10))));
    }

    #[tokio::test]
    async fn all_bodies_share_the_room_and_give_it_back() {
        let bounds = bounds();
        let held = read(&mut pieces(&["01234567"]), &bounds).await.unwrap();
        assert!(matches!(read(&mut pieces(&["01234567"]), &bounds).await, Err(Error::NoRoom)));
        drop(held);
        assert!(read(&mut pieces(&["01234567"]), &bounds).await.is_ok());
    }

    #[tokio::test]
    async fn a_client_that_stops_is_not_waited_for() {
        let mut stopped = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        assert!(matches!(read(&mut stopped, &bounds()).await, Err(Error::TooSlow)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_trickles_is_not_waited_for() {
        let trickle = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x"))), ()))
        });
        let mut trickle = StreamBody::new(Box::pin(trickle));
        let (bounds, since) =
            (Bounds { body: 1 << 20, pause: Duration::from_secs(20), shares: Shares::new(1 << 20) }, Instant::now());
        assert!(matches!(read(&mut trickle, &bounds).await, Err(Error::TooSlow)));
        assert_eq!(since.elapsed().as_secs(), 20);
        assert_eq!(bounds.shares.used(), 0);
    }
}
