//! A connection that sends bytes as given, for malformed requests, half-closed sockets and readers that stop.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::message::{Reply, malformed, text};

const HEADERS_MAX: usize = 64;

/// A socket and a reader of HTTP/1.1 responses.
#[derive(Debug)]
pub struct RawConnection<S = TcpStream> {
    reader: BufReader<S>,
}

impl RawConnection {
    /// Connects. Each read and write may take `timeout`.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn connect(addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        Self::over(TcpStream::connect_timeout(&addr, timeout)?, timeout)
    }

    /// Uses a connected socket.
    ///
    /// # Errors
    /// If the timeouts cannot be set.
    pub fn over(socket: TcpStream, timeout: Duration) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))?;
        Ok(Self::around(socket))
    }
}

impl<S: Read + Write> RawConnection<S> {
    /// Uses a stream whose timeouts are set.
    pub fn around(stream: S) -> Self {
        Self { reader: BufReader::new(stream) }
    }

    /// The socket. Bytes that were read ahead are not in it any more.
    pub fn socket(&mut self) -> &mut S {
        self.reader.get_mut()
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Reads a response to a request of this method.
    ///
    /// # Errors
    /// If the connection fails or the response is malformed.
    pub fn reply(&mut self, method: &str) -> io::Result<Reply> {
        let mut reply = self.head()?;
        if method == "HEAD" || reply.status == 204 {
            return Ok(reply);
        }
        if reply.header("transfer-encoding").is_some() {
            while let Some(chunk) = self.chunk()? {
                reply.body += &chunk;
            }
        } else {
            let len = reply.header("content-length").unwrap_or("0").parse();
            let mut body = vec![0; len.map_err(|_| malformed("content-length is not a number"))?];
            self.reader.read_exact(&mut body)?;
            reply.body = text(body)?;
        }
        Ok(reply)
    }

    /// Reads status and headers of a response.
    ///
    /// # Errors
    /// If the connection fails or the head is malformed.
    pub fn head(&mut self) -> io::Result<Reply> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if self.reader.read_until(b'\n', &mut head)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        response.parse(&head).map_err(|error| malformed(&error.to_string()))?;
        let header = |header: &httparse::Header<'_>| {
            (header.name.to_owned(), String::from_utf8_lossy(header.value).into_owned())
        };
        let status = response.code.ok_or_else(|| malformed("no status"))?;
        Ok(Reply { status, headers: response.headers.iter().map(header).collect(), body: String::new() })
    }

    /// Reads a chunk of a chunked body; nothing after the last one.
    ///
    /// # Errors
    /// If the connection fails or ends before the last chunk.
    pub fn chunk(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let len = usize::from_str_radix(line.trim(), 16).map_err(|_| malformed("no chunk size"))?;
        let mut data = vec![0; len + 2];
        self.reader.read_exact(&mut data)?;
        data.truncate(len);
        if len == 0 { Ok(None) } else { text(data).map(Some) }
    }

    /// Reads what there is, at least one byte unless the connection has ended.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }

    /// Everything until the connection ends. A reset counts as the end.
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.reader.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A socket with a small receive buffer, which resets its connection when it is closed: the client of a stream that
/// stops reading.
///
/// # Errors
/// If the connection fails.
pub fn slow_reader_socket(addr: SocketAddr) -> io::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let socket = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4_096)?;
        socket.set_zero_linger()?;
        socket.connect(addr).await?.into_std()
    })?;
    socket.set_nonblocking(false)?;
    Ok(socket)
}
