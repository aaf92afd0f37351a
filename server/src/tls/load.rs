//! Reads certificate, key and roots of clients from PEM files.
//!
//! No text of a file goes into an error: it may be of the key.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};

use super::certificate;
use crate::config::TlsFiles;

/// No file of certificates is as large.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Permissions of users that are neither the owner of a file nor in its group.
const OTHERS: u32 = 0o007;
/// What clients may speak, the preferred first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
const CERT: &str = "tls.cert";
const KEY: &str = "tls.key";
const CLIENT_CA: &str = "tls.client_ca";

/// Why a file of `[tls]` cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{setting}: cannot read {}: {error}", .path.display())]
    Unreadable {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
    /// A file is not what its setting says.
    #[error("{setting}: {}: {problem}", .path.display())]
    Unusable {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The key is of another certificate.
    #[error(
        "tls.key: the key in {} does not belong to the first certificate in {}; tls.cert takes the certificate of the \
         broker first, then those that lead to its root", .key.display(), .cert.display()
    )]
    Mismatch {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        cert: PathBuf,
    },
}

/// What the files give.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) config: Arc<ServerConfig>,
    /// When the certificate expires, in seconds since 1970.
    pub(super) expires_at: i64,
    warnings: Vec<String>,
}

impl Loaded {
    pub(super) fn log_warnings(&self) {
        self.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    }
}

/// Reads the files.
pub(super) fn load(files: &TlsFiles) -> Result<Loaded, TlsError> {
    let chain = certificates(CERT, &files.cert)?;
    let (key, key_mode) = private_key(&files.key)?;
    let roots = files.client_ca.as_ref().map(|path| roots(path)).transpose()?;
    let provider = Arc::new(ring::default_provider());
    let unusable = |path: &Path, setting, problem: String| TlsError::Unusable { setting, path: path.into(), problem };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&files.cert, CERT, error.to_string()))?;
    let builder = match (roots, &files.client_ca) {
        (Some(roots), Some(path)) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let verifier = verifier.map_err(|error| unusable(path, CLIENT_CA, error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_no_client_auth(),
    };
    let expires_at = chain.first().and_then(|certificate| certificate::expires_at(certificate));
    let expires_at = expires_at
        .ok_or_else(|| unusable(&files.cert, CERT, "the first certificate cannot be parsed as X.509".to_owned()))?;
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsError::Mismatch { key: files.key.clone(), cert: files.cert.clone() }
        }
        rustls::Error::InvalidCertificate(error) => unusable(&files.cert, CERT, format!("invalid: {error:?}")),
        error => unusable(&files.key, KEY, error.to_string()),
    })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    let mut warnings = Vec::new();
    if key_mode & OTHERS != 0 {
        let path = files.key.display();
        warnings.push(format!("tls.key: every user of this machine can read or replace {path}; chmod o= {path}"));
    }
    if expires_at <= certificate::now() {
        warnings.push(format!("tls.cert: the certificate in {} has expired", files.cert.display()));
    }
    Ok(Loaded { config: Arc::new(config), expires_at, warnings })
}

/// The content of a file, and its permissions.
fn read(setting: &'static str, path: &Path) -> Result<(Vec<u8>, u32), TlsError> {
    let unreadable = |error| TlsError::Unreadable { setting, path: path.to_owned(), error };
    let unusable = |problem: &str| TlsError::Unusable { setting, path: path.to_owned(), problem: problem.to_owned() };
    // Before it is opened: opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(unusable("it is not a regular file, which is needed to read it again"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(unusable("it is larger than 4 MiB"));
    }
    Ok((bytes, metadata.mode()))
}

fn certificates(setting: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let (bytes, _) = read(setting, path)?;
    let parsed = parse_certificates(&bytes);
    parsed.map_err(|problem| TlsError::Unusable { setting, path: path.to_owned(), problem: problem.to_owned() })
}

/// The certificates of a PEM file, at least one.
fn parse_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(certificates) if certificates.is_empty() => Err("there is no certificate in it, in PEM"),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(pem_problem(&error)),
    }
}

fn private_key(path: &Path) -> Result<(PrivateKeyDer<'static>, u32), TlsError> {
    let (bytes, mode) = read(KEY, path)?;
    let key = parse_private_key(&bytes);
    let unusable = |problem: &str| TlsError::Unusable { setting: KEY, path: path.into(), problem: problem.to_owned() };
    Ok((key.map_err(unusable)?, mode))
}

/// The first private key of a PEM file.
fn parse_private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, &'static str> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        pem::Error::NoItemsFound if is_encrypted(pem) => "its private key is encrypted; store it decrypted",
        pem::Error::NoItemsFound => "there is no private key in it, in PEM (PKCS#8, PKCS#1 or SEC 1)",
        error => pem_problem(&error),
    })
}

fn is_encrypted(pem: &[u8]) -> bool {
    const MARK: &[u8] = b"BEGIN ENCRYPTED PRIVATE KEY";
    pem.windows(MARK.len()).any(|window| window == MARK)
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CLIENT_CA, path)? {
        roots.add(certificate).map_err(|error| TlsError::Unusable {
            setting: CLIENT_CA,
            path: path.to_owned(),
            problem: format!("a certificate in it cannot be a root: {error}"),
        })?;
    }
    Ok(roots)
}

/// Without the text that the error may quote.
fn pem_problem(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "it is not valid PEM: a section has no END line; it may be cut off",
        pem::Error::IllegalSectionStart { .. } => "it is not valid PEM: a BEGIN line is malformed",
        pem::Error::Base64Decode(_) => "it is not valid PEM: a section is not base64",
        _ => "it is not valid PEM",
    }
}

/// Parses both kinds of files. For fuzzing.
pub(crate) fn parse_files(certificate: &[u8], key: &[u8]) {
    for der in parse_certificates(certificate).into_iter().flatten() {
        let _ = certificate::expires_at(&der);
        let _ = certificate::PeerNames::of(&der);
    }
    if let Ok(key) = parse_private_key(key) {
        let _ = ring::sign::any_supported_type(&key);
    }
}
