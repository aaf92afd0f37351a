//! Reading on while what was read is being worked at.
//!
//! The system reads ahead of whoever reads by its cache; past the cache nobody does. So once a file is seen to be read from front to
//! back, a thread reads on, through that file and then through the segments that follow it, a bounded number of chunks ahead.
//! Whatever goes wrong with it, the reader just reads for itself.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use driftq_core::log::FileId;

use super::medium::{ALIGN, AlignedBuffer, open_direct, read_blocks};

pub(super) const CHUNK_BYTES: usize = 4 << 20;
/// How many chunks may wait to be taken.
const CHUNKS_MAX: usize = 8;

/// A piece of a file.
#[derive(Debug)]
pub(super) struct Chunk {
    file: FileId,
    at: u64,
    pub(super) bytes: AlignedBuffer,
    /// How many bytes were read: fewer than [`CHUNK_BYTES`] at the end of the file.
    pub(super) len: usize,
}

/// The taking end. When it is dropped, the thread ends.
#[derive(Debug)]
pub(super) struct ReadAhead {
    chunks: Receiver<Chunk>,
    spent: Sender<AlignedBuffer>,
}

impl ReadAhead {
    /// Begins at byte `at` of `file`, which stands in `folder` and is open as `handle`, past the cache.
    pub(super) fn begin(folder: &Path, file: FileId, handle: &File, at: u64) -> io::Result<Self> {
        assert!(at.is_multiple_of(ALIGN as u64), "reading past the cache begins at a block");
        let (out, chunks) = sync_channel(CHUNKS_MAX);
        let (spent, memory) = channel();
        let (folder, handle) = (folder.to_owned(), handle.try_clone()?);
        let run = move || read_on(&folder, file, handle, at, &out, &memory);
        thread::Builder::new().name("read-ahead".to_owned()).spawn(run)?;
        Ok(Self { chunks, spent })
    }

    /// The piece of `file` from byte `at` on, if that is what comes next; `spent` is memory to use again. After a `None` there is nothing
    /// more to be had.
    pub(super) fn take(&self, file: FileId, at: u64, spent: AlignedBuffer) -> Option<Chunk> {
        // If the thread has ended the memory is simply dropped.
        drop(self.spent.send(spent));
        self.chunks.recv().ok().filter(|chunk| chunk.file == file && chunk.at == at)
    }
}

fn read_on(
    folder: &Path,
    mut file: FileId,
    mut handle: File,
    mut at: u64,
    out: &SyncSender<Chunk>,
    memory: &Receiver<AlignedBuffer>,
) {
    loop {
        let mut bytes = memory.try_recv().unwrap_or_default();
        let Ok(len) = read_blocks(&handle, at, bytes.bytes_mut(CHUNK_BYTES)) else { return };
        if out.send(Chunk { file, at, bytes, len }).is_err() {
            return;
        }
        at += len as u64;
        if len < CHUNK_BYTES {
            let FileId::Segment(sequence) = file else { return };
            file = FileId::Segment(sequence.saturating_add(1));
            let Ok(next) = open_direct(&folder.join(file.to_string())) else { return };
            (handle, at) = (next, 0);
        }
    }
}
