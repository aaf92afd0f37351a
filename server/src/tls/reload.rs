//! Reads the files of `[tls]` again on SIGHUP and when they change.
//!
//! A program that renews certificates writes certificate and key one after the other. So a change is acted on once
//! the files have stayed the same from one look to the next. Files that cannot be used are reported once and change
//! nothing.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::{Tls, load};
use crate::config::TlsFiles;
use crate::metrics::Metrics;

/// How often the files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Identifies a version of a file.
type Stamp = Option<(u64, u64, u64, [i64; 4])>;

/// The versions of certificate, key and roots of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps([Stamp; 3]);

impl Stamps {
    pub(super) fn of(files: &TlsFiles) -> Self {
        let stamp = |path: &Path| {
            let file = std::fs::metadata(path).ok()?;
            let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
            Some((file.dev(), file.ino(), file.size(), times))
        };
        Self([stamp(&files.cert), stamp(&files.key), files.client_ca.as_deref().and_then(stamp)])
    }
}

impl Tls {
    /// Reads the files again whenever they change or `hangup` is notified. Never resolves.
    pub(crate) async fn follow_files(self: Arc<Self>, metrics: Arc<Metrics>, hangup: Arc<Notify>) {
        let mut read = self.loaded_from;
        let mut seen = read;
        loop {
            let is_asked = tokio::select! {
                () = hangup.notified() => true,
                () = tokio::time::sleep(LOOK_INTERVAL) => false,
            };
            // On another thread: the files may be on a network file system.
            let files = self.files.clone();
            let Ok(found) = tokio::task::spawn_blocking(move || Stamps::of(&files)).await else { continue };
            let is_settled = std::mem::replace(&mut seen, found) == found;
            if is_asked || (is_settled && found != read) {
                read = found;
                self.reload(&metrics).await;
            }
        }
    }

    async fn reload(&self, metrics: &Metrics) {
        let files = self.files.clone();
        let Ok(loaded) = tokio::task::spawn_blocking(move || load::load(&files)).await else { return };
        metrics.count_tls_reload(loaded.is_ok());
        match loaded {
            Ok(loaded) => {
                loaded.log_warnings();
                self.replace(loaded);
                tracing::info!("the TLS certificate is reloaded; new connections use it");
            }
            Err(error) => tracing::error!("the TLS certificate is not reloaded, the previous one stays: {error}"),
        }
    }
}
