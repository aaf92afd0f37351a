//! The first look at the folder: which files there are, whose they are, and which segments were ever in use.

use super::header::{HEADER_BYTES, HeaderError, LogId};
use super::report::{Proof, RecoveryError};
use super::segment::SegmentHeader;
use super::snapshot::{self, SnapshotError};
use super::storage::{FileId, Storage, StorageFault, read_more, read_whole};
use crate::types::Lsn;

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

/// Everything that can be known without reading a frame. All lists ascend.
#[derive(Debug, Default)]
pub(super) struct FolderScan {
    /// The identity all whole headers agree on.
    pub(super) log_id: Option<LogId>,
    /// Segments in use; the header of the last is whole.
    pub(super) segments: Vec<ScannedSegment>,
    /// Segments behind those that nothing was ever written to but, perhaps, part of a header.
    pub(super) never_begun: Vec<u64>,
    pub(super) snapshots: Vec<Lsn>,
    pub(super) drafts: Vec<Lsn>,
}

impl FolderScan {
    pub(super) fn take(storage: &mut (impl Storage + ?Sized), buffer: &mut Vec<u8>) -> Result<Self, RecoveryError> {
        let files = storage.list().map_err(|fault| storage_error("listing the folder", None, fault))?;
        let mut scan = Self::default();
        for info in &files {
            match info.file {
                FileId::Segment(sequence) => {
                    // The process before us may have been killed with its last frames in the page cache only. We would
                    // read them, build on them and show them to clients, and a power loss would take them back: so
                    // what we are about to rely on is made durable first, and where that fails there is no start.
                    storage.sync(info.file).map_err(|fault| storage_error("syncing", Some(info.file), fault))?;
                    let header = Err(HeaderError::TooShort);
                    scan.segments.push(ScannedSegment { sequence, len: info.len, header });
                }
                FileId::Snapshot(lsn) => scan.snapshots.push(lsn),
                FileId::SnapshotDraft(lsn) => scan.drafts.push(lsn),
            }
        }
        storage.sync_folder().map_err(|fault| storage_error("syncing the folder", None, fault))?;
        scan.segments.sort_by_key(|segment| segment.sequence);
        scan.snapshots.sort();
        scan.drafts.sort();
        scan.read_headers(storage, buffer)?;
        scan.part_never_begun(storage, buffer)?;
        scan.check_row_end()?;
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
                Err(HeaderError::UnknownVersion(version)) => {
                    return Err(RecoveryError::UnknownVersion { file, version });
                }
                Err(_) => {}
            }
            self.segments[index].header = header;
        }
        for index in 0..self.snapshots.len() {
            let lsn = self.snapshots[index];
            let file = FileId::Snapshot(lsn);
            match snapshot::read_head(storage, lsn).map_err(|fault| storage_error("reading", Some(file), fault))? {
                Ok(head) => self.check_identity(file, head.log_id)?,
                Err(SnapshotError::Header(HeaderError::UnknownVersion(version))) => {
                    return Err(RecoveryError::UnknownVersion { file, version });
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn check_identity(&mut self, file: FileId, found: LogId) -> Result<(), RecoveryError> {
        let expected = *self.log_id.get_or_insert(found);
        if found == expected { Ok(()) } else { Err(RecoveryError::Foreign { file, found, expected }) }
    }

    /// Takes the segments at the end of the row whose headers never became durable out of it.
    fn part_never_begun(
        &mut self,
        storage: &mut (impl Storage + ?Sized),
        buffer: &mut Vec<u8>,
    ) -> Result<(), RecoveryError> {
        let in_use = self.segments.iter().rposition(|segment| segment.header.is_ok()).map_or(0, |last| last + 1);
        for segment in self.segments.drain(in_use..) {
            let file = segment.file();
            read_whole(storage, file, buffer).map_err(|fault| storage_error("reading", Some(file), fault))?;
            // A header is synced before anything is written behind it, and what was never written reads as zeros. So
            // one byte there, even of a frame that is itself damaged, shows that the header had been good.
            let behind = buffer.iter().skip(HEADER_BYTES).position(|byte| *byte != 0);
            if let (Some(offset), Err(error)) = (behind, segment.header) {
                let proof = Proof::DataBehind { position: (HEADER_BYTES + offset) as u64 };
                return Err(RecoveryError::DamagedHeader { file, error, proof });
            }
            self.never_begun.push(segment.sequence);
        }
        Ok(())
    }

    /// A segment is created only when the file before it is durable in the folder, so nothing may be missing before a prepared
    /// one, and where there is a snapshot there is a segment in use.
    fn check_row_end(&self) -> Result<(), RecoveryError> {
        let last = self.segments.last();
        let mut missing = last.map_or(1, |last| last.sequence.saturating_add(1));
        for sequence in &self.never_begun {
            if *sequence != missing {
                let lsn = last.and_then(|last| last.header.ok()).map_or(Lsn(1), |header| header.first_lsn());
                let (missing, after) = (FileId::Segment(missing), FileId::Segment(*sequence));
                return Err(RecoveryError::MissingSegment { missing, after, lsn });
            }
            missing = missing.saturating_add(1);
        }
        let snapshot = self.snapshots.last().map(|lsn| FileId::Snapshot(*lsn));
        match snapshot.or(self.drafts.last().map(|lsn| FileId::SnapshotDraft(*lsn))) {
            Some(witness) if last.is_none() => Err(RecoveryError::NoSegments { witness }),
            _ => Ok(()),
        }
    }
}

pub(super) fn storage_error(doing: &'static str, file: Option<FileId>, fault: StorageFault) -> RecoveryError {
    RecoveryError::Storage { doing, file, fault }
}
