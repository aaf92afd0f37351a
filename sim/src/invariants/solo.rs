//! For tests: one law judges, and all others hold their tongue.
//!
//! Most bugs break several promises, and only the first is told. To see that a law would notice a bug by itself, the others
//! must be silent.

use std::cell::Cell;

use super::verdict::Law;

thread_local! {
    static SOLOIST: Cell<Option<Law>> = const { Cell::new(None) };
}

/// Whether the law may say that it is broken.
pub(super) fn is_heard(law: Law) -> bool {
    SOLOIST.get().is_none_or(|soloist| soloist == law)
}

/// Does `something` while only `law` is heard. Laws that end a loop are heard in any case.
pub(super) fn solo<T>(law: Law, something: impl FnOnce() -> T) -> T {
    let before = SOLOIST.replace(Some(law));
    let done = something();
    SOLOIST.set(before);
    done
}
