//! Memory of request bodies that are not complete yet, all together.
//!
//! A body that arrives in one piece is not counted: it is handled and gone before anything else happens. What counts is
//! what is collected while its rest is awaited, and messages that wait for room in the log.

use std::cell::Cell;
use std::rc::Rc;

/// The memory that unfinished bodies share.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    max: usize,
    used: Cell<usize>,
    refused: Cell<u64>,
}

/// There is no memory left for more of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

impl BodyBudget {
    /// A budget of `max` bytes.
    pub(crate) fn new(max: usize) -> Rc<Self> {
        Rc::new(Self { max, used: Cell::new(0), refused: Cell::new(0) })
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.used.get()
    }

    /// Number of bodies that were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.get()
    }
}

/// The part of the budget that one body uses, until dropped.
#[derive(Debug)]
pub(crate) struct BodyBytes {
    budget: Rc<BodyBudget>,
    bytes: usize,
}

impl BodyBytes {
    /// Nothing yet.
    pub(crate) fn new(budget: &Rc<BodyBudget>) -> Self {
        Self { budget: Rc::clone(budget), bytes: 0 }
    }

    /// Holds `bytes` bytes.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn hold(budget: &Rc<BodyBudget>, bytes: usize) -> Result<Self, NoMemory> {
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
        self.budget.used.set(self.budget.used.get() - self.bytes);
        self.bytes = 0;
    }

    fn set(&mut self, bytes: usize) -> Result<(), NoMemory> {
        let others = self.budget.used.get() - self.bytes;
        if others + bytes > self.budget.max {
            self.budget.refused.set(self.budget.refused.get() + 1);
            return Err(NoMemory);
        }
        self.budget.used.set(others + bytes);
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
