//! TLS of a broker under load: certificates for one that is started here, and what a client trusts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::CertifiedKey;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DEFAULT_VERSIONS, DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedProtocolVersion,
};

use crate::load::client::ClientTls;
use crate::load::error::Result;

/// The name of a broker that is started here.
const OWN_NAME: &str = "localhost";

/// Which certificate of a broker is accepted.
#[derive(Debug, Clone)]
pub(crate) enum Trust {
    /// One that leads to a root in this file, PEM.
    Roots(PathBuf),
    /// Any, for tests.
    Any,
}

/// The files of a certificate for a broker that is started here.
#[derive(Debug, Clone)]
pub(crate) struct OwnCertificate {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl OwnCertificate {
    /// Makes one, which signs itself, and writes it into a folder.
    pub(crate) fn make(folder: &Path) -> Result<Self> {
        let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed([OWN_NAME.to_owned()])?;
        let own = Self { cert: folder.join("tls.crt"), key: folder.join("tls.key") };
        fs::write(&own.cert, cert.pem())?;
        fs::write(&own.key, signing_key.serialize_pem())?;
        Ok(own)
    }

    /// A client that trusts it alone, and speaks TLS 1.3 only.
    pub(crate) fn client(&self) -> Result<ClientTls> {
        client_tls(&Trust::Roots(self.cert.clone()), OWN_NAME, &[&TLS13])
    }
}

/// A client of the server `name`, with the versions that rustls offers.
pub(crate) fn client_of(trust: &Trust, name: &str) -> Result<ClientTls> {
    client_tls(trust, name, DEFAULT_VERSIONS)
}

fn client_tls(trust: &Trust, name: &str, versions: &[&'static SupportedProtocolVersion]) -> Result<ClientTls> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions)?;
    let mut config = match trust {
        Trust::Roots(path) => {
            let mut roots = RootCertStore::empty();
            for root in CertificateDer::pem_file_iter(path).map_err(|error| format!("{}: {error}", path.display()))? {
                roots.add(root?)?;
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        Trust::Any => {
            let verifier = Arc::new(AnyCertificate(provider));
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(name.to_owned()).map_err(|_| format!("{name} is not the name of a server"))?;
    Ok(ClientTls { config: Arc::new(config), name })
}

/// Accepts every certificate; the handshake still has to be signed with its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
