//! File descriptors: the limit is raised, some are kept for the log and the process itself, and connections get the
//! rest.

use std::time::{Duration, Instant};

use driftq_core::OpenError;
use driftq_core::log::{RecoveryError, StorageFault};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Settings;

/// Descriptors that are not connections of clients: standard streams, listener, event queues, the lock and the folder,
/// the log's segments and snapshots, and a few to spare for what libraries open for a moment.
const RESERVED: u64 = 64;
/// Descriptors of each further reactor: its listener and its event queue.
const RESERVED_PER_REACTOR: u64 = 8;
/// Descriptors of a router's webhook: requests in progress and idle connections.
const RESERVED_FOR_WEBHOOK: u64 = 80;

/// Raises the limit on descriptors to its maximum and lowers `connections_max` to what it leaves, with a warning.
pub(crate) fn fit(mut settings: Settings) -> Settings {
    let Some(limit) = raise_limit() else { return settings };
    let for_webhook = if settings.router.webhook.is_some() { RESERVED_FOR_WEBHOOK } else { 0 };
    let for_reactors = (settings.http.reactors as u64).saturating_sub(1).saturating_mul(RESERVED_PER_REACTOR);
    let reserved = RESERVED.saturating_add(for_webhook).saturating_add(for_reactors);
    let left = connections_within(limit, reserved);
    if left < settings.http.connections_max {
        tracing::warn!(
            connections_max = left,
            "the limit on open files ({limit}) leaves {left} connections, not the configured {}; raise it \
                (LimitNOFILE, ulimit -n)",
            settings.http.connections_max
        );
        settings.http.connections_max = left;
    }
    settings
}

/// The connections that a limit leaves. At least an eighth of it, so that a broker with a very low limit starts; what
/// the log lacks then is waited for.
fn connections_within(limit: u64, reserved: u64) -> usize {
    usize::try_from(limit.saturating_sub(reserved).max(limit / 8).max(1)).unwrap_or(usize::MAX)
}

/// Raises the soft limit to the hard one and returns the limit that holds; `None` if there is none.
fn raise_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!("cannot raise the limit on open files, it stays at {current:?}: {error}");
        return current;
    }
    maximum
}

/// How long a start waits for a descriptor of the log's files.
const START_WAIT: Duration = Duration::from_secs(5);
/// How often it tries.
const START_RETRY: Duration = Duration::from_millis(100);

/// Opens the log; where it lacks descriptors, again until there are some or [`START_WAIT`] has passed.
///
/// To open a log again after an attempt that failed is what a start after a crash does, so it needs no care of its own.
pub(crate) fn open_log<T>(open: impl FnMut() -> Result<T, OpenError>) -> Result<T, OpenError> {
    open_within(START_WAIT, open)
}

fn open_within<T>(wait: Duration, mut open: impl FnMut() -> Result<T, OpenError>) -> Result<T, OpenError> {
    let end = Instant::now() + wait;
    let mut is_told = false;
    loop {
        let result = open();
        if !result.as_ref().is_err_and(lacks_descriptors) || Instant::now() >= end {
            return result;
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::warn!("no file descriptor left for the log's files; the start waits for one. {}", limit_advice());
        }
        std::thread::sleep(START_RETRY);
    }
}

/// Whether the log could not be opened for lack of descriptors.
pub(crate) fn lacks_descriptors(error: &OpenError) -> bool {
    matches!(
        error,
        OpenError::Storage(StorageFault::NoDescriptor)
            | OpenError::Recovery(RecoveryError::Storage { fault: StorageFault::NoDescriptor, .. })
    )
}

/// Whether the process or the system has no descriptor left.
pub(crate) fn is_lack_of_descriptors(error: &std::io::Error) -> bool {
    let lack = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|errno| lack.contains(&errno))
}

/// Names the limit and how to raise it.
pub(crate) fn limit_advice() -> String {
    match getrlimit(Resource::Nofile).current {
        Some(limit) => format!("The limit on open files is {limit}; raise it (LimitNOFILE, ulimit -n)"),
        None => "The process has no limit on open files, so it is the system's (fs.file-max)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a log whose attempts fail with these, then succeeds. The result, and the number of attempts.
    fn attempts(faults: &[StorageFault]) -> (Result<(), OpenError>, usize) {
        let mut count = 0;
        let result = open_within(Duration::from_secs(60), || {
            count += 1;
            faults.get(count - 1).cloned().map_or(Ok(()), |fault| Err(OpenError::Storage(fault)))
        });
        (result, count)
    }

    #[test]
    fn start_waits_for_descriptors_and_for_nothing_else() {
        let none = StorageFault::NoDescriptor;
        assert!(matches!(attempts(&[none.clone(), none.clone()]), (Ok(()), 3)));
        assert!(matches!(
            attempts(&[none.clone(), StorageFault::Full]),
            (Err(OpenError::Storage(StorageFault::Full)), 2)
        ));
        let error = open_within(Duration::ZERO, || Err::<(), _>(OpenError::Storage(none.clone())));
        assert!(error.is_err_and(|error| lacks_descriptors(&error)), "it does not wait for ever");
    }

    #[test]
    fn connections_get_what_the_reserve_leaves() {
        assert_eq!(connections_within(1_024, RESERVED), 960);
        assert_eq!(connections_within(1_024, RESERVED + RESERVED_FOR_WEBHOOK), 880);
        assert_eq!(connections_within(64, RESERVED), 8, "a low limit leaves a few");
        assert_eq!(connections_within(1, RESERVED), 1);
    }
}
