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
const LINE_BYTES: usize = dunlin_protocol::limits::POD_LINE_BYTES;

/// Where both pipes of an engine go; `None` when the file could not be opened or written any more.
pub(crate) type LogFile = Arc<Mutex<Option<RotatedFile>>>;

/// Reads `pipe` to its end. Never stops reading for any other reason: an engine whose pipe is full hangs.
pub(crate) async fn capture(mut pipe: impl AsyncRead + Unpin, output: Arc<Output>, file: LogFile) {
    let mut lines = Lines::default();
    let mut buffer = vec![0; READ_BYTES];
    // Of a line that hasn't ended nothing is written yet: what came by the other pipe would land in its middle.
    let mut unwritten = Vec::new();
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        lines.take(&buffer[..read], |line| output.push(line));
        unwritten.extend_from_slice(&buffer[..read]);
        let whole = if unwritten.len() > LINE_BYTES { unwritten.len() } else { whole_lines(&unwritten) };
        if whole > 0 {
            write(&file, &unwritten[..whole]).await;
            unwritten.drain(..whole);
        }
    }
    lines.end(|line| output.push(line));
    if !unwritten.is_empty() {
        unwritten.push(b'\n');
        write(&file, &unwritten).await;
    }
}

/// How many of `bytes` belong to lines that have ended.
fn whole_lines(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&byte| is_line_end(byte)).map_or(0, |end| end + 1)
}

/// A carriage return ends a line as well: progress bars would never end otherwise.
fn is_line_end(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
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

/// Cuts bytes into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    pub(crate) fn take(&mut self, mut bytes: &[u8], mut push: impl FnMut(&str)) {
        while let Some(end) = bytes.iter().position(|&byte| is_line_end(byte)) {
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
    pub(crate) fn end(&mut self, mut push: impl FnMut(&str)) {
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

    #[tokio::test]
    async fn lines_of_two_pipes_do_not_mix_in_the_file() {
        use tokio::io::AsyncWriteExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("engine.log");
        let file = Arc::new(Mutex::new(Some(RotatedFile::open(path.clone(), 1 << 20).await.unwrap())));
        let output = Arc::new(Output::default());
        let ((mut stdout, out), (mut stderr, err)) = (tokio::io::duplex(64), tokio::io::duplex(64));
        let readers =
            [tokio::spawn(capture(out, output.clone(), file.clone())), tokio::spawn(capture(err, output, file))];
        for (pipe, piece) in [(true, "one "), (false, "of stderr\n"), (true, "of stdout\nlast"), (false, "no end")] {
            let pipe = if pipe { &mut stdout } else { &mut stderr };
            pipe.write_all(piece.as_bytes()).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        drop((stdout, stderr));
        for reader in readers {
            reader.await.unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        let mut lines: Vec<_> = written.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["last", "no end", "of stderr", "one of stdout"]);
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
