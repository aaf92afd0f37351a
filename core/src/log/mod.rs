//! The log: durable frames of opaque payloads.
//!
//! A log is a sequence of *segments*, each with a header and *frames*; a frame has a kind, a version and a payload that
//! this module does not interpret. Every frame has a *frame number*; frames that are records also have an *LSN*, which
//! counts records only. From time to time the whole state is written as a *snapshot*, a file of the same
//! frames, so that old segments can be removed. After any stop, [`recover`] reads the newest snapshot and the frames
//! after it, and either returns everything that was synced or refuses with the location and the reason.
//!
//! All I/O goes through the [`Storage`] trait: real files in the server, a faulty disk in the simulator,
//! [`MemoryStorage`] in tests. `docs/wal.md` specifies the bytes and the write orders that recovery relies on.
//!
//! ```
//! use driftq_core::log::{LogId, MemoryStorage, Replay, Malformed, IoOp, WriteAt, recover};
//! use driftq_core::types::{FrameNumber, Lsn};
//!
//! #[derive(Default)]
//! struct Texts(Vec<String>);
//!
//! impl Replay for Texts {
//!     fn reset(&mut self) {
//!         self.0.clear();
//!     }
//!     fn restore(&mut self, _kind: u8, _version: u8, _payload: &[u8]) -> Result<(), Malformed> {
//!         Ok(())
//!     }
//!     fn replay(&mut self, _lsn: Lsn, _kind: u8, _version: u8, payload: &[u8]) -> Result<(), Malformed> {
//!         let text = std::str::from_utf8(payload).map_err(|error| Malformed::new(error.to_string()))?;
//!         self.0.push(text.to_owned());
//!         Ok(())
//!     }
//! }
//!
//! // An empty storage is a new log; its id comes from the caller.
//! let mut storage = MemoryStorage::new();
//! let mut texts = Texts::default();
//! let recovered = recover(&mut storage, Some(LogId([7; 16])), &mut texts)?;
//!
//! // Every start creates a new segment, durable before its first frame.
//! let header = recovered.next_header();
//! for op in recovered.cleanup_ops().iter().chain(&header.create_ops(1, 1 << 16)) {
//!     op.perform(&mut storage)?;
//! }
//! let mut chain = header.chain();
//! let mut frames = Vec::new();
//! chain.record(&mut frames, FrameNumber(0), 1, 1, |payload| payload.extend_from_slice(b"hello"))?;
//! let at = WriteAt { epoch: 1, position: driftq_core::log::HEADER_BYTES as u64 };
//! IoOp::Append { file: header.file(), at, bytes: frames }.perform(&mut storage)?;
//! IoOp::Sync { file: header.file() }.perform(&mut storage)?;
//!
//! // After a power loss, synced records are recovered.
//! let mut storage = storage.crash();
//! let recovered = recover(&mut storage, None, &mut texts)?;
//! assert_eq!(texts.0, ["hello"]);
//! assert_eq!(recovered.last.lsn, Lsn(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod filter;
pub mod footer;
pub mod frame;
mod header;
mod listed;
pub mod memory;
mod proof;
pub mod recovery;
pub mod report;
mod scan;
pub mod segment;
mod segment_index;
pub mod snapshot;
pub mod storage;

pub use filter::MentionFilter;
pub use footer::{FooterBuilder, FooterError, SegmentExtent, SegmentFooter};
pub use frame::{
    CrcSeed, EncodeError, Frame, FrameChain, FrameError, Head, LogPosition, MAX_PAYLOAD_BYTES, RECORD_KIND_MAX,
};
pub use header::{HEADER_BYTES, HeaderError, LogId};
pub use memory::{CrashPlan, FolderChange, MemoryStorage, SectorFate};
pub use proof::find_frame;
pub use recovery::{ListedSegments, Replay, recover, recover_with};
pub use report::{Malformed, Notice, Proof, Recovered, RecoveryError, SegmentInfo};
pub use segment::{END_ZEROS, SegmentHeader, SegmentReader, Stop, StopReason};
pub use segment_index::{IndexEntry, SegmentIndex};
pub use snapshot::{
    ReferredSegment, SnapshotError, SnapshotHead, SnapshotReadError, SnapshotWriter, read_snapshot, read_snapshot_head,
};
pub use storage::{FileId, FileInfo, FileNameError, IoOp, ReadSizes, Storage, StorageFault, WriteAt, read_whole};
