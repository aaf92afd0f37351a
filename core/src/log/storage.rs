//! The storage trait: the eight operations that the log needs, each of which may fail.
//!
//! Real files, the simulator's faulty disk and [`MemoryStorage`](super::MemoryStorage) implement the same trait.
//! The commit pipeline decides when to write and when to sync.

use std::fmt;
use std::str::FromStr;

use crate::types::FrameNumber;

/// A file of the log. Its [`Display`](fmt::Display) form is its name in the data folder, and only names of exactly that
/// form parse back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileId {
    /// The segment with this sequence number, counted from 1: `wal-00000000000000000001.seg`.
    Segment(u64),
    /// A finished snapshot of the state after the frame with this number: `snap-00000000000000000042.snap`.
    Snapshot(FrameNumber),
    /// A snapshot still being written: `snap-00000000000000000042.tmp`. A restart discards it.
    SnapshotDraft(FrameNumber),
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(sequence) => write!(f, "wal-{sequence:020}.seg"),
            Self::Snapshot(frame) => write!(f, "snap-{:020}.snap", frame.0),
            Self::SnapshotDraft(frame) => write!(f, "snap-{:020}.tmp", frame.0),
        }
    }
}

/// The text is not the name of a file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a log file")]
pub struct FileNameError;

impl FromStr for FileId {
    type Err = FileNameError;

    fn from_str(name: &str) -> Result<Self, FileNameError> {
        let digits = |text: &str| -> Result<u64, FileNameError> {
            if text.len() != 20 || !text.bytes().all(|b| b.is_ascii_digit()) {
                return Err(FileNameError);
            }
            text.parse().map_err(|_| FileNameError)
        };
        if let Some(rest) = name.strip_prefix("wal-") {
            return Ok(Self::Segment(digits(rest.strip_suffix(".seg").ok_or(FileNameError)?)?));
        }
        let rest = name.strip_prefix("snap-").ok_or(FileNameError)?;
        if let Some(number) = rest.strip_suffix(".snap") {
            return Ok(Self::Snapshot(FrameNumber(digits(number)?)));
        }
        Ok(Self::SnapshotDraft(FrameNumber(digits(rest.strip_suffix(".tmp").ok_or(FileNameError)?)?)))
    }
}

/// One entry of [`Storage::list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// The file.
    pub file: FileId,
    /// The number of readable bytes, preallocated zeros included.
    pub len: u64,
}

/// Where the writer expects an append to go.
///
/// A local file needs neither check. A replicated log does: the epoch fences a writer that has been replaced, the
/// position one that has missed an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteAt {
    /// The writer's boot number. A storage that has seen a later one may refuse.
    pub epoch: u64,
    /// The end of the data written so far, in bytes. An append at any other position is refused as
    /// [`StorageFault::Misplaced`].
    pub position: u64,
}

/// Why a storage operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageFault {
    /// No space left. The operation has had no effect.
    #[error("no space left")]
    Full,
    /// No descriptor left, of this process or of the system. The operation has had no effect.
    #[error("too many open files")]
    NoDescriptor,
    /// The file does not exist.
    #[error("no such file")]
    NotFound,
    /// The file already exists.
    #[error("the file already exists")]
    Exists,
    /// The append was not at the end of the written data. Nothing has been written.
    #[error("append at byte {actual}, but the data ends at byte {expected}")]
    Misplaced {
        /// Where the written data ends.
        expected: u64,
        /// The position of the append.
        actual: u64,
    },
    /// Any other error of the operating system. The operation may have taken effect fully, partly or not at all.
    #[error("{0}")]
    Io(String),
}

/// A folder of log files.
///
/// *Written* data is visible to readers of this storage at once; *durable* data survives a power loss. Until the named
/// sync has returned `Ok`, a power loss may keep any part of the written data, in any order. It never damages data that
/// is already durable: an append may share a disk sector with older data, and that sector then holds the old bytes or
/// the new ones.
///
/// After a failed [`sync`](Self::sync) or [`sync_folder`](Self::sync_folder) nothing may be assumed about data written
/// since the last successful one, and a retry proves nothing; the caller stops using the storage.
///
/// A newly opened storage returns what is on the medium or on its way there, never pages that a failed sync of an
/// earlier process gave up. Operating systems keep such pages in the cache, where they are readable, count as clean,
/// and are lost at a power loss; recovery would rely on them and its sync would not write them. When a log is opened,
/// its files must therefore be read past the page cache.
pub trait Storage {
    /// Creates an empty file with room for `capacity` bytes, so that appends within it never fail with
    /// [`StorageFault::Full`]; 0 reserves nothing. Beyond the appended data the file reads as zeros up to the capacity,
    /// or ends, also after a power loss; old content of the disk never appears. The file's name is durable after
    /// [`sync_folder`](Self::sync_folder).
    ///
    /// # Errors
    /// [`StorageFault::Exists`]; [`StorageFault::Full`] or [`StorageFault::NoDescriptor`], in which case no file is
    /// left; [`StorageFault::Io`].
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault>;

    /// Writes `bytes` at the end of the written data; after an error none of them are visible to readers. Durable after
    /// [`sync`](Self::sync). Only files created by this storage need to accept appends: after a restart the log
    /// continues in a new file.
    ///
    /// # Errors
    /// [`StorageFault::NotFound`], [`StorageFault::Misplaced`]; [`StorageFault::Full`] beyond the capacity;
    /// [`StorageFault::Io`].
    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault>;

    /// Returns once everything written to the file, by this process or an earlier one, is durable.
    ///
    /// # Errors
    /// [`StorageFault::NotFound`]; [`StorageFault::Io`], after which the storage must not be used again.
    fn sync(&mut self, file: FileId) -> Result<(), StorageFault>;

    /// Fills `buffer` from byte `position` on and returns the number of bytes read, which is less than requested only
    /// at the end of the file. An unreadable medium is an error, never an end of file.
    ///
    /// # Errors
    /// [`StorageFault::NotFound`], [`StorageFault::Io`].
    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault>;

    /// How many bytes to read at once. Any sizes give the same result.
    fn read_sizes(&self) -> ReadSizes {
        ReadSizes::default()
    }

    /// All files of the log, in the order of [`FileId`]. Other files in the folder are not listed.
    ///
    /// # Errors
    /// [`StorageFault::Io`].
    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault>;

    /// Renames the file atomically. Durable after [`sync_folder`](Self::sync_folder).
    ///
    /// # Errors
    /// [`StorageFault::NotFound`]; [`StorageFault::Exists`], since a rename never replaces a file;
    /// [`StorageFault::Io`].
    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault>;

    /// Removes the file. Durable after [`sync_folder`](Self::sync_folder); until then a power loss may restore it.
    ///
    /// # Errors
    /// [`StorageFault::NotFound`], [`StorageFault::Io`].
    fn remove(&mut self, file: FileId) -> Result<(), StorageFault>;

    /// Cuts the file to its first `len` bytes and frees the space behind them; a file that is not longer stays as it
    /// is. Applies to files of this process and of earlier ones. A power loss may undo it until the file is synced.
    ///
    /// # Errors
    /// [`StorageFault::NotFound`], [`StorageFault::Io`].
    fn trim(&mut self, file: FileId, len: u64) -> Result<(), StorageFault>;

    /// Returns once every creation, rename and removal so far is durable. Does not sync the contents of files.
    ///
    /// # Errors
    /// [`StorageFault::Io`], after which the storage must not be used again.
    fn sync_folder(&mut self) -> Result<(), StorageFault>;
}

/// One I/O operation that the pipeline requests from its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoOp {
    /// [`Storage::create`].
    Create {
        /// The new file.
        file: FileId,
        /// Bytes to reserve.
        capacity: u64,
    },
    /// [`Storage::append`].
    Append {
        /// The file to write to.
        file: FileId,
        /// The current end of its data.
        at: WriteAt,
        /// The bytes to write.
        bytes: Vec<u8>,
    },
    /// [`Storage::sync`].
    Sync {
        /// The file to make durable.
        file: FileId,
    },
    /// [`Storage::rename`].
    Rename {
        /// The current name.
        from: FileId,
        /// The new name.
        to: FileId,
    },
    /// [`Storage::remove`].
    Remove {
        /// The file to remove.
        file: FileId,
    },
    /// [`Storage::trim`].
    Trim {
        /// The file to cut.
        file: FileId,
        /// The bytes to keep.
        len: u64,
    },
    /// [`Storage::sync_folder`].
    SyncFolder,
}

impl IoOp {
    /// Performs the operation on a storage.
    ///
    /// # Errors
    /// Any error of the storage.
    pub fn perform(&self, storage: &mut (impl Storage + ?Sized)) -> Result<(), StorageFault> {
        match self {
            Self::Create { file, capacity } => storage.create(*file, *capacity),
            Self::Append { file, at, bytes } => storage.append(*file, *at, bytes),
            Self::Sync { file } => storage.sync(*file),
            Self::Rename { from, to } => storage.rename(*from, *to),
            Self::Remove { file } => storage.remove(*file),
            Self::Trim { file, len } => storage.trim(*file, *len),
            Self::SyncFolder => storage.sync_folder(),
        }
    }
}

/// How many bytes are read from a storage at once. All are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSizes {
    /// By the first read of a whole file.
    pub first: usize,
    /// By any read of a whole file; each reads twice as much as the one before.
    pub max: usize,
    /// By a read of a snapshot. A longer frame is read as a whole.
    pub window: usize,
}

impl Default for ReadSizes {
    fn default() -> Self {
        Self { first: 16 << 10, max: 1 << 20, window: 64 << 10 }
    }
}

/// Reads the whole file into `buffer`, replacing its contents and reusing its memory.
///
/// Reads until the end of the file; a listed length is not trusted.
///
/// # Errors
/// Any error of the storage; the contents of `buffer` are then unspecified.
pub fn read_whole(
    storage: &mut (impl Storage + ?Sized),
    file: FileId,
    buffer: &mut Vec<u8>,
) -> Result<(), StorageFault> {
    buffer.clear();
    let sizes = storage.read_sizes();
    let mut want = sizes.first;
    while read_more(storage, file, buffer.len() as u64, buffer, want)? == want {
        want = (want * 2).min(sizes.max);
    }
    Ok(())
}

/// Reads up to `want` bytes from `position` on to the end of `buffer`; fewer only at the end of the file.
pub(super) fn read_more(
    storage: &mut (impl Storage + ?Sized),
    file: FileId,
    position: u64,
    buffer: &mut Vec<u8>,
    want: usize,
) -> Result<usize, StorageFault> {
    let start = buffer.len();
    buffer.resize(start + want, 0);
    let got = storage.read(file, position, &mut buffer[start..])?;
    assert!(got <= want, "a storage filled more than the buffer it was given");
    buffer.truncate(start + got);
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_have_fixed_width_and_parse_back() {
        for (file, name) in [
            (FileId::Segment(1), "wal-00000000000000000001.seg"),
            (FileId::Segment(u64::MAX), "wal-18446744073709551615.seg"),
            (FileId::Snapshot(FrameNumber(42)), "snap-00000000000000000042.snap"),
            (FileId::SnapshotDraft(FrameNumber(0)), "snap-00000000000000000000.tmp"),
        ] {
            assert_eq!(file.to_string(), name);
            assert_eq!(name.parse(), Ok(file));
        }
    }

    #[test]
    fn foreign_file_names_do_not_parse() {
        for name in [
            "",
            "lock",
            "wal-1.seg",
            "wal-+0000000000000000001.seg",
            "wal-00000000000000000001.seg.bak",
            "WAL-00000000000000000001.seg",
            "wal-00000000000000000001.snap",
            "wal-99999999999999999999.seg",
            "snap-00000000000000000001",
            "snap-00000000000000000001.seg",
            "snap-0000000000000000001é.tmp",
        ] {
            assert_eq!(name.parse::<FileId>(), Err(FileNameError), "{name}");
        }
    }
}
