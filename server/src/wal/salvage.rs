//! Salvages a damaged log: builds a new log from what is intact and replaces the old files by it.

use std::fmt;
use std::path::{Path, PathBuf};

use driftq_core::codec::record as codec;
use driftq_core::log::frame::FRAME_HEAD_BYTES;
use driftq_core::log::{
    FileId, Frame, FrameChain, HEADER_BYTES, IoOp, LogPosition, RecoveryError, ReferredSegment, SegmentHeader,
    SnapshotHead, SnapshotReadError, SnapshotWriter, Storage, WriteAt, read_snapshot, read_snapshot_head, read_whole,
};
use driftq_core::pipeline::inspect;
use driftq_core::record::{Event, Record};
use driftq_core::state::{State, Topic};
use driftq_core::types::{Boot, FrameNumber, Lsn, Timestamp};
use driftq_files::{DataFolder, FileStorage};

use super::error::WalError;
use super::payloads::Placement;
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
    /// The folder holds a new log, and the quarantine folder every old file that is not part of it.
    Done {
        /// Why the old log could not be opened.
        error: RecoveryError,
        /// What is kept.
        kept: Contents,
        /// What is lost.
        loss: Loss,
        /// The quarantine folder.
        quarantine: PathBuf,
        /// The names of the files in it.
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

/// The most skipped records, messages without payloads and results that are listed.
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
    for message in loss.messages.iter().take(LISTED_MAX) {
        writeln!(f, "lost: the payload of {message}, which becomes a dead letter: no intact record holds it")?;
    }
    if loss.messages.len() > LISTED_MAX {
        writeln!(f, "lost: the payloads of {} more messages", loss.messages.len() - LISTED_MAX)?;
    }
    for result in loss.results.iter().take(LISTED_MAX) {
        writeln!(f, "lost: {result}: no intact record holds it")?;
    }
    if loss.results.len() > LISTED_MAX {
        writeln!(f, "lost: {} more results", loss.results.len() - LISTED_MAX)?;
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
/// With [`Consent::DryRun`] it changes nothing. Otherwise it leaves a new log with the same id: two snapshots, one
/// segment without records, the whole old segments that hold payloads of its messages, and one segment with the
/// records of damaged ones that do. Every other old file moves, unchanged, to a `quarantine-…` folder. A crash on the
/// way leaves either the old files in place or the new log ready to be opened; another run resumes.
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
    let old = files.files.iter().filter(|file| !salvaged.payloads.keeps(**file));
    let old: Vec<String> = old.map(FileId::to_string).collect();
    let has_loss = !salvaged.loss.is_empty();
    let write = |into: &mut FileStorage| write_log(&mut storage, into, &files, &salvaged);
    let replacement = quarantine::prepare(dir, &old, has_loss, write)?;
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
    write_log(from, into, &files, &salvaged)?;
    for kept in salvaged.payloads.kept() {
        let (file, mut bytes) = (kept.file(), Vec::new());
        read_whole(from, file, &mut bytes).map_err(WalError::storage(file))?;
        let at = WriteAt { epoch: 0, position: 0 };
        for op in [IoOp::Create { file, capacity: 0 }, IoOp::Append { file, at, bytes }, IoOp::Sync { file }] {
            op.perform(into).map_err(WalError::storage(file))?;
        }
    }
    into.sync_folder().map_err(|fault| WalError::Storage { file: None, fault })?;
    Ok(Some((Contents::of(&salvaged.state), salvaged.loss)))
}

/// The state that could be rebuilt.
struct Salvaged {
    state: State,
    loss: Loss,
    /// A position above all in the old files.
    at: LogPosition,
    /// Where the payloads of the state stand.
    payloads: Placement,
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
    let (state, mut loss, frames) = rebuild.finish(files.last_sequence()).map_err(WalError::InconsistentState)?;
    let payloads = Placement::find(&state, &frames, storage, files, at.lsn)?;
    let (state, lost) = payloads.apply_to(&state, payloads.last_lsn()).map_err(WalError::InconsistentState)?;
    (loss.messages, loss.results) = (lost.messages, lost.results);
    Ok(Salvaged { state, loss, at, payloads })
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
            Ok((head, _)) if state.boot() > Boot(0) && state.check().is_ok() => return Ok(Some((state, head.at))),
            Ok(_) | Err(SnapshotReadError::Damaged(_) | SnapshotReadError::Refused { .. }) => {}
            Err(SnapshotReadError::Storage(fault)) => return Err(WalError::storage(FileId::Snapshot(*frame))(fault)),
        }
    }
    Ok(None)
}

/// The bytes of a snapshot or a segment that are written at a time.
const SLICE_BYTES: usize = 1 << 20;

/// Writes the new log to `storage`, and returns its files: a segment with the records of damaged ones `from` which
/// payloads are needed, if there are any, and two snapshots of the same state with a segment of one frame between them.
fn write_log(
    from: &mut impl Storage,
    storage: &mut impl Storage,
    files: &LogFiles,
    salvaged: &Salvaged,
) -> Result<Vec<FileId>, WalError> {
    let epoch = u64::from(salvaged.state.boot().0);
    // No frame has this number, so there is no checksum to refer to. What follows has 0 instead, which links it.
    let mut older = SnapshotHead { log_id: files.log_id, at: salvaged.at, crc: 0, epoch };
    let mut header = SegmentHeader {
        log_id: files.log_id,
        // A hole: it does not continue the segment before, whose frames may have other numbers.
        sequence: files.last_sequence() + 2,
        previous: older.at,
        previous_crc: older.crc,
        synced: older.at.frame,
        capacity: 0,
    };
    let (mut written, mut referred) = (Vec::new(), salvaged.payloads.kept().to_vec());
    if let Some(live_bytes) = salvaged.payloads.carried_bytes() {
        let (chain, end) =
            write_segment(storage, &header, epoch, |append| salvaged.payloads.each_carried(from, files, append))?;
        written.push(header.file());
        referred.push(ReferredSegment { sequence: header.sequence, last: chain.last(), end, live_bytes });
        (older.at, older.crc) = (chain.last(), chain.last_crc());
        header.sequence += 1;
        (header.previous, header.previous_crc, header.synced) = (older.at, older.crc, older.at.frame);
    }
    let (chain, _) = write_segment(storage, &header, epoch, |_| Ok(()))?;
    let newer = SnapshotHead { at: chain.last(), crc: chain.last_crc(), ..older };
    write_snapshot(storage, &older, &salvaged.state, &referred)?;
    write_snapshot(storage, &newer, &salvaged.state, &referred)?;
    written.extend([header.file(), older.file(), newer.file()]);
    Ok(written)
}

/// Appends a record to a segment.
type Append<'a> = &'a mut dyn FnMut(&Frame<'_>) -> Result<(), WalError>;

/// Writes a segment with the records that `write` appends, and a footer. Returns the end of its frames and its last
/// byte.
fn write_segment(
    storage: &mut impl Storage,
    header: &SegmentHeader,
    epoch: u64,
    write: impl FnOnce(Append<'_>) -> Result<(), WalError>,
) -> Result<(FrameChain, u64), WalError> {
    let file = header.file();
    for op in header.create_ops(epoch, 0) {
        op.perform(storage).map_err(|fault| WalError::Storage { file: None, fault })?;
    }
    let (mut chain, mut bytes, mut position) = (header.chain(), Vec::new(), HEADER_BYTES as u64);
    let mut flush = |bytes: &mut Vec<u8>| {
        let appended = storage.append(file, WriteAt { epoch, position }, bytes);
        position += bytes.len() as u64;
        bytes.clear();
        appended.map(|()| position).map_err(WalError::storage(file))
    };
    write(&mut |frame| {
        let (kind, version) = (frame.head.kind, frame.head.version);
        let put = |out: &mut Vec<u8>| out.extend_from_slice(frame.payload);
        let written = chain.record(&mut bytes, header.synced, kind, version, put);
        written.map_err(|error| WalError::InconsistentState(error.to_string()))?;
        if bytes.len() >= SLICE_BYTES { flush(&mut bytes).map(drop) } else { Ok(()) }
    })?;
    chain.footer(&mut bytes, header.synced);
    let end = flush(&mut bytes)?;
    storage.sync(file).map_err(WalError::storage(file))?;
    Ok((chain, end))
}

fn write_snapshot(
    storage: &mut impl Storage,
    head: &SnapshotHead,
    state: &State,
    referred: &[ReferredSegment],
) -> Result<(), WalError> {
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
    for image in state.view_in_chunks() {
        let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
        let kind = codec::kind(&record.event);
        let written = writer.record(&mut bytes, kind, codec::VERSION, |out| codec::encode(&record, out));
        written.map_err(|error| WalError::InconsistentState(error.to_string()))?;
        if bytes.len() >= SLICE_BYTES {
            append(storage, &mut bytes)?;
        }
    }
    writer.finish(referred, &mut bytes);
    append(storage, &mut bytes)?;
    for op in [IoOp::Sync { file: draft }, IoOp::Rename { from: draft, to: head.file() }, IoOp::SyncFolder] {
        op.perform(storage).map_err(|fault| WalError::Storage { file: None, fault })?;
    }
    Ok(())
}
