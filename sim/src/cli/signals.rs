//! SIGINT and SIGTERM: stop what can be stopped, then exit.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code of a command that a signal has ended.
pub(super) const INTERRUPTED: u8 = 130;

/// A flag that the first SIGINT or SIGTERM sets. A second one ends the process at once.
pub(super) fn stop_on_signals() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
