//! A socket on which the peer may close its side after a request and still get the response.
//!
//! A client may half-close after its request, so while a response is pending the end of input is kept from hyper. A
//! stream ends with its peer.
//!
//! Hyper is set not to read before a response is complete. It would read for nothing, and need a new buffer to read
//! into each time, as the request still has the one it was read into (measured: `docs/performance.md`). Handlers that
//! depend on the end of input have the socket watched for it: see [`ConnectionHandle::watch_peer`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::timeouts::ConnectionHandle;
use super::unsent::Unsent;

/// A TCP socket that hides the end of input while a response is pending, and fails once the peer of a stream has closed
/// its side.
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

    /// Looks for the end of input if it is watched for. Does not consume input.
    ///
    /// # Errors
    /// If the peer of a stream has closed its side, or the connection is broken.
    fn check_peer(&self, context: &mut Context<'_>) -> io::Result<()> {
        if !self.connection.is_watched() {
            return Ok(());
        }
        if !self.connection.is_peer_closed() {
            match self.tcp.poll_peek(context, &mut ReadBuf::new(&mut [0])) {
                Poll::Ready(Ok(0)) => self.connection.set_peer_closed(),
                Poll::Ready(Err(error)) => return Err(error),
                // With input, its end is not visible.
                Poll::Ready(Ok(_)) | Poll::Pending => return Ok(()),
            }
        }
        match self.connection.is_response_pending() {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client has left its stream")),
        }
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
        if written.is_pending() {
            self.check_peer(context)?;
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Hyper flushes whenever it was polled and its buffer is empty.
        self.unsent.on_flush();
        self.check_peer(context)?;
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
        if written.is_pending() {
            self.check_peer(context)?;
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }
}
