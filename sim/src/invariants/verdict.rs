//! What an invariant says: nothing, or which sentence was broken and by what.

use std::fmt;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its number in the list of invariants; 0 for one that stands in no list.
    pub invariant: u8,
    /// The sentence that should have been true.
    pub sentence: &'static str,
    /// What was found instead.
    pub found: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}: {}", self.invariant, self.sentence, self.found)
    }
}

/// Whether an invariant holds.
pub type Verdict = Result<(), Violation>;

/// One sentence that must always be true. All of them stand in [`catalog`](super::catalog).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Invariant {
    /// The invariant it belongs to, by its number in `SIMULATION.md`. An invariant may need several sentences.
    pub number: u8,
    /// Its name, which is also that of the function that checks it.
    pub name: &'static str,
    /// What must be true.
    pub sentence: &'static str,
}

impl Invariant {
    /// Holds if `good`; else `found` says what was there instead.
    pub(crate) fn holds(self, good: bool, found: impl FnOnce() -> String) -> Verdict {
        #[cfg(test)]
        let good = good || !super::isolate::is_heard(self);
        if good { Ok(()) } else { Err(self.violated_by(found())) }
    }

    /// It does not hold: `found` was there instead.
    #[must_use]
    pub(crate) fn violated_by(self, found: String) -> Violation {
        Violation { invariant: self.number, sentence: self.sentence, found }
    }

    /// Whether it is the one that was broken.
    #[must_use]
    pub fn is(self, violation: &Violation) -> bool {
        (self.number, self.sentence) == (violation.invariant, violation.sentence)
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>2} {}: {}", self.number, self.name, self.sentence)
    }
}
