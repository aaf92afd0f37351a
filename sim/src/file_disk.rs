//! The server's own files in the place of the simulated disk.
//!
//! Everything the broker writes goes to real files, and everything it reads comes from them. The simulated disk runs beside them, as the
//! model that says what is to go wrong and what a power loss takes: nobody can make a real disk forget on command, so
//! after a death the files are made to hold what the model has kept. Wherever the two should be the same they are compared, byte for
//! byte: at every read and listing, when a file is synced, and all of them before every death.

use std::cell::OnceCell;
use std::fmt::{Debug, Display};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use driftq_core::faults::Faults;
use driftq_core::log::{FileId, FileInfo, Recovered, RecoveryError, Storage, StorageFault, WriteAt};
use driftq_core::pipeline::inspect;
use driftq_core::state::State;
use driftq_files::{DataFolder, FileStorage, FolderError};

use crate::actions::Loss;
use crate::disk::Disk;
use crate::storage::SimStorage;

/// Why a life cannot be lived on real files, or was another one there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileDiskError {
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Somebody's files are in it.
    #[error("{} is not empty; a world begins with an empty disk", .0.display())]
    NotEmpty(PathBuf),
    /// The files did not behave as the simulated disk did.
    #[error("the real files are not as the simulated disk: {0}")]
    Differ(String),
}

/// The first difference between the files and the model, told to whoever holds a clone.
#[derive(Clone, Debug, Default)]
pub struct Difference(Rc<OnceCell<String>>);

impl Difference {
    /// What it was, if there was one.
    #[must_use]
    pub fn found(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    fn tell(&self, what: impl Display) {
        // Whatever differs later differs because of the first.
        let _ = self.0.set(what.to_string());
    }
}

/// Real files, and the model they are compared with.
#[derive(Debug)]
pub struct FileDisk {
    model: Disk,
    path: PathBuf,
    files: FileStorage,
    difference: Difference,
}

impl FileDisk {
    /// An empty disk in a folder that is made, or is there and empty.
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

    /// Where the first difference will be told.
    #[must_use]
    pub fn difference(&self) -> Difference {
        self.difference.clone()
    }

    /// Asks the files as well, unless the model alone could know that it goes wrong, and compares what both say.
    fn too(
        &mut self,
        said: Result<(), StorageFault>,
        what: impl Display,
        ask: impl FnOnce(&mut FileStorage) -> Result<(), StorageFault>,
    ) -> Result<(), StorageFault> {
        if !matches!(said, Err(StorageFault::Full | StorageFault::Io(_))) {
            let real = ask(&mut self.files);
            self.same(what, &said, &real);
        }
        said
    }

    fn same<T: PartialEq + Debug>(&self, what: impl Display, model: &T, real: &T) {
        if model != real {
            self.difference.tell(format_args!("{what}: {model:?} was expected, and the files say {real:?}"));
        }
    }

    /// The bytes a file has by the model, the zeros ahead included.
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
            self.difference.tell(format_args!("{} from byte {at} on, of {lengths:?} bytes", info.file));
        }
        Ok(())
    }

    /// The names and bytes of everything, against the model.
    fn compare_all(&mut self) -> io::Result<()> {
        let (model, real) = (self.model.list(), self.files.list());
        self.same("listing", &model, &real);
        model.unwrap_or_default().iter().try_for_each(|info| self.compare(info))
    }

    /// Takes from the files what the model has lost.
    fn lose(&mut self) -> io::Result<()> {
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

    /// Another process opens the folder.
    fn reopen(&mut self) -> Result<(), FolderError> {
        // The lock goes with the last handle, so that one goes before the folder is locked anew.
        let without_lock = FileStorage::within(&self.path);
        let failed = |error| FolderError::Io { doing: "opening", path: self.path.clone(), error };
        self.files = without_lock.map_err(failed)?;
        self.files = DataFolder::open(&self.path)?.storage();
        Ok(())
    }

    fn tell_failure<E: Display>(&self, doing: &str, done: Result<(), E>) {
        if let Err(error) = done {
            self.difference.tell(format_args!("{doing}: {error}"));
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
        let same = self.compare_all();
        self.tell_failure("before a death", same);
        self.model.crash(loss);
        let lost = self.lose();
        self.tell_failure("taking what was lost", lost);
        let opened = self.reopen();
        self.tell_failure("opening the folder again", opened);
    }

    fn survey(&self, faults: &impl Faults) -> Result<(State, Recovered), RecoveryError> {
        inspect(&mut self.files.clone(), None, faults)
    }
}

impl Storage for FileDisk {
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        let said = self.model.create(file, capacity);
        self.too(said, format_args!("creating {file}"), |files| files.create(file, capacity))
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        let end = |model: &Disk| model.bytes(file).map_or(0, <[u8]>::len);
        let before = end(&self.model);
        let said = self.model.append(file, at, bytes);
        if let Err(StorageFault::Io(_)) = said {
            // A short write: so much of it is there.
            let part = &bytes[..end(&self.model) - before];
            let real = if part.is_empty() { Ok(()) } else { self.files.append(file, at, part) };
            self.same(format_args!("a short write to {file}"), &Ok(()), &real);
        }
        self.too(said, format_args!("appending to {file}"), |files| files.append(file, at, bytes))
    }

    fn sync(&mut self, file: FileId) -> Result<(), StorageFault> {
        let said = self.model.sync(file);
        let said = self.too(said, format_args!("syncing {file}"), |files| files.sync(file));
        let info = self.model.list()?.into_iter().find(|info| info.file == file);
        let same = info.map_or(Ok(()), |info| self.compare(&info));
        self.tell_failure("after a sync", same);
        said
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        let mut expected = vec![0; buffer.len()];
        let said = self.model.read(file, position, &mut expected);
        let real = self.files.read(file, position, buffer);
        self.same(format_args!("reading {file} at {position}"), &said, &real);
        if let Ok(count) = real
            && expected.get(..count) != buffer.get(..count)
        {
            self.difference.tell(format_args!("{file} reads otherwise at {position}"));
        }
        real
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        let (said, real) = (self.model.list(), self.files.list());
        self.same("listing", &said, &real);
        real
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault> {
        let said = self.model.rename(from, to);
        self.too(said, format_args!("renaming {from}"), |files| files.rename(from, to))
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        let said = self.model.remove(file);
        self.too(said, format_args!("removing {file}"), |files| files.remove(file))
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        let said = self.model.sync_folder();
        self.too(said, "syncing the folder", Storage::sync_folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId::Segment(1);
    const CAPACITY: u64 = 4_096;

    /// A file with a synced beginning and something that was not synced, and its path.
    fn written(folder: &Path) -> (FileDisk, PathBuf) {
        let mut disk = FileDisk::new(folder, false).expect("an empty folder");
        disk.create(FILE, CAPACITY).expect("room");
        disk.sync_folder().expect("no fault");
        disk.append(FILE, WriteAt { epoch: 1, position: 0 }, b"synced").expect("room");
        disk.sync(FILE).expect("no fault");
        disk.append(FILE, WriteAt { epoch: 1, position: 6 }, b"not yet").expect("room");
        assert_eq!(disk.difference().found(), None);
        (disk, folder.join(FILE.to_string()))
    }

    #[test]
    fn a_death_takes_from_the_files_what_the_model_loses() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut disk, path) = written(folder.path());
        disk.crash(Loss::Nothing);
        assert!(fs::read(&path).expect("there").starts_with(b"syncednot yet\0"));
        disk.crash(Loss::All);
        let left = fs::read(&path).expect("there");
        assert!(left.starts_with(b"synced\0") && left.len() == CAPACITY as usize);
        let mut buffer = [1; 8];
        assert_eq!(disk.read(FILE, 0, &mut buffer), Ok(8));
        assert_eq!(&buffer, b"synced\0\0");
        assert_eq!(disk.difference().found(), None);
    }

    #[test]
    fn files_that_are_not_as_the_model_are_told_of() {
        type Use = fn(&mut FileDisk);
        let uses: [(&str, Use); 3] = [
            ("read", |disk| drop(disk.read(FILE, 0, &mut [0; 16]))),
            ("sync", |disk| drop(disk.sync(FILE))),
            ("death", |disk| disk.crash(Loss::All)),
        ];
        for (name, touch) in uses {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (mut disk, path) = written(folder.path());
            let mut bytes = fs::read(&path).expect("there");
            bytes[7] ^= 1;
            fs::write(&path, bytes).expect("written behind its back");
            touch(&mut disk);
            assert!(disk.difference().found().is_some(), "{name}");
        }
    }

    #[test]
    fn a_file_too_many_or_too_few_is_told_of() {
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
