//! Cancellation of the work on one message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

/// Why work is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Another worker has the message, or may have it.
    LeaseLost,
    /// The worker stops.
    Shutdown,
}

impl Cause {
    fn bit(self) -> u8 {
        match self {
            Self::LeaseLost => 1,
            Self::Shutdown => 2,
        }
    }
}

/// A signal that is sent once for each cause. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancel(Arc<Signal>);

#[derive(Debug, Default)]
struct Signal {
    causes: AtomicU8,
    changed: Notify,
}

impl Cancel {
    /// Sends the signal. False if it had been sent for this cause before.
    pub(crate) fn trigger(&self, cause: Cause) -> bool {
        let before = self.0.causes.fetch_or(cause.bit(), Ordering::AcqRel);
        self.0.changed.notify_waiters();
        before & cause.bit() == 0
    }

    /// The cause, if it has been sent. A lost lease precedes.
    pub(crate) fn cause(&self) -> Option<Cause> {
        let causes = self.0.causes.load(Ordering::Acquire);
        [Cause::LeaseLost, Cause::Shutdown].into_iter().find(|cause| causes & cause.bit() != 0)
    }

    /// Waits for the signal.
    pub(crate) async fn cancelled(&self) -> Cause {
        self.wait(|cause| cause).await
    }

    /// Waits until the lease is lost.
    pub(crate) async fn lost(&self) {
        self.wait(|cause| cause.filter(|cause| *cause == Cause::LeaseLost)).await;
    }

    async fn wait(&self, wanted: impl Fn(Option<Cause>) -> Option<Cause>) -> Cause {
        loop {
            // Registered before the cause is read, so that no signal is missed.
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if let Some(cause) = wanted(self.cause()) {
                return cause;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lost_lease_is_seen_after_shutdown_and_precedes_it() {
        let cancel = Cancel::default();
        assert_eq!(cancel.cause(), None);
        assert!(cancel.trigger(Cause::Shutdown));
        assert_eq!(cancel.cancelled().await, Cause::Shutdown);
        let waiting = tokio::spawn({
            let cancel = cancel.clone();
            async move { cancel.lost().await }
        });
        assert!(cancel.trigger(Cause::LeaseLost));
        assert!(!cancel.trigger(Cause::LeaseLost));
        waiting.await.expect("it ends");
        assert_eq!(cancel.cause(), Some(Cause::LeaseLost));
    }
}
