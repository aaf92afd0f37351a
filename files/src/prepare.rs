//! Making room for a segment before anything is written to it.
//!
//! A file that merely has blocks reserved makes every later sync pay: the file system must note that the blocks now hold data, and
//! that note is part of what is synced. A file full of durable zeros is overwritten in place, and a sync of it writes the data and
//! nothing else.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// How room is made for a file with a capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prepare {
    /// Zeros are written over all of it and synced: slow to make, fast to append to. For segments made ahead.
    #[default]
    Zeros,
    /// The first so many bytes are zeros, the rest is only reserved (it reads as zeros too). For the segment that a start
    /// waits for: no zero may be written once its header is, so what is not written before the first message never will be.
    ZerosThenReserve(u64),
    /// Nothing is written.
    Reserve,
}

/// How much is written at a time. Each piece is synced before the next: a whole segment on its way to the disk at once would
/// keep the log's own syncs waiting behind it.
const CHUNK_BYTES: usize = 1 << 20;
/// And how long the disk is then left to others, where nobody waits for the zeros.
const BREATH: Duration = Duration::from_millis(1);

/// Gives the empty file its room. When this returns, `capacity` bytes read as zeros, now and after a power loss.
pub(super) fn make_room(file: &File, capacity: u64, prepare: Prepare) -> io::Result<()> {
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
        // Room that cannot be reserved must be written.
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
            std::thread::sleep(BREATH);
        }
    }
    // Were the zeros still on their way when the header is written, they would be part of its sync; and the file's length must
    // be durable in any case.
    file.sync_data()
}
