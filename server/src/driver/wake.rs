//! How threads wake the one that drives the broker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use tokio::sync::Notify;

/// Wakes the thread that drives the broker.
#[derive(Clone, Debug)]
pub(crate) enum Wake {
    /// The only reactor.
    Reactor(Arc<Notify>),
    /// The sequencer's own thread.
    Sequencer(Arc<SequencerSignal>),
}

impl Wake {
    pub(super) fn wake(&self) {
        match self {
            Self::Reactor(notify) => notify.notify_one(),
            Self::Sequencer(signal) => signal.signal(),
        }
    }
}

/// Wakes the sequencer's thread when there is something to do. A signal costs a system call only if the thread sleeps.
#[derive(Debug, Default)]
pub(crate) struct SequencerSignal {
    is_signalled: AtomicBool,
    is_stopped: AtomicBool,
    thread: OnceLock<Thread>,
}

impl SequencerSignal {
    /// Something is to be done.
    pub(super) fn signal(&self) {
        if !self.is_signalled.swap(true, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    #[cfg(test)]
    pub(super) fn is_signalled(&self) -> bool {
        self.is_signalled.load(Ordering::SeqCst)
    }

    /// The thread is to end.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.signal();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// The calling thread is the one to be woken.
    pub(super) fn set_thread(&self) {
        // It is set once, by the thread itself.
        let _ = self.thread.set(std::thread::current());
    }

    /// Everything signalled up to now is about to be done.
    pub(super) fn clear(&self) {
        self.is_signalled.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn signal_wakes_a_thread_that_sleeps() {
        let signal = Arc::new(SequencerSignal::default());
        let thread = std::thread::spawn({
            let signal = Arc::clone(&signal);
            move || {
                signal.set_thread();
                while !signal.is_stopped() {
                    std::thread::park();
                }
            }
        });
        while signal.thread.get().is_none() {
            std::thread::yield_now();
        }
        signal.stop();
        for _ in 0..3_000 {
            if thread.is_finished() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it still sleeps");
    }
}
