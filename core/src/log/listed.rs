//! The segments before those that recovery replays, to which the snapshot refers: are they there, and where do their
//! records stand?

use super::footer::SegmentFooter;
use super::frame::FRAME_HEAD_BYTES;
use super::header::HEADER_BYTES;
use super::recovery::{check_count, corrupt};
use super::report::{Malformed, Proof, RecoveryError};
use super::scan::{ScannedSegment, storage_error};
use super::segment::{SegmentHeader, SegmentReader, StopReason};
use super::segment_index::SegmentIndex;
use super::snapshot::{ReferredSegment, SnapshotHead};
use super::storage::{Storage, StorageFault, read_whole};

/// A segment in the list of a snapshot.
pub(super) struct Listed {
    pub(super) header: SegmentHeader,
    pub(super) referred: ReferredSegment,
    /// The size of its file.
    len: u64,
}

/// The listed segments before `start`: all there, with valid headers, and the list with no contradiction to these.
pub(super) fn before(
    segments: &[ScannedSegment],
    start: usize,
    referred: &[ReferredSegment],
    base: SnapshotHead,
) -> Result<Vec<Listed>, RecoveryError> {
    let mut listed: Vec<Listed> = Vec::new();
    for referred in referred.iter().take_while(|referred| referred.sequence < segments[start].sequence) {
        let file = referred.file();
        let found = segments.binary_search_by_key(&referred.sequence, |segment| segment.sequence);
        let found = &segments[found.map_err(|_| RecoveryError::MissingPayloads {
            missing: file,
            by: base.file(),
            bytes: referred.live_bytes,
        })?];
        let proof = Proof::Snapshot(base.at.frame);
        let header = found.header.map_err(|error| RecoveryError::DamagedHeader { file, error, proof })?;
        check_extent(&header, referred, base)?;
        if let Some(before) = listed.last() {
            check_order(before, &header, base)?;
        }
        listed.push(Listed { header, referred: *referred, len: found.len });
    }
    if let (Some(last), Ok(start)) = (listed.last(), segments[start].header) {
        check_order(last, &start, base)?;
    }
    Ok(listed)
}

/// The end in the list must be one that the segment can have.
fn check_extent(header: &SegmentHeader, referred: &ReferredSegment, base: SnapshotHead) -> Result<(), RecoveryError> {
    let (previous, last) = (header.previous, referred.last);
    let frames = last.frame.0.checked_sub(previous.frame.0);
    let records = last.lsn.0.checked_sub(previous.lsn.0);
    let bytes = referred.end.checked_sub(HEADER_BYTES as u64);
    let fits = |frames: u64, records: u64, bytes: u64| records <= frames && frames <= bytes / FRAME_HEAD_BYTES as u64;
    match (frames, records, bytes) {
        (Some(frames), Some(records), Some(bytes)) if fits(frames, records, bytes) => Ok(()),
        _ => Err(contradiction(base, format!("{} cannot end where its list says", referred.file()))),
    }
}

/// A segment must begin at or behind the end of one before; where it is the next, exactly there.
fn check_order(before: &Listed, header: &SegmentHeader, base: SnapshotHead) -> Result<(), RecoveryError> {
    let (end, next) = (before.referred.last, header.previous);
    let is_next = before.header.sequence + 1 == header.sequence;
    if end.frame > next.frame || end.lsn > next.lsn || is_next && end.frame != next.frame {
        let (file, next) = (before.header.file(), header.file());
        return Err(contradiction(base, format!("its list has another end of {file} than {next}")));
    }
    match is_next {
        true => check_count(before.header.file(), before.referred.end, end, header.file(), next.lsn),
        false => Ok(()),
    }
}

fn contradiction(base: SnapshotHead, reason: String) -> RecoveryError {
    RecoveryError::Contradictory { file: base.file(), reason: Malformed::new(reason) }
}

/// The index in the footer of a segment, which must be as long as the list says; if there is none, one that grows when
/// the segment is read.
pub(super) fn index_of_footer(
    Listed { header, referred, len }: &Listed,
    base: SnapshotHead,
    storage: &mut (impl Storage + ?Sized),
    buffer: &mut Vec<u8>,
) -> Result<SegmentIndex, RecoveryError> {
    let file = referred.file();
    if *len < referred.end {
        let (position, frame, reason) = (*len, referred.last.frame, StopReason::End);
        return Err(RecoveryError::Corrupt { file, position, frame, reason, proof: Proof::Snapshot(base.at.frame) });
    }
    let index = match SegmentFooter::read(storage, header, referred.last, referred.end, buffer) {
        Ok(footer) => footer.ok().and_then(|footer| footer.index),
        // A sector that cannot be read is damage to the footer like any other, and a start does not need it.
        Err(StorageFault::Io(_)) => None,
        Err(fault) => return Err(storage_error("reading", Some(file), fault)),
    };
    Ok(index.unwrap_or_else(|| SegmentIndex::unread(header.first_entry())))
}

/// The index of a segment that is read from its header through the frame in the list, and is intact.
pub(super) fn index_of_frames(
    Listed { header, referred, .. }: &Listed,
    base: SnapshotHead,
    storage: &mut (impl Storage + ?Sized),
    buffer: &mut Vec<u8>,
) -> Result<SegmentIndex, RecoveryError> {
    let file = referred.file();
    read_whole(storage, file, buffer).map_err(|fault| storage_error("reading", Some(file), fault))?;
    let mut reader = SegmentReader::new(header, buffer);
    let mut index = SegmentIndex::new(header.first_entry());
    while reader.log_position().frame < referred.last.frame {
        let Some(frame) = reader.next() else {
            return Err(corrupt(file, &reader, Proof::Snapshot(base.at.frame)));
        };
        if frame.is_record() {
            index.add(reader.log_position(), (reader.position() - frame.size()) as u64);
        }
    }
    let end = reader.position() as u64;
    check_count(file, end, reader.log_position(), base.file(), referred.last.lsn)?;
    match end == referred.end {
        true => Ok(index),
        false => Err(contradiction(base, format!("{file} ends at byte {end}, not where its list says"))),
    }
}
