//! Saving what is whole: a new log of it, in the place of the old files.

use std::fmt;
use std::path::{Path, PathBuf};

use driftq_core::codec::record as codec;
use driftq_core::faults::NoFaults;
use driftq_core::log::{
    FileId, IoOp, RecoveryError, SegmentHeader, SnapshotHead, SnapshotReadError, SnapshotWriter, Storage, WriteAt,
    read_snapshot, read_whole,
};
use driftq_core::pipeline::inspect;
use driftq_core::record::{Event, Record};
use driftq_core::state::State;
use driftq_core::state::apply::Mode;
use driftq_core::state::topic::Topic;
use driftq_core::types::{Boot, Lsn, Timestamp};

use super::WalError;
use super::quarantine::{self, Exchange};
use super::rebuild::{Loss, Rebuild};
use super::scan::{Folder, Found, LSN_MAX};
use driftq_files::DataFolder;

/// Whether anything may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Only say what would be kept and lost.
    LookOnly,
    /// What cannot be saved may be given up.
    AcceptLoss,
}

/// How much is in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Topics.
    pub topics: u64,
    /// Groups, of all topics.
    pub groups: u64,
    /// Messages kept, of all topics.
    pub messages: u64,
}

impl Contents {
    /// Counts.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let partitions = state.topics().flat_map(Topic::partitions);
        Self {
            topics: state.topic_count() as u64,
            groups: state.topics().map(|topic| topic.group_count() as u64).sum(),
            messages: partitions.map(|(_, partition)| partition.kept().messages).sum(),
        }
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} topics, {} groups, {} messages", self.topics, self.groups, self.messages)
    }
}

/// What came of a salvage.
#[derive(Debug)]
pub enum Salvage {
    /// The log opens as it is. Nothing was changed.
    NotNeeded,
    /// The log does not open. This is what can be saved; nothing was changed.
    Needed {
        /// Why the log does not open.
        error: RecoveryError,
        /// What can be kept.
        kept: Contents,
        /// What cannot.
        loss: Loss,
    },
    /// An earlier salvage was interrupted when the new log was ready. Nothing was changed now.
    Pending,
    /// Done: the folder holds a new log, the quarantine every old file.
    Done {
        /// Why the old log did not open.
        error: RecoveryError,
        /// What is kept.
        kept: Contents,
        /// What is lost.
        loss: Loss,
        /// Where the old files are.
        quarantine: PathBuf,
        /// Their names.
        moved: Vec<String>,
    },
    /// An interrupted salvage is brought to its end.
    Finished {
        /// What is kept.
        kept: Contents,
        /// Where the old files are.
        quarantine: PathBuf,
    },
}

/// How many passed-over records are named one by one.
const NAMED_MAX: usize = 20;

fn write_loss(f: &mut fmt::Formatter<'_>, loss: &Loss) -> fmt::Result {
    for range in &loss.ranges {
        writeln!(f, "lost: LSN {} to {}", range.start(), range.end())?;
    }
    for skipped in loss.skipped.iter().take(NAMED_MAX) {
        writeln!(f, "lost: the record with LSN {}: {}", skipped.lsn, skipped.reason)?;
    }
    if loss.skipped.len() > NAMED_MAX {
        writeln!(f, "lost: {} more records that do not fit what is left", loss.skipped.len() - NAMED_MAX)?;
    }
    Ok(())
}

impl fmt::Display for Salvage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNeeded => writeln!(f, "nothing to do: a broker starts on this log"),
            Self::Needed { error, kept, loss } => {
                writeln!(f, "refused: {error}")?;
                write_loss(f, loss)?;
                writeln!(f, "would keep: {kept}")?;
                writeln!(f, "nothing was changed; add --accept-loss to do it")
            }
            Self::Pending => {
                writeln!(f, "an earlier salvage was interrupted; nothing was changed; add --accept-loss to finish it")
            }
            Self::Done { error, kept, loss, quarantine, moved } => {
                writeln!(f, "was refused: {error}")?;
                write_loss(f, loss)?;
                for name in moved {
                    writeln!(f, "set aside: {name}")?;
                }
                writeln!(f, "old files are in {}", quarantine.display())?;
                writeln!(f, "kept: {kept}")
            }
            Self::Finished { kept, quarantine } => {
                writeln!(f, "an interrupted salvage is finished; old files are in {}", quarantine.display())?;
                writeln!(f, "kept: {kept}")
            }
        }
    }
}

/// Makes a log that opens of one that does not: everything whole before, between and behind the damage that still fits together.
///
/// With [`Consent::LookOnly`] it changes nothing. Else every old file is moved into a `quarantine-…` folder, byte for byte, and a
/// new log of the same identity stands in their place: one snapshot, one empty segment. A crash on the way leaves the
/// old files where they were or the new log ready to be opened, and running it again finishes the job.
///
/// # Errors
/// [`WalError`] if the folder is in use, holds no log, or cannot be read or written.
pub fn salvage(dir: &Path, consent: Consent) -> Result<Salvage, WalError> {
    let folder = DataFolder::open_existing(dir)?;
    let folder = match consent {
        Consent::LookOnly => folder,
        Consent::AcceptLoss => {
            drop(folder);
            DataFolder::open(dir)?
        }
    };
    if let Some(exchange) = Exchange::pending(dir)? {
        return match consent {
            Consent::LookOnly => Ok(Salvage::Pending),
            Consent::AcceptLoss => {
                let quarantine = exchange.perform(dir)?;
                let kept = open_again(&folder, &quarantine)?;
                Ok(Salvage::Finished { kept, quarantine })
            }
        };
    }
    let mut storage = folder.storage();
    let error = match inspect(&mut storage, None, &NoFaults) {
        Ok(_) => return Ok(Salvage::NotNeeded),
        Err(error @ (RecoveryError::NoLog | RecoveryError::Storage { .. } | RecoveryError::UnknownVersion { .. })) => {
            return Err(WalError::Recovery(error));
        }
        Err(error) => error,
    };
    let found = Folder::survey(&mut storage)?;
    let saved = save(&mut storage, &found)?;
    let kept = Contents::of(&saved.state);
    if consent == Consent::LookOnly {
        return Ok(Salvage::Needed { error, kept, loss: saved.loss });
    }
    let old: Vec<String> = found.files.iter().map(FileId::to_string).collect();
    let exchange = quarantine::prepare(dir, &old, |storage| write_log(storage, &found, &saved))?;
    let quarantine = exchange.perform(dir)?;
    let kept = open_again(&folder, &quarantine)?;
    Ok(Salvage::Done { error, kept, loss: saved.loss, quarantine, moved: old })
}

/// What is in the folder now; it must open.
fn open_again(folder: &DataFolder, quarantine: &Path) -> Result<Contents, WalError> {
    let opened = inspect(&mut folder.storage(), None, &NoFaults);
    let (state, _) = opened.map_err(|error| WalError::NotOpenable { quarantine: quarantine.to_owned(), error })?;
    Ok(Contents::of(&state))
}

/// A salvage without a folder, for fuzzing: what is left in `from` makes a new log in `into`. Gives what is kept and lost; `None`
/// where nothing need be saved.
pub(crate) fn salvage_into(
    from: &mut impl Storage,
    into: &mut impl Storage,
) -> Result<Option<(Contents, Loss)>, WalError> {
    if let Ok(_) | Err(RecoveryError::NoLog | RecoveryError::UnknownVersion { .. }) = inspect(from, None, &NoFaults) {
        return Ok(None);
    }
    let found = Folder::survey(from)?;
    let saved = save(from, &found)?;
    write_log(into, &found, &saved)?;
    Ok(Some((Contents::of(&saved.state), saved.loss)))
}

/// What could be saved.
struct Saved {
    state: State,
    loss: Loss,
    /// An LSN above all that the old files tell of.
    lsn: Lsn,
}

fn save(storage: &mut impl Storage, found: &Folder) -> Result<Saved, WalError> {
    let mut bytes = Vec::new();
    let (state, base) = newest_snapshot(storage, found, &mut bytes)?;
    let mut rebuild = Rebuild::new(state, base);
    for source in &found.segments {
        read_whole(storage, source.file, &mut bytes).map_err(WalError::storage(source.file))?;
        for item in source.scan(&bytes) {
            if let Found::Frame(_, frame) = item {
                rebuild.take(frame.head.lsn, frame.head.kind, frame.head.version, frame.payload);
            }
        }
    }
    rebuild.miss_through(found.last_lsn_synced());
    let lsn = rebuild.last().max(found.last_lsn_named()).next();
    if lsn >= LSN_MAX {
        return Err(WalError::InconsistentState("its numbers are at their end".to_owned()));
    }
    // Every boot began a segment, so there were no more boots than segments.
    let (state, loss) = rebuild.finish(found.last_sequence()).map_err(WalError::InconsistentState)?;
    Ok(Saved { state, loss, lsn })
}

/// The state in the newest snapshot that is whole and does not contradict itself; an empty one where there is none.
fn newest_snapshot(storage: &mut impl Storage, found: &Folder, window: &mut Vec<u8>) -> Result<(State, Lsn), WalError> {
    for (lsn, _) in found.snapshots.iter().filter(|(_, whole)| whole.is_ok()) {
        let mut state = State::default();
        let read = read_snapshot(storage, *lsn, window, |kind, version, payload| {
            let record = codec::decode(kind, version, payload).map_err(|error| error.to_string())?;
            match record.event {
                Event::Restored(_) => state.apply(&record, Mode::Replay, &NoFaults).map_err(|error| error.to_string()),
                _ => Err("a log record in a snapshot".to_owned()),
            }
        });
        match read {
            Ok(_) if state.boot() > Boot(0) && state.check().is_ok() => return Ok((state, *lsn)),
            Ok(_) | Err(SnapshotReadError::Damaged(_) | SnapshotReadError::Refused { .. }) => {}
            Err(SnapshotReadError::Storage(fault)) => return Err(WalError::storage(FileId::Snapshot(*lsn))(fault)),
        }
    }
    Ok((State::default(), Lsn(0)))
}

/// Bytes of the snapshot that are written at a time.
const SLICE_BYTES: usize = 1 << 20;

/// Writes the new log: a snapshot of what was saved, and a segment that goes on behind it. Gives the names of its files.
fn write_log(storage: &mut impl Storage, found: &Folder, saved: &Saved) -> Result<Vec<FileId>, WalError> {
    let epoch = u64::from(saved.state.boot().0);
    // No frame has this LSN, so there is no checksum of one; snapshot and segment agree, which is what ties them together.
    let head = SnapshotHead { log_id: found.log_id, lsn: saved.lsn, crc: 0, epoch };
    let header = SegmentHeader {
        log_id: found.log_id,
        sequence: found.last_sequence() + 1,
        previous_lsn: head.lsn,
        previous_crc: head.crc,
        synced: head.lsn,
    };
    let draft = head.draft();
    let mut position = 0;
    let mut append = |storage: &mut dyn Storage, bytes: &mut Vec<u8>| {
        let appended = storage.append(draft, WriteAt { epoch, position }, bytes);
        position += bytes.len() as u64;
        bytes.clear();
        appended.map_err(WalError::storage(draft))
    };
    storage.create(draft, 0).map_err(WalError::storage(draft))?;
    let mut bytes = Vec::new();
    let mut writer = SnapshotWriter::begin(&head, &mut bytes);
    for image in saved.state.view() {
        let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
        let kind = codec::kind(&record.event);
        let written = writer.record(&mut bytes, kind, codec::VERSION, |out| codec::encode(&record, out));
        written.map_err(|error| WalError::InconsistentState(error.to_string()))?;
        if bytes.len() >= SLICE_BYTES {
            append(storage, &mut bytes)?;
        }
    }
    writer.finish(&mut bytes);
    append(storage, &mut bytes)?;
    let ending = [IoOp::Sync { file: draft }, IoOp::Rename { from: draft, to: head.file() }];
    for step in ending.iter().chain(&header.create_ops(epoch, 0)) {
        step.perform(storage).map_err(|fault| WalError::Storage { file: None, fault })?;
    }
    Ok(vec![header.file(), head.file()])
}
