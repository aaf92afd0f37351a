//! Canonical encoding of a pipeline, used to deduplicate states in exhaustive search.

use std::fmt::{Result, Write};

use super::{Job, Pipeline};
use crate::faults::Faults;
use crate::log::frame::decode;
use crate::log::{CrcSeed, FileId, IoOp, LogId};

impl<F: Faults> Pipeline<F> {
    /// Writes everything that affects later calls, except for the storage. Two pipelines with equal encodings and
    /// storages behave equally.
    ///
    /// Configuration, counters, file lengths and checksums are omitted. LSNs are written as `Lsn(…)`, frame numbers as
    /// `FrameNumber(…)` and tickets as `Ticket(…)`, so that a caller can renumber them.
    ///
    /// # Errors
    /// Of `out`.
    pub fn canonical(&self, out: &mut impl Write) -> Result {
        let Self {
            broker,
            log,
            maintenance,
            reads,
            cleaning,
            scrub: _,
            notices: _,
            state_bound,
            snapshot_every_bytes: _,
            snapshot_every_segments: _,
            rest_after: _,
            bytes_since_snapshot: _,
            snapshot_wanted,
            log_busy,
            maintenance_busy,
            mark_at,
            rest_at,
            rest_is_deferred,
            rested,
            reclaim_at,
            closing,
        } = self;
        broker.canonical(out)?;
        log.canonical(out)?;
        write!(out, "{maintenance:?} {snapshot_wanted} {log_busy} {maintenance_busy} {mark_at:?} {closing} ")?;
        write!(out, "{rest_at:?} {rest_is_deferred} {rested:?} {reclaim_at:?} ")?;
        reads.canonical(out)?;
        cleaning.canonical(out)?;
        write!(out, "{state_bound:?} ")
    }
}

impl Job {
    /// Writes the job's ops and purpose, as [`Pipeline::canonical`] does; `log_id` is the id of the log.
    ///
    /// # Errors
    /// Of `out`.
    pub fn canonical(&self, log_id: LogId, out: &mut impl Write) -> Result {
        let Self { class, ops, purpose } = self;
        write!(out, "{class:?} {purpose:?} ")?;
        ops.iter().try_for_each(|op| canonical(op, log_id, out))
    }
}

/// Canonical encoding of an op.
pub(super) fn canonical(op: &IoOp, log_id: LogId, out: &mut impl Write) -> Result {
    match op {
        IoOp::Append { file, at, bytes } if at.position > 0 => frames(*file, log_id, bytes, out),
        // A segment header or a part of a snapshot: the content follows from the file.
        IoOp::Append { file, bytes, .. } => write!(out, "{file:?} {} ", bytes.len()),
        op => write!(out, "{op:?} "),
    }
}

/// Canonical encoding of frames, without their checksums, which depend on the whole log before them.
pub(super) fn frames(file: FileId, log_id: LogId, mut bytes: &[u8], out: &mut impl Write) -> Result {
    let seed = CrcSeed::new(log_id, file);
    while let Ok(frame) = decode(bytes, seed) {
        let head = &frame.head;
        write!(out, "{file:?} {} {:?} {:?} {:x?} ", head.kind, head.number, head.synced, frame.payload)?;
        bytes = &bytes[frame.size()..];
    }
    write!(out, "{bytes:x?} ")
}
