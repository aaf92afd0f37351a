//! A log in memory from which a broker recovers within its process: for tests, where nothing survives the process.
//!
//! Unlike the storage of `--no-wal`, which nothing recovers from, it knows what is synced and what is only written, so
//! that a simulated crash loses what a power loss may lose.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driftq_core::log::{FileId, FileInfo, MemoryStorage, Storage, StorageFault, WriteAt};

/// A handle on files in memory. Its clones share the files.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryLog {
    files: Arc<Mutex<MemoryStorage>>,
    sync_delay: Duration,
}

impl MemoryLog {
    /// An empty folder. Every sync takes `sync_delay` longer.
    pub(crate) fn new(sync_delay: Duration) -> Self {
        Self { files: Arc::default(), sync_delay }
    }

    /// The files after a crash: what is synced. Handles from before, which threads may still use, share nothing with
    /// them.
    pub(crate) fn crash(&self) -> Self {
        Self { files: Arc::new(Mutex::new(self.files().crash())), sync_delay: self.sync_delay }
    }

    fn files(&self) -> MutexGuard<'_, MemoryStorage> {
        // A thread that panicked failed its job, and the log with it.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a sync up, with nothing locked: a crash may come meanwhile.
    fn delay_sync(&self) {
        if !self.sync_delay.is_zero() {
            std::thread::sleep(self.sync_delay);
        }
    }
}

impl Storage for MemoryLog {
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        self.files().create(file, capacity)
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        self.files().append(file, at, bytes)
    }

    fn sync(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.delay_sync();
        self.files().sync(file)
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        self.files().read(file, position, buffer)
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        self.files().list()
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault> {
        self.files().rename(from, to)
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.files().remove(file)
    }

    fn trim(&mut self, file: FileId, len: u64) -> Result<(), StorageFault> {
        self.files().trim(file, len)
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        self.delay_sync();
        self.files().sync_folder()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId::Segment(1);

    fn append(log: &mut MemoryLog, position: u64, bytes: &[u8]) {
        log.append(FILE, WriteAt { epoch: 1, position }, bytes).expect("appended");
    }

    fn content(log: &mut MemoryLog) -> Vec<u8> {
        let mut buffer = [0; 16];
        let read = log.read(FILE, 0, &mut buffer).expect("read");
        buffer[..read].to_vec()
    }

    #[test]
    fn crash_keeps_what_is_synced_and_nothing_else() {
        let mut log = MemoryLog::new(Duration::ZERO);
        log.create(FILE, 0).expect("created");
        log.sync_folder().expect("synced");
        append(&mut log, 0, b"synced");
        log.sync(FILE).expect("synced");
        append(&mut log, 6, b" or not");
        log.create(FileId::Segment(2), 0).expect("created");
        assert_eq!(content(&mut log), b"synced or not", "written bytes can be read");
        let mut after = log.crash();
        assert_eq!(content(&mut after), b"synced");
        assert_eq!(after.list().expect("listed").len(), 1, "the new name was not synced");
    }

    #[test]
    fn thread_of_a_crashed_broker_changes_nothing_of_its_successor() {
        let mut log = MemoryLog::new(Duration::ZERO);
        log.create(FILE, 0).expect("created");
        log.sync_folder().expect("synced");
        append(&mut log, 0, b"late");
        let mut after = log.crash();
        log.sync(FILE).expect("synced");
        assert_eq!(content(&mut after), b"");
        append(&mut after, 0, b"new");
        assert_eq!(content(&mut log), b"late");
    }
}
