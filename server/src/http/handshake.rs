//! The TLS handshake of an accepted connection, within its time and its place among all handshakes in progress.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection::Stop;
use super::transport::Tcp;
use super::unsent::Unsent;
use crate::metrics::Metrics;
use crate::tls::{HandshakeFailure, HandshakePlace, PeerNames, Tls};

/// Bytes that a connection holds encrypted, or to be encrypted, before it takes more of a response: one record.
const BUFFERED_BYTES_MAX: usize = 16 << 10;
/// Bytes of a plain request that are read before it is answered: unread ones would make the system drop the answer.
const PLAIN_BYTES_READ: usize = 8 << 10;
/// Response to a plain request.
const PLAIN_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
content-type: application/json; charset=utf-8\r\nconnection: close\r\ncontent-length: 86\r\n\r\n\
{\"error\":\"INVALID_ARGUMENT\",\"message\":\"this port takes TLS only: use an https:// URL\"}";

/// A connection whose handshake is complete.
pub(super) struct Secured {
    pub(super) stream: Box<TlsStream<Tcp>>,
    /// The names in the client's certificate, if it has shown one.
    pub(super) peer: Option<Arc<PeerNames>>,
}

/// Completes the handshake. `None` if it fails, which is counted, or the process stops.
pub(super) async fn complete_handshake(
    socket: TcpStream,
    remote: SocketAddr,
    unsent: Unsent,
    (tls, place): (&Tls, HandshakePlace),
    metrics: &Metrics,
    stop: &Stop,
) -> Option<Secured> {
    let secured = tokio::select! {
        secured = tokio::time::timeout(tls.handshake_timeout, secure(socket, unsent, tls)) => {
            secured.unwrap_or(Err(HandshakeFailure::Timeout))
        }
        () = place.taken() => Err(HandshakeFailure::Displaced),
        () = stop.stopped() => return None,
    };
    match secured {
        Ok(secured) => Some(secured),
        Err(failure) => {
            metrics.count_failed_handshake(failure);
            tracing::debug!(%remote, reason = failure.reason(), "TLS handshake failed");
            None
        }
    }
}

async fn secure(socket: TcpStream, unsent: Unsent, tls: &Tls) -> Result<Secured, HandshakeFailure> {
    let mut first = [0];
    let peeked = socket.peek(&mut first).await.map_err(|error| HandshakeFailure::from(&error))?;
    // The first byte of TLS is 22; that of a request is of its method.
    if peeked > 0 && first[0].is_ascii_uppercase() {
        let _ = refuse_plain(socket).await;
        return Err(HandshakeFailure::PlainHttp);
    }
    let acceptor = TlsAcceptor::from(tls.config());
    let limit = |connection: &mut rustls::ServerConnection| connection.set_buffer_limit(Some(BUFFERED_BYTES_MAX));
    let accepted = acceptor.accept_with(Tcp::new(socket, unsent), limit).await;
    let stream = Box::new(accepted.map_err(|error| HandshakeFailure::from(&error))?);
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let peer = certificate.and_then(PeerNames::of).map(Arc::new);
    Ok(Secured { stream, peer })
}

/// Answers a request without TLS, and closes the connection.
async fn refuse_plain(mut socket: TcpStream) -> io::Result<()> {
    socket.try_read(&mut vec![0; PLAIN_BYTES_READ])?;
    socket.write_all(PLAIN_REQUEST).await?;
    socket.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_to_plain_request_has_the_length_it_says() {
        let text = std::str::from_utf8(PLAIN_REQUEST).expect("UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").expect("a body");
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
    }
}
