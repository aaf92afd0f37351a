//! The [`Storage`] of the simulated disk, with its injected faults.

use driftq_core::log::{FileId, FileInfo, ReadSizes, Storage, StorageFault, WriteAt};

use super::{Change, Content, Disk, Unsynced, io};
use crate::actions::IoFault;

impl Storage for Disk {
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        let has_descriptor = self.fault != Some(IoFault::NoDescriptor);
        self.begin_change()?;
        if !has_descriptor {
            return Err(StorageFault::NoDescriptor);
        }
        if self.folder.contains_key(&file) {
            return Err(StorageFault::Exists);
        }
        self.check_budget(capacity)?;
        self.check_create(file);
        let number = self.next_content;
        self.next_content += 1;
        self.contents.insert(number, Content { capacity, ..Content::default() });
        self.change(Change::Created(file), number);
        Ok(())
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        let short = match self.fault {
            Some(IoFault::Short { bytes: kept }) => Some(usize::from(kept).min(bytes.len())),
            _ => None,
        };
        self.begin_change()?;
        let content = self.content_mut(file)?;
        let end = content.written.len();
        if at.position != end as u64 {
            return Err(StorageFault::Misplaced { expected: end as u64, actual: at.position });
        }
        let beyond = (end as u64 + bytes.len() as u64).saturating_sub(content.allocated());
        if beyond > 0 {
            self.check_budget(beyond)?;
        }
        self.check_append(file, at.position, bytes.len());
        let (number, content) = (self.content_number(file)?, self.content_mut(file)?);
        let bytes = &bytes[..short.unwrap_or(bytes.len())];
        content.written.extend_from_slice(bytes);
        self.unsynced.push(Unsynced::Bytes(number, end..end + bytes.len()));
        if short.is_some() { Err(io("short write")) } else { Ok(()) }
    }

    fn sync(&mut self, file: FileId) -> Result<(), StorageFault> {
        let started = self.begin_change();
        let is_stopped = self.changes_left == Some(0) && started.is_err();
        let number = self.content_number(file)?;
        let content = self.contents.get_mut(&number).ok_or(StorageFault::NotFound)?;
        if started.is_err() {
            if !is_stopped {
                // As operating systems do: the pages count as clean and will not be written again.
                self.unsynced.retain(|change| change.range_of(number).is_none());
                content.sync_failed = true;
            }
            return started;
        }
        self.unsynced.retain(|change| match change.range_of(number) {
            Some(range) => {
                content.persist(range, |byte| byte);
                false
            }
            None => true,
        });
        self.sync_injuries(number);
        Ok(())
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        let range_read = position..position.saturating_add(buffer.len() as u64);
        if let Some((bad, range)) = &self.unreadable
            && *bad == file
            && range_read.start < range.end
            && range.start < range_read.end
        {
            return Err(io("injected read failure"));
        }
        let content = self.content_mut(file)?;
        let count = content.allocated().saturating_sub(position).min(buffer.len() as u64) as usize;
        let start = content.written.len().min(usize::try_from(position).unwrap_or(usize::MAX));
        let data = &content.written[start..];
        let data = &data[..data.len().min(count)];
        buffer[..data.len()].copy_from_slice(data);
        buffer[data.len()..count].fill(0);
        Ok(count)
    }

    fn read_sizes(&self) -> ReadSizes {
        self.read_sizes
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        let info = |(file, number): (&FileId, &u64)| {
            Some(FileInfo { file: *file, len: self.contents.get(number)?.allocated() })
        };
        Ok(self.folder.iter().filter_map(info).collect())
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault> {
        self.begin_change()?;
        let number = self.content_number(from)?;
        if self.folder.contains_key(&to) {
            return Err(StorageFault::Exists);
        }
        self.check_rename(from, to);
        self.change(Change::Renamed(from, to), number);
        Ok(())
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.begin_change()?;
        let number = self.content_number(file)?;
        self.check_remove(file);
        self.change(Change::Removed(file), number);
        Ok(())
    }

    fn trim(&mut self, file: FileId, len: u64) -> Result<(), StorageFault> {
        self.begin_change()?;
        let number = self.content_number(file)?;
        let content = self.content_mut(file)?;
        if len >= content.allocated() {
            return Ok(());
        }
        let end = usize::try_from(len).unwrap_or(usize::MAX);
        content.written.truncate(end);
        content.platter.truncate(end);
        content.capacity = len;
        for change in &mut self.unsynced {
            if let Unsynced::Bytes(of, range) = change
                && *of == number
            {
                *range = range.start.min(end)..range.end.min(end);
            }
        }
        self.unsynced.retain(|change| change.len() > 0);
        self.cut_injuries(number, end);
        Ok(())
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        self.begin_change()?;
        self.durable_folder.clone_from(&self.folder);
        let durable = &self.durable_folder;
        self.contents.retain(|number, _| durable.values().any(|kept| kept == number));
        self.forget_lost_injuries();
        let contents = &self.contents;
        self.unsynced.retain(|change| matches!(change, Unsynced::Bytes(number, _) if contents.contains_key(number)));
        Ok(())
    }
}
