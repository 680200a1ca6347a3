//! Frames on one substream of a connection that nobody else drives yet.

use super::Error;
use dunlin_protocol::hello::{self, HEADER_BYTES};
use futures::{AsyncReadExt, AsyncWriteExt, future::poll_fn};
use libp2p::core::muxing::{StreamMuxerBox, StreamMuxerExt, SubstreamBox};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io,
    pin::pin,
    task::{Context, Poll},
};

/// Lets the connection itself make progress: acknowledgements, windows, new data for the substreams.
fn poll_connection(muxer: &mut StreamMuxerBox, cx: &mut Context<'_>) -> Poll<io::Error> {
    loop {
        match muxer.poll_unpin(cx) {
            Poll::Ready(Ok(_address_change)) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(error),
            Poll::Pending => return Poll::Pending,
        }
    }
}

/// Opens the first substream.
pub(super) async fn open(muxer: &mut StreamMuxerBox) -> io::Result<SubstreamBox> {
    poll_fn(|cx| {
        if let Poll::Ready(opened) = muxer.poll_outbound_unpin(cx) {
            return Poll::Ready(opened);
        }
        poll_connection(muxer, cx).map(Err)
    })
    .await
}

/// Waits for the first substream. Asking for one drives the connection as well.
pub(super) async fn accept(muxer: &mut StreamMuxerBox) -> io::Result<SubstreamBox> {
    poll_fn(|cx| muxer.poll_inbound_unpin(cx)).await
}

/// Runs `work` on a substream while its connection is driven.
pub(super) async fn drive<F: Future>(muxer: &mut StreamMuxerBox, work: F) -> io::Result<F::Output> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        match poll_connection(muxer, cx) {
            Poll::Pending => Poll::Pending,
            // The last words may have come with the end of the connection.
            Poll::Ready(error) => match work.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Ok(done)),
                Poll::Pending => Poll::Ready(Err(error)),
            },
        }
    })
    .await
}

/// Waits until the other side has closed the connection. Substreams that it opens meanwhile are dropped.
pub(super) async fn closed(muxer: &mut StreamMuxerBox) {
    poll_fn(|cx| {
        loop {
            match muxer.poll_inbound_unpin(cx) {
                Poll::Ready(Ok(substream)) => drop(substream),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return poll_connection(muxer, cx).map(drop),
            }
        }
    })
    .await;
}

pub(super) async fn write<T: Serialize>(stream: &mut SubstreamBox, message: &T) -> Result<(), Error> {
    stream.write_all(&hello::encode(message)?).await?;
    Ok(stream.flush().await?)
}

/// Reads one message; nothing of a body that is too large.
pub(super) async fn read<T: DeserializeOwned>(stream: &mut SubstreamBox) -> Result<T, Error> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    let length = hello::body_length(&header)?;
    // Grows with what arrives, so that a header alone costs nothing.
    let mut body = Vec::new();
    (&mut *stream).take(length as u64).read_to_end(&mut body).await?;
    if body.len() < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(hello::decode(&body)?)
}

/// Ends this side's half.
pub(super) async fn close(stream: &mut SubstreamBox) -> Result<(), Error> {
    Ok(stream.close().await?)
}

/// Ends this side's half, and sees the other side's end, so that the substream leaves no trace in the muxer.
pub(super) async fn finish(stream: &mut SubstreamBox) -> Result<(), Error> {
    stream.close().await?;
    let mut more = [0; 1];
    match stream.read(&mut more).await? {
        0 => Ok(()),
        _ => Err(hello::Error::NotDunlin.into()),
    }
}
