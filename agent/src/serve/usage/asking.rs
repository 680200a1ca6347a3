//! The request's body on its way to the engine, with the question for the usage written into it.

use bytes::{Buf, Bytes};
use dunlin_protocol::{
    endpoint::{self, Inference},
    hop::{ASK_USAGE, AskUsage},
    runtime::Runtime,
};
use http::{HeaderMap, Method, header};
use http_body::{Body, Frame, SizeHint};
use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// Where an engine of this runtime is to be asked for the usage in a request to `path`. The head is made to fit the
/// longer body.
pub(in crate::serve) fn asked(
    runtime: &Runtime,
    method: &Method,
    path: &str,
    headers: &mut HeaderMap,
) -> Option<AskUsage> {
    let at = headers.get(ASK_USAGE).and_then(|value| value.to_str().ok()).and_then(AskUsage::from_header)?;
    if !runtime.stream_usage || *method != Method::POST || !endpoint::at(path).is_some_and(Inference::is_completion) {
        return None;
    }
    headers.remove(header::CONTENT_LENGTH);
    Some(at)
}

/// A body in which some bytes give way to others.
pub(in crate::serve) struct Asking<B> {
    body: B,
    /// Bytes that pass before.
    before: u64,
    /// Bytes that give way.
    gives_way: u64,
    text: Option<&'static str>,
    ready: VecDeque<Bytes>,
}

impl<B> Asking<B> {
    /// `body` with what `at` says written into it.
    pub(in crate::serve) fn new(body: B, at: AskUsage) -> Self {
        let AskUsage { offset, length } = at;
        Self { body, before: offset, gives_way: length, text: Some(at.text()), ready: VecDeque::with_capacity(3) }
    }

    fn take(&mut self, mut chunk: Bytes) {
        let size =
            |count: u64, chunk: &Bytes| usize::try_from(count).map_or(chunk.len(), |count| count.min(chunk.len()));
        let before = chunk.split_to(size(self.before, &chunk));
        self.before -= before.len() as u64;
        self.ready.push_back(before);
        if self.before > 0 || chunk.is_empty() {
            return;
        }
        self.ready.extend(self.text.take().map(|text| Bytes::from_static(text.as_bytes())));
        let gone = size(self.gives_way, &chunk);
        chunk.advance(gone);
        self.gives_way -= gone as u64;
        self.ready.push_back(chunk);
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Asking<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        loop {
            while let Some(piece) = this.ready.pop_front() {
                if !piece.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
            }
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) => this.take(chunk),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let ready: u64 = self.ready.iter().map(|piece| piece.len() as u64).sum();
        let more = ready + self.text.map_or(0, |text| text.len() as u64);
        // A body that ends before the place is broken anyway: its length won't match.
        match self.body.size_hint().exact() {
            Some(left) => SizeHint::with_exact((left + more).saturating_sub(self.gives_way)),
            None => SizeHint::default(),
        }
    }
}
