//! TLS of the listen address: certificate and key from files, read again when they change, and bounds on handshakes.
//!
//! * `load` turns the files of `[tls]` into rustls' configuration, or says what is wrong with which file;
//! * `certificate` reads what rustls keeps to itself: when a certificate expires, and the names it is for;
//! * `reload` replaces the configuration for new connections; those that are open keep theirs;
//! * `handshakes` bounds the handshakes in progress, `failure` names why one fails.
//!
//! The handshake of a connection itself is in `http::handshake`.

mod certificate;
mod failure;
mod handshakes;
mod load;
mod reload;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;

pub(crate) use self::certificate::PeerNames;
pub(crate) use self::failure::HandshakeFailure;
pub(crate) use self::handshakes::{HandshakePlace, Handshakes};
use self::load::Loaded;
pub use self::load::TlsError;
pub(crate) use self::load::parse_files;
use self::reload::Stamps;
use crate::config::{TlsFiles, TlsSettings};

/// Checks that the files of the settings can be used as they are now.
///
/// # Errors
/// [`TlsError`] with the file and its problem.
pub fn check(settings: &TlsSettings) -> Result<(), TlsError> {
    match settings.files() {
        Some(files) => load::load(&files).map(drop),
        None => Ok(()),
    }
}

/// TLS of all reactors.
#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    /// The files as they were when the configuration was read.
    loaded_from: Stamps,
    /// For new connections. The lock is held only to copy or replace the pointer.
    current: RwLock<Arc<ServerConfig>>,
    /// When the certificate expires, in seconds since 1970.
    expires_at: AtomicI64,
    pub(crate) handshake_timeout: Duration,
    pub(crate) handshakes: Arc<Handshakes>,
}

impl Tls {
    /// Reads the files of the settings; `None` if connections do not use TLS.
    ///
    /// # Errors
    /// [`TlsError`] with the file and its problem.
    pub(crate) fn load(settings: &TlsSettings) -> Result<Option<Arc<Self>>, TlsError> {
        let Some(files) = settings.files() else { return Ok(None) };
        // Looked at before they are read, so that no later change is missed.
        let loaded_from = Stamps::of(&files);
        let loaded = load::load(&files)?;
        loaded.log_warnings();
        Ok(Some(Arc::new(Self {
            files,
            loaded_from,
            expires_at: AtomicI64::new(loaded.expires_at),
            current: RwLock::new(loaded.config),
            handshake_timeout: settings.handshake_timeout,
            handshakes: Handshakes::new(settings.handshakes_max),
        })))
    }

    /// The configuration of a new connection.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// When the certificate of new connections expires, in seconds since 1970.
    pub(crate) fn expires_at(&self) -> i64 {
        self.expires_at.load(Ordering::Relaxed)
    }

    fn replace(&self, loaded: Loaded) {
        self.expires_at.store(loaded.expires_at, Ordering::Relaxed);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = loaded.config;
    }
}
