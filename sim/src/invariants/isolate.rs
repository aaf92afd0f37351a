//! For tests: checks one invariant alone.
//!
//! Most bugs violate several invariants, and only the first is reported. To show that an invariant detects a bug by
//! itself, all others are ignored.

use std::cell::Cell;

use super::verdict::Invariant;

thread_local! {
    static ACTIVE: Cell<Option<Invariant>> = const { Cell::new(None) };
}

/// Whether violations of the invariant are reported.
pub(super) fn is_active(invariant: Invariant) -> bool {
    ACTIVE.get().is_none_or(|active| active == invariant)
}

/// Runs `body` with `invariant` alone. Invariants that end a loop stay active.
pub(super) fn only<T>(invariant: Invariant, body: impl FnOnce() -> T) -> T {
    let before = ACTIVE.replace(Some(invariant));
    let result = body();
    ACTIVE.set(before);
    result
}
