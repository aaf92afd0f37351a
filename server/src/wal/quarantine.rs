//! Putting a new log in the place of the old files, without an instant at which a crash leaves neither.
//!
//! 1. The new files are written into `salvage-tmp`, synced, and then a *plan* beside them: what is new, what is old, and where
//!    the old goes. Without a plan the folder is worth nothing and is made anew.
//! 2. The new files move in. They come behind all old ones by number, so a start that finds both takes the new snapshot and
//!    passes over what is older; before both are there it refuses, as it did before.
//! 3. The old files move out.
//! 4. The plan goes, and `salvage-tmp` with it.
//!
//! Whoever finds a plan goes on from 2: each move is done if its file is still where it was.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use driftq_core::log::FileId;

use super::WalError;
use driftq_files::{FileStorage, rename_new, sync_dir};

/// Where the new log is made.
const WORKSHOP: &str = "salvage-tmp";
/// In it: what is to be moved where.
const PLAN: &str = "plan";
/// The last line of a plan.
const END: &str = "end";

/// Whether a salvage of the folder was interrupted while files were being moved. Until it is finished nobody else may touch them.
pub(super) fn is_pending(dir: &Path) -> io::Result<bool> {
    dir.join(WORKSHOP).join(PLAN).try_exists()
}

/// A new log that stands ready, and the old files it is to replace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    /// The name of the folder the old files go to.
    quarantine: String,
    new: Vec<String>,
    old: Vec<String>,
}

/// Has the new log written by `write`, which gives the names of its files, and makes a plan. Nothing old is touched.
pub(super) fn prepare(
    dir: &Path,
    old: &[String],
    write: impl FnOnce(&mut FileStorage) -> Result<Vec<FileId>, WalError>,
) -> Result<Exchange, WalError> {
    let workshop = dir.join(WORKSHOP);
    clear(&workshop)?;
    fs::create_dir(&workshop).map_err(WalError::io("making", &workshop))?;
    let written = FileStorage::open_unlocked(&workshop)
        .map_err(WalError::io("opening", &workshop))
        .and_then(|mut storage| write(&mut storage));
    let new = match written {
        Ok(new) => new.iter().map(FileId::to_string).collect(),
        Err(error) => {
            // Half a log takes room that may be short. Should this fail, the next run clears it away.
            drop(clear(&workshop));
            return Err(error);
        }
    };
    let exchange = Exchange { quarantine: free_name(dir)?, new, old: old.to_vec() };
    let (draft, plan) = (workshop.join("plan.tmp"), workshop.join(PLAN));
    let put = || -> io::Result<()> {
        let mut file = fs::File::create(&draft)?;
        file.write_all(exchange.to_text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, &plan)?;
        sync_dir(&workshop)?;
        sync_dir(dir)
    };
    put().map_err(WalError::io("writing", &plan))?;
    Ok(exchange)
}

impl Exchange {
    /// The plan of a salvage that was interrupted, if there is one.
    pub(super) fn pending(dir: &Path) -> Result<Option<Self>, WalError> {
        let plan = dir.join(WORKSHOP).join(PLAN);
        match fs::read_to_string(&plan) {
            Ok(text) => Ok(Self::from_text(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(WalError::io("reading", &plan)(error)),
        }
    }

    /// Moves the new files in and the old ones out; says where those are. May be done again after it was interrupted.
    pub(super) fn perform(&self, dir: &Path) -> Result<PathBuf, WalError> {
        let (workshop, quarantine) = (dir.join(WORKSHOP), dir.join(&self.quarantine));
        for name in &self.new {
            move_if_there(&workshop.join(name), &dir.join(name))?;
        }
        sync(dir)?;
        sync(&workshop)?;
        match fs::create_dir(&quarantine) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(WalError::io("making", &quarantine)(error));
            }
            _ => sync(dir)?,
        }
        for name in &self.old {
            move_if_there(&dir.join(name), &quarantine.join(name))?;
        }
        // What has come is durable before what has gone, so that no file is in neither folder.
        sync(&quarantine)?;
        sync(dir)?;
        let plan = workshop.join(PLAN);
        fs::remove_file(&plan).map_err(WalError::io("removing", &plan))?;
        sync(&workshop)?;
        clear(&workshop)?;
        sync(dir)?;
        Ok(quarantine)
    }

    fn to_text(&self) -> String {
        let mut text = format!("quarantine {}\n", self.quarantine);
        self.new.iter().for_each(|name| text.push_str(&format!("new {name}\n")));
        self.old.iter().for_each(|name| text.push_str(&format!("old {name}\n")));
        text + END + "\n"
    }

    /// `None` for what [`Exchange::to_text`] did not write. Names are only taken if they can be nothing but names in the folder.
    fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let quarantine = lines.next()?.strip_prefix("quarantine ")?.to_owned();
        let mut exchange = Self { quarantine, new: Vec::new(), old: Vec::new() };
        if !exchange.quarantine.starts_with(QUARANTINE) || exchange.quarantine.contains('/') {
            return None;
        }
        for line in lines {
            if line == END {
                return Some(exchange);
            }
            let (which, name) = line.split_once(' ')?;
            name.parse::<FileId>().ok()?;
            match which {
                "new" => exchange.new.push(name.to_owned()),
                "old" => exchange.old.push(name.to_owned()),
                _ => return None,
            }
        }
        None
    }
}

/// What the folders of old files are called, before the moment.
const QUARANTINE: &str = "quarantine-";

/// The name of a quarantine folder that is not there yet: by the moment, in UTC.
fn free_name(dir: &Path) -> Result<String, WalError> {
    let name = format!("{QUARANTINE}{}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ"));
    for number in 1_u32.. {
        let name = if number == 1 { name.clone() } else { format!("{name}-{number}") };
        if !dir.join(&name).try_exists().map_err(WalError::io("looking for", dir))? {
            return Ok(name);
        }
    }
    Ok(name)
}

fn move_if_there(from: &Path, to: &Path) -> Result<(), WalError> {
    match rename_new(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        moved => moved.map_err(WalError::io("moving", from)),
    }
}

fn sync(dir: &Path) -> Result<(), WalError> {
    sync_dir(dir).map_err(WalError::io("syncing", dir))
}

/// Removes our own workshop with whatever a salvage has left in it that nobody will use.
fn clear(workshop: &Path) -> Result<(), WalError> {
    match fs::remove_dir_all(workshop) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        cleared => cleared.map_err(WalError::io("removing", workshop)),
    }
}
