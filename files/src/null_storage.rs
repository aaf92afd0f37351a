//! A storage that keeps nothing, and identities for new logs.

use std::fs::File;
use std::io::{self, Read};

use driftq_core::log::{FileId, FileInfo, LogId, Storage, StorageFault, WriteAt};

/// For a broker that is to remember nothing: says yes to everything, keeps nothing, and lists nothing. Every start finds an empty
/// folder and needs a [`fresh_log_id`].
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

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        Ok(())
    }
}

/// An identity for a new log, drawn by the system.
///
/// # Errors
/// Whatever the system says of its source of randomness.
pub fn fresh_log_id() -> io::Result<LogId> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(LogId(bytes))
}
