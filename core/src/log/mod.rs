//! The log: bytes that survive, and nothing about what they mean.
//!
//! A log is a row of *segments*, each a header and then *frames*; a frame carries a kind, a version and a payload, and
//! this module never looks into the payload. Now and then the whole state is written down as a *snapshot*, a file of
//! the same frames, so that old segments can go. After a stop, however rude, [`recover`] reads the newest snapshot and
//! the frames after it, and either gives back everything that was ever synced or refuses, saying where and why.
//!
//! All of it stands on the [`Storage`] trait: real files in the server, a lying disk in the simulator,
//! [`MemoryStorage`] in tests. The bytes, and the orders of writing that recovery relies on, are laid down in
//! `docs/wal.md`.
//!
//! ```
//! use driftq_core::log::{LogId, MemoryStorage, Replay, Malformed, IoOp, WriteAt, recover};
//! use driftq_core::types::Lsn;
//!
//! #[derive(Default)]
//! struct Words(Vec<String>);
//!
//! impl Replay for Words {
//!     fn reset(&mut self) {
//!         self.0.clear();
//!     }
//!     fn restore(&mut self, _kind: u8, _version: u8, _payload: &[u8]) -> Result<(), Malformed> {
//!         Ok(())
//!     }
//!     fn replay(&mut self, _lsn: Lsn, _kind: u8, _version: u8, payload: &[u8]) -> Result<(), Malformed> {
//!         let word = std::str::from_utf8(payload).map_err(|error| Malformed::new(error.to_string()))?;
//!         self.0.push(word.to_owned());
//!         Ok(())
//!     }
//! }
//!
//! // An empty storage is a new log; its identity comes from outside.
//! let mut storage = MemoryStorage::new();
//! let mut words = Words::default();
//! let recovered = recover(&mut storage, Some(LogId([7; 16])), &mut words)?;
//!
//! // Every start begins a new segment, durable before its first frame.
//! let header = recovered.next_header();
//! for step in recovered.cleanup_ops().iter().chain(&header.create_ops(1, 1 << 16)) {
//!     step.perform(&mut storage)?;
//! }
//! let mut chain = header.chain();
//! let mut frames = Vec::new();
//! chain.record(&mut frames, Lsn(0), 1, 1, |payload| payload.extend_from_slice(b"hello"))?;
//! let at = WriteAt { epoch: 1, position: driftq_core::log::HEADER_BYTES as u64 };
//! IoOp::Append { file: header.file(), at, bytes: frames }.perform(&mut storage)?;
//! IoOp::Sync { file: header.file() }.perform(&mut storage)?;
//!
//! // The power goes; what was synced is there.
//! let mut storage = storage.crash();
//! let recovered = recover(&mut storage, None, &mut words)?;
//! assert_eq!(words.0, ["hello"]);
//! assert_eq!(recovered.last_lsn, Lsn(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod frame;
mod header;
pub mod memory;
mod proof;
pub mod recovery;
pub mod report;
mod scan;
pub mod segment;
pub mod snapshot;
pub mod storage;

pub use frame::{CrcSeed, EncodeError, Frame, FrameChain, FrameError, Head, MAX_PAYLOAD_BYTES, RECORD_KIND_MAX};
pub use header::{HEADER_BYTES, HeaderError, LogId};
pub use memory::{CrashPlan, FolderChange, MemoryStorage, SectorFate};
pub use proof::find_frame;
pub use recovery::{Replay, recover};
pub use report::{Malformed, Notice, Proof, Recovered, RecoveryError, SegmentInfo};
pub use segment::{SegmentHeader, SegmentReader, Stop, StopReason};
pub use snapshot::{SnapshotError, SnapshotHead, SnapshotReadError, SnapshotWriter, read_snapshot};
pub use storage::{FileId, FileInfo, FileNameError, IoOp, Storage, StorageFault, WriteAt, read_whole};
