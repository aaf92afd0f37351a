//! Splits a body into lines.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// A part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A line with its end, if it has one.
    Line(Bytes),
    /// A part of a line that is too long to be kept, and whether the line ends with it.
    Fragment { bytes: Bytes, is_last: bool },
}

/// Lines of a body as they come. Lines of more than so many bytes are passed on in fragments.
#[derive(Debug)]
pub(super) struct Lines {
    body: Option<Incoming>,
    split: Split,
}

impl Lines {
    pub(super) fn new(body: Incoming, line_bytes_max: usize) -> Self {
        Self { body: Some(body), split: Split { line_bytes_max, ..Split::default() } }
    }

    /// The next part; nothing at the end. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// If the body ends early.
    pub(super) async fn next(&mut self) -> Result<Option<Part>, hyper::Error> {
        loop {
            if let Some(part) = self.split.next() {
                return Ok(Some(part));
            }
            let Some(body) = &mut self.body else { return Ok(self.split.rest()) };
            match body.frame().await {
                Some(frame) => {
                    // Trailers have no lines.
                    if let Ok(data) = frame?.into_data() {
                        self.split.add(&data);
                    }
                }
                None => self.body = None,
            }
        }
    }
}

/// What was received and is not passed on.
#[derive(Debug, Default)]
struct Split {
    line_bytes_max: usize,
    buffer: BytesMut,
    /// Bytes at the beginning of the buffer that have no end of a line.
    searched: usize,
    /// A line has begun that is passed on in fragments.
    is_in_long_line: bool,
}

impl Split {
    fn add(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    fn next(&mut self) -> Option<Part> {
        let end = memchr::memchr(b'\n', &self.buffer[self.searched..]).map(|at| self.searched + at + 1);
        self.searched = 0;
        match end {
            Some(end) => {
                let bytes = self.buffer.split_to(end).freeze();
                let is_fragment = std::mem::take(&mut self.is_in_long_line);
                Some(if is_fragment { Part::Fragment { bytes, is_last: true } } else { Part::Line(bytes) })
            }
            None if self.buffer.len() > self.line_bytes_max => {
                self.is_in_long_line = true;
                Some(Part::Fragment { bytes: self.buffer.split().freeze(), is_last: false })
            }
            None => {
                self.searched = self.buffer.len();
                None
            }
        }
    }

    /// The line without an end that the body ended with.
    fn rest(&mut self) -> Option<Part> {
        let bytes = self.buffer.split().freeze();
        self.searched = 0;
        match (bytes.is_empty(), std::mem::take(&mut self.is_in_long_line)) {
            (true, _) => None,
            (false, true) => Some(Part::Fragment { bytes, is_last: true }),
            (false, false) => Some(Part::Line(bytes)),
        }
    }
}

/// The lines of a text, each with its end.
pub(super) fn lines_of(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n')
}

/// A line without its end, as a request or an answer.
pub(super) fn content(line: &[u8]) -> &[u8] {
    line.trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &'static str) -> Option<Part> {
        Some(Part::Line(Bytes::from_static(text.as_bytes())))
    }

    fn fragment(text: &'static str, is_last: bool) -> Option<Part> {
        Some(Part::Fragment { bytes: Bytes::from_static(text.as_bytes()), is_last })
    }

    #[test]
    fn body_is_split_at_the_ends_of_lines_however_it_arrives() {
        let mut split = Split { line_bytes_max: 100, ..Split::default() };
        split.add(b"one\ntw");
        assert_eq!((split.next(), split.next()), (line("one\n"), None));
        split.add(b"o");
        assert_eq!(split.next(), None);
        split.add(b"\n\nthree");
        assert_eq!((split.next(), split.next(), split.next()), (line("two\n"), line("\n"), None));
        assert_eq!((split.rest(), split.rest()), (line("three"), None));
    }

    #[test]
    fn long_line_is_passed_on_in_fragments() {
        let mut split = Split { line_bytes_max: 4, ..Split::default() };
        split.add(b"12345");
        assert_eq!(split.next(), fragment("12345", false));
        split.add(b"6\nok\n");
        assert_eq!((split.next(), split.next(), split.next()), (fragment("6\n", true), line("ok\n"), None));
        split.add(b"12345");
        assert_eq!(split.next(), fragment("12345", false));
        split.add(b"6");
        assert_eq!((split.next(), split.rest()), (None, fragment("6", true)));
    }
}
