//! A storage in memory for tests, examples and benches.
//!
//! It tracks written and durable data separately, so that [`crash`](MemoryStorage::crash) drops exactly what a power
//! loss may drop. It injects no faults of its own; the simulator's disk does.

use std::collections::BTreeMap;

use super::storage::{FileId, FileInfo, Storage, StorageFault, WriteAt};

/// The unit in which a power loss keeps or loses unsynced data.
const SECTOR_BYTES: u64 = 512;

/// What a power loss does to the unsynced bytes of one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorFate {
    /// The written bytes are on the disk.
    Kept,
    /// The sector reads as zeros.
    Lost,
    /// Every written byte is XORed with this value.
    Garbage(u8),
}

/// A change to the folder that is not durable yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderChange {
    /// The file was created.
    Created(FileId),
    /// The first file was renamed to the second.
    Renamed(FileId, FileId),
    /// The file was removed.
    Removed(FileId),
}

/// Decides what a power loss keeps of unsynced data. The defaults keep nothing.
pub trait CrashPlan {
    /// Whether this unsynced change to the folder survives.
    fn keep_change(&mut self, change: FolderChange) -> bool {
        let _ = change;
        false
    }

    /// What happens to the unsynced bytes of sector number `sector` of the file.
    fn sector(&mut self, file: FileId, sector: u64) -> SectorFate {
        let _ = (file, sector);
        SectorFate::Lost
    }

    /// How many of the `unsynced` bytes at the end of the file remain part of it.
    fn keep_bytes(&mut self, file: FileId, unsynced: u64) -> u64 {
        let _ = file;
        unsynced
    }
}

/// Keeps only synced data.
struct OnlySynced;

impl CrashPlan for OnlySynced {
    fn keep_bytes(&mut self, _file: FileId, _unsynced: u64) -> u64 {
        0
    }
}

#[derive(Clone, Debug, Default)]
struct Content {
    written: Vec<u8>,
    /// The length of the durable prefix of `written`.
    synced: usize,
    capacity: u64,
}

impl Content {
    fn reserved(&self) -> u64 {
        self.capacity.max(self.written.len() as u64)
    }
}

/// Files in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage {
    contents: BTreeMap<u64, Content>,
    next_content: u64,
    folder: BTreeMap<FileId, u64>,
    durable_folder: BTreeMap<FileId, u64>,
    changes: Vec<(FolderChange, u64)>,
    budget: Option<u64>,
    fail_syncs: u32,
    has_no_descriptor: bool,
    unreadable: Option<(FileId, u64)>,
}

impl MemoryStorage {
    /// An empty folder without a size limit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the total size of all files, reserved space included; `None` lifts the limit.
    pub fn set_budget(&mut self, bytes: Option<u64>) {
        self.budget = bytes;
    }

    /// Makes the next `count` syncs, of files or of the folder, fail without making anything durable.
    pub fn fail_syncs(&mut self, count: u32) {
        self.fail_syncs = count;
    }

    /// Whether creations fail for want of a descriptor.
    pub fn set_no_descriptor(&mut self, has_no_descriptor: bool) {
        self.has_no_descriptor = has_no_descriptor;
    }

    /// Makes reads of the file that touch this byte fail; `None` makes it readable again.
    pub fn set_unreadable(&mut self, byte: Option<(FileId, u64)>) {
        self.unreadable = byte;
    }

    /// The storage after a power loss that keeps only synced data.
    #[must_use]
    pub fn crash(&self) -> Self {
        self.crash_with(&mut OnlySynced)
    }

    /// The storage after a power loss, as decided by the plan. All of it is durable.
    #[must_use]
    pub fn crash_with(&self, plan: &mut impl CrashPlan) -> Self {
        let mut after = Self { next_content: self.next_content, budget: self.budget, ..Self::default() };
        after.folder.clone_from(&self.durable_folder);
        for (change, content) in &self.changes {
            if plan.keep_change(*change) {
                apply(&mut after.folder, *change, *content);
            }
        }
        after.durable_folder.clone_from(&after.folder);
        for (file, number) in &after.folder {
            let Some(content) = self.contents.get(number) else { continue };
            after.contents.insert(*number, content_after_crash(content, *file, plan));
        }
        after
    }

    /// The bytes written to the file, without preallocated zeros, for tests to damage. Every change is durable at once.
    pub fn bytes_mut(&mut self, file: FileId) -> Option<WrittenBytes<'_>> {
        self.content_mut(file).ok().map(|content| WrittenBytes { content })
    }

    /// The bytes written to the file, without preallocated zeros.
    #[must_use]
    pub fn bytes(&self, file: FileId) -> Option<&[u8]> {
        Some(&self.contents.get(self.folder.get(&file)?)?.written)
    }

    /// Creates or replaces a file with these contents, durable at once and without reserved space.
    pub fn put_file(&mut self, file: FileId, bytes: Vec<u8>) {
        let synced = bytes.len();
        let number = self.insert(Content { written: bytes, synced, capacity: 0 });
        self.folder.insert(file, number);
        self.durable_folder.insert(file, number);
    }

    /// Removes a file, durable at once, and returns its contents.
    pub fn take_file(&mut self, file: FileId) -> Option<Vec<u8>> {
        self.durable_folder.remove(&file);
        let number = self.folder.remove(&file)?;
        self.contents.get(&number).map(|content| content.written.clone())
    }

    fn insert(&mut self, content: Content) -> u64 {
        let number = self.next_content;
        self.next_content += 1;
        self.contents.insert(number, content);
        number
    }

    fn number(&self, file: FileId) -> Result<u64, StorageFault> {
        self.folder.get(&file).copied().ok_or(StorageFault::NotFound)
    }

    fn content_mut(&mut self, file: FileId) -> Result<&mut Content, StorageFault> {
        let number = self.number(file)?;
        self.contents.get_mut(&number).ok_or(StorageFault::NotFound)
    }

    fn check_budget(&self, more: u64) -> Result<(), StorageFault> {
        let Some(budget) = self.budget else { return Ok(()) };
        let used: u64 =
            self.folder.values().filter_map(|number| self.contents.get(number)).map(Content::reserved).sum();
        if used.saturating_add(more) > budget { Err(StorageFault::Full) } else { Ok(()) }
    }

    fn check_sync(&mut self) -> Result<(), StorageFault> {
        if self.fail_syncs > 0 {
            self.fail_syncs -= 1;
            return Err(StorageFault::Io("injected sync failure".to_owned()));
        }
        Ok(())
    }

    fn change(&mut self, change: FolderChange, number: u64) {
        apply(&mut self.folder, change, number);
        self.changes.push((change, number));
    }
}

/// The written bytes of a file; see [`MemoryStorage::bytes_mut`].
#[derive(Debug)]
pub struct WrittenBytes<'a> {
    content: &'a mut Content,
}

impl WrittenBytes<'_> {
    /// Inverts bit number `bit`, counted from the lowest bit of the first byte. Does nothing beyond the end.
    pub fn flip(&mut self, bit: usize) {
        if let Some(byte) = self.content.written.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Truncates the file to this length, reserved space included.
    pub fn truncate(&mut self, len: usize) {
        self.content.written.truncate(len);
        self.content.synced = self.content.synced.min(len);
        self.content.capacity = 0;
    }

    /// Overwrites the file with `bytes` from `position` on, growing it if necessary.
    pub fn overwrite(&mut self, position: usize, bytes: &[u8]) {
        let written = &mut self.content.written;
        written.resize(written.len().max(position + bytes.len()), 0);
        written[position..position + bytes.len()].copy_from_slice(bytes);
        self.content.synced = written.len();
    }
}

/// Tracks contents by number, not by name, so that any subset of a sequence of changes can be applied.
fn apply(folder: &mut BTreeMap<FileId, u64>, change: FolderChange, number: u64) {
    match change {
        FolderChange::Created(file) => {
            folder.insert(file, number);
        }
        FolderChange::Renamed(from, to) => {
            if folder.get(&from) == Some(&number) {
                folder.remove(&from);
            }
            folder.insert(to, number);
        }
        FolderChange::Removed(file) => {
            if folder.get(&file) == Some(&number) {
                folder.remove(&file);
            }
        }
    }
}

fn content_after_crash(content: &Content, file: FileId, plan: &mut impl CrashPlan) -> Content {
    let mut left = content.clone();
    let unsynced = (left.written.len() - left.synced) as u64;
    let kept = if unsynced == 0 { 0 } else { plan.keep_bytes(file, unsynced).min(unsynced) };
    left.written.truncate(left.synced + kept as usize);
    let mut at = left.synced;
    while at < left.written.len() {
        let sector = at as u64 / SECTOR_BYTES;
        let end = (((sector + 1) * SECTOR_BYTES) as usize).min(left.written.len());
        match plan.sector(file, sector) {
            SectorFate::Kept => {}
            SectorFate::Lost => left.written[at..end].fill(0),
            SectorFate::Garbage(with) => left.written[at..end].iter_mut().for_each(|byte| *byte ^= with),
        }
        at = end;
    }
    left.synced = left.written.len();
    left
}

impl Storage for MemoryStorage {
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        if self.has_no_descriptor {
            return Err(StorageFault::NoDescriptor);
        }
        if self.folder.contains_key(&file) {
            return Err(StorageFault::Exists);
        }
        self.check_budget(capacity)?;
        let number = self.insert(Content { capacity, ..Content::default() });
        self.change(FolderChange::Created(file), number);
        Ok(())
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        let content = self.content_mut(file)?;
        let end = content.written.len() as u64;
        if at.position != end {
            return Err(StorageFault::Misplaced { expected: end, actual: at.position });
        }
        let beyond = (end + bytes.len() as u64).saturating_sub(content.reserved());
        if beyond > 0 {
            self.check_budget(beyond)?;
        }
        let content = self.content_mut(file)?;
        if content.written.is_empty() {
            // The whole capacity is allocated at once, so that growth does not copy written data.
            content.written.reserve_exact(usize::try_from(content.capacity).unwrap_or(0).max(bytes.len()));
        }
        content.written.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.number(file)?;
        self.check_sync()?;
        let content = self.content_mut(file)?;
        content.synced = content.written.len();
        Ok(())
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        let wanted = position..position.saturating_add(buffer.len() as u64);
        if self.unreadable.is_some_and(|(bad, byte)| bad == file && wanted.contains(&byte)) {
            return Err(StorageFault::Io("injected read failure".to_owned()));
        }
        let content = self.content_mut(file)?;
        let count = content.reserved().saturating_sub(position).min(buffer.len() as u64) as usize;
        let start = content.written.len().min(usize::try_from(position).unwrap_or(usize::MAX));
        let data = &content.written[start..];
        let data = &data[..data.len().min(count)];
        buffer[..data.len()].copy_from_slice(data);
        buffer[data.len()..count].fill(0);
        Ok(count)
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        let info = |(file, number): (&FileId, &u64)| {
            Some(FileInfo { file: *file, len: self.contents.get(number)?.reserved() })
        };
        Ok(self.folder.iter().filter_map(info).collect())
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault> {
        let number = self.number(from)?;
        if self.folder.contains_key(&to) {
            return Err(StorageFault::Exists);
        }
        self.change(FolderChange::Renamed(from, to), number);
        Ok(())
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        let number = self.number(file)?;
        self.change(FolderChange::Removed(file), number);
        Ok(())
    }

    fn trim(&mut self, file: FileId, len: u64) -> Result<(), StorageFault> {
        let content = self.content_mut(file)?;
        if len < content.reserved() {
            content.written.truncate(usize::try_from(len).unwrap_or(usize::MAX));
            content.synced = content.synced.min(content.written.len());
            content.capacity = len;
        }
        Ok(())
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        self.check_sync()?;
        self.durable_folder.clone_from(&self.folder);
        self.changes.clear();
        let durable = &self.durable_folder;
        self.contents.retain(|number, _| durable.values().any(|kept| kept == number));
        Ok(())
    }
}
