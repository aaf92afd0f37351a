//! Parses one direction of an HTTP/1.1 connection as its bytes come.

use httparse::{EMPTY_HEADER, Status};

/// A head has at most this many headers.
const HEADERS_MAX: usize = 64;
/// A head, or the line of a chunk's size, beyond this length is no HTTP.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Which direction is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Responses,
}

/// The head of a request or a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The method of a request.
    pub method: String,
    /// The path and query of a request.
    pub target: String,
    /// The status of a response.
    pub status: u16,
    /// The headers, their names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The value of the header of this name, given in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message begins.
    Head(Head),
    /// Bytes of the body.
    Body(Vec<u8>),
    /// The message is complete.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Counted(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    /// Until the connection ends.
    Rest,
    /// Not HTTP: nothing more is parsed.
    Broken,
}

/// The parser of one direction.
#[derive(Debug)]
pub struct Parser {
    side: Side,
    state: State,
    buffer: Vec<u8>,
}

impl Parser {
    /// A parser at the start of a connection.
    #[must_use]
    pub fn new(side: Side) -> Self {
        Self { side, state: State::Head, buffer: Vec::new() }
    }

    /// Whether the bytes so far are no HTTP.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// Takes the next bytes and says what they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.buffer.extend_from_slice(bytes);
        let mut events = Vec::new();
        while self.advance(&mut events) {}
        events
    }

    /// The connection has ended. Says whether that completes a message whose body had no length.
    pub fn end(&mut self) -> Option<Event> {
        (std::mem::replace(&mut self.state, State::Broken) == State::Rest).then_some(Event::End)
    }

    /// One step; false if more bytes are needed for the next.
    fn advance(&mut self, events: &mut Vec<Event>) -> bool {
        match self.state {
            State::Head => self.head(events),
            State::Counted(left) => {
                let Some(left) = self.body(left, events) else { return false };
                self.state = State::Counted(left);
                if left == 0 {
                    self.finish(events);
                }
                true
            }
            State::ChunkSize => {
                let Some(line) = self.line() else { return false };
                let digits = line.split(';').next().unwrap_or_default().trim();
                self.state = match u64::from_str_radix(digits, 16) {
                    Ok(0) => State::Trailer,
                    Ok(length) => State::Chunk(length),
                    Err(_) => State::Broken,
                };
                true
            }
            State::Chunk(left) => {
                let Some(left) = self.body(left, events) else { return false };
                self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                true
            }
            State::ChunkEnd => {
                let Some(line) = self.line() else { return false };
                self.state = if line.is_empty() { State::ChunkSize } else { State::Broken };
                true
            }
            State::Trailer => {
                let Some(line) = self.line() else { return false };
                if line.is_empty() {
                    self.finish(events);
                }
                true
            }
            State::Rest => {
                if !self.buffer.is_empty() {
                    events.push(Event::Body(std::mem::take(&mut self.buffer)));
                }
                false
            }
            State::Broken => {
                self.buffer.clear();
                false
            }
        }
    }

    fn finish(&mut self, events: &mut Vec<Event>) {
        self.state = State::Head;
        events.push(Event::End);
    }

    /// Takes what there is of the body. Says how much is left, or nothing if there was nothing.
    fn body(&mut self, left: u64, events: &mut Vec<Event>) -> Option<u64> {
        let length = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if length == 0 {
            return None;
        }
        events.push(Event::Body(self.buffer.drain(..length).collect()));
        Some(left - length as u64)
    }

    /// The next line without its end, if it is complete.
    fn line(&mut self) -> Option<String> {
        let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') else {
            if self.buffer.len() > HEAD_BYTES_MAX {
                self.state = State::Broken;
            }
            return None;
        };
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned())
    }

    fn head(&mut self, events: &mut Vec<Event>) -> bool {
        if self.buffer.is_empty() {
            return false;
        }
        let mut headers = [EMPTY_HEADER; HEADERS_MAX];
        let parsed = match self.side {
            Side::Requests => {
                let mut request = httparse::Request::new(&mut headers);
                request.parse(&self.buffer).map(|status| (status, request_head(&request)))
            }
            Side::Responses => {
                let mut response = httparse::Response::new(&mut headers);
                response.parse(&self.buffer).map(|status| (status, response_head(&response)))
            }
        };
        match parsed {
            Ok((Status::Complete(length), head)) => {
                self.buffer.drain(..length);
                self.state = self.framing(&head);
                let interim = self.side == Side::Responses && head.status < 200;
                if !interim {
                    events.push(Event::Head(head));
                    if self.state == State::Counted(0) {
                        self.finish(events);
                    }
                } else {
                    self.state = State::Head;
                }
                true
            }
            Ok((Status::Partial, _)) if self.buffer.len() <= HEAD_BYTES_MAX => false,
            Ok((Status::Partial, _)) | Err(_) => {
                self.state = State::Broken;
                true
            }
        }
    }

    fn framing(&self, head: &Head) -> State {
        if head.header("transfer-encoding").is_some_and(|value| value.to_ascii_lowercase().contains("chunked")) {
            return State::ChunkSize;
        }
        let empty = matches!(head.status, 204 | 304) && self.side == Side::Responses;
        match head.header("content-length").map(str::parse) {
            _ if empty => State::Counted(0),
            Some(Ok(length)) => State::Counted(length),
            Some(Err(_)) => State::Broken,
            None if self.side == Side::Requests => State::Counted(0),
            None => State::Rest,
        }
    }
}

fn request_head(request: &httparse::Request<'_, '_>) -> Head {
    Head {
        method: request.method.unwrap_or_default().to_owned(),
        target: request.path.unwrap_or_default().to_owned(),
        status: 0,
        headers: copied(request.headers),
    }
}

fn response_head(response: &httparse::Response<'_, '_>) -> Head {
    Head { status: response.code.unwrap_or(0), headers: copied(response.headers), ..Head::default() }
}

fn copied(headers: &[httparse::Header<'_>]) -> Vec<(String, String)> {
    headers
        .iter()
        .filter(|header| !header.name.is_empty())
        .map(|header| (header.name.to_ascii_lowercase(), String::from_utf8_lossy(header.value).into_owned()))
        .collect()
}
