//! Reads past the page cache with `O_DIRECT`, and the fallback that evicts a file from the cache first.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Advice, OFlags, fadvise};

/// The alignment of buffers, positions and lengths; a multiple of every common block size.
pub(super) const ALIGN: usize = 4096;

/// Opens a file for reads past the page cache.
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)
}

/// Reads whole blocks until the buffer is full or the file ends. Returns the number of bytes read.
pub(super) fn read_blocks(file: &File, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read_at(&mut buffer[len..], position + len as u64) {
            Ok(0) => break,
            Ok(got) => {
                len += got;
                // Only the end of the file can be inside a block.
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

/// Reads until the buffer is full or the file ends. Returns the number of bytes read.
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

/// Whether the error means that the file system does not support `O_DIRECT` or these block sizes.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::INVAL, Errno::OPNOTSUPP].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Syncs the file and asks the system to evict it from the page cache.
pub(super) fn evict_from_cache(file: &File) -> io::Result<()> {
    // Only clean pages can be evicted.
    file.sync_data()?;
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// A buffer that starts at a multiple of [`ALIGN`].
#[derive(Debug, Default)]
pub(super) struct AlignedBuffer {
    memory: Vec<u8>,
    offset: usize,
}

impl AlignedBuffer {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.offset..]
    }

    /// The first `len` bytes, with unspecified contents.
    pub(super) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        if self.memory.len() < len + ALIGN {
            self.memory = vec![0; len + ALIGN];
            self.offset = self.memory.as_ptr().addr().wrapping_neg() % ALIGN;
        }
        &mut self.memory[self.offset..self.offset + len]
    }
}
