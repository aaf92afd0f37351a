//! Preallocation of segments.
//!
//! In a file whose blocks are only reserved, every later sync is slower: the file system must record that the blocks
//! now hold data, and that metadata is part of the sync. A file of durable zeros is overwritten in place, and a sync
//! writes the data only.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// How space is reserved for a file with a capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prepare {
    /// All of it is written with zeros and synced: slow to create, fast to append to. For segments created ahead.
    #[default]
    Zeros,
    /// The first bytes, as many as given, are written with zeros; the rest is only reserved and reads as zeros too. For
    /// the segment that a start waits for. Zeros cannot be written later, once the header is in place.
    ZerosThenReserve(u64),
    /// Nothing is written.
    Reserve,
}

/// The size of one write. Each write is synced before the next: a whole segment in flight at once would delay the syncs
/// of the log.
const CHUNK_BYTES: usize = 1 << 20;
/// The pause after each write of a segment created ahead, which leaves the disk to the log.
const PAUSE: Duration = Duration::from_millis(1);

/// Reserves space in the empty file. When this returns, `capacity` bytes read as zeros, now and after a power loss.
pub(super) fn reserve_space(file: &File, capacity: u64, prepare: Prepare) -> io::Result<()> {
    if capacity == 0 {
        return Ok(());
    }
    let reserved = match fallocate(file, FallocateFlags::empty(), 0, capacity) {
        Ok(()) => true,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => false,
        Err(errno) => return Err(errno.into()),
    };
    let zeros = match prepare {
        Prepare::ZerosThenReserve(bytes) if reserved => bytes.min(capacity),
        Prepare::Reserve if reserved => 0,
        // Space that cannot be reserved must be written.
        _ => capacity,
    };
    let chunk = vec![0; CHUNK_BYTES.min(zeros as usize)];
    let mut at = 0;
    while at < zeros {
        let len = (zeros - at).min(chunk.len() as u64);
        file.write_all_at(&chunk[..len as usize], at)?;
        at += len;
        if prepare == Prepare::Zeros && at < zeros {
            file.sync_data()?;
            std::thread::sleep(PAUSE);
        }
    }
    // Zeros still in flight would become part of the sync of the header, and the length of the file must be durable in
    // any case.
    file.sync_data()
}
