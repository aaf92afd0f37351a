//! A waker for hyper that can be held back for the one wake-up that is not needed.
//!
//! Taking a chunk of a request body wakes the connection's task, so that hyper passes on the next one. After the last
//! chunk there is none, and the task would be polled for nothing, once per request with a body. So hyper gets a waker
//! that can be held meanwhile; one poll less per request was measured to be worth it (`docs/performance.md`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

/// Wakes a task unless held. All calls come from the thread of the task.
#[derive(Debug)]
pub(super) struct GatedWaker {
    task: Waker,
    held: AtomicBool,
    /// There was a wake-up while held.
    is_wake_pending: AtomicBool,
}

impl GatedWaker {
    pub(super) fn new(task: Waker) -> Self {
        Self { task, held: AtomicBool::new(false), is_wake_pending: AtomicBool::new(false) }
    }

    pub(super) fn wake(&self) {
        match self.held.load(Ordering::Relaxed) {
            true => self.is_wake_pending.store(true, Ordering::Relaxed),
            false => self.task.wake_by_ref(),
        }
    }

    /// Defers wake-ups until [`GatedWaker::release`].
    pub(super) fn hold(&self) {
        self.held.store(true, Ordering::Relaxed);
    }

    /// Ends the hold. A deferred wake-up is delivered if `deliver`, else dropped.
    pub(super) fn release(&self, deliver: bool) {
        self.held.store(false, Ordering::Relaxed);
        if self.is_wake_pending.swap(false, Ordering::Relaxed) && deliver {
            self.task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn held_wake_up_is_delivered_or_dropped_on_release() {
        let wakes = Arc::new(Wakes::default());
        let waker = GatedWaker::new(Arc::clone(&wakes).into());
        let count = || wakes.0.load(Ordering::Relaxed);
        waker.wake();
        assert_eq!(count(), 1);
        waker.hold();
        waker.wake();
        waker.wake();
        assert_eq!(count(), 1, "held");
        waker.release(true);
        assert_eq!(count(), 2, "delivered");
        waker.hold();
        waker.release(true);
        assert_eq!(count(), 2, "nothing to deliver");
        waker.hold();
        waker.wake();
        waker.release(false);
        waker.hold();
        waker.release(true);
        assert_eq!(count(), 2, "dropped");
        waker.wake();
        assert_eq!(count(), 3);
    }
}
