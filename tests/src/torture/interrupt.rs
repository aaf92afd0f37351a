//! Ctrl-C, made polite: whoever drives a run looks here between two steps and gives up in good order, so that every guard that ends a
//! process or takes a disk off does its work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

static ASKED: AtomicBool = AtomicBool::new(false);

/// What a run that was broken off by a signal ends with.
pub const INTERRUPTED: &str = "interrupted";

/// Begins to listen for SIGINT, SIGTERM and SIGHUP, on a thread of its own.
///
/// # Errors
/// If the system gives no thread or no signals.
pub fn listen() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let wait = async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        ASKED.store(true, Ordering::Relaxed);
        Ok::<_, std::io::Error>(())
    };
    std::thread::Builder::new().name("interrupt".into()).spawn(move || runtime.block_on(wait)).map(drop)
}

/// Whether somebody asked for the end.
#[must_use]
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Waits, unless the end is asked for meanwhile.
///
/// # Errors
/// [`INTERRUPTED`].
pub fn pause(time: Duration) -> Result<(), String> {
    let end = Instant::now() + time;
    loop {
        if asked() {
            return Err(INTERRUPTED.to_owned());
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Waits for something to be so.
///
/// # Errors
/// [`INTERRUPTED`], or what was waited for if it did not come in time.
pub fn await_that(what: &str, limit: Duration, mut so: impl FnMut() -> bool) -> Result<(), String> {
    let end = Instant::now() + limit;
    while !so() {
        if Instant::now() >= end {
            return Err(format!("{what}: not within {limit:?}"));
        }
        pause(Duration::from_millis(5))?;
    }
    Ok(())
}
