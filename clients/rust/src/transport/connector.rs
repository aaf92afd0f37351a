//! Connections: TCP, and TLS over it with the feature `tls`.

use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use super::endpoint::Endpoint;
#[cfg(feature = "tls")]
use super::tls;
use crate::error::Error;

/// A host that does not accept a connection in this time is passed over.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// A TLS handshake that was refused. It would be refused again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TlsRefused(pub(crate) String);

/// Which certificates are trusted.
#[derive(Clone, Debug, Default)]
pub(crate) enum Trust {
    /// Those of the system.
    #[default]
    System,
    /// Those in this PEM text.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "only TLS has certificates"))]
    Pem(Vec<u8>),
}

/// Opens connections for the pool.
#[derive(Clone)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    #[cfg(feature = "tls")]
    tls: Option<tokio_rustls::TlsConnector>,
}

impl Connector {
    /// # Errors
    /// If a URL needs certificates to trust and there are none.
    pub(crate) fn new(trust: &Trust, has_https: bool) -> Result<Self, Error> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        #[cfg(feature = "tls")]
        return Ok(Self { tcp, tls: if has_https { Some(tls::connector(trust)?) } else { None } });
        #[cfg(not(feature = "tls"))]
        {
            // A URL with https has been refused before.
            let (_, _) = (trust, has_https);
            Ok(Self { tcp })
        }
    }
}

impl Connector {
    /// Opens a connection.
    ///
    /// # Errors
    /// [`TlsRefused`] inside, or that of the system.
    pub(crate) async fn connect(&self, endpoint: &Endpoint) -> Result<Stream, BoxError> {
        let tcp = self.tcp.clone().call(endpoint.origin()?).await?;
        #[cfg(feature = "tls")]
        if let Some(connector) = self.tls.as_ref().filter(|_| endpoint.is_https()) {
            let stream = tls::handshake(connector, endpoint.host(), tcp.into_inner()).await?;
            return Ok(Stream::Tls(Box::new(TokioIo::new(stream))));
        }
        Ok(Stream::Plain(tcp))
    }
}

/// A connection.
pub(crate) enum Stream {
    Plain(TokioIo<TcpStream>),
    #[cfg(feature = "tls")]
    Tls(Box<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>>),
}

macro_rules! each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Plain($inner) => $call,
            #[cfg(feature = "tls")]
            Stream::Tls($inner) => $call,
        }
    };
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<Result<(), io::Error>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_read(context, buffer))
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_shutdown(context))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, inner => inner.is_write_vectored())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_write_vectored(context, buffers))
    }
}
