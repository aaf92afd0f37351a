//! A client of one server: one request at a time over one connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::parser::{Event, Parser, Side};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection, so the request has had no effect.
    #[error("no connection: {0}")]
    Refused(io::Error),
    /// The connection failed later.
    #[error("connection lost: {0}")]
    Lost(#[from] io::Error),
    /// The server closed the connection before its answer was complete.
    #[error("the answer was cut")]
    Cut,
    /// The answer is no HTTP, or no JSON.
    #[error("not the answer of a broker")]
    Malformed,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, null where there is none.
    pub body: Value,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    addr: SocketAddr,
    timeout: Duration,
    connection: Option<TcpStream>,
}

impl Client {
    /// A client of the server at `addr`. No read waits longer than `timeout`.
    #[must_use]
    pub fn new(addr: SocketAddr, timeout: Duration) -> Self {
        Self { addr, timeout, connection: None }
    }

    /// Sends a request and waits for its answer. It is never sent again.
    ///
    /// # Errors
    /// If there is no complete answer.
    pub fn send(&mut self, method: &str, target: &str, body: Option<&Value>) -> Result<Answer, ClientError> {
        let (mut connection, mut parser) = self.open(method, target, body)?;
        let (mut status, mut bytes, mut ended) = (0, Vec::new(), false);
        let mut buffer = [0; 16 * 1024];
        while !ended {
            let length = connection.read(&mut buffer)?;
            let events = if length == 0 { parser.end().into_iter().collect() } else { parser.feed(&buffer[..length]) };
            if parser.is_broken() && events.is_empty() {
                return Err(ClientError::Cut);
            }
            for event in events {
                match event {
                    Event::Head(head) => status = head.status,
                    Event::Body(part) => bytes.extend_from_slice(&part),
                    Event::End => ended = true,
                }
            }
        }
        self.connection = Some(connection);
        let body = match bytes.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&bytes).map_err(|_| ClientError::Malformed)?,
        };
        Ok(Answer { status, body })
    }

    /// Sends a request over a connection of its own, or the idle one, and leaves reading the answer to the caller.
    ///
    /// # Errors
    /// If there is no connection, or it fails.
    pub fn open(
        &mut self,
        method: &str,
        target: &str,
        body: Option<&Value>,
    ) -> Result<(TcpStream, Parser), ClientError> {
        let mut connection = match self.connection.take().filter(is_alive) {
            Some(connection) => connection,
            None => TcpStream::connect_timeout(&self.addr, self.timeout).map_err(ClientError::Refused)?,
        };
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(self.timeout))?;
        let text = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.addr,
            text.len()
        );
        connection.write_all((head + &text).as_bytes())?;
        Ok((connection, Parser::new(Side::Responses)))
    }
}

/// Whether an idle connection has not been closed by the server.
fn is_alive(connection: &TcpStream) -> bool {
    if connection.set_nonblocking(true).is_err() {
        return false;
    }
    let waits = matches!(connection.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    connection.set_nonblocking(false).is_ok() && waits
}
