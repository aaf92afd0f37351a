//! Maps I/O errors to [`StorageFault`].

use std::io::{self, ErrorKind};

use driftq_core::log::{FileId, StorageFault};
use rustix::io::Errno;

/// Whether the disk or the quota is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Whether the process or the system has no descriptor left.
pub(super) fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].iter().any(|none_left| errno == Some(none_left.raw_os_error()))
}

/// The fault for an `error` that occurred while `doing` something to `file`.
pub(super) fn storage_fault(doing: &str, file: FileId, error: &io::Error) -> StorageFault {
    match error.kind() {
        ErrorKind::NotFound => StorageFault::NotFound,
        ErrorKind::AlreadyExists => StorageFault::Exists,
        _ if is_full(error) => StorageFault::Full,
        _ if is_out_of_descriptors(error) => StorageFault::NoDescriptor,
        _ => StorageFault::Io(format!("{doing} {file}: {error}")),
    }
}

/// For operations that may have taken effect partly, where [`StorageFault::Full`] would mean that they have not.
pub(super) trait UnlessFull {
    /// The same fault, but never [`StorageFault::Full`].
    fn unless_full(self) -> Self;
}

impl UnlessFull for StorageFault {
    fn unless_full(self) -> Self {
        match self {
            Self::Full => Self::Io("no space left, although space was reserved".to_owned()),
            other => other,
        }
    }
}
