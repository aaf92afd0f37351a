//! Real files of the server's storage in the place of the simulated disk.
//!
//! All writes go to real files and all reads come from them. The simulated disk runs beside them as the model that
//! decides which faults occur and what a crash loses: a real disk does not lose data on command, so after a crash the
//! files are rewritten to hold what the model kept. Both are compared byte for byte at every read and listing, after
//! every sync, and completely before every crash.

use std::cell::OnceCell;
use std::fmt::{Debug, Display};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use driftq_core::faults::Faults;
use driftq_core::log::{FileId, FileInfo, ReadSizes, Recovered, RecoveryError, Storage, StorageFault, WriteAt};
use driftq_core::pipeline::inspect_start_with;
use driftq_core::state::State;
use driftq_files::{DataFolder, FileStorage, FolderError};

use crate::actions::{Damage, Loss};
use crate::disk::Disk;
use crate::sim_storage::SimStorage;

/// Why a run on real files is impossible or differed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileDiskError {
    /// The directory cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The directory is not empty.
    #[error("{} is not empty; a world starts with an empty disk", .0.display())]
    NotEmpty(PathBuf),
    /// The files behaved differently from the simulated disk.
    #[error("the real files differ from the simulated disk: {0}")]
    Differ(String),
}

/// The first difference between the files and the model, shared by all clones.
#[derive(Clone, Debug, Default)]
pub struct Difference(Rc<OnceCell<String>>);

impl Difference {
    /// The difference, if there was one.
    #[must_use]
    pub fn found(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    fn set(&self, what: impl Display) {
        // Later differences follow from the first.
        let _ = self.0.set(what.to_string());
    }
}

/// Real files and the model they are compared with. A clone uses the same files.
#[derive(Clone, Debug)]
pub struct FileDisk {
    model: Disk,
    path: PathBuf,
    files: FileStorage,
    difference: Difference,
}

impl FileDisk {
    /// An empty disk in a directory that is created or is empty.
    ///
    /// # Errors
    /// [`FileDiskError::NotEmpty`], [`FileDiskError::Folder`].
    pub fn new(path: &Path, shows_given_up: bool) -> Result<Self, FileDiskError> {
        if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(FileDiskError::NotEmpty(path.to_owned()));
        }
        Ok(Self {
            model: Disk::new(shows_given_up),
            path: path.to_owned(),
            files: DataFolder::open(path)?.storage(),
            difference: Difference::default(),
        })
    }

    /// A handle to the first difference.
    #[must_use]
    pub fn difference(&self) -> Difference {
        self.difference.clone()
    }

    /// Repeats an operation on the files, unless its failure exists in the model alone, and compares the results.
    fn mirror(
        &mut self,
        modelled: Result<(), StorageFault>,
        what: impl Display,
        operation: impl FnOnce(&mut FileStorage) -> Result<(), StorageFault>,
    ) -> Result<(), StorageFault> {
        if !matches!(modelled, Err(StorageFault::Full | StorageFault::NoDescriptor | StorageFault::Io(_))) {
            let real = operation(&mut self.files);
            self.compare_results(what, &modelled, &real);
        }
        modelled
    }

    fn compare_results<T: PartialEq + Debug>(&self, what: impl Display, model: &T, real: &T) {
        if model != real {
            self.difference.set(format_args!("{what}: expected {model:?}, the files gave {real:?}"));
        }
    }

    /// The bytes of a file in the model, preallocated zeros included.
    fn expected(&self, info: &FileInfo) -> Vec<u8> {
        let mut bytes = self.model.bytes(info.file).unwrap_or_default().to_vec();
        bytes.resize(usize::try_from(info.len).unwrap_or(usize::MAX), 0);
        bytes
    }

    fn compare(&self, info: &FileInfo) -> io::Result<()> {
        let (real, expected) = (fs::read(self.path.join(info.file.to_string()))?, self.expected(info));
        if real != expected {
            let at = real.iter().zip(&expected).take_while(|(a, b)| a == b).count();
            let lengths = (expected.len(), real.len());
            self.difference.set(format_args!("{} from byte {at} on, lengths {lengths:?}", info.file));
        }
        Ok(())
    }

    /// Compares names and bytes of all files with the model.
    fn compare_all(&mut self) -> io::Result<()> {
        let (model, real) = (self.model.list(), self.files.list());
        self.compare_results("listing", &model, &real);
        model.unwrap_or_default().iter().try_for_each(|info| self.compare(info))
    }

    /// Removes from the files what the model lost.
    fn apply_loss(&mut self) -> io::Result<()> {
        let kept = self.model.list().unwrap_or_default();
        for info in self.files.list().unwrap_or_default() {
            if !kept.iter().any(|kept| kept.file == info.file) {
                fs::remove_file(self.path.join(info.file.to_string()))?;
            }
        }
        for info in &kept {
            let (path, expected) = (self.path.join(info.file.to_string()), self.expected(info));
            if fs::read(&path).is_ok_and(|real| real == expected) {
                continue;
            }
            let mut file = File::create(&path)?;
            file.write_all(&expected)?;
            file.sync_all()?;
        }
        Ok(())
    }

    /// Reopens the directory, as another process would.
    fn reopen(&mut self) -> Result<(), FolderError> {
        // The lock is released with the last handle, which must be dropped before the directory is locked again.
        let without_lock = FileStorage::open_unlocked(&self.path);
        let failed = |error| FolderError::Io { doing: "opening", path: self.path.clone(), error };
        self.files = without_lock.map_err(failed)?;
        self.files = DataFolder::open(&self.path)?.storage();
        Ok(())
    }

    fn note_failure<E: Display>(&self, doing: &str, result: Result<(), E>) {
        if let Err(error) = result {
            self.difference.set(format_args!("{doing}: {error}"));
        }
    }
}

impl SimStorage for FileDisk {
    fn model(&self) -> &Disk {
        &self.model
    }

    fn model_mut(&mut self) -> &mut Disk {
        &mut self.model
    }

    fn crash(&mut self, loss: Loss) {
        let compared = self.compare_all();
        self.note_failure("before a crash", compared);
        self.model.crash(loss);
        let applied = self.apply_loss();
        self.note_failure("applying the loss", applied);
        let reopened = self.reopen();
        self.note_failure("reopening the directory", reopened);
    }

    fn damage(&mut self, damage: Damage) -> bool {
        // A real file is readable.
        if matches!(damage, Damage::Unreadable { .. }) || self.model.damage(damage).is_none() {
            return false;
        }
        let applied = self.apply_loss();
        self.note_failure("damaging the files", applied);
        true
    }

    fn heal(&mut self) {
        self.model.heal();
        let applied = self.apply_loss();
        self.note_failure("restoring the files", applied);
    }

    fn inspect_recovery(&self, faults: &impl Faults) -> Result<(State, Recovered), RecoveryError> {
        inspect_start_with(&mut faults.storage(&mut self.clone()), None, faults)
    }
}

impl Storage for FileDisk {
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        let modelled = self.model.create(file, capacity);
        self.mirror(modelled, format_args!("creating {file}"), |files| files.create(file, capacity))
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        let end = |model: &Disk| model.bytes(file).map_or(0, <[u8]>::len);
        let before = end(&self.model);
        let modelled = self.model.append(file, at, bytes);
        if let Err(StorageFault::Io(_)) = modelled {
            // A short write stores a prefix.
            let part = &bytes[..end(&self.model) - before];
            let real = if part.is_empty() { Ok(()) } else { self.files.append(file, at, part) };
            self.compare_results(format_args!("a short write to {file}"), &Ok(()), &real);
        }
        self.mirror(modelled, format_args!("appending to {file}"), |files| files.append(file, at, bytes))
    }

    fn sync(&mut self, file: FileId) -> Result<(), StorageFault> {
        let modelled = self.model.sync(file);
        let modelled = self.mirror(modelled, format_args!("syncing {file}"), |files| files.sync(file));
        let info = self.model.list()?.into_iter().find(|info| info.file == file);
        let compared = info.map_or(Ok(()), |info| self.compare(&info));
        self.note_failure("after a sync", compared);
        modelled
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        let mut expected = vec![0; buffer.len()];
        let modelled = self.model.read(file, position, &mut expected);
        let real = self.files.read(file, position, buffer);
        self.compare_results(format_args!("reading {file} at {position}"), &modelled, &real);
        if let Ok(count) = real
            && expected.get(..count) != buffer.get(..count)
        {
            self.difference.set(format_args!("{file} reads differently at {position}"));
        }
        real
    }

    fn read_sizes(&self) -> ReadSizes {
        self.model.read_sizes()
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        let (modelled, real) = (self.model.list(), self.files.list());
        self.compare_results("listing", &modelled, &real);
        real
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault> {
        let modelled = self.model.rename(from, to);
        self.mirror(modelled, format_args!("renaming {from}"), |files| files.rename(from, to))
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        let modelled = self.model.remove(file);
        self.mirror(modelled, format_args!("removing {file}"), |files| files.remove(file))
    }

    fn trim(&mut self, file: FileId, len: u64) -> Result<(), StorageFault> {
        let modelled = self.model.trim(file, len);
        self.mirror(modelled, format_args!("trimming {file}"), |files| files.trim(file, len))
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        let modelled = self.model.sync_folder();
        self.mirror(modelled, "syncing the directory", Storage::sync_folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId::Segment(1);
    const CAPACITY: u64 = 4_096;

    /// A file with a synced prefix and unsynced bytes behind it, and its path.
    fn written(folder: &Path) -> (FileDisk, PathBuf) {
        let mut disk = FileDisk::new(folder, false).expect("an empty folder");
        disk.create(FILE, CAPACITY).expect("enough space");
        disk.sync_folder().expect("no fault");
        disk.append(FILE, WriteAt { epoch: 1, position: 0 }, b"synced").expect("enough space");
        disk.sync(FILE).expect("no fault");
        disk.append(FILE, WriteAt { epoch: 1, position: 6 }, b"not yet").expect("enough space");
        assert_eq!(disk.difference().found(), None);
        (disk, folder.join(FILE.to_string()))
    }

    #[test]
    fn crash_removes_from_files_what_the_model_lost() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut disk, path) = written(folder.path());
        disk.crash(Loss::Nothing);
        assert!(fs::read(&path).expect("the file exists").starts_with(b"syncednot yet\0"));
        disk.crash(Loss::All);
        let bytes = fs::read(&path).expect("the file exists");
        assert!(bytes.starts_with(b"synced\0") && bytes.len() == CAPACITY as usize);
        let mut buffer = [1; 8];
        assert_eq!(disk.read(FILE, 0, &mut buffer), Ok(8));
        assert_eq!(&buffer, b"synced\0\0");
        assert_eq!(disk.difference().found(), None);
    }

    #[test]
    fn changed_file_is_reported_at_read_sync_and_crash() {
        type Operation = fn(&mut FileDisk);
        let operations: [(&str, Operation); 3] = [
            ("read", |disk| drop(disk.read(FILE, 0, &mut [0; 16]))),
            ("sync", |disk| drop(disk.sync(FILE))),
            ("crash", |disk| disk.crash(Loss::All)),
        ];
        for (name, operation) in operations {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (mut disk, path) = written(folder.path());
            let mut bytes = fs::read(&path).expect("the file exists");
            bytes[7] ^= 1;
            fs::write(&path, bytes).expect("written outside the storage");
            operation(&mut disk);
            assert!(disk.difference().found().is_some(), "{name}");
        }
    }

    #[test]
    fn extra_or_missing_file_is_reported() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut disk, path) = written(folder.path());
        fs::copy(&path, folder.path().join(FileId::Segment(2).to_string())).expect("copied");
        assert!(disk.list().is_ok());
        assert!(disk.difference().found().is_some());
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut disk, path) = written(folder.path());
        fs::remove_file(path).expect("removed");
        disk.crash(Loss::Nothing);
        assert!(disk.difference().found().is_some());
    }
}
