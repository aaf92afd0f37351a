//! How much room the file system of the data folder has left.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long an answer of the file system is waited for: a disk that does not answer must not hold up metrics.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Asks the file system of a folder, one question at a time.
#[derive(Debug)]
pub(crate) struct DiskSpace {
    /// `None` without a data folder.
    folder: Option<PathBuf>,
    is_asking: AtomicBool,
}

impl DiskSpace {
    /// Of the file system that `folder` is on.
    pub(crate) fn of(folder: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Self { folder, is_asking: AtomicBool::new(false) })
    }

    /// The bytes that the process may still write there. `None` if there is no folder, or the file system gives no
    /// answer in time, now or to the question before.
    pub(crate) async fn free_bytes(self: &Arc<Self>) -> Option<u64> {
        self.folder.as_ref()?;
        if self.is_asking.swap(true, Ordering::Relaxed) {
            return None;
        }
        let space = Arc::clone(self);
        // On another thread, and at most one: it stays there for as long as the file system does not answer.
        let answer = tokio::task::spawn_blocking(move || {
            let answer = space.folder.as_ref().and_then(|folder| rustix::fs::statvfs(folder).ok());
            space.is_asking.store(false, Ordering::Relaxed);
            answer
        });
        let found = tokio::time::timeout(WAIT_MAX, answer).await.ok()?.ok()??;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(space: &Arc<DiskSpace>) -> Option<u64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(space.free_bytes())
    }

    #[test]
    fn free_bytes_are_those_of_the_file_system() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(ask(&DiskSpace::of(Some(folder.path().to_owned()))).is_some_and(|bytes| bytes > 0));
        assert_eq!(ask(&DiskSpace::of(Some(folder.path().join("absent")))), None);
        assert_eq!(ask(&DiskSpace::of(None)), None);
    }

    #[test]
    fn question_without_an_answer_is_not_asked_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let space = DiskSpace::of(Some(folder.path().to_owned()));
        space.is_asking.store(true, Ordering::Relaxed);
        assert_eq!(ask(&space), None);
        space.is_asking.store(false, Ordering::Relaxed);
        assert!(ask(&space).is_some());
        assert!(ask(&space).is_some(), "an answer permits the next question");
    }
}
