//! SIGINT, SIGTERM and SIGHUP as a flag that is checked between steps, so that all guards that kill processes and
//! unmount disks run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The error of a run that was ended by a signal.
pub const INTERRUPTED: &str = "interrupted";

/// Begins to listen for SIGINT, SIGTERM and SIGHUP on a separate thread.
///
/// # Errors
/// If the thread or the signal handlers cannot be created.
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
        REQUESTED.store(true, Ordering::Relaxed);
        Ok::<_, std::io::Error>(())
    };
    std::thread::Builder::new().name("interrupt".into()).spawn(move || runtime.block_on(wait)).map(drop)
}

/// Whether a signal was received.
#[must_use]
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Fails if a signal was received.
///
/// # Errors
/// [`INTERRUPTED`].
pub fn check() -> Result<(), String> {
    if requested() { Err(INTERRUPTED.to_owned()) } else { Ok(()) }
}

/// Sleeps.
///
/// # Errors
/// [`INTERRUPTED`], if a signal is received meanwhile.
pub fn sleep(time: Duration) -> Result<(), String> {
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Waits until a condition holds.
///
/// # Errors
/// [`INTERRUPTED`], or `what` if it does not hold in time.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Result<(), String> {
    let end = Instant::now() + limit;
    while !condition() {
        if Instant::now() >= end {
            return Err(format!("{what}: not within {limit:?}"));
        }
        sleep(Duration::from_millis(5))?;
    }
    Ok(())
}
