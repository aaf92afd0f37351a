//! A socket on which the peer may close its side after a request and still get the response.
//!
//! Hyper takes the end of input for the end of the connection, even while a response is pending. For a stream that is
//! right, as its client has disconnected. For any other response it is not: a client may half-close after its request.
//! So while such a response is pending, the end of input is kept from hyper.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::timeouts::ConnectionHandle;
use super::unsent::Unsent;

/// A TCP socket that hides the end of input while a response is pending.
#[derive(Debug)]
pub(super) struct Socket {
    tcp: TcpStream,
    connection: ConnectionHandle,
    unsent: Unsent,
}

impl Socket {
    pub(super) fn new(tcp: TcpStream, connection: ConnectionHandle, unsent: Unsent) -> Self {
        Self { tcp, connection, unsent }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.connection.is_peer_closed() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.tcp).poll_read(context, buffer))?;
            if buffer.filled().len() > before || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            self.connection.set_peer_closed();
        }
        // Hyper reads again once it has sent the response.
        if self.connection.is_response_pending() { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write(context, bytes);
        self.unsent.on_write(written.is_ready());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Hyper flushes once its buffer is empty.
        self.unsent.on_flush();
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write_vectored(context, pieces);
        self.unsent.on_write(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }
}
