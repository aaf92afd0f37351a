//! For tests: one law judges, and all others hold their tongue.
//!
//! Most bugs break several promises, and only the first is told. To see that a law would notice a bug by itself, the others
//! must be silent.

use std::cell::Cell;

use super::verdict::Invariant;

thread_local! {
    static SOLOIST: Cell<Option<Invariant>> = const { Cell::new(None) };
}

/// Whether the law may say that it is broken.
pub(super) fn is_heard(invariant: Invariant) -> bool {
    SOLOIST.get().is_none_or(|soloist| soloist == invariant)
}

/// Does `something` while only `invariant` is heard. Laws that end a loop are heard in any case.
pub(super) fn solo<T>(invariant: Invariant, something: impl FnOnce() -> T) -> T {
    let before = SOLOIST.replace(Some(invariant));
    let done = something();
    SOLOIST.set(before);
    done
}
