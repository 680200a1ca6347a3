//! Server-sent events as chat clients need them: the `data` of each event, whatever the line ends, however the bytes
//! are cut.

/// Longest line; an engine that sends more is not streaming tokens.
const LINE_BYTES: usize = 8 << 20;

/// The stream had a line over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line of the stream is over {LINE_BYTES} bytes")]
pub(crate) struct TooLong;

/// Turns bytes into events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    buffer: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The last line ended with a CR: an LF that comes next belongs to it.
    after_cr: bool,
}

impl Events {
    /// Takes the next bytes and returns the data of each event that they complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, TooLong> {
        self.buffer.extend_from_slice(bytes);
        let mut events = Vec::new();
        let mut start = 0;
        while let Some(length) = self.buffer[start..].iter().position(|&b| matches!(b, b'\n' | b'\r')) {
            let line = self.buffer[start..start + length].to_vec();
            let cr = self.buffer[start + length] == b'\r';
            start += length + 1;
            let second_half = std::mem::replace(&mut self.after_cr, cr) && !cr && line.is_empty();
            if !second_half {
                self.line(&line, &mut events);
            }
        }
        self.buffer.drain(..start);
        if self.buffer.len().max(self.data.len()) > LINE_BYTES {
            return Err(TooLong);
        }
        Ok(events)
    }

    fn line(&mut self, line: &[u8], events: &mut Vec<Vec<u8>>) {
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                events.push(std::mem::take(&mut self.data));
            }
            return;
        }
        let Some(data) = line.strip_prefix(b"data:") else { return };
        if std::mem::replace(&mut self.has_data, true) {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b": wait\n\ndata: one\n\ndata:two\r\n\r\nevent: x\ndata: a\ndata: b\n\ndata: [DONE]\n\n";

    #[test]
    fn events_come_out_however_the_bytes_are_cut() {
        let whole = Events::default().push(STREAM).unwrap();
        assert_eq!(whole, [b"one".to_vec(), b"two".to_vec(), b"a\nb".to_vec(), b"[DONE]".to_vec()]);
        for cut in 0..STREAM.len() {
            let mut events = Events::default();
            let mut got = events.push(&STREAM[..cut]).unwrap();
            got.extend(events.push(&STREAM[cut..]).unwrap());
            assert_eq!(got, whole, "cut at {cut}");
        }
    }

    #[test]
    fn lines_end_as_the_standard_allows() {
        for end in ["\n", "\r\n", "\r"] {
            let stream = "data: a\ndata: b\n\n: wait\n\ndata: c\n\n".replace('\n', end);
            for cut in 0..stream.len() {
                let mut events = Events::default();
                let mut got = events.push(&stream.as_bytes()[..cut]).unwrap();
                got.extend(events.push(&stream.as_bytes()[cut..]).unwrap());
                assert_eq!(got, [b"a\nb".to_vec(), b"c".to_vec()], "{end:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut events = Events::default();
        let chunk = vec![b'x'; 1 << 20];
        assert!((0..=8).any(|_| events.push(&chunk).is_err()));
    }
}
