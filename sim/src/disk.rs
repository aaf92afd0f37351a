//! A disk that keeps its promises and not one more, and that can be made to break them.
//!
//! What is written and what is on the platter are two things. A power loss takes any part of the difference, sector by
//! sector and in any order; a failed sync forgets the difference while it still reads well. Every fault is labelled:
//! those a log must *survive* happen to the world, those it must *detect* happen to copies of the disk.

mod storage;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use driftq_core::log::{FileId, StorageFault};

use crate::actions::{Damage, IoFault, Loss};

/// The unit in which a power loss keeps or loses.
pub const SECTOR_BYTES: usize = 512;

/// What a log can be asked to do about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Go on, with everything that was acknowledged.
    Survive,
    /// Notice, and refuse to start rather than serve less than was acknowledged.
    Detect,
}

impl Loss {
    /// Nobody can be promised what was not synced.
    #[must_use]
    pub const fn duty(self) -> Duty {
        Duty::Survive
    }
}

impl IoFault {
    /// The log fails, and a restart goes on.
    #[must_use]
    pub const fn duty(self) -> Duty {
        Duty::Survive
    }
}

impl Damage {
    /// What was synced and is gone cannot be brought back, only missed.
    #[must_use]
    pub const fn duty(self) -> Duty {
        Duty::Detect
    }
}

#[derive(Clone, Debug, Default)]
struct Content {
    written: Vec<u8>,
    /// What a power loss leaves, beyond whose end are zeros.
    platter: Vec<u8>,
    /// A sync has failed, and some of what is written is not on its way any more.
    gave_up: bool,
    capacity: u64,
}

impl Content {
    fn room(&self) -> u64 {
        self.capacity.max(self.written.len() as u64)
    }

    fn put(&mut self, range: Range<usize>, change: impl Fn(u8) -> u8) {
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

/// Something that was done and that a power loss may still take.
#[derive(Clone, Debug)]
enum Unsynced {
    /// Bytes of a content, written and on their way to the platter.
    Bytes(u64, Range<usize>),
    /// A change of the folder, and the content it is about.
    Folder(Change, u64),
}

impl Unsynced {
    /// The bytes, if it is some of this content's.
    fn of(&self, content: u64) -> Option<Range<usize>> {
        match self {
            Self::Bytes(number, range) if *number == content => Some(range.clone()),
            _ => None,
        }
    }

    /// How many bytes it counts as when what was not synced is cut.
    fn len(&self) -> usize {
        match self {
            Self::Bytes(_, range) => range.len(),
            Self::Folder(..) => 1,
        }
    }
}

/// Files, and what is true of them.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    contents: BTreeMap<u64, Content>,
    next_content: u64,
    folder: BTreeMap<FileId, u64>,
    durable_folder: BTreeMap<FileId, u64>,
    /// In the order in which it was done.
    unsynced: Vec<Unsynced>,
    budget: Option<u64>,
    /// How many more changes before the power goes.
    fuse: Option<u32>,
    /// What goes wrong with the next change.
    fault: Option<IoFault>,
    unreadable: Option<(FileId, Range<u64>)>,
    shows_given_up: bool,
}

impl Disk {
    /// An empty disk. One that `shows_given_up` breaks the contract: a restarted process still reads what a failed sync gave
    /// up, as it would from the cache of a system that was not told to look at the medium.
    #[must_use]
    pub fn new(shows_given_up: bool) -> Self {
        Self { shows_given_up, ..Self::default() }
    }

    /// From now on there is room for so many bytes beyond what is taken; `None` for all.
    pub fn set_room(&mut self, bytes: Option<u64>) {
        self.budget = bytes.map(|bytes| self.used() + bytes);
    }

    /// Whether room is limited.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.budget.is_some()
    }

    /// After so many more changes nothing works any more; `None` for never.
    pub fn set_fuse(&mut self, changes: Option<u32>) {
        self.fuse = changes;
    }

    /// The next change goes wrong.
    pub fn set_fault(&mut self, fault: Option<IoFault>) {
        self.fault = fault;
    }

    /// How many bytes are taken, reserved room included.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.folder.values().filter_map(|number| self.contents.get(number)).map(Content::room).sum()
    }

    /// How many changes and bytes a power loss could still take.
    #[must_use]
    pub fn at_risk(&self) -> (usize, usize) {
        let kept = |content: &Content| content.written.iter().zip(&content.platter).filter(|(a, b)| a == b).count();
        let bytes = self.contents.values().map(|content| content.written.len() - kept(content)).sum();
        let changes = self.unsynced.iter().filter(|late| matches!(late, Unsynced::Folder(..))).count();
        (changes, bytes)
    }

    /// In how many places what is not synced can be [cut](Loss::Cut), its end not counted.
    #[must_use]
    pub fn unsynced_len(&self) -> usize {
        self.unsynced.iter().map(Unsynced::len).sum()
    }

    /// Whether these bytes of the file are where a power loss cannot take them.
    #[must_use]
    pub fn is_durable(&self, file: FileId, range: Range<usize>) -> bool {
        let content = self.durable_folder.get(&file).and_then(|number| self.contents.get(number));
        content.is_some_and(|content| {
            let (written, platter) = (content.written.get(range.clone()), content.platter.get(range));
            written.is_some() && written == platter
        })
    }

    /// The process or the machine dies.
    pub fn crash(&mut self, loss: Loss) {
        self.fuse = None;
        self.fault = None;
        if loss == Loss::Nothing {
            return self.reopen();
        }
        let unsynced = std::mem::take(&mut self.unsynced);
        self.folder.clone_from(&self.durable_folder);
        match loss {
            Loss::Nothing | Loss::All => {}
            Loss::Partial { seed } => self.keep_some(Luck(seed), &unsynced),
            Loss::Cut { bytes } => self.keep_first(bytes as usize, unsynced),
        }
        self.durable_folder.clone_from(&self.folder);
        let folder = &self.folder;
        self.contents.retain(|number, _| folder.values().any(|kept| kept == number));
        for content in self.contents.values_mut() {
            content.gave_up = false;
            content.written.clone_from(&content.platter);
        }
    }

    /// Some of it had arrived.
    fn keep_some(&mut self, luck: Luck, unsynced: &[Unsynced]) {
        let changes = unsynced.iter().filter_map(|late| match late {
            Unsynced::Folder(change, number) => Some((*change, *number)),
            Unsynced::Bytes(..) => None,
        });
        for (nth, (change, number)) in changes.enumerate() {
            if luck.draw(number, nth as u64).is_multiple_of(2) {
                apply(&mut self.folder, change, number);
            }
        }
        for (number, content) in &mut self.contents {
            luck.keep_some(*number, content, unsynced.iter().filter_map(|late| late.of(*number)));
        }
    }

    /// The first so many bytes of it had arrived, and nothing behind them.
    fn keep_first(&mut self, bytes: usize, unsynced: Vec<Unsynced>) {
        let mut left = bytes;
        for late in unsynced {
            let len = late.len().min(left);
            left -= len;
            match late {
                _ if len == 0 => {}
                Unsynced::Bytes(number, range) => {
                    if let Some(content) = self.contents.get_mut(&number) {
                        content.put(range.start..range.start + len, |byte| byte);
                    }
                }
                Unsynced::Folder(change, number) => apply(&mut self.folder, change, number),
            }
        }
    }

    /// The process alone has died. What is still on its way to the platter reads well and will get there. What a failed
    /// sync gave up does neither: whoever opens a storage must see to it that it is read from the platter.
    fn reopen(&mut self) {
        if self.shows_given_up {
            return;
        }
        for (number, content) in self.contents.iter_mut().filter(|(_, content)| content.gave_up) {
            let mut seen = content.platter.clone();
            for range in self.unsynced.iter().filter_map(|late| late.of(*number)) {
                seen.resize(seen.len().max(range.end), 0);
                seen[range.clone()].copy_from_slice(&content.written[range]);
            }
            content.written = seen;
            content.gave_up = false;
        }
    }

    /// Damages what there is. Says what was hit, or nothing if there was nothing to hit.
    pub fn damage(&mut self, damage: Damage) -> Option<(FileId, Range<usize>)> {
        match damage {
            Damage::Flip { bit } => {
                let (file, byte) = self.byte(bit as usize / 8)?;
                self.content_mut(file).ok()?.written[byte] ^= 1 << (bit % 8);
                Some((file, byte..byte + 1))
            }
            Damage::Zero { sector } => {
                let (file, range) = self.sector(sector)?;
                let bytes = &mut self.content_mut(file).ok()?.written[range.clone()];
                let changed = bytes.iter().any(|byte| *byte != 0);
                bytes.fill(0);
                changed.then_some((file, range))
            }
            Damage::Misdirect { from, to } => {
                let (victim, hit) = self.sector(to)?;
                let (source, range) = self.sector(from)?;
                let bytes = self.content_mut(source).ok()?.written[range.clone()].to_vec();
                let len = bytes.len().min(hit.len());
                let target = &mut self.content_mut(victim).ok()?.written[hit.start..hit.start + len];
                let changed = target != &bytes[..len];
                target.copy_from_slice(&bytes[..len]);
                changed.then_some((victim, hit))
            }
            Damage::Unreadable { sector } => {
                let (file, range) = self.sector(sector)?;
                self.unreadable = Some((file, range.start as u64..range.end as u64));
                Some((file, range))
            }
        }
    }

    /// The bytes of a file, without the zeros ahead.
    #[must_use]
    pub fn bytes(&self, file: FileId) -> Option<&[u8]> {
        Some(&self.contents.get(self.folder.get(&file)?)?.written)
    }

    /// Writes down which files there are and what of them is not synced, for [a fingerprint](crate::world::Fingerprint).
    ///
    /// Not what is in them: that follows from the records that were written, and what follows from these is in the
    /// [shadow's](crate::shadow::Shadow) canonical.
    pub(crate) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self {
            contents,
            next_content: _,
            folder,
            durable_folder,
            unsynced,
            budget,
            fuse,
            fault,
            unreadable,
            shows_given_up: _,
        } = self;
        let name = |number: u64| folder.iter().find(|(_, of)| **of == number).map(|(file, _)| *file);
        write!(out, "{:?} {:?} ", folder.keys(), durable_folder.keys())?;
        for late in unsynced {
            match late {
                Unsynced::Bytes(number, range) => write!(out, "{:?} {} ", name(*number), range.len())?,
                Unsynced::Folder(change, _) => write!(out, "{change:?} ")?,
            }
        }
        let given_up = contents.iter().filter(|(_, content)| content.gave_up).map(|(number, _)| name(*number));
        given_up.into_iter().try_for_each(|file| write!(out, "{file:?} "))?;
        write!(out, "{budget:?} {fuse:?} {fault:?} {unreadable:?} ")
    }

    /// All files and their bytes.
    pub fn files(&self) -> impl Iterator<Item = (FileId, &[u8])> {
        self.folder.iter().filter_map(|(file, number)| Some((*file, &*self.contents.get(number)?.written)))
    }

    /// Byte `nth` of all there are, counted round.
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

    fn number(&self, file: FileId) -> Result<u64, StorageFault> {
        self.folder.get(&file).copied().ok_or(StorageFault::NotFound)
    }

    fn content_mut(&mut self, file: FileId) -> Result<&mut Content, StorageFault> {
        let number = self.number(file)?;
        self.contents.get_mut(&number).ok_or(StorageFault::NotFound)
    }

    fn check_budget(&self, more: u64) -> Result<(), StorageFault> {
        let fits = self.budget.is_none_or(|budget| self.used().saturating_add(more) <= budget);
        if fits { Ok(()) } else { Err(StorageFault::Full) }
    }

    /// Before every change: there is power, and nothing was set to go wrong.
    fn begin(&mut self) -> Result<(), StorageFault> {
        match &mut self.fuse {
            Some(0) => return Err(io("the power is gone")),
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

/// Draws without drawing: a hash of where something stands.
#[derive(Clone, Copy, Debug)]
struct Luck(u32);

impl Luck {
    fn draw(self, file: u64, at: u64) -> u64 {
        let mut hash = (u64::from(self.0) << 32) ^ (file << 20) ^ at ^ 0x9e37_79b9_7f4a_7c15;
        for _ in 0..2 {
            hash = (hash ^ (hash >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        }
        hash ^ (hash >> 29)
    }

    /// Some sectors of what was on its way had arrived, some had not, and some are neither.
    fn keep_some(self, number: u64, content: &mut Content, dirty: impl Iterator<Item = Range<usize>>) {
        for range in dirty {
            let mut at = range.start;
            while at < range.end {
                let sector = at / SECTOR_BYTES;
                let end = ((sector + 1) * SECTOR_BYTES).min(range.end);
                let draw = self.draw(number, sector as u64 + (1 << 20));
                match draw % 8 {
                    0..=3 => content.put(at..end, |byte| byte),
                    4 => content.put(at..end, |byte| byte ^ (draw >> 8) as u8),
                    // Torn within the sector, as when it is larger than the disk's own.
                    5 => content.put(at..at + (draw >> 8) as usize % (end - at), |byte| byte),
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

/// By content, not by name, so that any part of a row of changes can be kept.
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
        let position = disk.bytes(file).expect("it is there").len() as u64;
        disk.append(file, WriteAt { epoch: 1, position }, bytes).expect("there is room");
    }

    /// One file with two synced bytes; behind them, not synced: two bytes, a new file, and two bytes in each.
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
    fn a_cut_keeps_exactly_what_was_written_first_bytes_and_changes_of_the_folder_alike() {
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
    fn the_ends_of_a_cut_are_losing_all_and_losing_nothing() {
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
