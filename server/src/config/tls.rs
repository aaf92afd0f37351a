//! `[tls]`: where the certificate and its key are, and the bounds of handshakes.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::number::{DAY_MS, Int};
use super::text;

/// TLS of the listen address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a section")]
pub struct TlsSettings {
    /// File with the certificate of the broker and those that lead to its root, PEM.
    #[serde(deserialize_with = "text::some_file", skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// File with the private key of the certificate, PEM.
    #[serde(deserialize_with = "text::some_file", skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// File with the roots of client certificates, PEM. If set, every client needs a certificate.
    #[serde(deserialize_with = "text::some_file", skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
    /// Time a handshake may take.
    #[serde(rename = "handshake_timeout_ms", with = "Int::<100, DAY_MS>")]
    pub handshake_timeout: Duration,
    /// Handshakes in progress.
    #[serde(with = "Int::<1, 1_000_000>")]
    pub handshakes_max: usize,
}

/// The files that TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) client_ca: Option<PathBuf>,
}

impl TlsSettings {
    /// Whether connections use TLS.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.cert.is_some()
    }

    /// The files, if connections use TLS.
    pub(crate) fn files(&self) -> Option<TlsFiles> {
        let (cert, key) = self.cert.clone().zip(self.key.clone())?;
        Some(TlsFiles { cert, key, client_ca: self.client_ca.clone() })
    }

    /// The problem with settings of which one needs another.
    pub(super) fn problem(&self) -> Option<&'static str> {
        match (&self.cert, &self.key, &self.client_ca) {
            (Some(_), None, _) => Some("tls.cert needs tls.key (--tls-key), the file with its private key"),
            (None, Some(_), _) => Some("tls.key needs tls.cert (--tls-cert), the file with its certificate"),
            (None, None, Some(_)) => {
                Some("tls.client_ca needs tls.cert and tls.key: without TLS no client shows a certificate")
            }
            _ => None,
        }
    }
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            cert: None,
            key: None,
            client_ca: None,
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 1_000,
        }
    }
}
