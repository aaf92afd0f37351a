//! Read-ahead for sequential reads past the page cache.
//!
//! Linux reads ahead only into the page cache. Once a file is read sequentially, a thread reads a bounded number of
//! chunks ahead, through that file and then through the segments that follow it. If the thread fails, the reader reads
//! on its own.

use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::{io, thread};

use driftq_core::log::FileId;

use super::direct_io::{ALIGN, AlignedBuffer, open_direct, read_blocks};

pub(super) const CHUNK_BYTES: usize = 4 << 20;
/// The maximum number of chunks read ahead.
const CHUNKS_MAX: usize = 8;

/// A chunk of a file.
#[derive(Debug)]
pub(super) struct Chunk {
    file: FileId,
    at: u64,
    pub(super) bytes: AlignedBuffer,
    /// The number of bytes read: less than [`CHUNK_BYTES`] at the end of the file.
    pub(super) len: usize,
}

/// The receiving end. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct ReadAhead {
    chunks: Receiver<Chunk>,
    spent: Sender<AlignedBuffer>,
}

impl ReadAhead {
    /// Starts at byte `at` of `file` in `folder`, which is open as `handle` with `O_DIRECT`.
    pub(super) fn start(folder: &Path, file: FileId, handle: &File, at: u64) -> io::Result<Self> {
        assert!(at.is_multiple_of(ALIGN as u64), "direct reads start at a block boundary");
        let (out, chunks) = sync_channel(CHUNKS_MAX);
        let (spent, memory) = channel();
        let (folder, handle) = (folder.to_owned(), handle.try_clone()?);
        let work = move || read_chunks(&folder, file, handle, at, &out, &memory);
        thread::Builder::new().name("read-ahead".to_owned()).spawn(work)?;
        Ok(Self { chunks, spent })
    }

    /// The chunk of `file` from byte `at` on, if it is the next one; `spent` is memory to reuse. After a `None` the
    /// read-ahead is over.
    pub(super) fn take(&self, file: FileId, at: u64, spent: AlignedBuffer) -> Option<Chunk> {
        // If the thread has ended, the memory is dropped.
        drop(self.spent.send(spent));
        self.chunks.recv().ok().filter(|chunk| chunk.file == file && chunk.at == at)
    }
}

fn read_chunks(
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
