//! Crashes of the broker as clients see them: everything in progress is cut, and until the log is recovered everything
//! is refused.

use std::cell::Cell;

use tokio::sync::Notify;

/// Whether the broker is down, and how often it has been.
#[derive(Debug, Default)]
pub(super) struct Outage {
    is_down: Cell<bool>,
    /// The number of crashes so far.
    epoch: Cell<Epoch>,
    crashed: Notify,
}

/// The time between two crashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Epoch(u64);

impl Outage {
    /// The broker has crashed. False if it was down already.
    pub(super) fn begin(&self) -> bool {
        if self.is_down.replace(true) {
            return false;
        }
        self.epoch.set(Epoch(self.epoch.get().0 + 1));
        self.crashed.notify_waiters();
        true
    }

    /// The broker accepts requests again.
    pub(super) fn end(&self) {
        self.is_down.set(false);
    }

    pub(super) fn is_down(&self) -> bool {
        self.is_down.get()
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch.get()
    }

    /// Resolves once the broker has crashed after `epoch`.
    pub(super) async fn crash_after(&self, epoch: Epoch) {
        loop {
            let crashed = self.crashed.notified();
            if self.epoch.get() > epoch {
                return;
            }
            crashed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn crash_is_seen_by_what_began_before_it_and_by_nothing_else() {
        let outage = Outage::default();
        let mut before = pin!(outage.crash_after(outage.epoch()));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(before.as_mut().poll(context).is_pending());
        assert!(outage.begin() && !outage.begin(), "one crash");
        assert!(outage.is_down() && before.poll(context).is_ready());
        outage.end();
        let mut after = pin!(outage.crash_after(outage.epoch()));
        assert!(!outage.is_down() && after.as_mut().poll(context).is_pending());
    }
}
