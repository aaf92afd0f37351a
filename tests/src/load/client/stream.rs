//! The stream of a connection: plain or with TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Where a server listens, and how it is spoken to.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) addr: SocketAddr,
    /// `None` for plain HTTP.
    pub(crate) tls: Option<ClientTls>,
}

/// How a server with TLS is spoken to.
#[derive(Debug, Clone)]
pub(crate) struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
    /// The name that the server's certificate must have.
    pub(crate) name: ServerName<'static>,
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        Self { addr, tls: None }
    }
}

/// A connected stream.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Completes the handshake, if the server has TLS. Without Nagle's algorithm.
    pub(super) async fn over(socket: TcpStream, endpoint: &Endpoint) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let Some(ClientTls { config, name }) = &endpoint.tls else { return Ok(Self::Plain(socket)) };
        let connector = TlsConnector::from(Arc::clone(config));
        Ok(Self::Tls(Box::new(connector.connect(name.clone(), socket).await?)))
    }

    pub(super) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(into).await,
            Self::Tls(stream) => stream.read(into).await,
        }
    }

    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes).await,
            Self::Tls(stream) => {
                stream.write_all(bytes).await?;
                // It has encrypted them; the socket may not have taken all.
                stream.flush().await
            }
        }
    }
}
