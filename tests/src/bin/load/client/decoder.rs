//! The framing of HTTP/1.1 answers, without I/O: bytes in, status and body out, split wherever the network likes.

use std::io;

/// A line of a head or of a chunk's size may not be longer.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// How far an answer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The head is not complete.
    Head,
    /// The head is complete, the body is not.
    Body,
    /// The answer is complete.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    StatusLine,
    Headers,
    Sized(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    Done,
}

/// Decodes one answer after the other; [`Decoder::start`] stands before each.
#[derive(Debug)]
pub(crate) struct Decoder {
    state: State,
    status: u16,
    content_length: Option<u64>,
    chunked: bool,
    /// The beginning of a line whose end has not arrived.
    partial: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { state: State::StatusLine, status: 0, content_length: None, chunked: false, partial: Vec::new() }
    }
}

impl Decoder {
    /// Forgets the answer before and waits for the next.
    pub(crate) fn start(&mut self) {
        self.state = State::StatusLine;
        self.status = 0;
        self.content_length = None;
        self.chunked = false;
        self.partial.clear();
    }

    /// The status of the answer; 0 as long as its first line is not there.
    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Takes bytes, appends those of the body to `body`, and says how many it took and how far the answer has come.
    /// It takes all of them unless the answer ends before.
    pub(crate) fn feed(&mut self, input: &[u8], body: &mut Vec<u8>) -> io::Result<(usize, Progress)> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            let rest = &input[at..];
            match self.state {
                State::Sized(left) => {
                    let taken = take_body(rest, left, body);
                    at += taken;
                    let left = left - taken as u64;
                    self.state = if left == 0 { State::Done } else { State::Sized(left) };
                }
                State::Chunk(left) => {
                    let taken = take_body(rest, left, body);
                    at += taken;
                    let left = left - taken as u64;
                    self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                }
                _ => at += self.feed_line(rest)?,
            }
        }
        Ok((at, self.progress()))
    }

    fn progress(&self) -> Progress {
        match self.state {
            State::StatusLine | State::Headers => Progress::Head,
            State::Done => Progress::Done,
            _ => Progress::Body,
        }
    }

    /// Takes up to the end of a line, and acts on the line if its end was there.
    fn feed_line(&mut self, rest: &[u8]) -> io::Result<usize> {
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            if self.partial.len() + rest.len() > LINE_BYTES_MAX {
                return Err(malformed("a line without end"));
            }
            self.partial.extend_from_slice(rest);
            return Ok(rest.len());
        };
        if self.partial.is_empty() {
            self.on_line(without_cr(&rest[..end]))?;
        } else {
            let mut line = std::mem::take(&mut self.partial);
            line.extend_from_slice(&rest[..end]);
            self.on_line(without_cr(&line))?;
            line.clear();
            self.partial = line;
        }
        Ok(end + 1)
    }

    fn on_line(&mut self, line: &[u8]) -> io::Result<()> {
        match self.state {
            State::StatusLine => {
                self.status = status_of(line).ok_or_else(|| malformed("no status line"))?;
                self.state = State::Headers;
            }
            State::Headers if line.is_empty() => self.state = self.after_head()?,
            State::Headers => self.on_header(line)?,
            State::ChunkSize => {
                let digits = line.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
                let size = number(digits, 16).ok_or_else(|| malformed("no chunk size"))?;
                self.state = if size == 0 { State::Trailers } else { State::Chunk(size) };
            }
            State::ChunkEnd if line.is_empty() => self.state = State::ChunkSize,
            State::ChunkEnd => return Err(malformed("a chunk longer than its size")),
            State::Trailers if line.is_empty() => self.state = State::Done,
            State::Trailers => {}
            State::Sized(_) | State::Chunk(_) | State::Done => unreachable!("lines are not read in a body"),
        }
        Ok(())
    }

    fn on_header(&mut self, line: &[u8]) -> io::Result<()> {
        let colon = line.iter().position(|&byte| byte == b':').ok_or_else(|| malformed("a header without colon"))?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = number(value.trim_ascii(), 10).ok_or_else(|| malformed("no content length"))?;
            self.content_length = Some(length);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.chunked = value.trim_ascii().eq_ignore_ascii_case(b"chunked");
        }
        Ok(())
    }

    fn after_head(&mut self) -> io::Result<State> {
        Ok(match (self.status, self.chunked, self.content_length) {
            // An interim answer: the real one follows.
            (100..=199, ..) => {
                self.start();
                State::StatusLine
            }
            (204 | 304, ..) => State::Done,
            (_, true, _) => State::ChunkSize,
            (_, false, Some(0)) => State::Done,
            (_, false, Some(length)) => State::Sized(length),
            (_, false, None) => return Err(malformed("neither a length nor chunks")),
        })
    }
}

fn take_body(rest: &[u8], left: u64, body: &mut Vec<u8>) -> usize {
    let taken = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
    body.extend_from_slice(&rest[..taken]);
    taken
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn status_of(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    u16::try_from(number(rest.get(2..5)?, 10)?).ok()
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.is_empty() || digits.len() > 15 {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, &byte| Some(sum * u64::from(radix) + u64::from((byte as char).to_digit(radix)?)))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the answer is malformed: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nX: y\r\n\r\nhello\nworld";
    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhello\n\r\n5;ext=1\r\nworld\r\n0\r\nt: r\r\n\r\n";
    const EMPTY: &[u8] = b"HTTP/1.1 204 No Content\r\ndate: now\r\n\r\n";
    const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno";

    fn decode(pieces: &[&[u8]]) -> (u16, Vec<u8>) {
        let (mut decoder, mut body) = (Decoder::default(), Vec::new());
        decoder.start();
        let mut last = Progress::Head;
        for piece in pieces {
            let (taken, progress) = decoder.feed(piece, &mut body).expect("well formed");
            assert_eq!(taken, piece.len());
            last = progress;
        }
        assert_eq!(last, Progress::Done);
        (decoder.status(), body)
    }

    #[test]
    fn an_answer_reads_the_same_wherever_it_is_split() {
        let cases: [(&[u8], u16, &[u8]); 4] =
            [(SIZED, 200, b"hello\nworld"), (CHUNKED, 200, b"hello\nworld"), (EMPTY, 204, b""), (INTERIM, 413, b"no")];
        for (bytes, status, body) in cases {
            let expected = (status, body.to_vec());
            assert_eq!(decode(&[bytes]), expected);
            for first in 1..bytes.len() {
                assert_eq!(decode(&[&bytes[..first], &bytes[first..]]), expected);
                for second in first + 1..bytes.len() {
                    assert_eq!(decode(&[&bytes[..first], &bytes[first..second], &bytes[second..]]), expected);
                }
            }
            let singly: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(decode(&singly), expected);
        }
    }

    #[test]
    fn bytes_after_the_end_are_left_and_the_next_answer_starts_clean() {
        let (mut decoder, mut body) = (Decoder::default(), Vec::new());
        let two = [CHUNKED, SIZED].concat();
        let (taken, progress) = decoder.feed(&two, &mut body).expect("well formed");
        assert_eq!((taken, progress), (CHUNKED.len(), Progress::Done));
        decoder.start();
        body.clear();
        let (taken, progress) = decoder.feed(&two[CHUNKED.len()..], &mut body).expect("well formed");
        assert_eq!((taken, progress), (SIZED.len(), Progress::Done));
        assert_eq!(body, b"hello\nworld");
    }

    #[test]
    fn what_is_not_http_is_refused() {
        let no_framing: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
        let bad_chunk: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
        let long_chunk: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n";
        let endless = vec![b'a'; LINE_BYTES_MAX + 1];
        for bytes in [b"SSH-2.0-x\r\n".as_slice(), no_framing, bad_chunk, long_chunk, &endless] {
            assert!(Decoder::default().feed(bytes, &mut Vec::new()).is_err());
        }
    }
}
