//! A TCP connection with the bytes that were read and not used yet.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One read returns many messages.
const READ_BYTES: usize = 64 * 1024;
/// Longer than any answer.
const UNREAD_BYTES_MAX: usize = 256 << 20;
/// How long a call outside of a measurement may take.
const CALL_WITHIN: Duration = Duration::from_secs(10);

/// A connection.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    input: Vec<u8>,
    /// Bytes at the front that were used.
    used: usize,
}

impl Wire {
    /// Connects, without Nagle's algorithm.
    pub(crate) async fn connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: Vec::with_capacity(READ_BYTES), used: 0 })
    }

    /// Sends all bytes.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// What was read and not used yet.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.input[self.used..]
    }

    /// Drops the first unread bytes.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.used += bytes;
    }

    /// Reads once. The end of the connection is an error.
    pub(crate) async fn fill(&mut self) -> io::Result<()> {
        self.input.drain(..self.used);
        self.used = 0;
        if self.input.len() > UNREAD_BYTES_MAX {
            return Err(malformed("an answer does not end"));
        }
        self.input.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
            _ => Ok(()),
        }
    }

    /// Reads until `decode` finds an answer in the unread bytes and says how long it is.
    pub(crate) async fn answer<T>(
        &mut self,
        mut decode: impl FnMut(&[u8]) -> io::Result<Option<(T, usize)>>,
    ) -> io::Result<T> {
        loop {
            if let Some((answer, bytes)) = decode(self.unread())? {
                self.consume(bytes);
                return Ok(answer);
            }
            self.fill().await?;
        }
    }
}

/// The result of a call outside of a measurement, whose time is bounded.
pub(crate) async fn in_time<T>(call: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(CALL_WITHIN, call).await?
}

/// An answer that is not one of the protocol.
pub(crate) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the answer is malformed: {what}"))
}

/// An answer of the protocol that is not the one the request has.
pub(crate) fn unexpected(answer: &[u8]) -> io::Error {
    let shown = String::from_utf8_lossy(&answer[..answer.len().min(200)]);
    io::Error::new(io::ErrorKind::InvalidData, format!("unexpected answer: {}", shown.trim_end()))
}

/// The first line and its length with the line end; nothing if it is not complete.
pub(crate) fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&bytes[..end], end + 2))
}

/// A number in decimal digits.
pub(crate) fn number<T: std::str::FromStr>(digits: &[u8]) -> io::Result<T> {
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| malformed("a number is missing"))
}
