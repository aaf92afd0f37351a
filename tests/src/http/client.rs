//! A blocking client on hyper's HTTP/1.1 connections.
//!
//! A connection is polled only while one of its calls is in progress. So nothing is read from its socket in between,
//! and a stream that is not read exerts backpressure. Threads share no runtime unless a connection is moved to another
//! thread.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest, handshake};
use hyper::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
use hyper::{Method, Response, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::message::{CallError, Reply, Request, check_body_len, malformed, text};
use super::raw::RawConnection;

/// The address of a server, and how long to wait for it.
#[derive(Clone, Debug)]
pub struct Client {
    addr: SocketAddr,
    host: String,
    timeout: Duration,
}

impl Client {
    /// A client of the server at an address. Connecting, each response head and each read of a body may take `timeout`.
    #[must_use]
    pub fn new(addr: SocketAddr, timeout: Duration) -> Self {
        Self { addr, host: addr.to_string(), timeout }
    }

    /// A client of the server at a URL of the form `http://host:port`.
    ///
    /// # Errors
    /// If the URL has another form or its host has no address.
    pub fn from_url(url: &str, timeout: Duration) -> Result<Self, String> {
        let rest = url.strip_prefix("http://").ok_or_else(|| format!("{url} is not an http:// URL"))?;
        let host = rest.trim_end_matches('/');
        if host.contains(['/', '?', '#']) {
            return Err(format!("{url}: expected http://HOST:PORT without a path"));
        }
        let named = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
        let mut found = named.to_socket_addrs().map_err(|error| format!("{url}: {error}"))?;
        let addr = found.next().ok_or_else(|| format!("{url} has no address"))?;
        Ok(Self { addr, host: host.to_owned(), timeout })
    }

    /// The server's address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// [`CallError::Connect`].
    pub fn connect(&self) -> Result<Connection, CallError> {
        Connection::open(self).map_err(CallError::Connect)
    }

    /// Opens a connection that sends bytes as given.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn connect_raw(&self) -> io::Result<RawConnection> {
        RawConnection::connect(self.addr, self.timeout)
    }

    /// Sends a request on a new connection and reads the response.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call(&self, request: &Request<'_>) -> Result<Reply, CallError> {
        Ok(self.connect()?.call(request)?)
    }

    /// Opens a stream of messages; `query` is that of `GET /v1/consume`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn consume(&self, query: &str) -> Result<Stream, CallError> {
        self.stream(&Request::get(&format!("/v1/consume?{query}")))
    }

    /// Sends a request on a new connection and reads the response as a stream of lines.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn stream(&self, request: &Request<'_>) -> Result<Stream, CallError> {
        Ok(self.connect()?.stream(request)?)
    }
}

/// A keep-alive connection.
#[derive(Debug)]
pub struct Connection {
    driver: Driver,
    sender: SendRequest<Full<Bytes>>,
    host: String,
    timeout: Duration,
}

impl Connection {
    fn open(client: &Client) -> io::Result<Self> {
        let runtime = thread_runtime()?;
        let (sender, connection) = runtime.block_on(async {
            let socket = timeout(client.timeout, TcpStream::connect(client.addr)).await??;
            socket.set_nodelay(true)?;
            handshake(TokioIo::new(socket)).await.map_err(io_error)
        })?;
        let driver = Driver { connection: Some(connection), runtime };
        Ok(Self { driver, sender, host: client.host.clone(), timeout: client.timeout })
    }

    /// Sends a request and reads the whole response.
    ///
    /// # Errors
    /// If the connection fails; the request may have had an effect.
    pub fn call(&mut self, request: &Request<'_>) -> io::Result<Reply> {
        let mut response = self.send(request)?;
        let mut reply = head_of(&response)?;
        let mut body = Vec::new();
        while let Some(bytes) = self.read(response.body_mut())? {
            body.extend_from_slice(&bytes);
            check_body_len(body.len())?;
        }
        reply.body = text(body)?;
        Ok(reply)
    }

    /// Sends a request and reads the response as a stream of lines. The body of a response other than 200 is read at
    /// once.
    ///
    /// # Errors
    /// If the connection fails; the request may have had an effect.
    pub fn stream(mut self, request: &Request<'_>) -> io::Result<Stream> {
        let response = self.send(request)?;
        let head = head_of(&response)?;
        let mut stream =
            Stream { body: response.into_body(), connection: self, head, buffer: Vec::new(), ended: false };
        if stream.head.status != 200 {
            while stream.read_more()? {}
            stream.head.body = text(std::mem::take(&mut stream.buffer))?;
        }
        Ok(stream)
    }

    /// Sets how long each wait may last from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    fn send(&mut self, request: &Request<'_>) -> io::Result<Response<Incoming>> {
        let request = self.encode(request)?;
        let exchange = async {
            self.sender.ready().await.map_err(io_error)?;
            self.sender.send_request(request).await.map_err(io_error)
        };
        self.driver.run(self.timeout, exchange)?
    }

    fn encode(&self, request: &Request<'_>) -> io::Result<hyper::Request<Full<Bytes>>> {
        let mut encoded = hyper::Request::new(Full::new(Bytes::copy_from_slice(request.body.as_bytes())));
        *encoded.method_mut() = Method::from_bytes(request.method.as_bytes()).map_err(invalid)?;
        *encoded.uri_mut() = request.target.parse::<Uri>().map_err(invalid)?;
        let headers = encoded.headers_mut();
        for (name, value) in request.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(invalid)?;
            headers.append(name, HeaderValue::from_str(value).map_err(invalid)?);
        }
        if !headers.contains_key(HOST) {
            headers.insert(HOST, HeaderValue::from_str(&self.host).map_err(invalid)?);
        }
        if !request.body.is_empty() || request.method == "POST" {
            headers.insert(CONTENT_LENGTH, request.body.len().into());
        }
        Ok(encoded)
    }

    /// The next bytes of a body; nothing at its end.
    fn read(&mut self, body: &mut Incoming) -> io::Result<Option<Bytes>> {
        loop {
            match self.driver.run(self.timeout, body.frame())? {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => return Err(io_error(error)),
                None => return Ok(None),
            }
        }
    }
}

/// Polls hyper's connection together with the operations on it.
#[derive(Debug)]
struct Driver {
    /// `None` once it has ended. Its error is that of the operation in progress.
    connection: Option<http1::Connection<TokioIo<TcpStream>, Full<Bytes>>>,
    /// The reactor of the socket.
    runtime: Arc<Runtime>,
}

impl Driver {
    fn run<T>(&mut self, limit: Duration, operation: impl Future<Output = T>) -> io::Result<T> {
        let connection = &mut self.connection;
        self.runtime.block_on(async {
            let mut operation = pin!(operation);
            let both = poll_fn(|context| {
                if connection.as_mut().is_some_and(|connection| Pin::new(connection).poll(context).is_ready()) {
                    *connection = None;
                }
                operation.as_mut().poll(context)
            });
            Ok(timeout(limit, both).await?)
        })
    }
}

/// The runtime of this thread. Creating one takes longer than a request.
fn thread_runtime() -> io::Result<Arc<Runtime>> {
    thread_local! {
        static RUNTIME: std::cell::OnceCell<Arc<Runtime>> = const { std::cell::OnceCell::new() };
    }
    RUNTIME.with(|cell| {
        if let Some(runtime) = cell.get() {
            return Ok(Arc::clone(runtime));
        }
        let runtime = Arc::new(Builder::new_current_thread().enable_io().enable_time().build()?);
        Ok(Arc::clone(cell.get_or_init(|| runtime)))
    })
}

/// A response read line by line.
#[derive(Debug)]
pub struct Stream {
    body: Incoming,
    connection: Connection,
    /// Status and headers; with any status but 200 also the body, and no lines follow.
    pub head: Reply,
    buffer: Vec<u8>,
    ended: bool,
}

impl Stream {
    /// The next message; nothing at the stream's end. Blank lines, which are keep-alives, are skipped.
    ///
    /// # Errors
    /// If the connection fails or a line is not JSON; an error for which [`is_timeout`](super::message::is_timeout)
    /// holds if nothing arrived in time.
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

    /// The next line, blank ones included; nothing at the stream's end.
    ///
    /// # Errors
    /// As [`Stream::item`].
    pub fn line(&mut self) -> io::Result<Option<String>> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|&byte| byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=searched + end).collect();
                line.pop();
                return text(line).map(Some);
            }
            searched = self.buffer.len();
            if !self.read_more()? {
                let rest = std::mem::take(&mut self.buffer);
                return if rest.is_empty() { Ok(None) } else { text(rest).map(Some) };
            }
        }
    }

    /// Sets how long each wait may last from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.connection.set_timeout(timeout);
    }

    /// The connection of a stream that has ended, for further calls.
    #[must_use]
    pub fn into_connection(self) -> Connection {
        self.connection
    }

    fn read_more(&mut self) -> io::Result<bool> {
        if self.ended {
            return Ok(false);
        }
        match self.connection.read(&mut self.body)? {
            Some(bytes) => self.buffer.extend_from_slice(&bytes),
            None => self.ended = true,
        }
        check_body_len(self.buffer.len())?;
        Ok(!self.ended)
    }
}

fn head_of(response: &Response<Incoming>) -> io::Result<Reply> {
    let mut headers = Vec::new();
    for (name, value) in response.headers() {
        let value = value.to_str().map_err(|_| malformed("a header that is not text"))?;
        headers.push((name.to_string(), value.to_owned()));
    }
    Ok(Reply { status: response.status().as_u16(), headers, body: String::new() })
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// Keeps the kind of the I/O error below hyper's, if there is one.
fn io_error(error: hyper::Error) -> io::Error {
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
    io::Error::new(source.map_or(io::ErrorKind::Other, io::Error::kind), error)
}
