//! Damage to the medium: what was hit, whether a start may refuse it, and how an operator undoes it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use driftq_core::log::{FileId, HEADER_BYTES};
use driftq_core::types::FrameNumber;

use super::{Content, Disk};
use crate::actions::Damage;

/// The fields of a file header and their checksum. The rest of the header's page is ignored.
const HEADER_FIELDS: Range<usize> = 0..128;

/// Damage that has not been undone.
#[derive(Clone, Debug)]
pub(super) struct Injury {
    content: u64,
    range: Range<usize>,
    damage: Damage,
    /// The bytes before.
    written: Vec<u8>,
    platter: Vec<u8>,
    /// A start has continued behind it: what it hit in a segment is cut, and does not come back.
    is_permanent: bool,
}

impl Injury {
    fn new(content: u64, range: Range<usize>, damage: Damage, written: Vec<u8>, platter: Vec<u8>) -> Self {
        Self { content, range, damage, written, platter, is_permanent: false }
    }

    fn is_unreadable(&self) -> bool {
        matches!(self.damage, Damage::Unreadable { .. })
    }

    fn hits(&self, range: &Range<usize>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }

    /// Restores what was there before in the bytes of the file.
    fn undo(&self, bytes: &mut [u8]) {
        restore(bytes, self.range.start, &self.written);
    }
}

fn restore(bytes: &mut [u8], start: usize, before: &[u8]) {
    let end = (start + before.len()).min(bytes.len());
    if let Some(hit) = bytes.get_mut(start..end) {
        hit.copy_from_slice(&before[..hit.len()]);
    }
}

impl Disk {
    /// Damages the disk. Returns what was hit, or `None` if nothing changed.
    pub fn damage(&mut self, damage: Damage) -> Option<(FileId, Range<usize>)> {
        match damage {
            Damage::Flip { bit } => {
                let (file, byte) = self.byte(bit as usize / 8)?;
                let flipped = self.bytes(file)?[byte] ^ 1 << (bit % 8);
                self.injure(damage, file, byte..byte + 1, &[flipped])
            }
            Damage::Zero { sector } => {
                let (file, range) = self.sector(sector)?;
                let zeros = vec![0; range.len()];
                self.injure(damage, file, range, &zeros)
            }
            Damage::Misdirect { from, to } => {
                let (target, target_range) = self.sector(to)?;
                let (source, range) = self.sector(from)?;
                let bytes = self.bytes(source)?[range].to_vec();
                let len = bytes.len().min(target_range.len());
                self.injure(damage, target, target_range.start..target_range.start + len, &bytes[..len])
            }
            Damage::Unreadable { sector } => {
                let (file, range) = self.sector(sector)?;
                self.unreadable = Some((file, range.start as u64..range.end as u64));
                let content = self.content_number(file).ok()?;
                let (written, platter) = (Vec::new(), Vec::new());
                self.injuries.retain(|injury| !injury.is_unreadable());
                self.injuries.push(Injury::new(content, range.clone(), damage, written, platter));
                Some((file, range))
            }
        }
    }

    /// Overwrites a part of a file, on the medium and where it is read.
    fn injure(
        &mut self,
        damage: Damage,
        file: FileId,
        range: Range<usize>,
        bytes: &[u8],
    ) -> Option<(FileId, Range<usize>)> {
        let number = self.content_number(file).ok()?;
        let content = self.contents.get_mut(&number)?;
        let written = content.written.get(range.clone())?.to_vec();
        if written == bytes {
            return None;
        }
        content.written[range.clone()].copy_from_slice(bytes);
        let on_platter = range.start.min(content.platter.len())..range.end.min(content.platter.len());
        let platter = content.platter[on_platter.clone()].to_vec();
        content.platter[on_platter.clone()].copy_from_slice(&bytes[..on_platter.len()]);
        self.injuries.push(Injury::new(number, range.clone(), damage, written, platter));
        Some((file, range))
    }

    /// Undoes the damage, as an operator does who has a copy of the files, but for what a start has cut since.
    pub fn heal(&mut self) {
        let (permanent, undone) = std::mem::take(&mut self.injuries).into_iter().partition(|it| it.is_permanent);
        self.injuries = permanent;
        self.undo(undone);
    }

    /// Undoes all damage.
    pub(super) fn undo_all(&mut self) {
        let all = std::mem::take(&mut self.injuries);
        self.undo(all);
    }

    fn undo(&mut self, injuries: Vec<Injury>) {
        self.unreadable = None;
        self.known_damaged.clear();
        for injury in injuries.into_iter().rev() {
            let Some(content) = self.contents.get_mut(&injury.content) else { continue };
            injury.undo(&mut content.written);
            restore(&mut content.platter, injury.range.start, &injury.platter);
        }
    }

    /// A crash also loses damage to data that it loses. `whole` is the disk after the same crash, without the damage.
    pub(super) fn lose_injuries(&mut self, whole: &Self) {
        let contents = &self.contents;
        self.injuries.retain_mut(|injury| {
            if injury.is_unreadable() {
                return true;
            }
            let part = |disk: &BTreeMap<u64, Content>| {
                let platter = &disk.get(&injury.content)?.platter;
                let end = injury.range.end.min(platter.len());
                Some(platter.get(injury.range.start.min(end)..end)?.to_vec())
            };
            let (Some(is), Some(was)) = (part(contents), part(&whole.contents)) else { return false };
            let is_left = is != was;
            (injury.written, injury.platter) = (was.clone(), was);
            is_left
        });
    }

    /// A sync has written the bytes of a file to the medium, damaged ones included.
    pub(super) fn sync_injuries(&mut self, content: u64) {
        for injury in self.injuries.iter_mut().filter(|injury| injury.content == content) {
            injury.platter.clone_from(&injury.written);
        }
    }

    /// Forgets the damage to what was cut off.
    pub(super) fn cut_injuries(&mut self, content: u64, end: usize) {
        self.injuries.retain(|injury| injury.content != content || injury.range.start < end);
    }

    /// Forgets the damage to files that no longer exist.
    pub(super) fn forget_lost_injuries(&mut self) {
        let contents = &self.contents;
        self.injuries.retain(|injury| contents.contains_key(&injury.content));
        self.known_damaged.retain(|number| contents.contains_key(number));
    }

    /// Whether there is damage that was not undone.
    #[must_use]
    pub fn is_injured(&self) -> bool {
        !self.injuries.is_empty()
    }

    /// How many times the disk was damaged, but for what was undone or is gone.
    #[must_use]
    pub fn injuries(&self) -> usize {
        self.injuries.len()
    }

    /// Whether the only damage is sectors that cannot be read.
    #[must_use]
    pub fn is_only_unreadable(&self) -> bool {
        self.is_injured() && self.injuries.iter().all(Injury::is_unreadable)
    }

    /// Whether a start has found a snapshot damaged, and there are not two again. Then the segments behind the other
    /// one may be gone, and nothing covers a second loss.
    fn lacks_a_snapshot(&self) -> bool {
        self.fell_back_to.is_some() && self.snapshots().len() < 2
    }

    /// The snapshot that a start last fell back to from a damaged one, 0 for none.
    #[must_use]
    pub fn fell_back_to(&self) -> Option<FrameNumber> {
        self.fell_back_to
    }

    /// Whether the bytes of a file are damaged there.
    #[must_use]
    pub fn is_hit(&self, file: FileId, range: &Range<usize>) -> bool {
        let content = self.folder.get(&file);
        self.injuries.iter().any(|injury| Some(&injury.content) == content && injury.hits(range))
    }

    /// Whether a sector there cannot be read.
    #[must_use]
    pub fn is_unreadable(&self, file: FileId, range: &Range<usize>) -> bool {
        let content = self.folder.get(&file);
        let mut unreadable = self.injuries.iter().filter(|injury| injury.is_unreadable());
        unreadable.any(|injury| Some(&injury.content) == content && injury.hits(range))
    }

    /// Whether a start has found this snapshot damaged, or would find it. One injury can undo another.
    fn is_damaged(&self, snapshot: u64) -> bool {
        let injuries = || self.injuries.iter().filter(|injury| injury.content == snapshot);
        let Some(content) = self.contents.get(&snapshot).filter(|_| injuries().next().is_some()) else { return false };
        let mut whole = content.written.clone();
        injuries().rev().for_each(|injury| injury.undo(&mut whole));
        let differs = |range: Range<usize>| whole.get(range.clone()) != content.written.get(range);
        let len = whole.len();
        differs(0..HEADER_FIELDS.end.min(len)) || differs(HEADER_BYTES.min(len)..len)
    }

    /// The finished snapshots by frame number, with their contents.
    fn snapshots(&self) -> BTreeMap<FrameNumber, u64> {
        let snapshot = |(file, number): (&FileId, &u64)| match file {
            FileId::Snapshot(frame) => Some((*frame, *number)),
            _ => None,
        };
        self.folder.iter().filter_map(snapshot).collect()
    }

    /// The snapshot that a start must restore, and the one or two, oldest first, that it must keep. A damaged snapshot
    /// older than the restored one is not read, so it counts as whole.
    #[must_use]
    pub fn usable_snapshots(&self) -> (Option<FrameNumber>, Vec<FrameNumber>) {
        let snapshots = self.snapshots();
        let base = snapshots.iter().rev().find(|(_, number)| !self.is_damaged(**number)).map(|(frame, _)| *frame);
        let kept: Vec<_> = snapshots.keys().copied().filter(|frame| Some(*frame) <= base).collect();
        (base, kept[kept.len().saturating_sub(2)..].to_vec())
    }

    /// Notes which snapshots a start that is about to succeed finds damaged: they count for nothing any more. One that
    /// an earlier start found damaged may be whole again, as one injury can undo another.
    pub fn note_found_damage(&mut self) {
        let (base, _) = self.usable_snapshots();
        let found = self.snapshots().into_iter().filter(|(frame, _)| Some(*frame) > base).map(|(_, number)| number);
        self.known_damaged = found.collect();
        if !self.known_damaged.is_empty() {
            self.fell_back_to = Some(base.unwrap_or_default());
        }
    }

    /// A start has succeeded and synced what it continues. `is_in_log` is whether a part of a segment holds frames of
    /// the log, rather than a tail that was cut.
    pub fn note_continued(&mut self, is_in_log: impl Fn(FileId, &Range<usize>) -> bool) {
        let segments = self.folder.iter().filter(|(file, _)| matches!(file, FileId::Segment(_)));
        let segments: BTreeMap<_, _> = segments.map(|(file, number)| (*number, *file)).collect();
        for injury in self.injuries.iter_mut().filter(|injury| !injury.is_unreadable()) {
            let file = segments.get(&injury.content);
            injury.is_permanent |= file.is_some_and(|file| !is_in_log(*file, &injury.range));
        }
    }

    /// Whether the log's documents allow a start to refuse the damage. `is_in_log` is whether a part of a segment
    /// holds frames of the log, rather than a tail that was cut.
    #[must_use]
    pub fn may_refuse(&self, is_in_log: impl Fn(FileId, &Range<usize>) -> bool) -> bool {
        let snapshots = self.snapshots();
        let damaged = snapshots.values().filter(|number| self.is_damaged(**number)).count();
        if damaged > 1 || damaged > 0 && self.lacks_a_snapshot() {
            return true;
        }
        let base = self.usable_snapshots().0.unwrap_or_default();
        let first_frame = |(file, _): (FileId, &[u8])| match (file, self.header(file)) {
            (FileId::Segment(sequence), Some(header)) => Some((sequence, header.first_frame())),
            _ => None,
        };
        let begun = self.files().filter_map(first_frame).filter(|(_, first)| *first <= base.next());
        let start = begun.map(|(sequence, _)| sequence).max().unwrap_or(0);
        let referred = self.referred_by(base).map_or_else(Vec::new, |(_, segments)| segments);
        let is_replayed = |sequence: u64| sequence >= start;
        let is_listed = |sequence: u64| referred.iter().any(|segment| segment.file() == FileId::Segment(sequence));
        let name = |injury: &Injury| self.folder.iter().find(|(_, number)| **number == injury.content);
        self.injuries.iter().filter_map(|injury| Some((injury, *name(injury)?.0))).any(|(injury, file)| match file {
            FileId::SnapshotDraft(_) => false,
            FileId::Snapshot(frame) => injury.is_unreadable() && (frame >= base || injury.hits(&(0..HEADER_BYTES))),
            FileId::Segment(sequence) if injury.is_unreadable() => {
                is_replayed(sequence) || injury.hits(&(0..HEADER_BYTES))
            }
            FileId::Segment(sequence) => {
                let misnames = matches!(injury.damage, Damage::Misdirect { .. }) && injury.hits(&HEADER_FIELDS);
                let is_headless = injury.hits(&HEADER_FIELDS) && (is_replayed(sequence) || is_listed(sequence));
                misnames || is_headless || is_replayed(sequence) && is_in_log(file, &injury.range)
            }
        })
    }

    /// Writes the damage for [a fingerprint](crate::world::Fingerprint).
    pub(super) fn canonical_injuries(&self, out: &mut impl fmt::Write) -> fmt::Result {
        for Injury { content, range, damage, written, platter, is_permanent } in &self.injuries {
            let name = self.folder.iter().find(|(_, number)| *number == content).map(|(file, _)| *file);
            write!(out, "{name:?} {range:?} {damage:?} {written:x?} {platter:x?} {is_permanent} ")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use driftq_core::log::{LogId, LogPosition, SegmentHeader, Storage, WriteAt};
    use driftq_core::types::Lsn;

    use super::*;

    /// Segments that begin at frame 1, 11 and 21, and snapshots at 10 and 20.
    fn disk() -> Disk {
        let mut disk = Disk::new(false);
        for (sequence, previous) in (1..).zip([0, 10, 20]) {
            let header = SegmentHeader {
                log_id: LogId([1; 16]),
                sequence,
                previous: LogPosition { frame: FrameNumber(previous), lsn: Lsn(previous / 2) },
                previous_crc: 7,
                synced: FrameNumber(previous),
                capacity: 0,
            };
            write(&mut disk, header.file(), &[header.encode(), vec![9; 600]].concat());
        }
        write(&mut disk, FileId::Snapshot(FrameNumber(10)), &[5; 5_000]);
        write(&mut disk, FileId::Snapshot(FrameNumber(20)), &[6; 5_000]);
        disk
    }

    fn write(disk: &mut Disk, file: FileId, bytes: &[u8]) {
        disk.create(file, 0).expect("a new file");
        disk.append(file, WriteAt { epoch: 1, position: 0 }, bytes).expect("space is free");
        disk.sync(file).expect("no fault");
        disk.sync_folder().expect("no fault");
    }

    /// The bit at byte `at` of a file.
    fn bit(disk: &Disk, file: FileId, at: usize) -> u32 {
        let before: usize = disk.files().take_while(|(name, _)| *name != file).map(|(_, bytes)| bytes.len()).sum();
        ((before + at) * 8) as u32
    }

    fn may_refuse(hits: &[(FileId, usize)], is_in_log: bool) -> bool {
        let mut disk = disk();
        for (file, at) in hits {
            let bit = bit(&disk, *file, *at);
            assert!(disk.damage(Damage::Flip { bit }).is_some());
        }
        disk.may_refuse(|_, _| is_in_log)
    }

    #[test]
    fn start_may_refuse_only_damage_to_what_it_needs() {
        let (old, last) = (FileId::Segment(1), FileId::Segment(3));
        let (older, newest) = (FileId::Snapshot(FrameNumber(10)), FileId::Snapshot(FrameNumber(20)));
        assert!(!may_refuse(&[(newest, 4_500)], true), "the older snapshot stands");
        assert!(!may_refuse(&[(older, 10)], true));
        assert!(may_refuse(&[(newest, 4_500), (older, 4_500)], true));
        assert!(!may_refuse(&[(old, 4_500)], true) && !may_refuse(&[(old, 10)], true), "the snapshot covers it");
        assert!(may_refuse(&[(last, 4_500)], true) && may_refuse(&[(last, 10)], false));
        assert!(!may_refuse(&[(last, 4_500)], false), "the tail was cut");
        assert!(!may_refuse(&[(last, 500)], false), "the rest of the header's page is ignored");
        assert!(may_refuse(&[(newest, 4_500), (FileId::Segment(2), 4_500)], true), "the older snapshot needs it");
    }

    #[test]
    fn damaged_snapshot_counts_for_nothing_and_healing_restores_it() {
        let mut disk = disk();
        let before: Vec<_> = disk.files().map(|(_, bytes)| bytes.to_vec()).collect();
        assert_eq!(disk.usable_snapshots(), (Some(FrameNumber(20)), vec![FrameNumber(10), FrameNumber(20)]));
        let newest = bit(&disk, FileId::Snapshot(FrameNumber(20)), 4_096);
        assert!(disk.damage(Damage::Flip { bit: newest }).is_some());
        assert_eq!(disk.usable_snapshots(), (Some(FrameNumber(10)), vec![FrameNumber(10)]));
        let mut twice = disk.clone();
        assert!(twice.damage(Damage::Flip { bit: newest }).is_some());
        assert_eq!(twice.usable_snapshots().0, Some(FrameNumber(20)), "the second injury undid the first");
        disk.note_found_damage();
        assert_eq!(disk.known_damaged.len(), 1);
        disk.heal();
        assert!(!disk.is_injured() && disk.files().map(|(_, bytes)| bytes.to_vec()).eq(before));
    }
}
