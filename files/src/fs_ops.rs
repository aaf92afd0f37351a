//! Rename without replacement, and folder syncs.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Renames a file and refuses to replace an existing one.
///
/// # Errors
/// Any error of the system; [`io::ErrorKind::AlreadyExists`] if `to` exists.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not supported by the file system. Only this process changes the folder, so checking first is enough.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if to.try_exists()? {
                return Err(Errno::EXIST.into());
            }
            fs::rename(from, to)
        }
        done => done.map_err(Into::into),
    }
}

/// Returns once every creation, rename and removal in the folder is durable.
///
/// # Errors
/// Any error of opening or syncing the folder.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
