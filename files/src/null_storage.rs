//! A storage that discards everything, and ids for new logs.

use std::fs::File;
use std::io::{self, Read};

use driftq_core::log::{FileId, FileInfo, LogId, Storage, StorageFault, WriteAt};

/// A storage for a broker without persistence: accepts everything, stores nothing and lists nothing. Every start finds
/// an empty folder and needs a [`fresh_log_id`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NullStorage;

impl Storage for NullStorage {
    fn create(&mut self, _file: FileId, _capacity: u64) -> Result<(), StorageFault> {
        Ok(())
    }

    fn append(&mut self, _file: FileId, _at: WriteAt, _bytes: &[u8]) -> Result<(), StorageFault> {
        Ok(())
    }

    fn sync(&mut self, _file: FileId) -> Result<(), StorageFault> {
        Ok(())
    }

    fn read(&mut self, _file: FileId, _position: u64, _buffer: &mut [u8]) -> Result<usize, StorageFault> {
        Err(StorageFault::NotFound)
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        Ok(Vec::new())
    }

    fn rename(&mut self, _from: FileId, _to: FileId) -> Result<(), StorageFault> {
        Ok(())
    }

    fn remove(&mut self, _file: FileId) -> Result<(), StorageFault> {
        Ok(())
    }

    fn trim(&mut self, _file: FileId, _len: u64) -> Result<(), StorageFault> {
        Ok(())
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        Ok(())
    }
}

/// A random id for a new log.
///
/// # Errors
/// Any error of reading `/dev/urandom`.
pub fn fresh_log_id() -> io::Result<LogId> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(LogId(bytes))
}
