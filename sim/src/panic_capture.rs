//! Captures panics of the broker under test, with their location, and keeps them off the terminal.
//!
//! Only panics inside [`catch`] are captured. All others are printed as usual.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::thread;

thread_local! {
    static CAPTURING: Cell<bool> = const { Cell::new(false) };
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Installs the panic hook that keeps panics inside [`catch`] off the terminal. Called once, by the program; tests do
/// without.
pub fn install() {
    let default_hook = panic::take_hook();
    panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        if CAPTURING.get() {
            let location = info.location().map(ToString::to_string);
            LOCATION.with_borrow_mut(|stored| *stored = location);
        } else {
            default_hook(info);
        }
    }));
}

/// Runs `body` and captures its panic.
///
/// # Errors
/// The panic's message, with its location where the hook is installed.
pub fn catch<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    LOCATION.with_borrow_mut(|stored| *stored = None);
    let before = CAPTURING.replace(true);
    let result: thread::Result<T> = panic::catch_unwind(AssertUnwindSafe(body));
    CAPTURING.set(before);
    result.map_err(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        let message =
            message.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
        match LOCATION.with_borrow_mut(Option::take) {
            Some(location) => format!("{message} ({location})"),
            None => message,
        }
    })
}
