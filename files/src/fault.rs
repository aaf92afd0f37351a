//! What the system says, in the words of [`StorageFault`]. All of the mapping is here.

use std::io::{self, ErrorKind};

use driftq_core::log::{FileId, StorageFault};

/// Whether the disk, or this user's part of it, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// What `error`, met while `doing` something to `file`, is to whoever asked.
pub(super) fn storage_fault(doing: &str, file: FileId, error: &io::Error) -> StorageFault {
    match error.kind() {
        ErrorKind::NotFound => StorageFault::NotFound,
        ErrorKind::AlreadyExists => StorageFault::Exists,
        _ if is_full(error) => StorageFault::Full,
        _ => StorageFault::Io(format!("{doing} {file}: {error}")),
    }
}

/// For what may not be answered with "full, and nothing was done": it has been done by half.
pub(super) trait UnlessFull {
    /// The same fault, but never [`StorageFault::Full`].
    fn unless_full(self) -> Self;
}

impl UnlessFull for StorageFault {
    fn unless_full(self) -> Self {
        match self {
            Self::Full => Self::Io("no space left, although room had been made".to_owned()),
            other => other,
        }
    }
}
