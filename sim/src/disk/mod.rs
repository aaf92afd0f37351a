//! A simulated disk that honours the storage contract and guarantees nothing beyond it. Faults can be injected.
//!
//! Written data and data on the platter differ until a sync. A crash loses any part of the difference, sector by sector
//! and in any order; a failed sync drops the difference while it stays readable. Faults that a log must *survive* are
//! injected into the world's disk, faults it must *detect* into copies of it.

mod injury;
mod order;
mod storage;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use driftq_core::codec::record as codec;
use driftq_core::faults::Faults;
use driftq_core::log::{FileId, MemoryStorage, ReadSizes, ReferredSegment, SnapshotHead, StorageFault, read_snapshot};
use driftq_core::state::State;
use driftq_core::types::FrameNumber;

use self::injury::Injury;
use crate::actions::{Damage, IoFault, Loss};
use crate::invariants::files::SegmentFile;

/// The unit in which a crash keeps or loses data.
pub const SECTOR_BYTES: usize = 512;

/// What a log must do about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Continue with everything that was acknowledged.
    Survive,
    /// Detect it and refuse to start, rather than serve less than was acknowledged.
    Detect,
}

impl Loss {
    /// Unsynced data is not guaranteed.
    #[must_use]
    pub const fn duty(self) -> Duty {
        Duty::Survive
    }
}

impl IoFault {
    /// The log fails, and a restart continues; a lack of descriptors is waited out.
    #[must_use]
    pub const fn duty(self) -> Duty {
        Duty::Survive
    }
}

impl Damage {
    /// Lost synced data cannot be restored, only detected.
    #[must_use]
    pub const fn duty(self) -> Duty {
        Duty::Detect
    }
}

#[derive(Clone, Debug, Default)]
struct Content {
    written: Vec<u8>,
    /// What a crash leaves; zeros beyond its end.
    platter: Vec<u8>,
    /// A sync has failed, and some written data will not reach the platter.
    sync_failed: bool,
    capacity: u64,
}

impl Content {
    fn allocated(&self) -> u64 {
        self.capacity.max(self.written.len() as u64)
    }

    fn persist(&mut self, range: Range<usize>, change: impl Fn(u8) -> u8) {
        if self.platter.len() < range.end {
            self.platter.resize(range.end, 0);
        }
        for at in range {
            self.platter[at] = change(self.written[at]);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Created(FileId),
    Renamed(FileId, FileId),
    Removed(FileId),
}

/// A change that a crash may still lose.
#[derive(Clone, Debug)]
enum Unsynced {
    /// Written bytes of a file's content that have not reached the platter.
    Bytes(u64, Range<usize>),
    /// A directory change and the content it concerns.
    Folder(Change, u64),
}

impl Unsynced {
    /// The byte range, if it belongs to this content.
    fn range_of(&self, content: u64) -> Option<Range<usize>> {
        match self {
            Self::Bytes(number, range) if *number == content => Some(range.clone()),
            _ => None,
        }
    }

    /// How many bytes it counts for in [`Loss::Cut`].
    fn len(&self) -> usize {
        match self {
            Self::Bytes(_, range) => range.len(),
            Self::Folder(..) => 1,
        }
    }
}

/// The simulated disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    contents: BTreeMap<u64, Content>,
    next_content: u64,
    folder: BTreeMap<FileId, u64>,
    durable_folder: BTreeMap<FileId, u64>,
    /// In order of execution.
    unsynced: Vec<Unsynced>,
    budget: Option<u64>,
    /// How many more changes succeed before the disk stops working.
    changes_left: Option<u32>,
    /// The fault of the next change.
    fault: Option<IoFault>,
    /// One sector at most: the last one that was damaged so.
    unreadable: Option<(FileId, Range<u64>)>,
    /// Damage that was not undone, in order.
    injuries: Vec<Injury>,
    /// Contents of snapshots that a start has found damaged.
    known_damaged: BTreeSet<u64>,
    /// The snapshot that a start last fell back to, 0 for none.
    fell_back_to: Option<FrameNumber>,
    /// The first operation that broke an order which recovery relies on.
    breach: Option<String>,
    shows_given_up: bool,
    read_sizes: ReadSizes,
}

impl Disk {
    /// An empty disk. With `shows_given_up` it breaks the contract: a restarted process still reads data that a failed
    /// sync gave up, as from a page cache that is not bypassed.
    #[must_use]
    pub fn new(shows_given_up: bool) -> Self {
        Self { shows_given_up, ..Self::default() }
    }

    /// Sets how much is read at once.
    pub fn set_read_sizes(&mut self, sizes: ReadSizes) {
        self.read_sizes = sizes;
    }

    /// Limits the free space to `bytes` beyond what is in use; `None` lifts the limit.
    pub fn set_free_space(&mut self, bytes: Option<u64>) {
        self.budget = bytes.map(|bytes| self.used() + bytes);
    }

    /// Whether free space is limited.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.budget.is_some()
    }

    /// Stops the disk after this many changes; `None` for never.
    pub fn set_changes_left(&mut self, changes: Option<u32>) {
        self.changes_left = changes;
    }

    /// Sets the fault of the next change.
    pub fn set_fault(&mut self, fault: Option<IoFault>) {
        self.fault = fault;
    }

    /// Bytes in use, preallocated space included.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.folder.values().filter_map(|number| self.contents.get(number)).map(Content::allocated).sum()
    }

    /// How many directory changes and bytes a crash could still lose.
    #[must_use]
    pub fn at_risk(&self) -> (usize, usize) {
        let kept = |content: &Content| content.written.iter().zip(&content.platter).filter(|(a, b)| a == b).count();
        let bytes = self.contents.values().map(|content| content.written.len() - kept(content)).sum();
        let changes = self.unsynced.iter().filter(|pending| matches!(pending, Unsynced::Folder(..))).count();
        (changes, bytes)
    }

    /// The number of positions at which unsynced data can be [cut](Loss::Cut), not counting its end.
    #[must_use]
    pub fn unsynced_len(&self) -> usize {
        self.unsynced.iter().map(Unsynced::len).sum()
    }

    /// Whether a read finds what it would find after any crash. Unlike [`Self::is_durable`], it takes the zeros
    /// preallocated behind the data for what they are: the last bytes of a frame may be among them.
    #[must_use]
    pub fn reads_as_after_a_crash(&self, file: FileId, range: Range<usize>) -> bool {
        let content = self.durable_folder.get(&file).and_then(|number| self.contents.get(number));
        content.filter(|content| range.end as u64 <= content.allocated()).is_some_and(|content| {
            let part = |bytes: &'_ [u8]| range.start.min(bytes.len())..range.end.min(bytes.len());
            let (written, platter) = (part(&content.written), part(&content.platter));
            let (written, platter) = (&content.written[written], &content.platter[platter]);
            let (both, longer) = match written.len() < platter.len() {
                true => (written, platter),
                false => (platter, written),
            };
            let (begin, end) = longer.split_at(both.len());
            begin == both && end.iter().all(|byte| *byte == 0)
        })
    }

    /// Whether these bytes of the file were written, and a crash cannot lose them.
    #[must_use]
    pub fn is_durable(&self, file: FileId, range: Range<usize>) -> bool {
        let content = self.durable_folder.get(&file).and_then(|number| self.contents.get(number));
        content.is_some_and(|content| {
            let (written, platter) = (content.written.get(range.clone()), content.platter.get(range));
            written.is_some() && written == platter
        })
    }

    /// The process or the machine crashes.
    pub fn crash(&mut self, loss: Loss) {
        self.changes_left = None;
        self.fault = None;
        if loss == Loss::Nothing {
            return self.reopen();
        }
        let whole = self.is_injured().then(|| {
            let mut whole = self.clone();
            whole.undo_all();
            whole.crash(loss);
            whole
        });
        let unsynced = std::mem::take(&mut self.unsynced);
        self.folder.clone_from(&self.durable_folder);
        match loss {
            Loss::Nothing | Loss::All => {}
            Loss::Partial { seed } => self.keep_partial(SeededDraw(seed), &unsynced),
            Loss::Cut { bytes } => self.keep_prefix(bytes as usize, unsynced),
        }
        self.durable_folder.clone_from(&self.folder);
        let folder = &self.folder;
        self.contents.retain(|number, _| folder.values().any(|kept| kept == number));
        self.forget_lost_injuries();
        for content in self.contents.values_mut() {
            content.sync_failed = false;
            content.written.clone_from(&content.platter);
        }
        if let Some(whole) = whole {
            self.lose_injuries(&whole);
        }
    }

    /// Keeps a part of the unsynced changes, selected by `draw`.
    fn keep_partial(&mut self, draw: SeededDraw, unsynced: &[Unsynced]) {
        let changes = unsynced.iter().filter_map(|pending| match pending {
            Unsynced::Folder(change, number) => Some((*change, *number)),
            Unsynced::Bytes(..) => None,
        });
        for (nth, (change, number)) in changes.enumerate() {
            if draw.draw(number, nth as u64).is_multiple_of(2) {
                apply(&mut self.folder, change, number);
            }
        }
        for (number, content) in &mut self.contents {
            draw.keep_partial(*number, content, unsynced.iter().filter_map(|pending| pending.range_of(*number)));
        }
    }

    /// Keeps the first `bytes` bytes of the unsynced changes.
    fn keep_prefix(&mut self, bytes: usize, unsynced: Vec<Unsynced>) {
        let mut left = bytes;
        for pending in unsynced {
            let len = pending.len().min(left);
            left -= len;
            match pending {
                _ if len == 0 => {}
                Unsynced::Bytes(number, range) => {
                    if let Some(content) = self.contents.get_mut(&number) {
                        content.persist(range.start..range.start + len, |byte| byte);
                    }
                }
                Unsynced::Folder(change, number) => apply(&mut self.folder, change, number),
            }
        }
    }

    /// Only the process crashed. Unsynced data stays readable and will reach the platter. Data given up by a failed
    /// sync does neither: a storage must be opened so that it is read from the platter.
    fn reopen(&mut self) {
        if self.shows_given_up {
            return;
        }
        for (number, content) in self.contents.iter_mut().filter(|(_, content)| content.sync_failed) {
            let mut readable = content.platter.clone();
            for range in self.unsynced.iter().filter_map(|pending| pending.range_of(*number)) {
                readable.resize(readable.len().max(range.end), 0);
                readable[range.clone()].copy_from_slice(&content.written[range]);
            }
            content.written = readable;
            content.sync_failed = false;
        }
    }

    /// The bytes reserved for a file, if it exists.
    #[must_use]
    pub fn capacity(&self, file: FileId) -> Option<u64> {
        self.contents.get(self.folder.get(&file)?).map(Content::allocated)
    }

    /// The bytes of a file, without the zeros preallocated behind them.
    #[must_use]
    pub fn bytes(&self, file: FileId) -> Option<&[u8]> {
        Some(&self.contents.get(self.folder.get(&file)?)?.written)
    }

    /// Writes the files and their unsynced changes for [a fingerprint](crate::world::Fingerprint).
    ///
    /// Contents are left out: they follow from the written records, whose state is part of the
    /// [shadow](crate::shadow::Shadow)'s fingerprint.
    pub(crate) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self {
            contents,
            next_content: _,
            folder,
            durable_folder,
            unsynced,
            budget,
            changes_left,
            fault,
            unreadable,
            injuries: _,
            known_damaged,
            fell_back_to,
            breach,
            shows_given_up: _,
            read_sizes: _,
        } = self;
        let name = |number: u64| folder.iter().find(|(_, content)| **content == number).map(|(file, _)| *file);
        write!(out, "{:?} {:?} ", folder.keys(), durable_folder.keys())?;
        for pending in unsynced {
            match pending {
                Unsynced::Bytes(number, range) => write!(out, "{:?} {} ", name(*number), range.len())?,
                Unsynced::Folder(change, _) => write!(out, "{change:?} ")?,
            }
        }
        let failed = contents.iter().filter(|(_, content)| content.sync_failed).map(|(number, _)| name(*number));
        failed.into_iter().try_for_each(|file| write!(out, "{file:?} "))?;
        let known = known_damaged.iter().filter_map(|number| name(*number));
        known.into_iter().try_for_each(|file| write!(out, "{file:?} "))?;
        self.canonical_injuries(out)?;
        write!(out, "{budget:?} {changes_left:?} {fault:?} {unreadable:?} {fell_back_to:?} {breach:?} ")
    }

    /// All files and their bytes.
    pub fn files(&self) -> impl Iterator<Item = (FileId, &[u8])> {
        self.folder.iter().filter_map(|(file, number)| Some((*file, &*self.contents.get(number)?.written)))
    }

    /// The header of a snapshot, and the segments to which it refers; `None` if it is damaged or not there.
    pub(crate) fn referred_by(&self, snapshot: FrameNumber) -> Option<(SnapshotHead, Vec<ReferredSegment>)> {
        let (file, bytes) = self.files().find(|(file, _)| *file == FileId::Snapshot(snapshot))?;
        let mut storage = MemoryStorage::new();
        storage.put_file(file, bytes.to_vec());
        read_snapshot(&mut storage, snapshot, &mut Vec::new(), |_, _, _| Ok::<_, ()>(())).ok()
    }

    /// The state of a snapshot, and the segments to which it refers; `None` if it is damaged or not there.
    pub(crate) fn restored(
        &self,
        snapshot: FrameNumber,
        faults: &impl Faults,
    ) -> Option<(State, Vec<ReferredSegment>)> {
        let file = FileId::Snapshot(snapshot);
        let mut storage = MemoryStorage::new();
        storage.put_file(file, self.bytes(file)?.to_vec());
        let mut state = State::default();
        let restore = |kind, version, payload: &[u8]| {
            let record = codec::decode(kind, version, payload).map_err(drop)?;
            faults.replay(&mut state, &record).map_err(drop)
        };
        let (_, referred) = read_snapshot(&mut storage, snapshot, &mut Vec::new(), restore).ok()?;
        Some((state, referred))
    }

    /// The segments, oldest first.
    pub(crate) fn segments(&self) -> Vec<SegmentFile> {
        let segment = |(file, number): (&FileId, &u64)| {
            let content = self.contents.get(number).filter(|_| matches!(file, FileId::Segment(_)))?;
            let (written, allocated) = (content.written.len() as u64, content.allocated());
            Some(SegmentFile { file: *file, written, allocated })
        };
        self.folder.iter().filter_map(segment).collect()
    }

    /// Byte `nth` of the disk, modulo its size.
    fn byte(&self, nth: usize) -> Option<(FileId, usize)> {
        let total: usize = self.files().map(|(_, bytes)| bytes.len()).sum();
        let mut left = nth.checked_rem(total)?;
        for (file, bytes) in self.files() {
            if left < bytes.len() {
                return Some((file, left));
            }
            left -= bytes.len();
        }
        None
    }

    fn sector(&self, nth: u32) -> Option<(FileId, Range<usize>)> {
        let sectors = |bytes: &[u8]| bytes.len().div_ceil(SECTOR_BYTES);
        let total: usize = self.files().map(|(_, bytes)| sectors(bytes)).sum();
        let mut left = (nth as usize).checked_rem(total)?;
        for (file, bytes) in self.files() {
            if left < sectors(bytes) {
                return Some((file, left * SECTOR_BYTES..((left + 1) * SECTOR_BYTES).min(bytes.len())));
            }
            left -= sectors(bytes);
        }
        None
    }

    fn content_number(&self, file: FileId) -> Result<u64, StorageFault> {
        self.folder.get(&file).copied().ok_or(StorageFault::NotFound)
    }

    fn content_mut(&mut self, file: FileId) -> Result<&mut Content, StorageFault> {
        let number = self.content_number(file)?;
        self.contents.get_mut(&number).ok_or(StorageFault::NotFound)
    }

    fn check_budget(&self, more: u64) -> Result<(), StorageFault> {
        let fits = self.budget.is_none_or(|budget| self.used().saturating_add(more) <= budget);
        if fits { Ok(()) } else { Err(StorageFault::Full) }
    }

    /// Called before every change. Fails once no changes are left or if a fault is set.
    fn begin_change(&mut self) -> Result<(), StorageFault> {
        match &mut self.changes_left {
            Some(0) => return Err(io("injected power loss")),
            Some(left) => *left -= 1,
            None => {}
        }
        match self.fault.take() {
            Some(IoFault::Fail) => Err(io("injected failure")),
            _ => Ok(()),
        }
    }

    fn change(&mut self, change: Change, number: u64) {
        apply(&mut self.folder, change, number);
        self.unsynced.push(Unsynced::Folder(change, number));
    }
}

/// Deterministic draws: a hash of the seed and a location.
#[derive(Clone, Copy, Debug)]
struct SeededDraw(u32);

impl SeededDraw {
    fn draw(self, file: u64, at: u64) -> u64 {
        let mut hash = (u64::from(self.0) << 32) ^ (file << 20) ^ at ^ 0x9e37_79b9_7f4a_7c15;
        for _ in 0..2 {
            hash = (hash ^ (hash >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        }
        hash ^ (hash >> 29)
    }

    /// Keeps some unsynced sectors, loses others and fills others with garbage.
    fn keep_partial(self, number: u64, content: &mut Content, dirty: impl Iterator<Item = Range<usize>>) {
        for range in dirty {
            let mut at = range.start;
            while at < range.end {
                let sector = at / SECTOR_BYTES;
                let end = ((sector + 1) * SECTOR_BYTES).min(range.end);
                let draw = self.draw(number, sector as u64 + (1 << 20));
                match draw % 8 {
                    0..=3 => content.persist(at..end, |byte| byte),
                    4 => content.persist(at..end, |byte| byte ^ (draw >> 8) as u8),
                    // Torn within the sector, as on a disk with smaller physical sectors.
                    5 => content.persist(at..at + (draw >> 8) as usize % (end - at), |byte| byte),
                    _ => {}
                }
                at = end;
            }
        }
    }
}

fn io(what: &str) -> StorageFault {
    StorageFault::Io(what.to_owned())
}

/// Applies a change by content, not by name, so that any subsequence of changes can be applied.
fn apply(folder: &mut BTreeMap<FileId, u64>, change: Change, number: u64) {
    match change {
        Change::Created(file) => {
            folder.insert(file, number);
        }
        Change::Renamed(from, to) => {
            folder.retain(|name, content| *name != from || *content != number);
            folder.insert(to, number);
        }
        Change::Removed(file) => folder.retain(|name, content| *name != file || *content != number),
    }
}

#[cfg(test)]
mod tests {
    use driftq_core::log::{Storage, WriteAt};

    use super::*;

    const OLD: FileId = FileId::Segment(1);
    const NEW: FileId = FileId::Segment(2);

    fn write(disk: &mut Disk, file: FileId, bytes: &[u8]) {
        let position = disk.bytes(file).expect("the file exists").len() as u64;
        disk.append(file, WriteAt { epoch: 1, position }, bytes).expect("space is free");
    }

    /// One file with two synced bytes; then, unsynced: two bytes, a new file, and two bytes in each.
    fn disk() -> Disk {
        let mut disk = Disk::new(false);
        disk.create(OLD, 100).expect("a new file");
        disk.sync_folder().expect("no fault");
        write(&mut disk, OLD, b"ab");
        disk.sync(OLD).expect("no fault");
        write(&mut disk, OLD, b"cd");
        disk.create(NEW, 100).expect("a new file");
        write(&mut disk, NEW, b"ef");
        write(&mut disk, OLD, b"gh");
        disk
    }

    #[test]
    fn synced_bytes_and_zeros_behind_the_data_read_as_after_a_crash() {
        let disk = disk();
        assert!(disk.reads_as_after_a_crash(OLD, 0..2) && disk.is_durable(OLD, 0..2));
        assert!(!disk.reads_as_after_a_crash(OLD, 0..3), "the third byte is not synced");
        assert!(disk.reads_as_after_a_crash(OLD, 10..100) && !disk.is_durable(OLD, 10..100));
        assert!(!disk.reads_as_after_a_crash(OLD, 10..101), "the file has 100 bytes");
        assert!(!disk.reads_as_after_a_crash(NEW, 10..20), "its name is not durable");
    }

    #[test]
    fn cut_keeps_a_prefix_of_bytes_and_directory_changes() {
        let expected: [(&[u8], Option<&[u8]>); 8] = [
            (b"ab", None),
            (b"abc", None),
            (b"abcd", None),
            (b"abcd", Some(b"")),
            (b"abcd", Some(b"e")),
            (b"abcd", Some(b"ef")),
            (b"abcdg", Some(b"ef")),
            (b"abcdgh", Some(b"ef")),
        ];
        assert_eq!(disk().unsynced_len(), expected.len() - 1);
        for (bytes, (old, new)) in (0..).zip(expected) {
            let mut disk = disk();
            disk.crash(Loss::Cut { bytes });
            assert_eq!((disk.bytes(OLD), disk.bytes(NEW)), (Some(old), new), "{bytes}");
            assert_eq!((disk.unsynced_len(), disk.at_risk()), (0, (0, 0)));
        }
    }

    #[test]
    fn cut_at_its_ends_equals_losing_all_and_losing_nothing() {
        let after = |loss| {
            let mut disk = disk();
            disk.crash(loss);
            disk.files().map(|(file, bytes)| (file, bytes.to_vec())).collect::<Vec<_>>()
        };
        assert_eq!(after(Loss::Cut { bytes: 0 }), after(Loss::All));
        assert_eq!(after(Loss::Cut { bytes: 7 }), after(Loss::Nothing));
        assert_eq!(after(Loss::Cut { bytes: u32::MAX }), after(Loss::Nothing));
        assert_eq!(serde_json::to_string(&Loss::Cut { bytes: 17 }).expect("JSON"), r#"{"cut":{"bytes":17}}"#);
    }
}
