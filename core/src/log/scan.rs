//! The first phase of recovery: lists and syncs the files, reads their headers, and finds the segments in use.

use super::header::{HEADER_BYTES, HeaderError, LogId, all_zero, first_nonzero};
use super::report::{Proof, RecoveryError};
use super::segment::SegmentHeader;
use super::snapshot::{self, SnapshotError};
use super::storage::{FileId, Storage, StorageFault, read_more, read_whole};
use crate::types::FrameNumber;

/// A segment that was in use.
#[derive(Debug)]
pub(super) struct ScannedSegment {
    pub(super) sequence: u64,
    pub(super) len: u64,
    pub(super) header: Result<SegmentHeader, HeaderError>,
}

impl ScannedSegment {
    pub(super) const fn file(&self) -> FileId {
        FileId::Segment(self.sequence)
    }
}

/// What is known about the folder without reading a frame. All lists ascend.
#[derive(Debug, Default)]
pub(super) struct FolderScan {
    /// The log id of all valid headers.
    pub(super) log_id: Option<LogId>,
    /// Segments in use; the last one has a valid header.
    pub(super) segments: Vec<ScannedSegment>,
    /// Later segments that contain nothing but, perhaps, part of a header.
    pub(super) never_begun: Vec<u64>,
    pub(super) snapshots: Vec<FrameNumber>,
    pub(super) drafts: Vec<FrameNumber>,
}

impl FolderScan {
    pub(super) fn read(storage: &mut (impl Storage + ?Sized), buffer: &mut Vec<u8>) -> Result<Self, RecoveryError> {
        let files = storage.list().map_err(|fault| storage_error("listing the folder", None, fault))?;
        let mut scan = Self::default();
        for info in &files {
            match info.file {
                FileId::Segment(sequence) => {
                    // The previous process may have been killed with its last frames only in the page cache. Recovery
                    // would read them and clients would see their effects, but a power loss would lose them. So
                    // everything that recovery relies on is synced first, and if that fails the start is refused.
                    storage.sync(info.file).map_err(|fault| storage_error("syncing", Some(info.file), fault))?;
                    let header = Err(HeaderError::TooShort);
                    scan.segments.push(ScannedSegment { sequence, len: info.len, header });
                }
                FileId::Snapshot(frame) => scan.snapshots.push(frame),
                FileId::SnapshotDraft(frame) => scan.drafts.push(frame),
            }
        }
        storage.sync_folder().map_err(|fault| storage_error("syncing the folder", None, fault))?;
        scan.segments.sort_by_key(|segment| segment.sequence);
        scan.snapshots.sort();
        scan.drafts.sort();
        scan.read_headers(storage, buffer)?;
        scan.split_never_begun(storage, buffer)?;
        scan.check_trailing_segments()?;
        Ok(scan)
    }

    fn read_headers(
        &mut self,
        storage: &mut (impl Storage + ?Sized),
        buffer: &mut Vec<u8>,
    ) -> Result<(), RecoveryError> {
        for index in 0..self.segments.len() {
            let file = self.segments[index].file();
            buffer.clear();
            read_more(storage, file, 0, buffer, HEADER_BYTES)
                .map_err(|fault| storage_error("reading", Some(file), fault))?;
            let header = SegmentHeader::decode(buffer);
            match header {
                Ok(header) if header.file() != file => {
                    return Err(RecoveryError::Misnamed { file, found: header.sequence });
                }
                Ok(header) => self.check_identity(file, header.log_id)?,
                Err(error) => RecoveryError::unsupported(file, error).map_or(Ok(()), Err)?,
            }
            self.segments[index].header = header;
        }
        for index in 0..self.snapshots.len() {
            let frame = self.snapshots[index];
            let file = FileId::Snapshot(frame);
            match snapshot::read_snapshot_head(storage, frame)
                .map_err(|fault| storage_error("reading", Some(file), fault))?
            {
                Ok(head) => self.check_identity(file, head.log_id)?,
                Err(SnapshotError::Header(error)) => RecoveryError::unsupported(file, error).map_or(Ok(()), Err)?,
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn check_identity(&mut self, file: FileId, found: LogId) -> Result<(), RecoveryError> {
        let expected = *self.log_id.get_or_insert(found);
        if found == expected { Ok(()) } else { Err(RecoveryError::Foreign { file, found, expected }) }
    }

    /// Moves the trailing segments whose headers never became durable to `never_begun`.
    fn split_never_begun(
        &mut self,
        storage: &mut (impl Storage + ?Sized),
        buffer: &mut Vec<u8>,
    ) -> Result<(), RecoveryError> {
        let in_use = self.segments.iter().rposition(|segment| segment.header.is_ok()).map_or(0, |last| last + 1);
        for segment in self.segments.drain(in_use..) {
            let file = segment.file();
            read_whole(storage, file, buffer).map_err(|fault| storage_error("reading", Some(file), fault))?;
            // A header is synced before anything is written behind it, and unwritten space reads as zeros. So a single
            // nonzero byte behind it, even of a damaged frame, proves that the header was valid once.
            let behind = buffer.get(HEADER_BYTES..).and_then(first_nonzero);
            if let (Some(offset), Err(error)) = (behind, segment.header) {
                let proof = Proof::DataBehind { position: (HEADER_BYTES + offset) as u64 };
                return Err(RecoveryError::DamagedHeader { file, error, proof });
            }
            // A file has its full length before its header is written.
            if let (true, Err(error)) = (buffer.len() < HEADER_BYTES && !all_zero(buffer), segment.header) {
                return Err(RecoveryError::DamagedHeader { file, error, proof: Proof::PartOfHeader });
            }
            self.never_begun.push(segment.sequence);
        }
        Ok(())
    }

    /// A segment is created only once the file before it is durable in the folder, so no segment may be missing before
    /// a prepared one, and a snapshot implies a segment in use.
    fn check_trailing_segments(&self) -> Result<(), RecoveryError> {
        let last = self.segments.last();
        let mut missing = last.map_or(1, |last| last.sequence.saturating_add(1));
        for sequence in &self.never_begun {
            if *sequence != missing {
                let header = last.and_then(|last| last.header.ok());
                let frame = header.map_or(FrameNumber(1), |header| header.first_frame());
                let (missing, after) = (FileId::Segment(missing), FileId::Segment(*sequence));
                return Err(RecoveryError::MissingSegment { missing, after, frame });
            }
            missing = missing.saturating_add(1);
        }
        let snapshot = self.snapshots.last().map(|frame| FileId::Snapshot(*frame));
        match snapshot.or(self.drafts.last().map(|frame| FileId::SnapshotDraft(*frame))) {
            Some(witness) if last.is_none() => Err(RecoveryError::NoSegments { witness }),
            _ => Ok(()),
        }
    }
}

pub(super) fn storage_error(doing: &'static str, file: Option<FileId>, fault: StorageFault) -> RecoveryError {
    RecoveryError::Storage { doing, file, fault }
}
