//! Replaces the files of a log by new ones so that a crash at any point loses neither.
//!
//! 1. Write the new files to `salvage-tmp`, sync them, then write a *plan* next to them: the new files, the old
//!    files, and the quarantine folder. `salvage-tmp` without a plan is discarded.
//! 2. Move the new files in. Their numbers follow those of all old files, so a start that finds both uses the new
//!    snapshot and ignores the old segments; until both new files are in place it refuses, as before.
//! 3. Move the old files to the quarantine folder.
//! 4. Remove the plan, then `salvage-tmp`.
//!
//! If there is a plan, a salvage resumes at 2 and moves the files that have not been moved.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use driftq_core::log::FileId;
use driftq_files::{FileStorage, rename_new, sync_dir};
use driftq_inspect::{SALVAGE_FOLDER, SALVAGE_PLAN};

use super::error::WalError;

/// The line of a plan whose new log lacks something of the old one.
const LOSS: &str = "loss";
/// The last line of a plan.
const END: &str = "end";

/// Whether a salvage of the folder was interrupted while it moved files. Until it is resumed, the files must not
/// change.
pub(super) fn is_pending(dir: &Path) -> io::Result<bool> {
    dir.join(SALVAGE_FOLDER).join(SALVAGE_PLAN).try_exists()
}

/// A new log that is ready, and the old files that it replaces.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Replacement {
    /// The name of the quarantine folder.
    quarantine: String,
    new: Vec<String>,
    old: Vec<String>,
    /// Whether the new log lacks something of the old one.
    pub(super) has_loss: bool,
}

/// Has `write` write the new log and return its files, then writes the plan. Changes no old file.
pub(super) fn prepare(
    dir: &Path,
    old: &[String],
    has_loss: bool,
    write: impl FnOnce(&mut FileStorage) -> Result<Vec<FileId>, WalError>,
) -> Result<Replacement, WalError> {
    let temporary = dir.join(SALVAGE_FOLDER);
    clear(&temporary)?;
    fs::create_dir(&temporary).map_err(WalError::io("creating", &temporary))?;
    let written = FileStorage::open_unlocked(&temporary)
        .map_err(WalError::io("opening", &temporary))
        .and_then(|mut storage| write(&mut storage));
    let new = match written {
        Ok(new) => new.iter().map(FileId::to_string).collect(),
        Err(error) => {
            // Space may be short. If this fails, the next salvage removes the folder.
            drop(clear(&temporary));
            return Err(error);
        }
    };
    let replacement = Replacement { quarantine: free_name(dir)?, new, old: old.to_vec(), has_loss };
    let (draft, plan) = (temporary.join("plan.tmp"), temporary.join(SALVAGE_PLAN));
    let put = || -> io::Result<()> {
        let mut file = fs::File::create(&draft)?;
        file.write_all(replacement.to_text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, &plan)?;
        sync_dir(&temporary)?;
        sync_dir(dir)
    };
    put().map_err(WalError::io("writing", &plan))?;
    Ok(replacement)
}

impl Replacement {
    /// The plan of an interrupted salvage, if there is one.
    pub(super) fn pending(dir: &Path) -> Result<Option<Self>, WalError> {
        let plan = dir.join(SALVAGE_FOLDER).join(SALVAGE_PLAN);
        match fs::read_to_string(&plan) {
            Ok(text) => Ok(Self::from_text(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(WalError::io("reading", &plan)(error)),
        }
    }

    /// Moves the new files in and the old files to the quarantine folder, which it returns. Can be repeated after an
    /// interruption.
    pub(super) fn perform(&self, dir: &Path) -> Result<PathBuf, WalError> {
        let (temporary, quarantine) = (dir.join(SALVAGE_FOLDER), dir.join(&self.quarantine));
        for name in &self.new {
            move_if_there(&temporary.join(name), &dir.join(name))?;
        }
        sync(dir)?;
        sync(&temporary)?;
        match fs::create_dir(&quarantine) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(WalError::io("creating", &quarantine)(error));
            }
            _ => sync(dir)?,
        }
        for name in &self.old {
            move_if_there(&dir.join(name), &quarantine.join(name))?;
        }
        // The additions are durable before the removals, so that every file is in one of the folders after a crash.
        sync(&quarantine)?;
        sync(dir)?;
        let plan = temporary.join(SALVAGE_PLAN);
        fs::remove_file(&plan).map_err(WalError::io("removing", &plan))?;
        sync(&temporary)?;
        clear(&temporary)?;
        sync(dir)?;
        Ok(quarantine)
    }

    fn to_text(&self) -> String {
        let mut text = format!("quarantine {}\n", self.quarantine);
        self.new.iter().for_each(|name| text.push_str(&format!("new {name}\n")));
        self.old.iter().for_each(|name| text.push_str(&format!("old {name}\n")));
        if self.has_loss {
            text.push_str(LOSS);
            text.push('\n');
        }
        text + END + "\n"
    }

    /// `None` if [`Replacement::to_text`] did not write the text. Accepts no name that leads out of the folder.
    fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let quarantine = lines.next()?.strip_prefix("quarantine ")?.to_owned();
        let mut replacement = Self { quarantine, new: Vec::new(), old: Vec::new(), has_loss: false };
        if !replacement.quarantine.starts_with(QUARANTINE_PREFIX) || replacement.quarantine.contains('/') {
            return None;
        }
        for line in lines {
            if line == END {
                return Some(replacement);
            }
            if line == LOSS {
                replacement.has_loss = true;
                continue;
            }
            let (which, name) = line.split_once(' ')?;
            name.parse::<FileId>().ok()?;
            match which {
                "new" => replacement.new.push(name.to_owned()),
                "old" => replacement.old.push(name.to_owned()),
                _ => return None,
            }
        }
        None
    }
}

/// The prefix of quarantine folders; the time follows.
const QUARANTINE_PREFIX: &str = "quarantine-";

/// The name of a quarantine folder that does not exist yet: by the time, in UTC.
fn free_name(dir: &Path) -> Result<String, WalError> {
    let name = format!("{QUARANTINE_PREFIX}{}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ"));
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

/// Removes `salvage-tmp` and what an earlier salvage left in it.
fn clear(temporary: &Path) -> Result<(), WalError> {
    match fs::remove_dir_all(temporary) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        cleared => cleared.map_err(WalError::io("removing", temporary)),
    }
}
