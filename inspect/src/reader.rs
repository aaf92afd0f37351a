//! Opens a log and replays it to a point.

use std::path::Path;

use driftq_core::log::{FileId, RecoveryError, Storage};
use driftq_core::pipeline::inspect;
use driftq_core::types::Timestamp;
use driftq_files::{DataFolder, FileStorage};

use crate::error::InspectError;
use crate::point::LogPoint;
use crate::replay::{ReplayLimit, ReplayObserver, Replayed, replay};

/// The folder inside a data folder in which `driftqd wal salvage` builds a new log.
pub const SALVAGE_FOLDER: &str = "salvage-tmp";
/// The file in [`SALVAGE_FOLDER`] that exists while a salvage moves files.
pub const SALVAGE_PLAN: &str = "plan";

/// Reads one log.
#[derive(Debug)]
pub struct LogReader<S> {
    pub(crate) storage: S,
}

impl LogReader<FileStorage> {
    /// Opens the log in the data folder of a broker that has stopped. While the reader exists, no broker can start
    /// there; other readers can. Nothing in the folder changes.
    ///
    /// # Errors
    /// [`InspectError::Folder`] if the folder is in use or cannot be read, [`InspectError::SalvagePending`].
    pub fn open(folder: &Path) -> Result<Self, InspectError> {
        let data = DataFolder::open_read_only(folder)?;
        if folder.join(SALVAGE_FOLDER).join(SALVAGE_PLAN).exists() {
            return Err(InspectError::SalvagePending(folder.to_owned()));
        }
        Ok(Self { storage: data.storage() })
    }
}

impl<S: Storage> LogReader<S> {
    /// Reads the log in `storage`.
    pub fn new(storage: S) -> Self {
        Self { storage }
    }

    /// Replays the log up to `at`, or to its end, and passes every record on the way to `observer`.
    ///
    /// # Errors
    /// [`InspectError::Recovery`] where a broker would refuse to start; [`InspectError::NoSuchLsn`] and
    /// [`InspectError::NoSuchTime`] if the log does not hold `at`.
    pub fn replay(
        &mut self,
        at: Option<LogPoint>,
        observer: &mut (impl ReplayObserver + ?Sized),
    ) -> Result<Replayed, InspectError> {
        let files = self.storage.list();
        let files = files.map_err(|fault| RecoveryError::Storage { doing: "listing", file: None, fault })?;
        let has_snapshots = files.iter().any(|info| matches!(info.file, FileId::Snapshot(_)));
        // The replay ignores newer snapshots and with them the syncs they prove, so recovery checks the log
        // first.
        let clock = match has_snapshots || matches!(at, Some(LogPoint::BeforeEnd(_))) {
            true => inspect(&mut self.storage, None)?.0.clock(),
            false => Timestamp(0),
        };
        let limit = match at {
            None => ReplayLimit::End,
            Some(LogPoint::Lsn(lsn)) => ReplayLimit::Lsn(lsn),
            Some(LogPoint::Time(time)) => ReplayLimit::Time(time),
            Some(LogPoint::BeforeEnd(duration)) => {
                let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
                ReplayLimit::Time(Timestamp(clock.0.saturating_sub(ms)))
            }
        };
        let replayed = replay(&mut self.storage, limit, observer)?;
        match limit {
            ReplayLimit::End => {}
            ReplayLimit::Lsn(requested) => {
                let (base, last) = (replayed.base, replayed.recovered.last.lsn.0);
                if !(base..=last).contains(&requested) {
                    return Err(InspectError::NoSuchLsn { requested, base, last });
                }
            }
            ReplayLimit::Time(requested) => {
                let (first, last) = replayed.times.unwrap_or((replayed.base_at, replayed.base_at));
                let first = if replayed.base > 0 { replayed.base_at } else { first };
                if requested < first {
                    return Err(InspectError::NoSuchTime { requested, first, last });
                }
            }
        }
        Ok(replayed)
    }
}
