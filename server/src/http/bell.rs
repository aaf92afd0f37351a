//! What wakes a connection's task, and the one time it need not.
//!
//! Whoever takes a piece of a body wakes hyper, which may wait to hand on the next. Behind the last piece there is none, and still
//! the task would have a turn for nothing, one for every request with a body. So hyper is given a waker that can be held.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

/// Wakes a task, unless it is held. Both happen on the task's own thread, so nobody else rings it meanwhile.
#[derive(Debug)]
pub(super) struct Bell {
    task: Waker,
    /// It is held, and only notes that it was rung.
    held: AtomicBool,
    /// It was rung while it was held.
    rung: AtomicBool,
}

impl Bell {
    pub(super) fn new(task: Waker) -> Self {
        Self { task, held: AtomicBool::new(false), rung: AtomicBool::new(false) }
    }

    pub(super) fn ring(&self) {
        match self.held.load(Ordering::Relaxed) {
            true => self.rung.store(true, Ordering::Relaxed),
            false => self.task.wake_by_ref(),
        }
    }

    /// From here on it is held.
    pub(super) fn hold(&self) {
        self.held.store(true, Ordering::Relaxed);
    }

    /// From here on it rings again, and if somebody still wants to hear it, it makes up for what it missed.
    pub(super) fn release(&self, is_wanted: bool) {
        self.held.store(false, Ordering::Relaxed);
        if self.rung.swap(false, Ordering::Relaxed) && is_wanted {
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
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_rung_while_it_is_held_is_heard_later_or_not_at_all() {
        let woken = Arc::new(Woken::default());
        let bell = Bell::new(Arc::clone(&woken).into());
        let count = || woken.0.load(Ordering::Relaxed);
        bell.ring();
        assert_eq!(count(), 1);
        bell.hold();
        bell.ring();
        bell.ring();
        assert_eq!(count(), 1, "held");
        bell.release(true);
        assert_eq!(count(), 2, "made up for");
        bell.hold();
        bell.release(true);
        assert_eq!(count(), 2, "nobody rang");
        bell.hold();
        bell.ring();
        bell.release(false);
        bell.hold();
        bell.release(true);
        assert_eq!(count(), 2, "not wanted, and forgotten");
        bell.ring();
        assert_eq!(count(), 3);
    }
}
