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

/// An invariant: its number and its sentence.
#[derive(Clone, Copy, Debug)]
pub struct Law(pub u8, pub &'static str);

impl Law {
    /// Holds if `good`; else `found` says what was there instead.
    pub fn holds(self, good: bool, found: impl FnOnce() -> String) -> Verdict {
        if good { Ok(()) } else { Err(Violation { invariant: self.0, sentence: self.1, found: found() }) }
    }
}
