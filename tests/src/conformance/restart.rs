//! One restart of the server, shared by all cases that need one.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A barrier at which cases wait for each other. The last one to arrive restarts the server.
pub(super) struct RestartBarrier<'a> {
    restart: Box<dyn Fn() -> Result<(), String> + Sync + 'a>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Cases that have neither arrived nor ended.
    awaited: usize,
    /// The result, once the server was restarted.
    restarted: Option<Result<(), String>>,
}

impl<'a> RestartBarrier<'a> {
    /// A barrier for this many cases.
    pub(super) fn new(cases: usize, restart: impl Fn() -> Result<(), String> + Sync + 'a) -> Self {
        let state = Mutex::new(State { awaited: cases, restarted: None });
        Self { restart: Box::new(restart), state, changed: Condvar::new() }
    }

    /// The participation of one case.
    pub(super) fn ticket(&'a self) -> RestartTicket<'a> {
        RestartTicket { barrier: self, used: AtomicBool::new(false) }
    }

    fn arrive(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.awaited -= 1;
        if state.awaited == 0 {
            state.restarted = Some((self.restart)());
            self.changed.notify_all();
        }
        state
    }
}

/// A case's participation in the restart. A case that ends without using it is not awaited.
pub(super) struct RestartTicket<'a> {
    barrier: &'a RestartBarrier<'a>,
    used: AtomicBool,
}

impl RestartTicket<'_> {
    /// Waits until all cases have arrived and the server was restarted.
    pub(super) fn restart(&self) -> Result<(), String> {
        if self.used.swap(true, Ordering::Relaxed) {
            return Err("a case requested a second restart".to_owned());
        }
        let mut state = self.barrier.arrive();
        loop {
            if let Some(restarted) = &state.restarted {
                return restarted.clone();
            }
            state = self.barrier.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for RestartTicket<'_> {
    fn drop(&mut self) {
        if !self.used.load(Ordering::Relaxed) {
            drop(self.barrier.arrive());
        }
    }
}

impl fmt::Debug for RestartTicket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestartTicket").field("used", &self.used).finish_non_exhaustive()
    }
}
