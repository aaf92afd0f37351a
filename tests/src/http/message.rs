//! Requests, responses and why there may be no response.

use std::io;

use serde_json::Value;

/// The longest response body that is read.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection was refused or timed out: the request had no effect.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The connection failed or timed out after the request was sent: it may have had an effect, or have it later.
    #[error("no response: {0}")]
    NoResponse(#[from] io::Error),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// Headers beyond `Host` and `Content-Length`.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a str,
}

impl<'a> Request<'a> {
    /// A `GET`.
    #[must_use]
    pub fn get(target: &'a str) -> Self {
        Self { method: "GET", target, headers: &[], body: "" }
    }

    /// A `POST` of JSON.
    #[must_use]
    pub fn post(target: &'a str, body: &'a str) -> Self {
        Self { method: "POST", target, headers: &[("Content-Type", "application/json")], body }
    }
}

/// A response.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: Vec<(String, String)>,
    /// The body; empty for the head of a stream.
    pub body: String,
}

impl Reply {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; `null` if it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }
}

/// Whether nothing arrived in time, as opposed to a connection that failed.
#[must_use]
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

pub(super) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

pub(super) fn check_body_len(len: usize) -> io::Result<()> {
    if len > BODY_BYTES_MAX { Err(malformed("a response body of more than 64 MiB")) } else { Ok(()) }
}

pub(super) fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| malformed("a response that is not UTF-8"))
}
