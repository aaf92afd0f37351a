//! The orders that recovery relies on (docs/wal.md), checked by the disk itself at every operation.
//!
//! A log that breaks one of them loses data only if the power fails in between. The disk does not wait for that.

use driftq_core::log::{FileId, HEADER_BYTES, SegmentHeader};
use driftq_core::types::FrameNumber;

use super::{Disk, Unsynced};

impl Disk {
    /// The first operation that broke an order, since the last call.
    pub fn take_breach(&mut self) -> Option<String> {
        self.breach.take()
    }

    fn demand(&mut self, holds: bool, what: impl FnOnce() -> String) {
        // A disk that breaks its own contract cannot tell.
        if !holds && self.breach.is_none() && !self.shows_given_up {
            self.breach = Some(what());
        }
    }

    /// Whether a crash loses neither the file's name nor any of its bytes.
    fn is_all_durable(&self, file: FileId) -> bool {
        let number = self.folder.get(&file);
        number.is_some() && self.durable_folder.get(&file) == number && self.is_content_durable(file)
    }

    fn is_content_durable(&self, file: FileId) -> bool {
        let Some(number) = self.folder.get(&file) else { return false };
        let is_unsynced = |change: &Unsynced| matches!(change, Unsynced::Bytes(of, _) if of == number);
        let failed = self.contents.get(number).is_none_or(|content| content.sync_failed);
        !failed && !self.unsynced.iter().any(is_unsynced)
    }

    fn segment_before(&self, sequence: u64) -> Option<FileId> {
        self.folder.range(..FileId::Segment(sequence)).rev().map(|(file, _)| *file).find(is_segment)
    }

    /// The header of a segment that was begun. Of a torn header the fields may be whole; zeros follow.
    pub(super) fn header(&self, file: FileId) -> Option<SegmentHeader> {
        let bytes = self.bytes(file).filter(|bytes| !bytes.is_empty())?;
        if bytes.len() >= HEADER_BYTES {
            return SegmentHeader::decode(bytes).ok();
        }
        let mut page = bytes.to_vec();
        page.resize(HEADER_BYTES, 0);
        SegmentHeader::decode(&page).ok()
    }

    pub(super) fn check_create(&mut self, file: FileId) {
        let FileId::Segment(sequence) = file else { return };
        let is_free = !self.durable_folder.contains_key(&file);
        self.demand(is_free, || format!("{file} is created again before its removal is durable"));
        let before = self.segment_before(sequence);
        let is_named = before.is_none_or(|before| self.folder.get(&before) == self.durable_folder.get(&before));
        self.demand(is_named, || format!("{file} is created before the segment before it is durable in the folder"));
    }

    pub(super) fn check_append(&mut self, file: FileId, position: u64, len: usize) {
        let FileId::Segment(sequence) = file else { return };
        if position > 0 {
            let is_begun = self.is_durable(file, 0..HEADER_BYTES);
            return self.demand(is_begun, || format!("a frame is written to {file} before its header is synced"));
        }
        self.demand(len <= HEADER_BYTES, || format!("frames are written to {file} together with its header"));
        let before = self.segment_before(sequence);
        let is_synced = before.is_none_or(|before| self.is_all_durable(before));
        self.demand(is_synced, || {
            format!("the header of {file} is written before all of the segment before is synced")
        });
    }

    pub(super) fn check_rename(&mut self, from: FileId, to: FileId) {
        let is_synced = self.is_content_durable(from);
        self.demand(is_synced, || format!("{from} becomes {to} before it is synced"));
    }

    pub(super) fn check_remove(&mut self, file: FileId) {
        let number = self.folder.get(&file).copied();
        match file {
            FileId::SnapshotDraft(_) => {}
            FileId::Snapshot(_) if number.is_some_and(|number| self.known_damaged.contains(&number)) => {}
            FileId::Snapshot(frame) => {
                let newer = self.counted_snapshots().into_iter().filter(|other| *other > frame).count();
                self.demand(newer >= 2, || format!("{file} is removed with {newer} newer snapshots that are durable"));
            }
            // What a damaged segment held is not known.
            FileId::Segment(_) if self.is_hit(file, &(0..HEADER_BYTES)) => {}
            FileId::Segment(sequence) => self.check_remove_segment(sequence),
        }
    }

    fn check_remove_segment(&mut self, sequence: u64) {
        let file = FileId::Segment(sequence);
        let later = FileId::Segment(sequence + 1);
        let next = self.folder.range(later..).map(|(file, _)| *file).find(is_segment);
        if self.header(file).is_none() {
            let durable = self.durable_folder.range(later..).any(|(file, _)| is_segment(file));
            let is_last = next.is_none() && !durable;
            return self.demand(is_last, || format!("{file}, never begun, is removed before a later one durably is"));
        }
        let last_frame = next.and_then(|next| self.header(next)).map(|header| header.previous.frame);
        let counted = self.counted_snapshots();
        let kept_from = counted.len().checked_sub(2).map(|older| counted[older]);
        // What ends at 0 holds no frame.
        let kept_from = kept_from.unwrap_or_default();
        let is_covered = last_frame.is_some_and(|last| last <= kept_from);
        let is_unknown = next.is_some_and(|next| self.is_hit(next, &(0..HEADER_BYTES)));
        self.demand(is_covered || is_unknown, || {
            format!("{file}, which ends at {last_frame:?}, is removed with the durable snapshots {counted:?}")
        });
    }

    /// The snapshots that a crash keeps and that no start has found damaged, oldest first.
    fn counted_snapshots(&self) -> Vec<FrameNumber> {
        let counts = |file: &FileId| {
            let known = self.folder.get(file).is_some_and(|number| self.known_damaged.contains(number));
            !known && self.is_all_durable(*file)
        };
        let snapshots = self.folder.keys().filter(|file| matches!(file, FileId::Snapshot(_)) && counts(file));
        let mut frames: Vec<_> = snapshots.filter_map(snapshot_frame).collect();
        frames.sort_unstable();
        frames
    }
}

fn is_segment(file: &FileId) -> bool {
    matches!(file, FileId::Segment(_))
}

fn snapshot_frame(file: &FileId) -> Option<FrameNumber> {
    match file {
        FileId::Snapshot(frame) => Some(*frame),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use driftq_core::log::{LogId, LogPosition, Storage, WriteAt};
    use driftq_core::types::Lsn;

    use super::*;

    const DRAFT: FileId = FileId::SnapshotDraft(FrameNumber(5));

    fn header(sequence: u64, previous: u64) -> Vec<u8> {
        let synced = FrameNumber(previous);
        let previous = LogPosition { frame: synced, lsn: Lsn(previous / 2) };
        SegmentHeader { log_id: LogId([1; 16]), sequence, previous, previous_crc: 7, synced, capacity: 0 }.encode()
    }

    fn append(disk: &mut Disk, file: FileId, bytes: &[u8]) {
        let position = disk.bytes(file).map_or(0, |bytes| bytes.len() as u64);
        disk.append(file, WriteAt { epoch: 1, position }, bytes).expect("space is free");
    }

    /// Two segments, the second of which begins behind frame 5, all synced.
    fn disk() -> Disk {
        let mut disk = Disk::new(false);
        for (sequence, previous) in [(1, 0), (2, 5)] {
            let file = FileId::Segment(sequence);
            disk.create(file, 0).expect("a new file");
            disk.sync_folder().expect("no fault");
            append(&mut disk, file, &header(sequence, previous));
            disk.sync(file).expect("no fault");
            append(&mut disk, file, b"frames");
            disk.sync(file).expect("no fault");
        }
        assert_eq!(disk.take_breach(), None);
        disk
    }

    fn snapshot(disk: &mut Disk, frame: u64, syncs_folder: bool) {
        disk.create(FileId::SnapshotDraft(FrameNumber(frame)), 0).expect("a new file");
        append(disk, FileId::SnapshotDraft(FrameNumber(frame)), b"snapshot");
        disk.sync(FileId::SnapshotDraft(FrameNumber(frame))).expect("no fault");
        disk.rename(FileId::SnapshotDraft(FrameNumber(frame)), FileId::Snapshot(FrameNumber(frame))).expect("a draft");
        if syncs_folder {
            disk.sync_folder().expect("no fault");
        }
    }

    #[test]
    fn segment_is_begun_only_when_everything_before_is_durable() {
        let new = FileId::Segment(3);
        let mut disk = disk();
        append(&mut disk, FileId::Segment(2), b"more");
        disk.create(new, 0).expect("a new file");
        append(&mut disk, new, &header(3, 9));
        assert!(disk.take_breach().is_some_and(|breach| breach.contains("segment before")));
        append(&mut disk, new, b"frame");
        assert!(disk.take_breach().is_some_and(|breach| breach.contains("before its header")));
        disk.create(FileId::Segment(4), 0).expect("a new file");
        assert!(disk.take_breach().is_some_and(|breach| breach.contains("durable in the folder")));
        disk.sync_folder().expect("no fault");
        disk.remove(FileId::Segment(4)).expect("a file");
        disk.create(FileId::Segment(4), 0).expect("a new file");
        assert!(disk.take_breach().is_some_and(|breach| breach.contains("created again")));
    }

    #[test]
    fn files_are_removed_only_behind_two_durable_snapshots() {
        let mut disk = disk();
        disk.create(DRAFT, 0).expect("a new file");
        append(&mut disk, DRAFT, b"snapshot");
        disk.rename(DRAFT, FileId::Snapshot(FrameNumber(5))).expect("a draft");
        assert!(disk.take_breach().is_some_and(|breach| breach.contains("before it is synced")));
        disk.sync(FileId::Snapshot(FrameNumber(5))).expect("no fault");
        disk.sync_folder().expect("no fault");
        snapshot(&mut disk, 7, false);
        disk.remove(FileId::Segment(1)).expect("a file");
        assert!(disk.take_breach().is_some(), "the name of the second is not durable");
        let mut disk = self::disk();
        for frame in [5, 7] {
            snapshot(&mut disk, frame, true);
        }
        let mut other = disk.clone();
        disk.remove(FileId::Segment(1)).expect("a file");
        assert_eq!(disk.take_breach(), None);
        other.remove(FileId::Snapshot(FrameNumber(5))).expect("a file");
        assert!(other.take_breach().is_some_and(|breach| breach.contains("1 newer")));
        snapshot(&mut disk, 9, true);
        disk.remove(FileId::Snapshot(FrameNumber(5))).expect("a file");
        assert_eq!(disk.take_breach(), None);
    }
}
