//! From an engine's pipe to the ring and the file.

use super::{Output, file::RotatedFile};
use std::sync::Arc;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::Mutex,
};

/// One read of a pipe: what a pipe holds.
const READ_BYTES: usize = 64 * 1024;
/// A longer line is cut into several.
const LINE_BYTES: usize = 8 * 1024;

/// Where both pipes of an engine go; `None` when the file could not be opened or written any more.
pub(crate) type LogFile = Arc<Mutex<Option<RotatedFile>>>;

/// Reads `pipe` to its end. Never stops reading for any other reason: an engine whose pipe is full hangs.
pub(crate) async fn capture(mut pipe: impl AsyncRead + Unpin, output: Arc<Output>, file: LogFile) {
    let mut lines = Lines::default();
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        lines.take(&buffer[..read], |line| output.push(line));
        write(&file, &buffer[..read]).await;
    }
    lines.end(|line| output.push(line));
}

/// Writes bytes to the file, as long as it can be written.
pub(crate) async fn write(file: &LogFile, bytes: &[u8]) {
    let mut guard = file.lock().await;
    let Some(open) = guard.as_mut() else { return };
    if let Err(error) = open.write(bytes).await {
        tracing::warn!(%error, "engine output no longer goes to its file");
        *guard = None;
    }
}

/// Cuts bytes into lines. A carriage return ends a line as well: progress bars would never end otherwise.
#[derive(Debug, Default)]
struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    fn take(&mut self, mut bytes: &[u8], mut push: impl FnMut(&str)) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n' || byte == b'\r') {
            self.grow(&bytes[..end], &mut push);
            self.end(&mut push);
            bytes = &bytes[end + 1..];
        }
        self.grow(bytes, &mut push);
    }

    fn grow(&mut self, mut bytes: &[u8], push: &mut impl FnMut(&str)) {
        while self.partial.len() + bytes.len() > LINE_BYTES {
            let (now, later) = bytes.split_at(LINE_BYTES - self.partial.len());
            self.partial.extend_from_slice(now);
            self.end(&mut *push);
            bytes = later;
        }
        self.partial.extend_from_slice(bytes);
    }

    /// The line so far, unless it is empty.
    fn end(&mut self, mut push: impl FnMut(&str)) {
        if !self.partial.is_empty() {
            push(&String::from_utf8_lossy(&self.partial));
            self.partial.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.take(piece, |line| found.push(line.to_owned()));
        }
        lines.end(|line| found.push(line.to_owned()));
        found
    }

    #[test]
    fn cuts_lines_wherever_reads_end() {
        assert_eq!(lines(&[b"a\nb", b"c\r\n\n", b"10%\r20%\rlast"]), ["a", "bc", "10%", "20%", "last"]);
        assert_eq!(lines(&[b"\xff\n"]), ["\u{fffd}"]);
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let long = vec![b'x'; LINE_BYTES * 2 + 5];
        let sizes: Vec<_> = lines(&[&long]).iter().map(String::len).collect();
        assert_eq!(sizes, [LINE_BYTES, LINE_BYTES, 5]);
    }
}
