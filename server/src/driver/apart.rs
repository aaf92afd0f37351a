//! The log's thread keeps off the core that the reactor runs on.
//!
//! It sleeps most of the time, in a sync; and a scheduler likes to wake a sleeper where its waker runs. There it would push the
//! reactor aside some thousand times a second, which costs more than the sync itself. Nothing is pinned for good: the reactor runs
//! wherever the system puts it, and the log's thread makes way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Where the reactor was last seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Whereabouts(Arc<AtomicUsize>);

impl Whereabouts {
    /// Notes the core this thread, the reactor's, runs on.
    pub(super) fn note(&self) {
        self.0.store(sched_getcpu(), Ordering::Relaxed);
    }
}

/// A thread that makes way.
#[derive(Debug)]
pub(super) struct Apart {
    reactor: Whereabouts,
    /// The cores the process may use; `None` if there is no choice, or the system grants none.
    cores: Option<CpuSet>,
    avoided: Option<usize>,
}

impl Apart {
    /// For the thread that calls it.
    pub(super) fn new(reactor: Whereabouts) -> Self {
        let cores = sched_getaffinity(None).ok().filter(|cores| cores.count() > 1);
        Self { reactor, cores, avoided: None }
    }

    /// Leaves the reactor's core, if this is not done already.
    pub(super) fn make_way(&mut self) {
        let core = self.reactor.0.load(Ordering::Relaxed);
        let Some(cores) = self.cores.filter(|cores| self.avoided != Some(core) && cores.is_set(core)) else { return };
        self.avoided = Some(core);
        let mut others = cores;
        others.unset(core);
        if sched_setaffinity(None, &others).is_err() {
            // What the process may use has changed. It is a kindness, not a need.
            self.cores = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leaves_the_core_it_is_told_of_and_no_other() {
        let all = sched_getaffinity(None).expect("the cores of this process");
        if all.count() < 2 {
            println!("skipped: one core only");
            return;
        }
        let reactor = Whereabouts::default();
        let mut thread = Apart::new(reactor.clone());
        for core in (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).take(2) {
            reactor.0.store(core, Ordering::Relaxed);
            thread.make_way();
            let left = sched_getaffinity(None).expect("the cores of this thread");
            assert!(!left.is_set(core) && left.count() == all.count() - 1, "core {core}: {left:?}");
        }
        reactor.note();
        thread.make_way();
        assert_ne!(sched_getcpu(), reactor.0.load(Ordering::Relaxed));
    }
}
