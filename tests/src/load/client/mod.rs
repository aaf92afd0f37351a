//! The client of the measurements: one keep-alive connection, one request in flight, no allocation per request.
//!
//! It shares the cores with what it measures, so it does as little as HTTP/1.1 allows: requests are prepared bytes sent
//! in one write, responses are decoded only as far as their framing requires. The ceiling and the broker are driven by
//! the same code.

mod decoder;
mod effect;
mod item;
mod pattern;
mod request;
mod stream;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};

use decoder::Decoder;
pub(crate) use decoder::ResponseState;
pub(crate) use effect::{EffectRequests, EffectShape};
pub(crate) use item::{Item, text_field};
pub(crate) use pattern::{Checked, write_value};
pub(crate) use request::{Effect, MessageShape, NDJSON, ProduceRequest, StepRequest, get, post, post_into};
use stream::Stream;
pub(crate) use stream::{ClientTls, Endpoint};

/// Larger than any response to a single request, so that after one short read tokio knows that the socket is empty.
const INPUT_BYTES: usize = 16 * 1024;
/// How long the head of a stream may take.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// One read of a stream returns many items.
const STREAM_INPUT_BYTES: usize = 64 * 1024;

/// A keep-alive connection. After an error it must be replaced.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    input: Box<[u8]>,
    decoder: Decoder,
    body: Vec<u8>,
}

impl Connection {
    /// Connects, without Nagle's algorithm, and completes the handshake of a server with TLS.
    pub(crate) async fn connect(server: impl Into<Endpoint>) -> io::Result<Self> {
        let server = server.into();
        Self::around(TcpStream::connect(server.addr).await?, &server, INPUT_BYTES).await
    }

    /// Connects from a given local address, since one address has a limited number of ports.
    pub(crate) async fn connect_from(from: IpAddr, server: impl Into<Endpoint>) -> io::Result<Self> {
        let server = server.into();
        let socket = if server.addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind(SocketAddr::new(from, 0))?;
        Self::around(socket.connect(server.addr).await?, &server, 1024).await
    }

    /// Connects with the buffer of a stream.
    pub(crate) async fn connect_for_stream(addr: SocketAddr) -> io::Result<Self> {
        Self::around(TcpStream::connect(addr).await?, &addr.into(), STREAM_INPUT_BYTES).await
    }

    async fn around(socket: TcpStream, server: &Endpoint, input_bytes: usize) -> io::Result<Self> {
        let stream = Stream::over(socket, server).await?;
        let input = vec![0; input_bytes].into_boxed_slice();
        Ok(Self { stream, input, decoder: Decoder::default(), body: Vec::new() })
    }

    /// Sends a request and reads the response. Returns the status; the body is in [`Self::body`].
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> io::Result<u16> {
        self.send(request).await?;
        while self.read_more().await? != ResponseState::Complete {}
        Ok(self.decoder.status())
    }

    /// Sends a request and reads the head of the response: the stream has begun, or was refused.
    pub(crate) async fn open_stream(&mut self, request: &[u8]) -> io::Result<u16> {
        self.open_stream_within(request, HEAD_WITHIN).await
    }

    /// As [`Self::open_stream`], with a head that may take `limit`.
    pub(crate) async fn open_stream_within(&mut self, request: &[u8], limit: Duration) -> io::Result<u16> {
        let head = async {
            self.send(request).await?;
            while self.read_more().await? == ResponseState::Head {}
            Ok(self.decoder.status())
        };
        tokio::time::timeout(limit, head).await?
    }

    /// The body of the last response, or the part of a stream that was not consumed yet.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Drops the first bytes of the body.
    pub(crate) fn consume_body(&mut self, bytes: usize) {
        self.body.drain(..bytes);
    }

    /// Reads once from the socket.
    pub(crate) async fn read_more(&mut self) -> io::Result<ResponseState> {
        let read = self.stream.read(&mut self.input).await?;
        if read == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection was closed before the end of the response",
            ));
        }
        let (taken, progress) = self.decoder.feed(&self.input[..read], &mut self.body)?;
        if taken < read {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "bytes after the end of the response"));
        }
        Ok(progress)
    }

    async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.body.clear();
        self.decoder.start();
        self.stream.write_all(request).await
    }
}
