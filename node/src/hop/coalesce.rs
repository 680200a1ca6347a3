//! A body as HTTP/2 should get it: no empty chunks, and small chunks that are ready together sent together.

use super::stall;
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// Chunks are joined up to about this many bytes, which is HTTP/2's usual frame.
const JOINED: usize = 16 * 1024;
/// A chunk of this size is passed on as it is: copying it would cost more than a frame of its own.
const LARGE: usize = 4 * 1024;
/// Empty or tiny chunks taken in one poll, so that a body that always has one can't keep the thread.
const CHUNKS: usize = 256;

pin_project! {
    /// Wraps a body so that its reader never sees an empty chunk and gets what is ready at once, never later.
    ///
    /// h2 ends a connection after 100 empty DATA frames, and counts a frame of less than 256 unread bytes as 256.
    /// Trailers and errors come through in order.
    #[derive(Debug)]
    pub struct Coalesce<B: Body> {
        #[pin]
        inner: B,
        held: Option<Result<Frame<Bytes>, B::Error>>,
        ended: bool,
    }
}

impl<B: Body<Data = Bytes>> Coalesce<B> {
    /// Wraps a body.
    pub fn new(inner: B) -> Self {
        Self { inner, held: None, ended: false }
    }
}

/// What follows the chunks that were joined.
enum Next<E> {
    NotReady,
    End,
    Held(Result<Frame<Bytes>, E>),
}

impl<B: Body<Data = Bytes>> Body for Coalesce<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        if let Some(held) = this.held.take() {
            stall::note(stall::Body::Yielded);
            return Poll::Ready(Some(held));
        }
        if *this.ended {
            return Poll::Ready(None);
        }
        let first = match next_filled(this.inner.as_mut(), cx) {
            Poll::Pending => {
                stall::note(stall::Body::Waits);
                return Poll::Pending;
            }
            Poll::Ready(next) => next,
        };
        stall::note(stall::Body::Yielded);
        let chunk = match first {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(chunk) => chunk,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            },
            end => {
                *this.ended = end.is_none();
                return Poll::Ready(end);
            }
        };
        if chunk.len() >= LARGE {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        let (chunk, next) = join(this.inner, cx, chunk);
        match next {
            Next::NotReady => {}
            Next::End => *this.ended = true,
            Next::Held(held) => *this.held = Some(held),
        }
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && (self.ended || self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The next frame that is not an empty chunk.
fn next_filled<B: Body<Data = Bytes>>(
    mut inner: Pin<&mut B>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
    for _ in 0..CHUNKS {
        match inner.as_mut().poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
            other => return other,
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Adds to a chunk those that are ready as well.
fn join<B: Body<Data = Bytes>>(mut inner: Pin<&mut B>, cx: &mut Context<'_>, first: Bytes) -> (Bytes, Next<B::Error>) {
    let mut joined: Option<BytesMut> = None;
    let mut next = Next::NotReady;
    let mut length = first.len();
    for _ in 0..CHUNKS {
        if length >= JOINED {
            break;
        }
        if inner.is_end_stream() {
            next = Next::End;
            break;
        }
        let frame = match inner.as_mut().poll_frame(cx) {
            Poll::Pending => break,
            Poll::Ready(None) => {
                next = Next::End;
                break;
            }
            Poll::Ready(Some(Err(error))) => {
                next = Next::Held(Err(error));
                break;
            }
            Poll::Ready(Some(Ok(frame))) => frame,
        };
        match frame.into_data() {
            Ok(chunk) if chunk.len() >= LARGE => {
                next = Next::Held(Ok(Frame::data(chunk)));
                break;
            }
            Ok(chunk) => {
                length += chunk.len();
                joined.get_or_insert_with(|| BytesMut::from(first.as_ref())).extend_from_slice(&chunk);
            }
            Err(trailers) => {
                next = Next::Held(Ok(trailers));
                break;
            }
        }
    }
    (joined.map_or(first, BytesMut::freeze), next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::task::noop_waker;
    use http::HeaderMap;
    use http_body_util::BodyExt;
    use std::collections::VecDeque;

    /// Plays a script; `None` is "not ready yet".
    struct Script(VecDeque<Option<Result<Frame<Bytes>, &'static str>>>);

    impl Body for Script {
        type Data = Bytes;
        type Error = &'static str;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            match self.0.pop_front() {
                None => Poll::Ready(None),
                Some(None) => Poll::Pending,
                Some(Some(frame)) => Poll::Ready(Some(frame)),
            }
        }
    }

    fn data(text: &'static str) -> Option<Result<Frame<Bytes>, &'static str>> {
        Some(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))
    }

    /// What a reader sees: chunks as text, `-` for pending, `T` for trailers, `E` for an error.
    fn read(script: impl IntoIterator<Item = Option<Result<Frame<Bytes>, &'static str>>>) -> Vec<String> {
        let mut body = Coalesce::new(Script(script.into_iter().collect()));
        let waker = noop_waker();
        let mut cx = Context::from_waker(&waker);
        let mut seen = Vec::new();
        loop {
            match Pin::new(&mut body).poll_frame(&mut cx) {
                Poll::Pending => seen.push("-".to_owned()),
                Poll::Ready(None) => return seen,
                Poll::Ready(Some(Err(_))) => {
                    seen.push("E".to_owned());
                    return seen;
                }
                Poll::Ready(Some(Ok(frame))) => seen.push(match frame.into_data() {
                    Ok(chunk) => String::from_utf8(chunk.to_vec()).unwrap(),
                    Err(_) => "T".to_owned(),
                }),
            }
        }
    }

    #[test]
    fn joins_what_is_ready_and_waits_for_nothing() {
        assert_eq!(read([data("a"), data("b"), None, data("c")]), ["ab", "c"]);
        assert_eq!(read([data("a"), None, None, data("b"), data("c")]), ["a", "-", "bc"]);
    }

    #[test]
    fn drops_empty_chunks() {
        assert_eq!(read([data(""), data(""), data("a"), data(""), data("b"), data("")]), ["ab"]);
        assert_eq!(read([data(""), None, data("")]), ["-"]);
    }

    #[test]
    fn keeps_trailers_and_errors_in_order() {
        let trailers = Some(Ok(Frame::trailers(HeaderMap::new())));
        assert_eq!(read([data("a"), data("b"), trailers]), ["ab", "T"]);
        assert_eq!(read([data("a"), Some(Err("broken"))]), ["a", "E"]);
    }

    #[test]
    fn a_large_chunk_is_neither_copied_nor_joined() {
        let large = "x".repeat(LARGE);
        let leaked: &'static str = large.clone().leak();
        assert_eq!(read([data("a"), data(leaked), data("b")]), ["a".to_owned(), large, "b".to_owned()]);
    }

    #[test]
    fn a_body_that_is_always_ready_gives_the_thread_back() {
        let seen = read(std::iter::repeat_with(|| data("")).take(CHUNKS + 1).chain([data("a")]));
        assert_eq!(seen, ["-", "a"]);
    }

    #[test]
    fn the_last_chunk_is_known_to_be_the_last() {
        let mut body = Coalesce::new(Script([data("a"), data("b")].into()));
        let waker = noop_waker();
        let frame = Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker));
        assert!(frame.is_ready() && body.is_end_stream());
        assert!(
            Coalesce::new(http_body_util::Empty::<Bytes>::new().map_err(|never| match never {})).is_end_stream_of()
        );
    }

    impl<B: Body<Data = Bytes, Error = &'static str>> Coalesce<B> {
        fn is_end_stream_of(&self) -> bool {
            self.is_end_stream()
        }
    }
}
