//! What carries the bytes of a connection: a TCP socket, with or without TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::unsent::Unsent;

/// A TCP socket that reports to [`Unsent`] whether it takes what is written. With TLS it is below the encryption: what
/// counts is what the client's side takes.
#[derive(Debug)]
pub(super) struct Tcp {
    stream: TcpStream,
    unsent: Unsent,
}

/// TLS is boxed, so that plain connections have the size of their socket.
#[derive(Debug)]
pub(super) enum Transport {
    Plain(Tcp),
    Tls(Box<TlsStream<Tcp>>),
}

impl Tcp {
    pub(super) fn new(stream: TcpStream, unsent: Unsent) -> Self {
        Self { stream, unsent }
    }
}

impl Transport {
    pub(super) fn unsent(&self) -> &Unsent {
        match self {
            Self::Plain(tcp) => &tcp.unsent,
            Self::Tls(tls) => &tls.get_ref().0.unsent,
        }
    }

    /// How many bytes of the next input there are, at least one unless it has ended. Takes nothing.
    pub(super) fn poll_peek(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => tcp.stream.poll_peek(context, &mut ReadBuf::new(&mut [0])),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_fill_buf(context).map_ok(<[u8]>::len),
        }
    }
}

impl AsyncRead for Tcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.unsent.on_write(written.is_ready());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.unsent.on_write(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(context, buffer),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(context, bytes),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_write(context, bytes),
        }
    }

    /// With TLS, ready once the socket has taken everything that is encrypted.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(context),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(context),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(context, pieces),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(tcp) => tcp.is_write_vectored(),
            Self::Tls(tls) => tls.is_write_vectored(),
        }
    }
}
