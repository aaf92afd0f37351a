//! Read-only descriptors of segments, for reads by position.
//!
//! The threads that read payloads share them. The mutex is held for lookups, never during I/O.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driftq_core::log::FileId;

use super::fault::is_out_of_descriptors;

/// The most descriptors. A backlog is read segment by segment, and few groups are far apart.
const OPEN_MAX: usize = 8;

/// Open files, the one used last first.
#[derive(Debug, Default)]
pub(super) struct DescriptorCache {
    open: Mutex<VecDeque<(FileId, Arc<File>)>>,
}

impl DescriptorCache {
    /// The descriptor of `file`, which is at `path`.
    ///
    /// # Errors
    /// Of opening the file. If there is no descriptor left, those in the cache are closed first.
    pub(super) fn get(&self, file: FileId, path: &Path) -> io::Result<Arc<File>> {
        if let Some(found) = self.find(file) {
            return Ok(found);
        }
        let opened = match File::open(path) {
            Err(error) if is_out_of_descriptors(&error) => {
                drop(std::mem::take(&mut *self.lock()));
                File::open(path)
            }
            opened => opened,
        };
        let opened = Arc::new(opened?);
        let mut open = self.lock();
        open.push_front((file, Arc::clone(&opened)));
        let surplus = if open.len() > OPEN_MAX { open.pop_back() } else { None };
        drop(open);
        drop(surplus);
        Ok(opened)
    }

    /// Closes the descriptors of a file that is removed, so that its space is freed.
    pub(super) fn close(&self, file: FileId) {
        let mut closed = Vec::new();
        self.lock().retain(|(other, descriptor)| {
            // Closing the last handle frees the blocks, which takes a while: not under the mutex.
            closed.extend((*other == file).then(|| Arc::clone(descriptor)));
            *other != file
        });
    }

    fn find(&self, file: FileId) -> Option<Arc<File>> {
        let mut open = self.lock();
        let at = open.iter().position(|(other, _)| *other == file)?;
        let found = open.remove(at)?;
        let descriptor = Arc::clone(&found.1);
        open.push_front(found);
        Some(descriptor)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(FileId, Arc<File>)>> {
        // No code that can panic runs while it is held.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
