//! SIGINT and SIGTERM end streams; they are no failure.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Exit, Failure};

/// Receives both signals from its creation on.
#[derive(Debug)]
pub(crate) struct Interrupt {
    int: Signal,
    term: Signal,
}

impl Interrupt {
    pub(crate) fn new() -> Result<Self, Failure> {
        let failed = |error| Failure::new(Exit::Refused, format!("signals cannot be received: {error}"));
        Ok(Self {
            int: signal(SignalKind::interrupt()).map_err(failed)?,
            term: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    /// Waits for the next signal. Dropping the future loses none.
    pub(crate) async fn received(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }
}
