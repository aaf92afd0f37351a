//! Bugs in the files of the log: which a start keeps, and in which order jobs write them.

use std::ops::Range;

use super::Fault;
use crate::log::frame::{AFTER_CRC, CRC_AT, FrameError, decode};
use crate::log::{CrcSeed, FileId, IoOp, Notice, Recovered};
use crate::state::{State, Topic};
use crate::types::Lsn;

/// What a start keeps and removes.
pub(super) fn recovered(fault: Fault, mut recovered: Recovered) -> Recovered {
    match fault {
        Fault::DamagedSnapshotKept => {
            let damaged = recovered.notices.iter().filter_map(|notice| match notice {
                Notice::DamagedSnapshot { file: FileId::Snapshot(frame), .. } => Some(*frame),
                _ => None,
            });
            recovered.snapshots.extend(damaged);
            recovered.snapshots.sort_unstable();
            let kept = &recovered.snapshots;
            recovered.garbage.retain(|file| !matches!(file, FileId::Snapshot(frame) if kept.contains(frame)));
        }
        Fault::OlderSnapshotDropped if recovered.snapshots.len() > 1 => {
            recovered.garbage.push(FileId::Snapshot(recovered.snapshots.remove(0)));
        }
        Fault::SegmentsDroppedToNewest => {
            let newest = recovered.snapshots.last().copied().unwrap_or_default();
            let closed = recovered.segments.len().saturating_sub(1);
            let covered = recovered.segments.iter().take(closed).take_while(|segment| segment.last_frame <= newest);
            let count = covered.count();
            let dropped = recovered.segments.drain(..count).map(|segment| FileId::Segment(segment.sequence));
            recovered.garbage.extend(dropped);
        }
        _ => {}
    }
    recovered
}

/// Whether a message of the state refers to one of these records.
pub(super) fn refers_to(state: &State, records: &Range<Lsn>) -> bool {
    let partitions = state.topics().flat_map(Topic::partitions);
    { partitions }.any(|(_, at)| at.messages().any(|(_, message)| records.contains(&message.payload.id.lsn)))
}

/// Frames with the checksums that their bytes have, right or wrong.
pub(super) fn with_valid_checksums(mut bytes: Vec<u8>, seed: CrcSeed) -> Vec<u8> {
    let mut at = 0;
    loop {
        match decode(&bytes[at..], seed) {
            Ok(frame) => at += frame.size(),
            Err(FrameError::BadChecksum { computed, .. }) => {
                bytes[at + CRC_AT..at + AFTER_CRC].copy_from_slice(&computed.to_le_bytes());
            }
            Err(_) => return bytes,
        }
    }
}

/// The operations of a job, some of them left out.
pub(super) fn job_ops(fault: Fault, mut ops: Vec<IoOp>) -> Vec<IoOp> {
    let begins = |op: &IoOp| matches!(op, IoOp::Append { file: FileId::Segment(_), at, .. } if at.position == 0);
    if fault == Fault::CoveredSegmentsKept {
        ops.retain(|op| !matches!(op, IoOp::Remove { file: FileId::Segment(_) }));
    }
    let left_out = match fault {
        Fault::RenameNotDurable => behind(&ops, |op| matches!(op, IoOp::Rename { .. })),
        Fault::SegmentCreatedUnsynced => {
            let creates = |op: &IoOp| matches!(op, IoOp::Create { file: FileId::Segment(_), .. });
            ops.iter().any(creates).then(|| ops.len() - 1)
        }
        Fault::HeaderBeforeOldSynced => ops.iter().position(begins).and_then(|header| header.checked_sub(1)),
        Fault::FramesBeforeHeaderSynced => behind(&ops, begins),
        _ => None,
    };
    if let Some(at) = left_out {
        ops.remove(at);
    }
    ops
}

/// The index of the operation behind the first one that `is_wanted`.
fn behind(ops: &[IoOp], is_wanted: impl Fn(&IoOp) -> bool) -> Option<usize> {
    ops.iter().position(is_wanted).map(|at| at + 1).filter(|at| *at < ops.len())
}
