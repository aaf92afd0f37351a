//! Reads files of an earlier process from the medium instead of the page cache.
//!
//! When writing dirty pages back fails, Linux reports the error once, to the sync that was waiting, and keeps the pages
//! in the cache: they are readable and count as clean, but are not on the disk. A restarted process would build on
//! them. So files of an earlier process are read with `O_DIRECT`, which bypasses the cache and writes dirty pages back
//! first.
//!
//! File systems without `O_DIRECT` (tmpfs, some network and overlay file systems) get a weaker fallback: the file is
//! synced, the system is asked to evict its clean pages, and the file is read through the cache. The system may
//! decline. On tmpfs there is no medium to read.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use driftq_core::log::FileId;
use rustix::fs::OFlags;

use super::direct_io::{ALIGN, AlignedBuffer, evict_from_cache, is_unsupported, open_direct, read_blocks, read_full};
use super::read_ahead::{CHUNK_BYTES, ReadAhead};

/// How files of an earlier process are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadPath {
    /// From the medium with `O_DIRECT`; as [`ReadPath::EvictedCache`] where that is not supported.
    #[default]
    Medium,
    /// Through the page cache, after asking the system to evict the file from it.
    EvictedCache,
    /// Through the page cache as it is. Violates the contract of [`Storage`](driftq_core::log::Storage).
    Cache,
}

/// The largest single read; sequential readers get a read-ahead thread instead.
const WINDOW_BYTES_MAX: usize = 1 << 20;

/// One file of an earlier process, kept open between reads.
#[derive(Debug)]
pub(super) struct MediumReader {
    id: FileId,
    file: File,
    path_taken: ReadPath,
    /// The last `O_DIRECT` read: `window_len` bytes from `window_at` on.
    window: AlignedBuffer,
    window_at: u64,
    window_len: usize,
    /// Whether the window reaches the end of the file.
    at_end: bool,
    folder: PathBuf,
    ahead: Option<ReadAhead>,
}

impl MediumReader {
    /// Opens the file. Reuses the memory and the read-ahead of the previous reader.
    pub(super) fn open(id: FileId, folder: &Path, read_path: ReadPath, before: Option<Self>) -> io::Result<Self> {
        let path = folder.join(id.to_string());
        let (window, ahead) = before.map_or_else(Default::default, |before| (before.window, before.ahead));
        let reader = |file, path_taken| {
            let (window_at, window_len, at_end, folder) = (0, 0, false, folder.to_owned());
            Self { id, file, path_taken, window, window_at, window_len, at_end, folder, ahead }
        };
        if read_path == ReadPath::Medium {
            match open_direct(&path) {
                Ok(file) => return Ok(reader(file, ReadPath::Medium)),
                Err(error) if is_unsupported(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let file = File::open(path)?;
        if read_path == ReadPath::Cache {
            return Ok(reader(file, ReadPath::Cache));
        }
        evict_from_cache(&file)?;
        Ok(reader(file, ReadPath::EvictedCache))
    }

    pub(super) fn file(&self) -> FileId {
        self.id
    }

    /// As [`Storage::read`](driftq_core::log::Storage::read).
    pub(super) fn read(&mut self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.path_taken == ReadPath::Medium {
            match self.read_direct(position, buffer) {
                Err(error) if is_unsupported(&error) => self.fall_back_to_cache()?,
                read => return read,
            }
        }
        read_full(&self.file, position, buffer)
    }

    /// Some file systems accept the flag and refuse the read; some media have larger blocks.
    fn fall_back_to_cache(&mut self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        rustix::fs::fcntl_setfl(&self.file, flags.difference(OFlags::DIRECT))?;
        evict_from_cache(&self.file)?;
        self.path_taken = ReadPath::EvictedCache;
        self.ahead = None;
        Ok(())
    }

    fn read_direct(&mut self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let at = position + filled as u64;
            let within = at.checked_sub(self.window_at).and_then(|skip| usize::try_from(skip).ok());
            match within.filter(|skip| *skip < self.window_len) {
                Some(skip) => {
                    let held = &self.window.bytes()[skip..self.window_len];
                    let len = held.len().min(buffer.len() - filled);
                    buffer[filled..filled + len].copy_from_slice(&held[..len]);
                    filled += len;
                }
                None if !self.fill_window(at, buffer.len() - filled)? => break,
                None => {}
            }
        }
        Ok(filled)
    }

    /// Reads a window that contains byte `at`. Returns `false` at the end of the file.
    fn fill_window(&mut self, at: u64, wanted: usize) -> io::Result<bool> {
        let follows = self.window_len > 0 && at == self.window_at + self.window_len as u64;
        if follows && self.at_end {
            return Ok(false);
        }
        if follows && self.ahead.is_none() {
            self.ahead = ReadAhead::start(&self.folder, self.id, &self.file, at).ok();
        }
        let start = at - at % ALIGN as u64;
        self.window_len = 0;
        if let Some(ahead) = self.ahead.take()
            && let Some(chunk) = ahead.take(self.id, start, std::mem::take(&mut self.window))
        {
            (self.window, self.window_len, self.at_end) = (chunk.bytes, chunk.len, chunk.len < CHUNK_BYTES);
            self.ahead = Some(ahead);
        } else {
            let size = (wanted + (at - start) as usize).clamp(1, WINDOW_BYTES_MAX).next_multiple_of(ALIGN);
            self.window_len = read_blocks(&self.file, start, self.window.bytes_mut(size))?;
            self.at_end = self.window_len < size;
        }
        self.window_at = start;
        Ok(start + self.window_len as u64 > at)
    }
}
