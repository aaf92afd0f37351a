//! A log in memory, for a broker without persistence, and ids for new logs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

use driftq_core::log::{FileId, FileInfo, LogId, Storage, StorageFault, WriteAt};

/// A storage for a broker without persistence. Keeps the segments in memory, since messages refer to the payloads in
/// them, and frees each when it is removed. Accepts snapshots and stores nothing of them: nothing is ever recovered, so
/// it lists nothing, and every start finds an empty folder and needs a [`fresh_log_id`].
#[derive(Clone, Debug, Default)]
pub struct VolatileStorage {
    segments: BTreeMap<FileId, Segment>,
}

/// What was appended to a segment.
#[derive(Clone, Debug, Default)]
struct Segment {
    /// Each append, by the position behind it.
    appended: Vec<(u64, Box<[u8]>)>,
}

impl Segment {
    fn end(&self) -> u64 {
        self.appended.last().map_or(0, |(end, _)| *end)
    }

    fn read(&self, position: u64, buffer: &mut [u8]) -> usize {
        let (mut at, mut filled) = (position, 0);
        let first = self.appended.partition_point(|(end, _)| *end <= position);
        for (end, bytes) in &self.appended[first..] {
            if filled == buffer.len() {
                break;
            }
            let skip = bytes.len() - (end - at) as usize;
            let len = (bytes.len() - skip).min(buffer.len() - filled);
            buffer[filled..filled + len].copy_from_slice(&bytes[skip..skip + len]);
            (at, filled) = (at + len as u64, filled + len);
        }
        filled
    }
}

impl VolatileStorage {
    /// The bytes in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.values().map(Segment::end).sum()
    }
}

impl Storage for VolatileStorage {
    fn create(&mut self, file: FileId, _capacity: u64) -> Result<(), StorageFault> {
        if let FileId::Segment(_) = file {
            self.segments.insert(file, Segment::default());
        }
        Ok(())
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        let FileId::Segment(_) = file else { return Ok(()) };
        let segment = self.segments.get_mut(&file).ok_or(StorageFault::NotFound)?;
        let expected = segment.end();
        if at.position != expected {
            return Err(StorageFault::Misplaced { expected, actual: at.position });
        }
        if !bytes.is_empty() {
            segment.appended.push((expected + bytes.len() as u64, bytes.into()));
        }
        Ok(())
    }

    fn sync(&mut self, _file: FileId) -> Result<(), StorageFault> {
        Ok(())
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        self.segments.get(&file).map(|segment| segment.read(position, buffer)).ok_or(StorageFault::NotFound)
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        Ok(Vec::new())
    }

    fn rename(&mut self, _from: FileId, _to: FileId) -> Result<(), StorageFault> {
        Ok(())
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.segments.remove(&file);
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
