//! What the log asks of a disk, and no more: eight operations, each of which may fail.
//!
//! Real files, the simulator's lying disk and [`MemoryStorage`](super::MemoryStorage) stand behind the same trait.
//! Nothing here decides when to write or to sync; that is the commit pipeline's business.

use std::fmt;
use std::str::FromStr;

use crate::types::Lsn;

/// A file of the log, by what it is. Its [`Display`](fmt::Display) form is its name in the data folder, and only names
/// of exactly that form parse back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileId {
    /// The segment with this sequence number, counted from 1: `wal-00000000000000000001.seg`.
    Segment(u64),
    /// A finished snapshot of the state after this LSN: `snap-00000000000000000042.snap`.
    Snapshot(Lsn),
    /// A snapshot still being written: `snap-00000000000000000042.tmp`. After a restart it is worth nothing.
    SnapshotDraft(Lsn),
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(sequence) => write!(f, "wal-{sequence:020}.seg"),
            Self::Snapshot(lsn) => write!(f, "snap-{:020}.snap", lsn.0),
            Self::SnapshotDraft(lsn) => write!(f, "snap-{:020}.tmp", lsn.0),
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
            return Ok(Self::Snapshot(Lsn(digits(number)?)));
        }
        Ok(Self::SnapshotDraft(Lsn(digits(rest.strip_suffix(".tmp").ok_or(FileNameError)?)?)))
    }
}

/// One line of [`Storage::list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Which file.
    pub file: FileId,
    /// How many bytes can be read from it, zeros ahead of the written data included.
    pub len: u64,
}

/// Where an append believes it writes.
///
/// A file on one machine needs neither; a log kept by several does: the epoch fences a writer that has been replaced,
/// the position one that has missed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteAt {
    /// The writer's boot number. A storage that knows of a later one may refuse.
    pub epoch: u64,
    /// The end of the data written so far, in bytes. At any other place the append is refused as
    /// [`StorageFault::Misplaced`].
    pub position: u64,
}

/// Why a storage did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageFault {
    /// There is no room. Nothing of what was asked has been done.
    #[error("no space left")]
    Full,
    /// There is no such file.
    #[error("no such file")]
    NotFound,
    /// There already is such a file.
    #[error("the file already exists")]
    Exists,
    /// The append was meant for another place than the end of the written data. Nothing has been written.
    #[error("append at byte {actual}, but the data ends at byte {expected}")]
    Misplaced {
        /// Where the written data ends.
        expected: u64,
        /// Where the append was to go.
        actual: u64,
    },
    /// Anything else the system said. What was asked may be done, half done, or not done.
    #[error("{0}")]
    Io(String),
}

/// A folder of log files.
///
/// Two things are apart here and stay apart: *written*, which a reader of this storage sees at once, and *durable*,
/// which is still there after a power loss. Until the named sync has returned `Ok`, a power loss may keep any part of
/// what was written, in any order. Damage never spreads to what is durable already: an append may share a disk sector
/// with older data, and that sector then holds the old bytes or the new.
///
/// After a failed [`sync`](Self::sync) or [`sync_folder`](Self::sync_folder) nothing may be assumed of what was
/// written since the last good one, and asking again proves nothing; the caller stops using the storage.
///
/// A storage that is opened anew shows what is on the medium or on its way there, and never what a failed sync of an
/// earlier process gave up: systems keep such pages in memory, where they read well, count as clean, and are gone with the
/// power. Recovery would build on them and sync them in vain. Files must therefore be read past the system's cache when a
/// log is opened.
pub trait Storage {
    /// Makes an empty file with room for `capacity` bytes, so that appends within it never fail for want of space;
    /// 0 reserves nothing. What has not been appended reads as zeros up to the capacity, or the file ends there: also
    /// after a power loss, and never does old content of the disk show through. The file's name is durable after
    /// [`sync_folder`](Self::sync_folder).
    ///
    /// # Errors
    /// [`StorageFault::Exists`]; [`StorageFault::Full`], and then there is no file; [`StorageFault::Io`].
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault>;

    /// Writes `bytes` behind what was written before, all or, as far as a reader is told, nothing. Durable after
    /// [`sync`](Self::sync). Only a file that this storage itself created need take appends: after a restart the log
    /// goes on in a new file.
    ///
    /// # Errors
    /// [`StorageFault::NotFound`], [`StorageFault::Misplaced`]; [`StorageFault::Full`] beyond the capacity;
    /// [`StorageFault::Io`].
    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault>;

    /// Returns when everything written to the file is durable, by this process or an earlier one.
    ///
    /// # Errors
    /// [`StorageFault::NotFound`]; [`StorageFault::Io`], after which see above.
    fn sync(&mut self, file: FileId) -> Result<(), StorageFault>;

    /// Fills `buffer` from byte `position` on and says how many bytes it got: fewer than asked for only where the file
    /// ends. A medium that cannot be read is an error, never an end.
    ///
    /// # Errors
    /// [`StorageFault::NotFound`], [`StorageFault::Io`].
    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault>;

    /// All files of the log, each once, in the order of [`FileId`]. Names that are not the log's are not listed.
    ///
    /// # Errors
    /// [`StorageFault::Io`].
    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault>;

    /// Gives the file another name, in one op for every reader. Durable after [`sync_folder`](Self::sync_folder).
    ///
    /// # Errors
    /// [`StorageFault::NotFound`]; [`StorageFault::Exists`] rather than replacing; [`StorageFault::Io`].
    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault>;

    /// Takes the file away. Durable after [`sync_folder`](Self::sync_folder); until then it may come back.
    ///
    /// # Errors
    /// [`StorageFault::NotFound`], [`StorageFault::Io`].
    fn remove(&mut self, file: FileId) -> Result<(), StorageFault>;

    /// Returns when every creation, rename and removal so far is durable. Says nothing of what is in the files.
    ///
    /// # Errors
    /// [`StorageFault::Io`], after which see above.
    fn sync_folder(&mut self) -> Result<(), StorageFault>;
}

/// One piece of I/O, as the pipeline asks its driver for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoOp {
    /// [`Storage::create`].
    Create {
        /// The new file.
        file: FileId,
        /// Bytes to keep room for.
        capacity: u64,
    },
    /// [`Storage::append`].
    Append {
        /// The file to write to.
        file: FileId,
        /// Where its data ends.
        at: WriteAt,
        /// What to write there.
        bytes: Vec<u8>,
    },
    /// [`Storage::sync`].
    Sync {
        /// The file to make durable.
        file: FileId,
    },
    /// [`Storage::rename`].
    Rename {
        /// The name it has.
        from: FileId,
        /// The name it gets.
        to: FileId,
    },
    /// [`Storage::remove`].
    Remove {
        /// The file that goes.
        file: FileId,
    },
    /// [`Storage::sync_folder`].
    SyncFolder,
}

impl IoOp {
    /// Does it.
    ///
    /// # Errors
    /// Whatever the storage says.
    pub fn perform(&self, storage: &mut (impl Storage + ?Sized)) -> Result<(), StorageFault> {
        match self {
            Self::Create { file, capacity } => storage.create(*file, *capacity),
            Self::Append { file, at, bytes } => storage.append(*file, *at, bytes),
            Self::Sync { file } => storage.sync(*file),
            Self::Rename { from, to } => storage.rename(*from, *to),
            Self::Remove { file } => storage.remove(*file),
            Self::SyncFolder => storage.sync_folder(),
        }
    }
}

const READ_BYTES_FIRST: usize = 16 << 10;
const READ_BYTES_MAX: usize = 1 << 20;

/// Reads the whole file into `buffer`, whose old content goes and whose memory is used again.
///
/// The length is found by reading: a file is never trusted to be as long as somebody said.
///
/// # Errors
/// Whatever the storage says; `buffer` then holds something of no worth.
pub fn read_whole(
    storage: &mut (impl Storage + ?Sized),
    file: FileId,
    buffer: &mut Vec<u8>,
) -> Result<(), StorageFault> {
    buffer.clear();
    let mut want = READ_BYTES_FIRST;
    while read_more(storage, file, buffer.len() as u64, buffer, want)? == want {
        want = (want * 2).min(READ_BYTES_MAX);
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
            (FileId::Snapshot(Lsn(42)), "snap-00000000000000000042.snap"),
            (FileId::SnapshotDraft(Lsn(0)), "snap-00000000000000000000.tmp"),
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
