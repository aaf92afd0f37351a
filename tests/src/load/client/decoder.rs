//! The framing of HTTP/1.1 responses, without I/O: bytes in, status and body out, however the input is split.
//!
//! Heads and chunk sizes are parsed by `httparse`, which costs no more than a decoder written for this purpose: 0.13 µs
//! instead of 0.15 µs for the response to a produce, and 1.1 µs instead of 1.8 µs for 50 chunks of a stream.

use std::io;

use httparse::Status;

/// A head, a chunk's size line or the trailers may not be longer.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 32;

/// How much of a response was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseState {
    /// The head is not complete.
    Head,
    /// The head is complete, the body is not.
    Body,
    /// The response is complete.
    Complete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Sized(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    Complete,
}

/// Decodes one response after the other; [`Decoder::start`] precedes each.
#[derive(Debug)]
pub(crate) struct Decoder {
    state: State,
    status: u16,
    /// The beginning of a head, a size line or trailers whose end has not arrived.
    partial: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { state: State::Head, status: 0, partial: Vec::new() }
    }
}

impl Decoder {
    /// Discards the previous response.
    pub(crate) fn start(&mut self) {
        self.state = State::Head;
        self.status = 0;
        self.partial.clear();
    }

    /// The status of the response; 0 until its head is complete.
    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Decodes bytes, appends those of the body to `body`, and returns how many were used and how much of the response
    /// was received. All bytes are used unless the response ends before.
    pub(crate) fn feed(&mut self, input: &[u8], body: &mut Vec<u8>) -> io::Result<(usize, ResponseState)> {
        let mut at = 0;
        while at < input.len() && self.state != State::Complete {
            let rest = &input[at..];
            match self.state {
                State::Sized(left) => {
                    let taken = take_body(rest, left, body);
                    at += taken;
                    let left = left - taken as u64;
                    self.state = if left == 0 { State::Complete } else { State::Sized(left) };
                }
                State::Chunk(left) => {
                    let taken = take_body(rest, left, body);
                    at += taken;
                    let left = left - taken as u64;
                    self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                }
                _ if self.partial.is_empty() => match self.parse(rest)? {
                    Some(len) => at += len,
                    None => at += self.parse_kept(rest)?,
                },
                _ => at += self.parse_kept(rest)?,
            }
        }
        let state = match self.state {
            State::Head => ResponseState::Head,
            State::Complete => ResponseState::Complete,
            _ => ResponseState::Body,
        };
        Ok((at, state))
    }

    /// Parses the kept bytes together with `rest`. Returns how many bytes of `rest` were used.
    fn parse_kept(&mut self, rest: &[u8]) -> io::Result<usize> {
        let kept = self.partial.len();
        let more = &rest[..rest.len().min(HEAD_BYTES_MAX - kept)];
        self.partial.extend_from_slice(more);
        let mut bytes = std::mem::take(&mut self.partial);
        let used = match self.parse(&bytes)? {
            Some(len) => {
                bytes.clear();
                len - kept
            }
            None if bytes.len() == HEAD_BYTES_MAX => return Err(malformed("the head does not end")),
            None => more.len(),
        };
        self.partial = bytes;
        Ok(used)
    }

    /// Parses a head, a size line, the end of a chunk or trailers at the beginning of `bytes`. Returns its length, or
    /// nothing if it is not complete.
    fn parse(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match self.state {
            State::Head => self.parse_head(bytes),
            State::ChunkSize => match httparse::parse_chunk_size(bytes) {
                Ok(Status::Complete((len, size))) => {
                    self.state = if size == 0 { State::Trailers } else { State::Chunk(size) };
                    Ok(Some(len))
                }
                Ok(Status::Partial) => Ok(None),
                Err(_) => Err(malformed("no chunk size")),
            },
            State::ChunkEnd => match bytes {
                [b'\r', b'\n', ..] => {
                    self.state = State::ChunkSize;
                    Ok(Some(2))
                }
                [b'\r'] => Ok(None),
                _ => Err(malformed("a chunk is longer than its size")),
            },
            State::Trailers => {
                let mut trailers = [httparse::EMPTY_HEADER; HEADERS_MAX];
                match httparse::parse_headers(bytes, &mut trailers).map_err(|error| malformed(&error.to_string()))? {
                    Status::Complete((len, _)) => {
                        self.state = State::Complete;
                        Ok(Some(len))
                    }
                    Status::Partial => Ok(None),
                }
            }
            State::Sized(_) | State::Chunk(_) | State::Complete => unreachable!("bodies are not parsed"),
        }
    }

    fn parse_head(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        let Status::Complete(len) = head.parse(bytes).map_err(|error| malformed(&error.to_string()))? else {
            return Ok(None);
        };
        self.status = head.code.unwrap_or_default();
        let header = |name: &str| head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        self.state = match self.status {
            // An interim response: the real one follows.
            100..=199 => {
                self.status = 0;
                State::Head
            }
            204 | 304 => State::Complete,
            _ => match (header("transfer-encoding"), header("content-length")) {
                (Some(encoding), _) if encoding.value.eq_ignore_ascii_case(b"chunked") => State::ChunkSize,
                (_, Some(length)) => {
                    let length = std::str::from_utf8(length.value).ok().and_then(|digits| digits.parse().ok());
                    match length.ok_or_else(|| malformed("no content length"))? {
                        0 => State::Complete,
                        length => State::Sized(length),
                    }
                }
                _ => return Err(malformed("neither a length nor chunks")),
            },
        };
        Ok(Some(len))
    }
}

fn take_body(rest: &[u8], left: u64, body: &mut Vec<u8>) -> usize {
    let taken = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
    body.extend_from_slice(&rest[..taken]);
    taken
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the response is malformed: {what}"))
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
        let mut last = ResponseState::Head;
        for piece in pieces {
            let (taken, progress) = decoder.feed(piece, &mut body).expect("well formed");
            assert_eq!(taken, piece.len());
            last = progress;
        }
        assert_eq!(last, ResponseState::Complete);
        (decoder.status(), body)
    }

    #[test]
    fn response_decodes_equally_wherever_it_is_split() {
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
    fn bytes_after_end_are_not_used_and_next_response_decodes() {
        let (mut decoder, mut body) = (Decoder::default(), Vec::new());
        let two = [CHUNKED, SIZED].concat();
        let (taken, progress) = decoder.feed(&two, &mut body).expect("well formed");
        assert_eq!((taken, progress), (CHUNKED.len(), ResponseState::Complete));
        decoder.start();
        body.clear();
        let (taken, progress) = decoder.feed(&two[CHUNKED.len()..], &mut body).expect("well formed");
        assert_eq!((taken, progress), (SIZED.len(), ResponseState::Complete));
        assert_eq!(body, b"hello\nworld");
    }

    #[test]
    fn input_that_is_not_http_is_rejected() {
        let no_framing: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
        let bad_chunk: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
        let long_chunk: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n";
        let endless = vec![b'a'; HEAD_BYTES_MAX + 1];
        for bytes in [b"SSH-2.0-x\r\n".as_slice(), no_framing, bad_chunk, long_chunk, &endless] {
            assert!(Decoder::default().feed(bytes, &mut Vec::new()).is_err());
        }
    }
}
