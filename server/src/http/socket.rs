//! A socket whose peer may say all it has to say, close its side, and still be answered.
//!
//! Hyper takes the end of what it reads for the end of the connection, also while an answer is on its way. For a stream that is
//! right: nobody is there to read it. For any other answer it is not: a client that has sent its request may half-close. So while
//! such an answer is awaited, hyper is not told that the peer has closed its side.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::patience::PatienceTimer;

/// The socket, and what is known of who is to speak.
#[derive(Debug)]
pub(super) struct Socket {
    tcp: TcpStream,
    turn: PatienceTimer,
}

impl Socket {
    pub(super) fn new(tcp: TcpStream, turn: PatienceTimer) -> Self {
        Self { tcp, turn }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.turn.is_closed() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.tcp).poll_read(context, buffer))?;
            if buffer.filled().len() > before || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            self.turn.close();
        }
        // Whoever waits is woken by the answer, and asks again when it has left.
        if self.turn.is_ours() { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        Pin::new(&mut self.tcp).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }
}
