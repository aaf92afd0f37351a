//! Bugs of the storage, as a wrapper around a correct one.

use super::Fault;
use crate::log::{
    FileId, FileInfo, Malformed, ReadSizes, SegmentHeader, SegmentReader, StopReason, Storage, StorageFault, WriteAt,
    read_snapshot, read_whole,
};

/// A storage with at most one bug.
#[derive(Debug)]
pub struct TamperedStorage<'a, S: ?Sized> {
    inner: &'a mut S,
    fault: Option<Fault>,
}

impl<'a, S: Storage + ?Sized> TamperedStorage<'a, S> {
    /// Wraps `inner`; faults that are not of the storage change nothing.
    pub fn new(inner: &'a mut S, fault: Option<Fault>) -> Self {
        Self { inner, fault }
    }

    /// Removes all segments before the last one that has a header.
    fn remove_closed_segments(&mut self) -> Result<(), StorageFault> {
        let mut begun = Vec::new();
        let mut bytes = Vec::new();
        for info in self.inner.list()? {
            if matches!(info.file, FileId::Segment(_)) {
                read_whole(self.inner, info.file, &mut bytes)?;
                begun.extend(SegmentHeader::decode(&bytes).is_ok().then_some(info.file));
            }
        }
        begun.pop();
        begun.into_iter().try_for_each(|segment| self.inner.remove(segment))?;
        self.inner.sync_folder()
    }

    /// Where the frames of the last segment stop being readable; `None` if they do not, or for any other file.
    fn damage_of(&mut self, file: FileId) -> Result<Option<u64>, StorageFault> {
        let segments = self.inner.list()?.into_iter().map(|info| info.file);
        let mut bytes = Vec::new();
        let mut last = None;
        for segment in segments.filter(|file| matches!(file, FileId::Segment(_))) {
            read_whole(self.inner, segment, &mut bytes)?;
            // A segment prepared ahead has no header yet.
            if let Ok(header) = SegmentHeader::decode(&bytes) {
                let mut reader = SegmentReader::new(&header, &bytes);
                while reader.next().is_some() {}
                let damaged = reader.stop().is_some_and(|stop| stop.reason != StopReason::End);
                last = Some((segment, damaged.then_some(reader.position() as u64)));
            }
        }
        Ok(last.filter(|(segment, _)| *segment == file).and_then(|(_, damage)| damage))
    }
}

impl<S: Storage + ?Sized> Storage for TamperedStorage<'_, S> {
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        if let (Some(Fault::SegmentRemovedEarly), FileId::SnapshotDraft(_)) = (self.fault, file) {
            self.remove_closed_segments()?;
        }
        self.inner.create(file, capacity)
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        self.inner.append(file, at, bytes)
    }

    fn sync(&mut self, file: FileId) -> Result<(), StorageFault> {
        match (self.fault, file) {
            (Some(Fault::SnapshotRenamedBeforeSync), FileId::SnapshotDraft(_)) => Ok(()),
            _ => self.inner.sync(file),
        }
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        let damage = match self.fault {
            Some(Fault::RotTakenForTornTail | Fault::TornTailTakenForRot) => self.damage_of(file)?,
            _ => None,
        };
        if let (Some(Fault::DamagedSnapshotRefused), FileId::Snapshot(frame)) = (self.fault, file)
            && read_snapshot(self.inner, frame, &mut Vec::new(), |_, _, _| Ok::<(), Malformed>(())).is_err()
        {
            return Err(StorageFault::Io("planted: damaged snapshot".to_owned()));
        }
        match (self.fault, damage) {
            (Some(Fault::TornTailTakenForRot), Some(_)) => Err(StorageFault::Io("planted: torn tail".to_owned())),
            (_, Some(stop)) => {
                let len = self.inner.read(file, position, buffer)?;
                let intact = usize::try_from(stop.saturating_sub(position)).map_or(len, |intact| intact.min(len));
                buffer[intact..len].fill(0);
                Ok(len)
            }
            (Some(Fault::SnapshotWindowSkipsByte), _) if position > 0 && matches!(file, FileId::Snapshot(_)) => {
                self.inner.read(file, position + 1, buffer)
            }
            (Some(Fault::SegmentPartRepeated), _) if position > 0 && matches!(file, FileId::Segment(_)) => {
                self.inner.read(file, position - 1, buffer)
            }
            _ => self.inner.read(file, position, buffer),
        }
    }

    fn read_sizes(&self) -> ReadSizes {
        self.inner.read_sizes()
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        let files = self.inner.list()?;
        match self.fault {
            Some(Fault::HoleTakenForCorruption) if has_hole(&files) => {
                Err(StorageFault::Io("planted: a segment is missing".to_owned()))
            }
            _ => Ok(files),
        }
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault> {
        self.inner.rename(from, to)
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        match self.inner.remove(file) {
            Err(StorageFault::NotFound) if self.fault == Some(Fault::SegmentRemovedEarly) => Ok(()),
            removed => removed,
        }
    }

    fn trim(&mut self, file: FileId, len: u64) -> Result<(), StorageFault> {
        match self.fault {
            Some(Fault::ClosedSegmentNotCut) => Ok(()),
            Some(Fault::TrimCutsLastFrame) => self.inner.trim(file, len.saturating_sub(1)),
            Some(Fault::SegmentRemovedEarly) => match self.inner.trim(file, len) {
                Err(StorageFault::NotFound) => Ok(()),
                trimmed => trimmed,
            },
            _ => self.inner.trim(file, len),
        }
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        self.inner.sync_folder()
    }
}

/// Whether a segment is missing between others.
fn has_hole(files: &[FileInfo]) -> bool {
    let mut sequences: Vec<_> = files
        .iter()
        .filter_map(|info| if let FileId::Segment(sequence) = info.file { Some(sequence) } else { None })
        .collect();
    sequences.sort_unstable();
    sequences.windows(2).any(|pair| pair[0] + 1 < pair[1])
}
