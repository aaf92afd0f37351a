//! Reading what is on the medium, and not what the system remembers of it.
//!
//! When writing dirty pages back fails, the system reports that once, to the sync that was waiting, and keeps the pages: they read
//! well, count as clean, and are not on the disk. A process that is started again would build on them. So the files of an
//! earlier process are read with `O_DIRECT`, which goes to the medium whatever the cache holds (and writes dirty pages back
//! first, so that nothing on its way is missed). It wants buffers, positions and lengths that are multiples of a block.
//!
//! Where a file system has no such way (tmpfs, some network and overlay ones) the file is synced, the system is asked to forget
//! its clean pages, and the file is read as usual. That is weaker: the system may decline. On tmpfs there is no medium to read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use driftq_core::log::FileId;
use rustix::fs::{Advice, OFlags, fadvise};

use super::ahead::{CHUNK_BYTES, ReadAhead};

/// How files of an earlier process are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadPath {
    /// From the medium: `O_DIRECT`, or else as [`ReadPath::Forgotten`].
    #[default]
    Medium,
    /// By the cache, after asking the system to forget what it holds of the file.
    Forgotten,
    /// By the cache as it is. Breaks the contract of [`Storage`](driftq_core::log::Storage).
    Cache,
}

/// Every medium's block divides this.
pub(super) const ALIGN: usize = 4096;
/// The most that is read at once; a reader that wants more gets a thread that reads ahead.
const WINDOW_BYTES_MAX: usize = 1 << 20;

/// One file of an earlier process, kept open between reads.
#[derive(Debug)]
pub(super) struct MediumReader {
    id: FileId,
    file: File,
    path_taken: ReadPath,
    /// What was read last, by `O_DIRECT`: from `window_at` on, `window_len` bytes.
    window: AlignedBuffer,
    window_at: u64,
    window_len: usize,
    /// Whether the file ends with the window.
    at_end: bool,
    folder: PathBuf,
    ahead: Option<ReadAhead>,
}

impl MediumReader {
    /// Opens the file. What the reader before it holds is used again: its memory, and what was read ahead.
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
                Err(error) if has_no_direct_way(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let file = File::open(path)?;
        if read_path == ReadPath::Cache {
            return Ok(reader(file, ReadPath::Cache));
        }
        forget_cached(&file)?;
        Ok(reader(file, ReadPath::Forgotten))
    }

    pub(super) fn file(&self) -> FileId {
        self.id
    }

    /// As [`Storage::read`](driftq_core::log::Storage::read).
    pub(super) fn read(&mut self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.path_taken == ReadPath::Medium {
            match self.read_direct(position, buffer) {
                Err(error) if has_no_direct_way(&error) => self.go_on_by_cache()?,
                read => return read,
            }
        }
        read_full(&self.file, position, buffer)
    }

    /// Some file systems take the flag and refuse the read; some media have larger blocks.
    fn go_on_by_cache(&mut self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        rustix::fs::fcntl_setfl(&self.file, flags.difference(OFlags::DIRECT))?;
        forget_cached(&self.file)?;
        self.path_taken = ReadPath::Forgotten;
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

    /// Reads a window that holds byte `at`. `false` at the end of the file.
    fn fill_window(&mut self, at: u64, wanted: usize) -> io::Result<bool> {
        let follows = self.window_len > 0 && at == self.window_at + self.window_len as u64;
        if follows && self.at_end {
            return Ok(false);
        }
        if follows && self.ahead.is_none() {
            self.ahead = ReadAhead::begin(&self.folder, self.id, &self.file, at).ok();
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

/// Opens a file to be read past the cache.
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)
}

/// Reads whole blocks until the buffer is full or the file ends; says how many bytes there were.
pub(super) fn read_blocks(file: &File, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read_at(&mut buffer[len..], position + len as u64) {
            Ok(0) => break,
            Ok(got) => {
                len += got;
                // Only the end of the file is within a block.
                if !got.is_multiple_of(ALIGN) {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// Reads until the buffer is full or the file ends.
pub(super) fn read_full(file: &File, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], position + filled as u64) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn has_no_direct_way(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::INVAL, Errno::OPNOTSUPP].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn forget_cached(file: &File) -> io::Result<()> {
    // Only clean pages can be forgotten.
    file.sync_data()?;
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Memory whose first byte in use stands at a multiple of [`ALIGN`].
#[derive(Debug, Default)]
pub(super) struct AlignedBuffer {
    memory: Vec<u8>,
    offset: usize,
}

impl AlignedBuffer {
    fn bytes(&self) -> &[u8] {
        &self.memory[self.offset..]
    }

    /// The first `len` bytes, whatever is in them.
    pub(super) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        if self.memory.len() < len + ALIGN {
            self.memory = vec![0; len + ALIGN];
            self.offset = self.memory.as_ptr().addr().wrapping_neg() % ALIGN;
        }
        &mut self.memory[self.offset..self.offset + len]
    }
}
