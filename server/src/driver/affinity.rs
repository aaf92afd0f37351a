//! Keeps the log's thread off the CPU that the reactor runs on.
//!
//! The log's thread sleeps most of the time, in a sync, and the scheduler prefers to wake it on the CPU of its waker,
//! the reactor. There it would preempt the reactor some thousand times a second, which costs more than the sync. The
//! reactor is not pinned: the log's thread moves away from wherever the reactor was last seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The CPU the reactor was last seen on.
#[derive(Clone, Debug, Default)]
pub(super) struct ReactorCpu(Arc<AtomicUsize>);

impl ReactorCpu {
    /// Records the CPU of the calling thread, which must be the reactor.
    pub(super) fn record(&self) {
        self.0.store(sched_getcpu(), Ordering::Relaxed);
    }
}

/// Affinity of a thread that avoids the reactor's CPU.
#[derive(Debug)]
pub(super) struct AvoidReactor {
    reactor: ReactorCpu,
    /// CPUs the process may use; `None` if there is only one or the system refuses to change the affinity.
    allowed: Option<CpuSet>,
    avoided: Option<usize>,
}

impl AvoidReactor {
    /// For the calling thread.
    pub(super) fn new(reactor: ReactorCpu) -> Self {
        let allowed = sched_getaffinity(None).ok().filter(|cpus| cpus.count() > 1);
        Self { reactor, allowed, avoided: None }
    }

    /// Leaves the reactor's CPU, if the thread does not avoid it already.
    pub(super) fn update(&mut self) {
        let cpu = self.reactor.0.load(Ordering::Relaxed);
        let Some(cpus) = self.allowed.filter(|cpus| self.avoided != Some(cpu) && cpus.is_set(cpu)) else { return };
        self.avoided = Some(cpu);
        let mut others = cpus;
        others.unset(cpu);
        if sched_setaffinity(None, &others).is_err() {
            // The process may use other CPUs by now. This is an optimization only.
            self.allowed = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_avoids_the_reactors_cpu_and_no_other() {
        let all = sched_getaffinity(None).expect("the CPUs of this process");
        if all.count() < 2 {
            println!("skipped: one CPU only");
            return;
        }
        let reactor = ReactorCpu::default();
        let mut affinity = AvoidReactor::new(reactor.clone());
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).take(2) {
            reactor.0.store(cpu, Ordering::Relaxed);
            affinity.update();
            let left = sched_getaffinity(None).expect("the CPUs of this thread");
            assert!(!left.is_set(cpu) && left.count() == all.count() - 1, "CPU {cpu}: {left:?}");
        }
        reactor.record();
        affinity.update();
        assert_ne!(sched_getcpu(), reactor.0.load(Ordering::Relaxed));
    }
}
