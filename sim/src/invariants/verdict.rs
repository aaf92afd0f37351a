//! The result of a check: nothing, or which invariant was violated and by what.

use std::fmt;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its number; 0 for one outside the numbered list.
    pub invariant: u8,
    /// The sentence that should have been true.
    pub sentence: &'static str,
    /// What was found.
    pub found: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}: {}", self.invariant, self.sentence, self.found)
    }
}

/// The result of a check.
pub type Verdict = Result<(), Violation>;

/// One statement that must always hold. All of them are in the [`catalog`](super::catalog).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Invariant {
    /// Its number in `docs/simulation/invariants.md`, where an invariant may consist of several statements.
    pub number: u8,
    /// Its name, and that of the function that checks it.
    pub name: &'static str,
    /// The statement.
    pub sentence: &'static str,
}

impl Invariant {
    /// Holds if `good`; otherwise `found` describes the violation.
    pub(crate) fn holds(self, good: bool, found: impl FnOnce() -> String) -> Verdict {
        #[cfg(test)]
        let good = good || !super::isolate::is_active(self);
        if good { Ok(()) } else { Err(self.violated_by(found())) }
    }

    /// The violation of this invariant.
    #[must_use]
    pub(crate) fn violated_by(self, found: String) -> Violation {
        Violation { invariant: self.number, sentence: self.sentence, found }
    }

    /// Whether this is the invariant that was violated.
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
