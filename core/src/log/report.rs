//! What recovery has to say: what it found, what it thinks worth a line in the log of the process, or why it refuses.

use super::header::{HeaderError, LogId};
use super::segment::{SegmentHeader, StopReason};
use super::snapshot::SnapshotError;
use super::storage::{FileId, IoOp, StorageFault};
use crate::types::Lsn;

/// A log, found whole. Everything in it through [`last_lsn`](Self::last_lsn) is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Whose log it is.
    pub log_id: LogId,
    /// The snapshot the state was restored from.
    pub snapshot: Option<Lsn>,
    /// The last LSN there is; 0 in a new log.
    pub last_lsn: Lsn,
    /// The checksum of the frame with that LSN; 0 in a new log.
    pub last_crc: u32,
    /// The sequence number of the segment to go on in.
    pub next_segment: u64,
    /// The segments that stay, oldest first.
    pub segments: Vec<SegmentInfo>,
    /// The snapshots that stay, oldest first: at most two, the older of them not read.
    pub snapshots: Vec<Lsn>,
    /// What nothing needs any more; [`cleanup_ops`](Self::cleanup_ops) says how to be rid of it.
    pub garbage: Vec<FileId>,
    /// What happened on the way that somebody may want to know.
    pub notices: Vec<Notice>,
    /// Whether the log was closed in an orderly way: its last frame is a footer.
    pub clean: bool,
    /// How many frames were read from segments.
    pub frames_read: u64,
    /// How many bytes those frames took.
    pub bytes_read: u64,
}

impl Recovered {
    /// The header of the segment to go on in. It says where its predecessor ends, so once it is durable everything
    /// found torn there is dead for good.
    #[must_use]
    pub fn next_header(&self) -> SegmentHeader {
        SegmentHeader {
            log_id: self.log_id,
            sequence: self.next_segment,
            previous_lsn: self.last_lsn,
            previous_crc: self.last_crc,
            synced: self.last_lsn,
        }
    }

    /// Whether the last segment ended in something that was never wholly written.
    #[must_use]
    pub fn has_torn_tail(&self) -> bool {
        self.notices.iter().any(|notice| matches!(notice, Notice::TornTail { .. }))
    }

    /// Removes the garbage, in an order that a power loss may interrupt anywhere. To be performed before the next
    /// segment is created, whose name may be among it.
    #[must_use]
    pub fn cleanup_ops(&self) -> Vec<IoOp> {
        let mut ops = Vec::new();
        let never_begun = |file: &FileId| matches!(file, FileId::Segment(sequence) if *sequence >= self.next_segment);
        // Highest first and each for good: else a gap could be left before one of them, which is how the loss of a
        // segment in use looks.
        for file in self.garbage.iter().filter(|file| never_begun(file)).rev() {
            ops.extend([IoOp::Remove { file: *file }, IoOp::SyncFolder]);
        }
        let removed = ops.len();
        ops.extend(self.garbage.iter().filter(|file| !never_begun(file)).map(|file| IoOp::Remove { file: *file }));
        if ops.len() > removed {
            ops.push(IoOp::SyncFolder);
        }
        ops
    }
}

/// A segment that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its sequence number.
    pub sequence: u64,
    /// Its first LSN; where its header is damaged and the segment not needed, the least it can be.
    pub first_lsn: Lsn,
    /// Its last LSN, one less than the first where it holds no frame. Once a snapshot at or above it is the older of
    /// two, the segment may go.
    pub last_lsn: Lsn,
    /// The bytes its file takes.
    pub len: u64,
}

/// Something recovery dealt with by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    /// The last segment ends in bytes that nothing proves to have been synced.
    #[error("{file}: torn tail of {bytes} bytes from byte {position} on (LSN {lsn}: {reason}), never synced; cut")]
    TornTail {
        /// The last segment.
        file: FileId,
        /// Where its good data ends.
        position: u64,
        /// How many bytes follow, the zeros at the end not counted.
        bytes: u64,
        /// The LSN of the first frame that is lost.
        lsn: Lsn,
        /// What is wrong with it.
        reason: StopReason,
    },
    /// A snapshot is damaged; an older one, or the whole log, did as well. It is part of the garbage.
    #[error("{file}: damaged snapshot passed over: {error}")]
    DamagedSnapshot {
        /// The snapshot.
        file: FileId,
        /// What is wrong with it.
        error: SnapshotError,
    },
    /// A segment is damaged that the snapshot makes superfluous.
    #[error("{file}: damaged header passed over, the snapshot covers this segment: {error}")]
    UnneededDamage {
        /// The segment.
        file: FileId,
        /// What is wrong with it.
        error: HeaderError,
    },
    /// A segment was made ready but never written to. It is part of the garbage.
    #[error("{file}: prepared, but never begun")]
    NeverBegun {
        /// The segment.
        file: FileId,
    },
}

/// What shows that damaged bytes had been good and durable once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Proof {
    /// A good frame behind the damage.
    #[error("the frame with LSN {lsn} at byte {position} records LSN {synced} as synced")]
    Frame {
        /// Where that frame begins, in the same file.
        position: u64,
        /// Its LSN.
        lsn: Lsn,
        /// What it records as synced.
        synced: Lsn,
    },
    /// A snapshot under its final name.
    #[error("there is a snapshot of LSN {0}")]
    Snapshot(Lsn),
    /// A later segment, whose header is written only when everything before it is synced.
    #[error("{0} was begun after it")]
    Successor(FileId),
    /// Something behind the header, which is synced before anything is written there.
    #[error("there is data behind it at byte {position}")]
    DataBehind {
        /// Where the first such byte is.
        position: u64,
    },
}

/// Named in every refusal that is about damage.
const WAY_OUT: &str = "Nothing was changed. `driftqd wal verify DIR` shows the damage; `driftqd wal salvage DIR \
                       --accept-loss` sets it aside and keeps what is whole";

/// Why a log cannot be used as it is. Nothing has been changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// The storage refused. This says nothing about the data.
    #[error("{doing}{}: {fault}. Nothing was changed; see to the disk and start again", in_file(*file))]
    Storage {
        /// What was being done.
        doing: &'static str,
        /// With which file; `None` for the folder.
        file: Option<FileId>,
        /// What the storage said.
        fault: StorageFault,
    },
    /// There is no log here, and the caller gave no identity for a new one.
    #[error("there is no log here")]
    NoLog,
    /// The file's header is whole, but in a format this program does not know.
    #[error("{file}: written in format version {version}, which this program does not know; use a newer one")]
    UnknownVersion {
        /// The file.
        file: FileId,
        /// The version it is written in.
        version: u32,
    },
    /// The file belongs to another log.
    #[error("{file}: belongs to log {found}, the others to log {expected}. {WAY_OUT}")]
    Foreign {
        /// The file.
        file: FileId,
        /// The log it says it belongs to.
        found: LogId,
        /// The log the other files belong to.
        expected: LogId,
    },
    /// The segment's header names another sequence number than the file's name.
    #[error("{file}: is segment {found} by its header. {WAY_OUT}")]
    Misnamed {
        /// The file.
        file: FileId,
        /// The sequence number in its header.
        found: u64,
    },
    /// There are traces of a log, but not one segment that was in use.
    #[error("{witness} is there, but no segment in use. {WAY_OUT}")]
    NoSegments {
        /// A file that cannot be there without one.
        witness: FileId,
    },
    /// A segment is missing from the row.
    #[error("{missing}: missing, though {after} is there (LSN {lsn} on). {WAY_OUT}")]
    MissingSegment {
        /// The segment that should be there.
        missing: FileId,
        /// A later one that is.
        after: FileId,
        /// The first LSN it would hold.
        lsn: Lsn,
    },
    /// The oldest segment begins too late for what there is to start from.
    #[error(
        "{file}: begins with LSN {first_lsn}, but the log is needed from LSN {needed} on{}. {WAY_OUT}",
        passed_over(damaged)
    )]
    StartsTooLate {
        /// The oldest segment.
        file: FileId,
        /// Its first LSN.
        first_lsn: Lsn,
        /// The first LSN that is needed.
        needed: Lsn,
        /// The newest snapshot that could not be used, and why.
        damaged: Option<(Lsn, SnapshotError)>,
    },
    /// A segment that was in use has lost its header.
    #[error("{file}: corrupt at byte 0: {error}; {proof}. {WAY_OUT}")]
    DamagedHeader {
        /// The segment.
        file: FileId,
        /// What is wrong with its header.
        error: HeaderError,
        /// What shows that it was in use.
        proof: Proof,
    },
    /// A frame that had been synced is not there.
    #[error("{file}: corrupt at byte {position}, LSN {lsn}: {reason}; yet it was synced: {proof}. {WAY_OUT}")]
    Corrupt {
        /// The segment.
        file: FileId,
        /// Where the frame should begin.
        position: u64,
        /// Its LSN.
        lsn: Lsn,
        /// What is there instead.
        reason: StopReason,
        /// What shows that it had been synced.
        proof: Proof,
    },
    /// Two files, each whole, do not belong together.
    #[error(
        "{file}: the frame with LSN {lsn}, ending at byte {position}, has checksum {found:#010x}, but {by} follows one \
         with {expected:#010x}. {WAY_OUT}"
    )]
    Unlinked {
        /// The segment.
        file: FileId,
        /// Where its last frame that belongs to the log ends.
        position: u64,
        /// The LSN of that frame.
        lsn: Lsn,
        /// The checksum it has.
        found: u32,
        /// The file that says otherwise.
        by: FileId,
        /// The checksum that file names.
        expected: u32,
    },
    /// A record is whole but says nothing this program understands.
    #[error(
        "{file}: record of kind {kind:#04x}, version {version}, at byte {position}, LSN {lsn}: {reason}. It was \
         written by a newer version, or damaged before it was written. {WAY_OUT}"
    )]
    Malformed {
        /// The segment or snapshot.
        file: FileId,
        /// Where the record's frame begins.
        position: u64,
        /// Its LSN; in a snapshot, the snapshot's.
        lsn: Lsn,
        /// Its kind.
        kind: u8,
        /// Its version.
        version: u8,
        /// What the reader of records said.
        reason: Malformed,
    },
    /// Every record of a snapshot is whole, but they cannot all be true.
    #[error("{file}: whole, but it contradicts itself: {reason}. It was damaged before it was written. {WAY_OUT}")]
    Contradictory {
        /// The snapshot.
        file: FileId,
        /// What contradicts what.
        reason: Malformed,
    },
}

fn in_file(file: Option<FileId>) -> String {
    file.map_or_else(String::new, |file| format!(" {file}"))
}

fn passed_over(damaged: &Option<(Lsn, SnapshotError)>) -> String {
    damaged.map_or_else(String::new, |(lsn, error)| format!(", since {} is damaged ({error})", FileId::Snapshot(lsn)))
}

/// A record's bytes are whole, but they say nothing their reader understands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Malformed {
    /// What is wrong with them.
    pub reason: String,
}

impl Malformed {
    /// With this reason.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}
