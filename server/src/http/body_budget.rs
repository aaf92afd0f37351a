//! Memory of request bodies that are not complete yet, all together.
//!
//! A body that arrives in one piece is not counted: it is handled and gone before anything else happens. What counts is
//! what is collected while its rest is awaited, and messages that wait for room in the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The memory that the unfinished bodies of all reactors share.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    max: usize,
    used: AtomicUsize,
    refused: AtomicU64,
}

/// There is no memory left for more of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

impl BodyBudget {
    /// A budget of `max` bytes.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Number of bodies that were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// The part of the budget that one body uses, until dropped.
#[derive(Debug)]
pub(crate) struct BodyBytes {
    budget: Arc<BodyBudget>,
    bytes: usize,
}

impl BodyBytes {
    /// Nothing yet.
    pub(crate) fn new(budget: &Arc<BodyBudget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Holds `bytes` bytes.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn hold(budget: &Arc<BodyBudget>, bytes: usize) -> Result<Self, NoMemory> {
        let mut held = Self::new(budget);
        held.set(bytes)?;
        Ok(held)
    }

    /// Makes room for `more` bytes at the end of `collected`, which may become `max` bytes long. Memory is taken in
    /// steps that double, so that a length which is announced and never sent costs nothing.
    ///
    /// # Errors
    /// [`NoMemory`]; then nothing has changed.
    pub(crate) fn make_room(&mut self, collected: &mut Vec<u8>, more: usize, max: usize) -> Result<(), NoMemory> {
        let needed = collected.len() + more;
        if needed <= collected.capacity() {
            return Ok(());
        }
        let capacity = (2 * collected.capacity()).min(max).max(needed);
        self.set(capacity)?;
        collected.reserve_exact(capacity - collected.len());
        Ok(())
    }

    /// The memory was freed.
    pub(crate) fn clear(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
    }

    fn set(&mut self, bytes: usize) -> Result<(), NoMemory> {
        let change = |used: usize| {
            let others = used - self.bytes;
            Some(others + bytes).filter(|used| *used <= self.budget.max)
        };
        if self.budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_err() {
            self.budget.refused.fetch_add(1, Ordering::Relaxed);
            return Err(NoMemory);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for BodyBytes {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_together_stay_within_budget() {
        let budget = BodyBudget::new(1_000);
        let (mut first, mut second) = (BodyBytes::new(&budget), BodyBytes::new(&budget));
        let (mut one, mut two) = (Vec::new(), Vec::new());
        first.make_room(&mut one, 300, 800).expect("room");
        one.resize(300, 0);
        first.make_room(&mut one, 1, 800).expect("room");
        assert_eq!((budget.used(), one.capacity()), (600, 600), "doubled");
        second.make_room(&mut two, 400, 800).expect("room");
        assert_eq!(second.make_room(&mut two, 401, 800), Err(NoMemory));
        assert_eq!((budget.used(), budget.refused()), (1_000, 1), "a refusal takes nothing");
        drop(first);
        second.make_room(&mut two, 401, 800).expect("room again");
        second.clear();
        assert_eq!(budget.used(), 0);
    }
}
