//! The result of recovery: what it found, notices for the operator, or the reason for a refusal.

use std::ops::Range;
use std::sync::Arc;

use super::frame::LogPosition;
use super::header::{FORMAT_VERSION, HeaderError, LogId};
use super::segment::{SegmentHeader, StopReason};
use super::segment_index::SegmentIndex;
use super::snapshot::{ReferredSegment, SnapshotError};
use super::storage::{FileId, IoOp, StorageFault};
use crate::types::{FrameNumber, Lsn};

/// A recovered log. Everything through [`last`](Self::last) is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The id of the log.
    pub log_id: LogId,
    /// The snapshot the state was restored from.
    pub snapshot: Option<LogPosition>,
    /// The number of the last frame and the LSN of the last record; 0 in a new log.
    pub last: LogPosition,
    /// The checksum of that frame; 0 in a new log.
    pub last_crc: u32,
    /// The sequence number of the segment to continue in.
    pub next_segment: u64,
    /// The segments to keep, oldest first.
    pub segments: Vec<SegmentInfo>,
    /// The segments that the snapshot refers to, by sequence number.
    pub referred: Vec<ReferredSegment>,
    /// The snapshots to keep, oldest first: at most two. The older one has not been read.
    pub snapshots: Vec<FrameNumber>,
    /// Files that are no longer needed; [`cleanup_ops`](Self::cleanup_ops) removes them.
    pub garbage: Vec<FileId>,
    /// What recovery handled and an operator should know.
    pub notices: Vec<Notice>,
    /// Whether the log was closed cleanly: its last frame is a footer.
    pub clean: bool,
    /// The number of frames read from segments.
    pub frames_read: u64,
    /// The size of those frames in bytes.
    pub bytes_read: u64,
}

impl Recovered {
    /// The header of the segment to continue in. It records where the previous segment ends, so once it is durable a
    /// torn tail there is dead.
    #[must_use]
    pub fn next_header(&self) -> SegmentHeader {
        SegmentHeader {
            log_id: self.log_id,
            sequence: self.next_segment,
            previous: self.last,
            previous_crc: self.last_crc,
            synced: self.last.frame,
            capacity: 0,
        }
    }

    /// Whether the last segment ends with a torn tail.
    #[must_use]
    pub fn has_torn_tail(&self) -> bool {
        self.notices.iter().any(|notice| matches!(notice, Notice::TornTail { .. }))
    }

    /// The operations that remove the garbage and cut the segments to what they hold, in an order that a power loss may
    /// interrupt anywhere. Must be performed before the next segment is created: its name may be among the garbage, and
    /// on a full disk it needs the freed space.
    #[must_use]
    pub fn cleanup_ops(&self) -> Vec<IoOp> {
        let mut ops = Vec::new();
        let never_begun = |file: &FileId| matches!(file, FileId::Segment(sequence) if *sequence >= self.next_segment);
        // Highest first, each followed by a folder sync: otherwise a power loss could leave a gap before one of them,
        // which looks like the loss of a segment in use.
        for file in self.garbage.iter().filter(|file| never_begun(file)).rev() {
            ops.extend([IoOp::Remove { file: *file }, IoOp::SyncFolder]);
        }
        let removed = ops.len();
        ops.extend(self.garbage.iter().filter(|file| !never_begun(file)).map(|file| IoOp::Remove { file: *file }));
        if ops.len() > removed {
            ops.push(IoOp::SyncFolder);
        }
        let trimmed = self.segments.iter().filter(|segment| segment.end < segment.len);
        ops.extend(trimmed.map(|segment| IoOp::Trim { file: FileId::Segment(segment.sequence), len: segment.end }));
        ops
    }
}

/// A segment to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its sequence number.
    pub sequence: u64,
    /// The number of its first frame; if its header is damaged and the segment is not needed, that of the segment
    /// before, or 1.
    pub first_frame: FrameNumber,
    /// The number of its last frame, one below the first if it has no frame. Once the older of two snapshots is at or
    /// above it, the segment may be removed.
    pub last_frame: FrameNumber,
    /// The size of its file in bytes.
    pub len: u64,
    /// How many bytes of the file must be kept; its size if that is not known.
    pub end: u64,
    /// The byte at which its last frame ends; as `end` if that is not known.
    pub frames_end: u64,
    /// The LSNs of its records; empty if it was not read.
    pub lsns: Range<Lsn>,
    /// Where its records stand; empty if it was not read.
    pub index: Arc<SegmentIndex>,
}

/// Damage or leftovers that recovery handled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    /// The last segment ends with bytes that nothing proves synced.
    #[error("{file}: torn tail of {bytes} bytes from byte {position} on (frame {frame}: {reason}), never synced; cut")]
    TornTail {
        /// The last segment.
        file: FileId,
        /// Where its valid data ends.
        position: u64,
        /// The number of bytes that follow, trailing zeros excluded.
        bytes: u64,
        /// The number of the first lost frame.
        frame: FrameNumber,
        /// What is wrong with it.
        reason: StopReason,
    },
    /// A snapshot is damaged; an older one or the whole log was used instead. It is part of the garbage.
    #[error("{file}: damaged snapshot passed over: {error}")]
    DamagedSnapshot {
        /// The snapshot.
        file: FileId,
        /// What is wrong with it.
        error: SnapshotError,
    },
    /// A segment that is covered by the snapshot has a damaged header.
    #[error("{file}: damaged header passed over, the snapshot covers this segment: {error}")]
    UnneededDamage {
        /// The segment.
        file: FileId,
        /// What is wrong with it.
        error: HeaderError,
    },
    /// A segment was prepared but never written to. It is part of the garbage.
    #[error("{file}: prepared, but never begun")]
    NeverBegun {
        /// The segment.
        file: FileId,
    },
}

/// What proves that damaged bytes were valid and durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Proof {
    /// A valid frame behind the damage.
    #[error("frame {frame} at byte {position} records frame {synced} as synced")]
    Frame {
        /// Where that frame begins, in the same file.
        position: u64,
        /// Its number.
        frame: FrameNumber,
        /// The number of the frame that it records as synced.
        synced: FrameNumber,
    },
    /// A snapshot under its final name.
    #[error("there is a snapshot of frame {0}")]
    Snapshot(FrameNumber),
    /// A later segment, whose header is written only once everything before it is synced.
    #[error("{0} was begun after it")]
    Successor(FileId),
    /// Part of the header: a file has its full length before its header is written.
    #[error("there is part of it, and a file has its full length before its header is written")]
    PartOfHeader,
    /// Data behind the header, which is synced before anything is written there.
    #[error("there is data behind it at byte {position}")]
    DataBehind {
        /// The position of the first nonzero byte.
        position: u64,
    },
}

/// Part of every error about damage.
const REMEDY: &str = "Nothing was changed. `driftqd wal verify DIR` shows the damage; `driftqd wal salvage DIR \
                       --accept-loss` quarantines damaged files and keeps every intact record";

/// Why a log cannot be used as it is. Nothing has been changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// An operation of the storage failed. This says nothing about the data.
    #[error("{doing}{}: {fault}. Nothing was changed; check the disk and start again", in_file(*file))]
    Storage {
        /// The operation.
        doing: &'static str,
        /// The file; `None` for the folder.
        file: Option<FileId>,
        /// The error of the storage.
        fault: StorageFault,
    },
    /// There is no log, and the caller gave no id for a new one.
    #[error("there is no log here")]
    NoLog,
    /// The header is valid, but its format version is unknown to this program.
    #[error("{file}: {}", unknown_version(*version))]
    UnknownVersion {
        /// The file.
        file: FileId,
        /// Its format version.
        version: u32,
    },
    /// The header is valid, but has fields of a cluster.
    #[error(
        "{file}: belongs to a node of a cluster, and this program runs single nodes only. Nothing was changed; use a \
         version of the program that runs clusters"
    )]
    OfCluster {
        /// The file.
        file: FileId,
    },
    /// The file belongs to another log.
    #[error("{file}: belongs to log {found}, the others to log {expected}. {REMEDY}")]
    Foreign {
        /// The file.
        file: FileId,
        /// The log id in its header.
        found: LogId,
        /// The log id of the other files.
        expected: LogId,
    },
    /// The sequence number in the header differs from the one in the file name.
    #[error("{file}: is segment {found} by its header. {REMEDY}")]
    Misnamed {
        /// The file.
        file: FileId,
        /// The sequence number in its header.
        found: u64,
    },
    /// There are files of a log, but no segment in use.
    #[error("{witness} exists, but there is no segment in use. {REMEDY}")]
    NoSegments {
        /// A file that cannot exist without one.
        witness: FileId,
    },
    /// A segment is missing from the sequence.
    #[error("{missing}: missing, though {after} is there (frame {frame} on). {REMEDY}")]
    MissingSegment {
        /// The missing segment.
        missing: FileId,
        /// A later segment that exists.
        after: FileId,
        /// The number of the first frame in the segment before the gap.
        frame: FrameNumber,
    },
    /// A segment is missing to which the snapshot refers.
    #[error("{missing}: missing, though {by} refers to {bytes} bytes in it. {REMEDY}")]
    MissingPayloads {
        /// The missing segment.
        missing: FileId,
        /// The snapshot.
        by: FileId,
        /// The bytes of the payloads in it.
        bytes: u64,
    },
    /// The oldest segment starts behind the first frame that is needed.
    #[error(
        "{file}: starts at frame {first_frame}, but the log is needed from frame {needed} on{}. {REMEDY}",
        damaged_snapshot(damaged)
    )]
    StartsTooLate {
        /// The oldest segment.
        file: FileId,
        /// The number of its first frame.
        first_frame: FrameNumber,
        /// The number of the first frame that is needed.
        needed: FrameNumber,
        /// The newest snapshot that could not be used, and why.
        damaged: Option<(FrameNumber, SnapshotError)>,
    },
    /// The header of a segment in use is damaged.
    #[error("{file}: corrupt at byte 0: {error}; {proof}. {REMEDY}")]
    DamagedHeader {
        /// The segment.
        file: FileId,
        /// What is wrong with its header.
        error: HeaderError,
        /// What proves that it was in use.
        proof: Proof,
    },
    /// A synced frame is missing or damaged.
    #[error("{file}: corrupt at byte {position}, frame {frame}: {reason}; but it was synced: {proof}. {REMEDY}")]
    Corrupt {
        /// The segment.
        file: FileId,
        /// Where the frame should start.
        position: u64,
        /// Its number.
        frame: FrameNumber,
        /// What was found instead.
        reason: StopReason,
        /// What proves that it was synced.
        proof: Proof,
    },
    /// The last segment is shorter than it was made, and without the end of its data.
    #[error(
        "{file}: cut off at byte {len}: it was made with {made} bytes, and neither a footer nor zeros follow its last \
         frame, so frames from number {frame} on are missing. {REMEDY}"
    )]
    CutOff {
        /// The last segment.
        file: FileId,
        /// The size of its file.
        len: u64,
        /// The size it was made with.
        made: u64,
        /// The number of the first frame that is missing.
        frame: FrameNumber,
    },
    /// Two files are each intact, but do not link to each other.
    #[error(
        "{file}: frame {frame}, ending at byte {position}, has checksum {found:#010x}, but {by} follows one with \
         {expected:#010x}. {REMEDY}"
    )]
    Unlinked {
        /// The segment.
        file: FileId,
        /// Where the last frame before the link ends.
        position: u64,
        /// The number of that frame.
        frame: FrameNumber,
        /// The checksum it has.
        found: u32,
        /// The file that expects another checksum.
        by: FileId,
        /// The checksum that file expects.
        expected: u32,
    },
    /// Two files are each intact and link to each other, but number records differently.
    #[error(
        "{file}: the last record up to frame {frame}, ending at byte {position}, has LSN {found}, but {by} follows LSN \
         {expected}. {REMEDY}"
    )]
    Miscounted {
        /// The segment.
        file: FileId,
        /// Where the last frame before the link ends.
        position: u64,
        /// The number of that frame.
        frame: FrameNumber,
        /// The LSN of the last record up to it.
        found: Lsn,
        /// The file that expects another LSN.
        by: FileId,
        /// The LSN that file expects.
        expected: Lsn,
    },
    /// A record is intact, but cannot be decoded or applied.
    #[error(
        "{file}: record of kind {kind:#04x}, version {version}, at byte {position}, frame {}, LSN {}: {reason}. It \
         was written by a newer version, or damaged before it was written. {REMEDY}",
        at.frame,
        at.lsn
    )]
    Malformed {
        /// The segment or snapshot.
        file: FileId,
        /// Where the frame of the record starts.
        position: u64,
        /// Its number and LSN; in a snapshot, the snapshot's. The LSN of a control frame is that of the last record.
        at: LogPosition,
        /// Its kind.
        kind: u8,
        /// Its version.
        version: u8,
        /// Why it was rejected.
        reason: Malformed,
    },
    /// Every record of a snapshot is intact, but together they are inconsistent.
    #[error("{file}: intact, but inconsistent: {reason}. It was damaged before it was written. {REMEDY}")]
    Contradictory {
        /// The snapshot.
        file: FileId,
        /// The inconsistency.
        reason: Malformed,
    },
}

fn in_file(file: Option<FileId>) -> String {
    file.map_or_else(String::new, |file| format!(" {file}"))
}

fn damaged_snapshot(damaged: &Option<(FrameNumber, SnapshotError)>) -> String {
    damaged
        .map_or_else(String::new, |(frame, error)| format!(", since {} is damaged ({error})", FileId::Snapshot(frame)))
}

fn unknown_version(version: u32) -> String {
    let remedy = match version < FORMAT_VERSION {
        true => {
            "It is the format of the preview 0.1. Nothing was changed. Run the program that wrote it until every \
             message is consumed, then start this one in an empty folder"
        }
        false => "Nothing was changed; use a newer version of the program",
    };
    format!("written in format version {version}, which this program cannot read. {remedy}")
}

impl RecoveryError {
    /// The refusal of a file with a valid header that this program does not support; `None` for a damaged header.
    #[must_use]
    pub const fn unsupported(file: FileId, error: HeaderError) -> Option<Self> {
        match error {
            HeaderError::UnknownVersion(version) => Some(Self::UnknownVersion { file, version }),
            HeaderError::OfCluster => Some(Self::OfCluster { file }),
            _ => None,
        }
    }

    /// Whether the log is damaged. Otherwise there is none, or none that this program or this storage can read, and a
    /// salvage cannot help.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        !matches!(self, Self::NoLog | Self::Storage { .. } | Self::UnknownVersion { .. } | Self::OfCluster { .. })
    }
}

/// A record is intact, but cannot be decoded or applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Malformed {
    /// The reason.
    pub reason: String,
}

impl Malformed {
    /// With this reason.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}
