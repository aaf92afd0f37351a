//! A plain HTTP/1.1 client that says exactly what it is told to, and tells a request that never left from one that may have arrived.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

/// The longest body that is read.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens: the request had no effect.
    #[error("no connection: {0}")]
    NoConnection(io::Error),
    /// The connection failed or stayed silent after the request had begun to leave: it may have had an effect, or have it later.
    #[error("no answer: {0}")]
    NoAnswer(#[from] io::Error),
}

/// Where a server is.
#[derive(Clone, Debug)]
pub struct Server {
    addr: SocketAddr,
    host: String,
    patience: Duration,
}

impl Server {
    /// The server at a URL of the form `http://host:port`.
    ///
    /// # Errors
    /// Says what is wrong with the URL.
    pub fn at(url: &str, patience: Duration) -> Result<Self, String> {
        let rest = url.strip_prefix("http://").ok_or_else(|| format!("{url} is not an http:// URL"))?;
        let host = rest.trim_end_matches('/');
        if host.contains(['/', '?', '#']) {
            return Err(format!("{url} must name a host and a port, and nothing behind them"));
        }
        let named = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
        let mut found = named.to_socket_addrs().map_err(|error| format!("{url}: {error}"))?;
        let addr = found.next().ok_or_else(|| format!("{url} has no address"))?;
        Ok(Self { addr, host: host.to_owned(), patience })
    }

    /// The server at an address.
    #[must_use]
    pub fn on(addr: SocketAddr, patience: Duration) -> Self {
        Self { addr, host: addr.to_string(), patience }
    }

    /// An open connection, on which every wait ends after the server's patience.
    ///
    /// # Errors
    /// [`CallError::NoConnection`].
    pub fn connect(&self) -> Result<Connection, CallError> {
        let open = || {
            let socket = TcpStream::connect_timeout(&self.addr, self.patience)?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(self.patience))?;
            socket.set_write_timeout(Some(self.patience))?;
            Ok(socket)
        };
        let socket = open().map_err(CallError::NoConnection)?;
        Ok(Connection { reader: BufReader::new(socket), host: self.host.clone() })
    }

    /// One request on a connection of its own.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call(&self, request: &Request<'_>) -> Result<Reply, CallError> {
        Ok(self.connect()?.call(request)?)
    }

    /// A stream of messages, its head read; `query` is that of `GET /v1/consume`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn consume(&self, query: &str) -> Result<Stream, CallError> {
        self.stream(&Request::get(&format!("/v1/consume?{query}")))
    }

    /// The answer to any request as a stream of lines, its head read.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn stream(&self, request: &Request<'_>) -> Result<Stream, CallError> {
        let mut connection = self.connect()?;
        connection.send(request)?;
        let mut head = connection.head()?;
        let ended = head.status != 200;
        if ended {
            connection.read_body(&mut head)?;
        }
        Ok(Stream { connection, head, buffer: String::new(), ended })
    }
}

/// What is asked.
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

    fn bytes(&self, host: &str) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text += &format!("Host: {host}\r\n");
        }
        for (name, value) in self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !self.body.is_empty() || self.method == "POST" {
            text += &format!("Content-Length: {}\r\n", self.body.len());
        }
        (text + "\r\n" + self.body).into_bytes()
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers, as they were written.
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

    /// The body as JSON; `null` if it is not.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<TcpStream>,
    host: String,
}

impl Connection {
    /// Sends a request and reads its whole answer.
    ///
    /// # Errors
    /// Whatever the connection failed with; the request may have had an effect.
    pub fn call(&mut self, request: &Request<'_>) -> io::Result<Reply> {
        self.send(request)?;
        let mut reply = self.head()?;
        if request.method != "HEAD" {
            self.read_body(&mut reply)?;
        }
        Ok(reply)
    }

    fn read_body(&mut self, reply: &mut Reply) -> io::Result<()> {
        if matches!(reply.status, 204 | 304) {
            return Ok(());
        }
        if reply.header("transfer-encoding").is_some() {
            while let Some(chunk) = self.chunk()? {
                reply.body += &chunk;
                within_bounds(reply.body.len())?;
            }
        } else if let Some(len) = reply.header("content-length") {
            let len = len.parse().map_err(|_| malformed("content-length is not a number"))?;
            within_bounds(len)?;
            let mut body = vec![0; len];
            self.reader.read_exact(&mut body)?;
            reply.body = text(body)?;
        } else {
            let mut body = Vec::new();
            self.reader.by_ref().take(BODY_BYTES_MAX as u64).read_to_end(&mut body)?;
            reply.body = text(body)?;
        }
        Ok(())
    }

    /// Sends a request and reads nothing.
    ///
    /// # Errors
    /// Whatever the connection failed with.
    pub fn send(&mut self, request: &Request<'_>) -> io::Result<()> {
        let bytes = request.bytes(&self.host);
        self.reader.get_mut().write_all(&bytes)
    }

    /// How long every wait lasts at most from now on.
    ///
    /// # Errors
    /// If the system does not take it.
    pub fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        self.reader.get_ref().set_read_timeout(Some(patience))
    }

    fn head(&mut self) -> io::Result<Reply> {
        let first = self.line()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| malformed("no status line"))?;
        let mut headers = Vec::new();
        while let Some(line) = self.line()?.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').ok_or_else(|| malformed("a header without a colon"))?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        Ok(Reply { status, headers, body: String::new() })
    }

    /// The next line without its end, or nothing once the connection has ended.
    fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        let len = self.reader.by_ref().take(BODY_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
        Ok(if len == 0 { None } else { Some(text(line)?.trim_end().to_owned()) })
    }

    /// The next chunk, or nothing after the last.
    fn chunk(&mut self) -> io::Result<Option<String>> {
        let size = self.line()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let len = usize::from_str_radix(size.trim(), 16).map_err(|_| malformed("a chunk without a size"))?;
        within_bounds(len)?;
        let mut data = vec![0; len + 2];
        self.reader.read_exact(&mut data)?;
        data.truncate(len);
        if len == 0 { Ok(None) } else { text(data).map(Some) }
    }
}

/// A stream of lines.
#[derive(Debug)]
pub struct Stream {
    connection: Connection,
    /// Status and headers; with anything but 200 also the body, and nothing follows.
    pub head: Reply,
    buffer: String,
    ended: bool,
}

impl Stream {
    /// The next message; nothing once the stream has ended. Blank lines, which only show that somebody is there, are left out.
    ///
    /// # Errors
    /// Whatever the connection failed with; [`io::ErrorKind::WouldBlock`] or `TimedOut` if nothing came for as long as the
    /// connection's patience.
    pub fn item(&mut self) -> io::Result<Option<Value>> {
        loop {
            match self.line()? {
                Some(line) if line.trim().is_empty() => {}
                Some(line) => {
                    return serde_json::from_str(&line).map(Some).map_err(|error| malformed(&error.to_string()));
                }
                None => return Ok(None),
            }
        }
    }

    /// The next line, blank ones included; nothing once the stream has ended.
    ///
    /// # Errors
    /// As [`Stream::item`].
    pub fn line(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some((line, rest)) = self.buffer.split_once('\n') {
                let line = line.to_owned();
                self.buffer = rest.to_owned();
                return Ok(Some(line));
            }
            if self.ended {
                return Ok(None);
            }
            if self.head.header("transfer-encoding").is_none() {
                // A stream that ends with its connection, as HTTP/1.0 had it.
                let line = self.connection.line()?;
                self.ended = line.is_none();
                return Ok(line);
            }
            match self.connection.chunk()? {
                Some(chunk) => self.buffer += &chunk,
                None => self.ended = true,
            }
        }
    }

    /// The connection, to change its patience.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// Whether nothing came in time, as opposed to a connection that has failed.
#[must_use]
pub fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn within_bounds(len: usize) -> io::Result<()> {
    if len > BODY_BYTES_MAX { Err(malformed("an answer of more than 64 MiB")) } else { Ok(()) }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| malformed("an answer that is not UTF-8"))
}
