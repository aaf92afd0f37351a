//! Salvages a damaged log: builds a new log from what is intact and replaces the old files by it.

use std::fmt;
use std::path::{Path, PathBuf};

use driftq_core::codec::record as codec;
use driftq_core::log::frame::FRAME_HEAD_BYTES;
use driftq_core::log::{
    FileId, HEADER_BYTES, IoOp, LogPosition, RecoveryError, SegmentHeader, SnapshotHead, SnapshotReadError,
    SnapshotWriter, Storage, WriteAt, read_snapshot, read_snapshot_head, read_whole,
};
use driftq_core::pipeline::inspect;
use driftq_core::record::{Event, Record};
use driftq_core::state::{State, Topic};
use driftq_core::types::{Boot, FrameNumber, Lsn, Timestamp};
use driftq_files::DataFolder;

use super::error::WalError;
use super::quarantine::{self, Replacement};
use super::rebuild::{Loss, Rebuild};
use super::repair::repair;
use super::scan::{FRAME_MAX, LogFiles, ScanItem, SnapshotParts, scan_snapshot};

/// Whether a salvage may change the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Report what would be kept and lost.
    DryRun,
    /// Replace the log, without what cannot be kept.
    AcceptLoss,
}

/// Counts of what is in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Topics.
    pub topics: u64,
    /// Groups, of all topics.
    pub groups: u64,
    /// Stored messages, of all topics.
    pub messages: u64,
}

impl Contents {
    /// Counts what is in `state`.
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

/// The result of a salvage.
#[derive(Debug)]
pub enum Salvage {
    /// The log opens as it is. Nothing was changed.
    NotNeeded,
    /// The log cannot be opened. Nothing was changed.
    Needed {
        /// Why the log cannot be opened.
        error: RecoveryError,
        /// What can be kept.
        kept: Contents,
        /// What cannot be kept.
        loss: Loss,
    },
    /// An earlier salvage was interrupted while it moved files. Nothing was changed now.
    Pending,
    /// The folder holds a new log, and the quarantine folder every old file.
    Done {
        /// Why the old log could not be opened.
        error: RecoveryError,
        /// What is kept.
        kept: Contents,
        /// What is lost.
        loss: Loss,
        /// The quarantine folder.
        quarantine: PathBuf,
        /// The names of the old files.
        moved: Vec<String>,
    },
    /// An interrupted salvage was resumed and is finished.
    Resumed {
        /// What is kept.
        kept: Contents,
        /// Whether the new log lacks something of the old one.
        has_loss: bool,
        /// The quarantine folder.
        quarantine: PathBuf,
    },
}

/// The most skipped records that are listed.
const LISTED_MAX: usize = 20;

fn write_loss(f: &mut fmt::Formatter<'_>, loss: &Loss) -> fmt::Result {
    for range in &loss.ranges {
        writeln!(f, "lost: frame {} to {}", range.start(), range.end())?;
    }
    if loss.images > 0 {
        writeln!(f, "lost: {} pieces of the newest snapshot", loss.images)?;
    }
    for name in &loss.renamed {
        writeln!(f, "lost: the name and settings of a topic, which is now named {name}")?;
    }
    if loss.cut_off > 0 {
        writeln!(f, "lost: whatever was in the part of the last segment that was cut off")?;
    }
    for skipped in loss.skipped.iter().take(LISTED_MAX) {
        let lsn = skipped.lsn.map_or_else(String::new, |lsn| format!(", LSN {lsn}"));
        writeln!(f, "lost: the record in frame {}{lsn} ({}): {}", skipped.frame, skipped.kind, skipped.reason)?;
    }
    if loss.skipped.len() > LISTED_MAX {
        writeln!(f, "lost: {} more records that do not fit what is left", loss.skipped.len() - LISTED_MAX)?;
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
            Self::Resumed { kept, has_loss, quarantine } => {
                if *has_loss {
                    writeln!(f, "lost: see the output of the salvage that was interrupted")?;
                }
                writeln!(f, "an interrupted salvage is finished; old files are in {}", quarantine.display())?;
                writeln!(f, "kept: {kept}")
            }
        }
    }
}

/// Replaces a log that cannot be opened by one that can, with every intact record before, between and after the
/// damage that still fits together.
///
/// With [`Consent::DryRun`] it changes nothing. Otherwise it moves every old file, unchanged, to a `quarantine-…`
/// folder and leaves a new log with the same id: two snapshots, one segment without records. A crash on
/// the way leaves either the old files in place or the new log ready to be opened; another run resumes.
///
/// # Errors
/// [`WalError`] if the folder is in use, holds no log, or cannot be read or written.
pub fn salvage(dir: &Path, consent: Consent) -> Result<Salvage, WalError> {
    let folder = DataFolder::open_existing(dir)?;
    let folder = match consent {
        Consent::DryRun => folder,
        Consent::AcceptLoss => {
            drop(folder);
            DataFolder::open(dir)?
        }
    };
    if let Some(replacement) = Replacement::pending(dir)? {
        return match consent {
            Consent::DryRun => Ok(Salvage::Pending),
            Consent::AcceptLoss => {
                let quarantine = replacement.perform(dir)?;
                let kept = reopen(&folder, &quarantine)?;
                Ok(Salvage::Resumed { kept, has_loss: replacement.has_loss, quarantine })
            }
        };
    }
    let mut storage = folder.storage();
    let error = match inspect(&mut storage, None) {
        Ok(_) => return Ok(Salvage::NotNeeded),
        Err(error) if !error.is_damage() => return Err(WalError::Recovery(error)),
        Err(error) => error,
    };
    let files = LogFiles::read(&mut storage)?;
    let salvaged = rebuild(&mut storage, &files, &error)?;
    let kept = Contents::of(&salvaged.state);
    if consent == Consent::DryRun {
        return Ok(Salvage::Needed { error, kept, loss: salvaged.loss });
    }
    let old: Vec<String> = files.files.iter().map(FileId::to_string).collect();
    let has_loss = !salvaged.loss.is_empty();
    let replacement = quarantine::prepare(dir, &old, has_loss, |storage| write_log(storage, &files, &salvaged))?;
    let quarantine = replacement.perform(dir)?;
    let kept = reopen(&folder, &quarantine)?;
    Ok(Salvage::Done { error, kept, loss: salvaged.loss, quarantine, moved: old })
}

/// Opens the new log and counts what is in it.
fn reopen(folder: &DataFolder, quarantine: &Path) -> Result<Contents, WalError> {
    let opened = inspect(&mut folder.storage(), None);
    let (state, _) = opened.map_err(|error| WalError::NotOpenable { quarantine: quarantine.to_owned(), error })?;
    Ok(Contents::of(&state))
}

/// A salvage without a folder, for fuzzing: builds a new log in `into` from what is intact in `from`. Returns what is
/// kept and lost; `None` if no salvage is needed.
pub(crate) fn salvage_into(
    from: &mut impl Storage,
    into: &mut impl Storage,
) -> Result<Option<(Contents, Loss)>, WalError> {
    let error = match inspect(from, None) {
        Ok(_) => return Ok(None),
        Err(error) if !error.is_damage() => return Ok(None),
        Err(error) => error,
    };
    let files = LogFiles::read(from)?;
    let salvaged = rebuild(from, &files, &error)?;
    write_log(into, &files, &salvaged)?;
    Ok(Some((Contents::of(&salvaged.state), salvaged.loss)))
}

/// The state that could be rebuilt.
struct Salvaged {
    state: State,
    loss: Loss,
    /// A position above all in the old files.
    at: LogPosition,
}

/// Rebuilds the state from the newest intact snapshot or from what is left of a damaged one, whichever loses least.
fn rebuild(storage: &mut impl Storage, files: &LogFiles, error: &RecoveryError) -> Result<Salvaged, WalError> {
    let mut bytes = Vec::new();
    let mut bases = Vec::new();
    let intact = newest_snapshot(storage, files, &mut bytes)?;
    bases.extend(intact.map(|(state, at)| Rebuild::new(state, at)));
    for (frame, _) in files.snapshots.iter().filter(|(frame, head)| head.is_err() && !files.stray.contains(frame)) {
        bases.extend(damaged_snapshot(storage, files, *frame, &mut bytes)?);
    }
    if bases.is_empty() {
        bases.push(Rebuild::new(State::default(), LogPosition::default()));
    }
    let mut best: Option<Salvaged> = None;
    for base in bases {
        let salvaged = rebuild_from(base, storage, files, error)?;
        if best.as_ref().is_none_or(|best| salvaged.loss.count() < best.loss.count()) {
            best = Some(salvaged);
        }
    }
    best.ok_or(WalError::NoIdentity)
}

fn rebuild_from(
    mut rebuild: Rebuild,
    storage: &mut impl Storage,
    files: &LogFiles,
    error: &RecoveryError,
) -> Result<Salvaged, WalError> {
    let mut bytes = Vec::new();
    for segment in &files.segments {
        read_whole(storage, segment.file, &mut bytes).map_err(WalError::storage(segment.file))?;
        for item in segment.scan(&bytes) {
            if let ScanItem::Frame { frame, lsn, .. } = item {
                rebuild.take(&frame, lsn);
            }
        }
    }
    rebuild.miss_through(files.last_frame_synced());
    if let RecoveryError::CutOff { len, made, .. } = error {
        rebuild.miss_cut_off(made.saturating_sub(*len).div_ceil(FRAME_HEAD_BYTES as u64));
    }
    let last = rebuild.last();
    // The snapshots are never of LSN 0: readers take that for a log that is complete from its beginning.
    let at = LogPosition { frame: last.frame.max(files.last_frame_named()).next(), lsn: last.lsn.max(Lsn(1)) };
    if at.frame >= FRAME_MAX {
        return Err(WalError::InconsistentState("its frame numbers are at their end".to_owned()));
    }
    // Every boot starts a segment, so there were at most as many boots as segments.
    let (state, loss) = rebuild.finish(files.last_sequence()).map_err(WalError::InconsistentState)?;
    Ok(Salvaged { state, loss, at })
}

/// What is left of the damaged snapshot of frame `number`, if that is a consistent state.
fn damaged_snapshot(
    storage: &mut impl Storage,
    files: &LogFiles,
    number: FrameNumber,
    bytes: &mut Vec<u8>,
) -> Result<Option<Rebuild>, WalError> {
    let file = FileId::Snapshot(number);
    let head = read_snapshot_head(storage, number).map_err(WalError::storage(file))?;
    // Without a header it is not known how many of the frames were records.
    let at = head.map_or(LogPosition { frame: number, lsn: Lsn(number.0) }, |head| head.at);
    let boot = head.ok().and_then(|head| u32::try_from(head.epoch).ok()).map_or(Boot(0), Boot);
    read_whole(storage, file, bytes).map_err(WalError::storage(file))?;
    let SnapshotParts { images, lost } = scan_snapshot(bytes, files.log_id, number);
    if images.is_empty() {
        return Ok(None);
    }
    let repaired = repair(images, boot);
    Ok(repaired.state.check().is_ok().then(|| Rebuild::from_repaired(repaired, at, lost)))
}

/// The state of the newest snapshot that is intact and consistent.
fn newest_snapshot(
    storage: &mut impl Storage,
    files: &LogFiles,
    window: &mut Vec<u8>,
) -> Result<Option<(State, LogPosition)>, WalError> {
    for (frame, _) in files.snapshots.iter().filter(|(_, head)| head.is_ok()) {
        let mut state = State::default();
        let read = read_snapshot(storage, *frame, window, |kind, version, payload| {
            let record = codec::decode(kind, version, payload).map_err(|error| error.to_string())?;
            match record.event {
                Event::Restored(_) => state.apply(&record).map_err(|error| error.to_string()),
                _ => Err("a record in a snapshot".to_owned()),
            }
        });
        match read {
            Ok(head) if state.boot() > Boot(0) && state.check().is_ok() => return Ok(Some((state, head.at))),
            Ok(_) | Err(SnapshotReadError::Damaged(_) | SnapshotReadError::Refused { .. }) => {}
            Err(SnapshotReadError::Storage(fault)) => return Err(WalError::storage(FileId::Snapshot(*frame))(fault)),
        }
    }
    Ok(None)
}

/// The bytes of the snapshot that are written at a time.
const SLICE_BYTES: usize = 1 << 20;

/// Writes the new log, two snapshots of the same state and a segment of one frame between them, and returns its files.
fn write_log(storage: &mut impl Storage, files: &LogFiles, salvaged: &Salvaged) -> Result<Vec<FileId>, WalError> {
    let epoch = u64::from(salvaged.state.boot().0);
    // No frame has this number, so there is no checksum to refer to. Snapshot and segment agree on 0, which links them.
    let older = SnapshotHead { log_id: files.log_id, at: salvaged.at, crc: 0, epoch };
    let header = SegmentHeader {
        log_id: files.log_id,
        sequence: files.last_sequence() + 1,
        previous: older.at,
        previous_crc: older.crc,
        synced: older.at.frame,
        capacity: 0,
    };
    let mut chain = header.chain();
    let mut footer = Vec::new();
    chain.footer(&mut footer, older.at.frame);
    let newer = SnapshotHead { at: chain.last(), crc: chain.last_crc(), ..older };
    let (file, at) = (header.file(), WriteAt { epoch, position: HEADER_BYTES as u64 });
    let segment = [IoOp::Append { file, at, bytes: footer }, IoOp::Sync { file }];
    for op in header.create_ops(epoch, 0).iter().chain(&segment) {
        op.perform(storage).map_err(|fault| WalError::Storage { file: None, fault })?;
    }
    write_snapshot(storage, &older, &salvaged.state)?;
    write_snapshot(storage, &newer, &salvaged.state)?;
    Ok(vec![file, older.file(), newer.file()])
}

fn write_snapshot(storage: &mut impl Storage, head: &SnapshotHead, state: &State) -> Result<(), WalError> {
    let (epoch, draft) = (head.epoch, head.draft());
    let mut position = 0;
    let mut append = |storage: &mut dyn Storage, bytes: &mut Vec<u8>| {
        let appended = storage.append(draft, WriteAt { epoch, position }, bytes);
        position += bytes.len() as u64;
        bytes.clear();
        appended.map_err(WalError::storage(draft))
    };
    storage.create(draft, 0).map_err(WalError::storage(draft))?;
    let mut bytes = Vec::new();
    let mut writer = SnapshotWriter::begin(head, &mut bytes);
    for image in state.view() {
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
    for op in [IoOp::Sync { file: draft }, IoOp::Rename { from: draft, to: head.file() }, IoOp::SyncFolder] {
        op.perform(storage).map_err(|fault| WalError::Storage { file: None, fault })?;
    }
    Ok(())
}
