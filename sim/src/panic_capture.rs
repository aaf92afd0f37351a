//! Panics of a broker on trial are findings, not noise: the terminal stays quiet, and where it happened is kept.
//!
//! Only panics that happen while a life is lived are hushed. One of the simulator's own tools is told as usual.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::thread;

thread_local! {
    static LIVING: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on, panics inside [`catch`] are not printed. To be called once, by a program; tests do without.
pub fn install() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        if LIVING.get() {
            let place = info.location().map(ToString::to_string);
            PLACE.with_borrow_mut(|kept| *kept = place);
        } else {
            usual(info);
        }
    }));
}

/// Runs `living`, and says what it panicked with if it did.
///
/// # Errors
/// The words of the panic, and where it happened if that is known.
pub fn catch<T>(living: impl FnOnce() -> T) -> Result<T, String> {
    PLACE.with_borrow_mut(|kept| *kept = None);
    let before = LIVING.replace(true);
    let lived: thread::Result<T> = panic::catch_unwind(AssertUnwindSafe(living));
    LIVING.set(before);
    lived.map_err(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
        match PLACE.with_borrow_mut(Option::take) {
            Some(place) => format!("{said} ({place})"),
            None => said,
        }
    })
}
