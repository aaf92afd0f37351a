//! What the future of a pipeline depends on, as text: for whoever goes every way it can go and wants to know where two meet.

use std::fmt::{Result, Write};

use super::{Job, Pipeline};
use crate::faults::Faults;
use crate::log::frame::decode;
use crate::log::{CrcSeed, FileId, IoOp, LogId};

impl<F: Faults> Pipeline<F> {
    /// Writes down everything that what comes next depends on, but for the disk.
    ///
    /// Left out is how it was set up, what it has counted, how long the log's files are, and the checksums in them. A number a
    /// record has in the log reads `Lsn(…)` wherever it stands, and a ticket `Ticket(…)`, so that a reader can count both from
    /// where it likes.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn canonical(&self, out: &mut impl Write) -> Result {
        let Self {
            broker,
            log,
            maintenance,
            snapshot_every_bytes: _,
            bytes_since_snapshot: _,
            snapshot_wanted,
            log_busy,
            maintenance_busy,
            mark_at,
            closing,
        } = self;
        broker.canonical(out)?;
        log.canonical(out)?;
        write!(out, "{maintenance:?} {snapshot_wanted} {log_busy} {maintenance_busy} {mark_at:?} {closing} ")
    }
}

impl Job {
    /// Writes down what is to be done, as [`Pipeline::canonical`] does; the log is `log_id`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn canonical(&self, log_id: LogId, out: &mut impl Write) -> Result {
        let Self { class, ops, purpose } = self;
        write!(out, "{class:?} {purpose:?} ")?;
        ops.iter().try_for_each(|op| canonical(op, log_id, out))
    }
}

/// One piece of it.
pub(super) fn canonical(op: &IoOp, log_id: LogId, out: &mut impl Write) -> Result {
    match op {
        IoOp::Append { file, at, bytes } if at.position > 0 => frames(*file, log_id, bytes, out),
        // A segment's header, or a part of a snapshot: what is in it follows from what it is.
        IoOp::Append { file, bytes, .. } => write!(out, "{file:?} {} ", bytes.len()),
        op => write!(out, "{op:?} "),
    }
}

/// What the frames say, without what they were sealed with: that depends on all that was ever written before.
pub(super) fn frames(file: FileId, log_id: LogId, mut bytes: &[u8], out: &mut impl Write) -> Result {
    let seed = CrcSeed::new(log_id, file);
    while let Ok(frame) = decode(bytes, seed) {
        let head = &frame.head;
        write!(out, "{file:?} {} {:?} {:?} {:x?} ", head.kind, head.lsn, head.synced, frame.payload)?;
        bytes = &bytes[frame.size()..];
    }
    write!(out, "{bytes:x?} ")
}
