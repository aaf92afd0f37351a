//! TLS with rustls: the certificates to trust, and the handshake.

use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::connector::{TlsRefused, Trust};
use crate::error::{Error, ErrorKind};

/// # Errors
/// If there are no certificates to trust.
pub(super) fn connector(trust: &Trust) -> Result<TlsConnector, Error> {
    let mut roots = RootCertStore::empty();
    match trust {
        Trust::System => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let errors: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
                let message = format!("the system has no certificates to trust; give `ca`. {}", errors.join(", "));
                return Err(Error::new(ErrorKind::Tls, message));
            }
        }
        Trust::Pem(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| Error::misuse(format!("`ca` is no PEM: {error}")))?;
                roots.add(certificate).map_err(|error| Error::misuse(format!("`ca`: {error}")))?;
            }
            if roots.is_empty() {
                return Err(Error::misuse("`ca` has no certificate"));
            }
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(ErrorKind::Tls, error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// # Errors
/// [`TlsRefused`] inside, unless the connection was lost.
pub(super) async fn handshake(
    connector: &TlsConnector,
    host: &str,
    tcp: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let name =
        ServerName::try_from(host.to_owned()).map_err(|error| io::Error::other(TlsRefused(error.to_string())))?;
    connector.connect(name, tcp).await.map_err(|error| {
        let refused = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).map(ToString::to_string);
        refused.map_or(error, |message| io::Error::other(TlsRefused(message)))
    })
}
