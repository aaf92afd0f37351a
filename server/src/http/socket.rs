//! A socket on which the peer may close its side after a request and still get the response.
//!
//! Hyper takes the end of input for the end of the connection where it reads a request. While a response is pending
//! that is wrong: a client may half-close after its request. So the end of input is kept from hyper then.
//!
//! Once it has a request, hyper reads nothing before the response is complete (`half_close`): the next read finds the
//! memory of the request free for reuse (measured: `docs/performance.md`). So where it matters that the client is gone,
//! the socket looks for the end of input itself: on behalf of a stream, which ends with its client, and of other
//! requests that may take long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::timeouts::ConnectionHandle;
use super::transport::Transport;

/// A connection's transport that hides the end of input while a response is pending.
#[derive(Debug)]
pub(super) struct Socket {
    transport: Transport,
    connection: ConnectionHandle,
}

impl Socket {
    pub(super) fn new(transport: Transport, connection: ConnectionHandle) -> Self {
        Self { transport, connection }
    }

    /// Looks whether the peer has closed its side, which ends a stream. A further request in front of the end hides it.
    fn look_for_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if !self.connection.is_peer_closed() {
            match self.transport.poll_peek(context)? {
                Poll::Pending => return Ok(()),
                Poll::Ready(0) => self.connection.set_peer_closed(),
                Poll::Ready(_) => {
                    self.connection.unwatch_peer();
                    return Ok(());
                }
            }
        }
        match self.connection.is_response_pending() {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
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
            ready!(Pin::new(&mut self.transport).poll_read(context, buffer))?;
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
        Pin::new(&mut self.transport).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.connection.is_peer_watched() {
            self.look_for_end(context)?;
        }
        // Hyper flushes once its buffer is empty; that of TLS is empty once it is flushed.
        ready!(Pin::new(&mut self.transport).poll_flush(context))?;
        self.transport.unsent().on_flush();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }
}
