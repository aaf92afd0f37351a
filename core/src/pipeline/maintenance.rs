//! File maintenance: prepares the next segment, writes snapshots in the background, removes obsolete files.

use super::referred::LiveBytes;
use super::writer::{NextSegment, Writer};
use crate::codec::record as codec;
use crate::faults::Faults;
use crate::log::{FileId, IoOp, SegmentInfo, SnapshotHead, SnapshotWriter, StorageFault, WriteAt};
use crate::record::{Event, Record};
use crate::state::View;
use crate::types::{FrameNumber, Millis, Timestamp};

/// The most that a slice collects from memory piece by piece: remembered keys, effects, and the decision fields of
/// messages, each in an allocation of its own. They take few bytes each, so without this bound a slice of them would
/// hold up requests for many milliseconds.
const SLICE_LOOKUPS_MAX: usize = 256;

/// How long after a full disk, or for want of a descriptor, the creation of a file is retried.
const RETRY: Millis = Millis(1_000);

/// How long after a full disk a snapshot is retried. Each attempt uses up the free space before it fails.
const RETRY_SNAPSHOT: Millis = Millis(10_000);

/// The maintenance of a log's files.
#[derive(Clone)]
pub(super) struct Maintenance {
    slice_bytes: usize,
    task: Task,
    /// The size of the newest complete snapshot.
    last_snapshot_bytes: u64,
    /// Complete snapshots, oldest first.
    snapshots: Vec<KeptSnapshot>,
    /// Files to remove.
    obsolete: Vec<FileId>,
    /// When to retry the creation of the next segment.
    create_at: Option<Timestamp>,
    /// When the next snapshot may begin.
    snapshot_at: Option<Timestamp>,
    /// Whether the last snapshot failed because the disk was full or there was no descriptor.
    must_retry_snapshot: bool,
}

/// A complete snapshot.
#[derive(Clone, Debug)]
pub(super) struct KeptSnapshot {
    /// The frame it was taken after.
    pub(super) frame: FrameNumber,
    /// The sequence numbers of the segments that it refers to, in ascending order, with their live bytes.
    pub(super) segments: Vec<(u64, u64)>,
}

impl KeptSnapshot {
    pub(super) fn refers_to(&self, sequence: u64) -> bool {
        self.live_bytes(sequence).is_some()
    }

    /// The live bytes of a segment; `None` if it does not refer to it.
    pub(super) fn live_bytes(&self, sequence: u64) -> Option<u64> {
        let at = self.segments.binary_search_by_key(&sequence, |(sequence, _)| *sequence).ok()?;
        Some(self.segments[at].1)
    }
}

/// The progress of a snapshot.
#[derive(Clone)]
enum Task {
    Idle,
    /// The draft is being written.
    Writing(Box<Draft>),
    /// The draft is synced; it is renamed once the log is synced through its frame.
    Written(Box<WrittenDraft>),
    /// The disk was full; the draft is being removed.
    Discarding(SnapshotHead),
}

#[derive(Clone)]
struct WrittenDraft {
    head: SnapshotHead,
    /// As [`KeptSnapshot::segments`].
    segments: Vec<(u64, u64)>,
    bytes: u64,
}

#[derive(Clone)]
struct Draft {
    head: SnapshotHead,
    writer: Option<SnapshotWriter>,
    images: View,
    live: LiveBytes,
    position: u64,
}

/// The task of a background job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaintenanceTask {
    /// Creates the next segment.
    CreateSegment,
    /// Cuts closed segments to what they hold.
    Trim,
    /// Writes a slice of a snapshot's draft.
    Write { finished: bool },
    /// Gives a draft its final name.
    Rename,
    /// Removes a draft.
    Discard,
    /// Removes obsolete files.
    Remove,
}

impl Maintenance {
    pub(super) fn new(slice_bytes: usize, snapshots: Vec<KeptSnapshot>, last_snapshot_bytes: u64) -> Self {
        Self {
            // Empty slices would never complete a snapshot.
            slice_bytes: slice_bytes.max(1),
            task: Task::Idle,
            last_snapshot_bytes,
            snapshots,
            obsolete: Vec::new(),
            create_at: None,
            snapshot_at: None,
            must_retry_snapshot: false,
        }
    }

    /// Whether a snapshot may be begun.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.task, Task::Idle) && self.snapshot_at.is_none()
    }

    /// Whether a snapshot must be taken because the last one failed on a full disk or for want of a descriptor.
    pub(super) fn must_retry_snapshot(&self) -> bool {
        self.must_retry_snapshot
    }

    /// Ends the wait after a snapshot that failed on a full disk, and after one that freed nothing if messages were
    /// `removed` meanwhile.
    pub(super) fn retry_snapshot_now(&mut self, removed: bool) {
        if self.must_retry_snapshot || removed {
            self.snapshot_at = None;
        }
    }

    /// The frames that the complete snapshots were taken after, oldest first.
    pub(super) fn snapshots(&self) -> impl DoubleEndedIterator<Item = FrameNumber> {
        self.snapshots.iter().map(|snapshot| snapshot.frame)
    }

    /// The newest complete snapshot.
    pub(super) fn newest(&self) -> Option<&KeptSnapshot> {
        self.snapshots.last()
    }

    /// The size of the newest complete snapshot; 0 without one.
    pub(super) fn last_snapshot_bytes(&self) -> u64 {
        self.last_snapshot_bytes
    }

    /// When [`Maintenance::on_time`] must be called.
    pub(super) fn retry_at(&self) -> Option<Timestamp> {
        self.create_at.into_iter().chain(self.snapshot_at).min()
    }

    pub(super) fn on_time(&mut self, now: Timestamp) {
        for retry_at in [&mut self.create_at, &mut self.snapshot_at] {
            if retry_at.is_some_and(|at| at <= now) {
                *retry_at = None;
            }
        }
    }

    /// Begins a snapshot of the state at `head.at`.
    pub(super) fn begin(&mut self, head: SnapshotHead, images: View, live: LiveBytes) {
        assert!(self.is_free(), "no snapshot is in progress");
        self.task = Task::Writing(Box::new(Draft { head, writer: None, images, live, position: 0 }));
    }

    /// The next task and its ops. After a full disk the creation of a segment is retried.
    pub(super) fn next(&mut self, log: &mut Writer, faults: &impl Faults) -> Option<(MaintenanceTask, Vec<IoOp>)> {
        let is_wanted = match log.next_segment() {
            NextSegment::Missing => true,
            NextSegment::NoSpace => faults.retries_full_disk(),
            _ => false,
        };
        if is_wanted && self.create_at.is_none() {
            return Some((MaintenanceTask::CreateSegment, log.create_next().into()));
        }
        if log.must_replace_next() {
            // Its name is used again, so the removal is durable first.
            let remove = [IoOp::Remove { file: log.next_file() }, IoOp::SyncFolder];
            return Some((MaintenanceTask::CreateSegment, remove.into_iter().chain(log.create_next()).collect()));
        }
        let trims = log.trim_closed();
        if !trims.is_empty() {
            return Some((MaintenanceTask::Trim, trims));
        }
        match &mut self.task {
            Task::Writing(draft) => {
                let (finished, ops) = draft.slice(self.slice_bytes, faults);
                return Some((MaintenanceTask::Write { finished }, ops));
            }
            Task::Written(written) if log.synced().frame >= written.head.at.frame => {
                let rename = IoOp::Rename { from: written.head.draft(), to: written.head.file() };
                return Some((MaintenanceTask::Rename, vec![rename, IoOp::SyncFolder]));
            }
            Task::Discarding(head) => {
                return Some((MaintenanceTask::Discard, vec![IoOp::Remove { file: head.draft() }, IoOp::SyncFolder]));
            }
            Task::Idle | Task::Written(..) => {}
        }
        if self.obsolete.is_empty() {
            return None;
        }
        Some(self.removal())
    }

    fn removal(&mut self) -> (MaintenanceTask, Vec<IoOp>) {
        let mut ops: Vec<_> = self.obsolete.drain(..).map(|file| IoOp::Remove { file }).collect();
        ops.push(IoOp::SyncFolder);
        (MaintenanceTask::Remove, ops)
    }

    /// Handles the result of a task. A full disk and a lack of descriptors are waited out; any other failure is
    /// returned.
    pub(super) fn complete(
        &mut self,
        task: MaintenanceTask,
        result: Result<(), StorageFault>,
        now: Timestamp,
        log: &mut Writer,
        (is_reading, is_kept): (impl Fn(u64) -> bool, impl Fn(&SegmentInfo, (bool, bool)) -> bool),
    ) -> Result<(), StorageFault> {
        match (task, result) {
            (MaintenanceTask::CreateSegment, Ok(())) => log.set_next_segment(NextSegment::Ready),
            (MaintenanceTask::CreateSegment, Err(StorageFault::Full)) if log.reduce_next() => {
                log.set_next_segment(NextSegment::Missing);
            }
            (MaintenanceTask::CreateSegment, Err(StorageFault::Full)) => {
                log.set_next_segment(NextSegment::NoSpace);
                self.create_at = Some(now.after(RETRY));
            }
            (MaintenanceTask::CreateSegment, Err(StorageFault::NoDescriptor)) => {
                log.set_next_segment(NextSegment::Missing);
                self.create_at = Some(now.after(RETRY));
            }
            // The segment keeps what it had reserved.
            (MaintenanceTask::Trim, Err(StorageFault::NoDescriptor)) => {}
            (MaintenanceTask::Write { .. }, Err(StorageFault::NoDescriptor)) => {
                // The draft was not created, so nothing has to be removed.
                self.snapshot_at = Some(now.after(RETRY));
                self.must_retry_snapshot = true;
                self.task = Task::Idle;
            }
            (MaintenanceTask::Write { .. }, Err(StorageFault::Full)) => {
                self.snapshot_at = Some(now.after(RETRY_SNAPSHOT));
                self.must_retry_snapshot = true;
                self.task = match std::mem::replace(&mut self.task, Task::Idle) {
                    Task::Writing(draft) => Task::Discarding(draft.head),
                    other => other,
                };
            }
            (MaintenanceTask::Write { finished: true }, Ok(())) => {
                if let Task::Writing(draft) = std::mem::replace(&mut self.task, Task::Idle) {
                    let segments = draft.live.referred().into_iter();
                    let segments = segments.map(|segment| (segment.sequence, segment.live_bytes)).collect();
                    let written = WrittenDraft { head: draft.head, segments, bytes: draft.position };
                    self.task = Task::Written(Box::new(written));
                }
            }
            (MaintenanceTask::Rename, Ok(())) => {
                if let Task::Written(written) = std::mem::replace(&mut self.task, Task::Idle) {
                    self.last_snapshot_bytes = written.bytes;
                    let snapshot = KeptSnapshot { frame: written.head.at.frame, segments: written.segments };
                    self.renamed(snapshot, log, is_kept);
                }
                if log.next_segment() == NextSegment::NoSpace && !self.can_free(log, is_reading) {
                    // The snapshot was taken to free space; the next one waits until that had an effect.
                    self.snapshot_at = Some(now.after(RETRY));
                }
            }
            // The draft does not exist if its creation failed.
            (MaintenanceTask::Discard, Ok(()) | Err(StorageFault::NotFound)) => self.task = Task::Idle,
            (MaintenanceTask::Remove | MaintenanceTask::Trim, Ok(())) => {
                // Space was freed.
                self.create_at = None;
            }
            (MaintenanceTask::Write { finished: false }, Ok(())) => {}
            (_, Err(fault)) => return Err(fault),
        }
        Ok(())
    }

    /// Whether there are segments that go with the next snapshot, if that refers to the same segments as the newest.
    pub(super) fn can_free(&self, log: &Writer, is_reading: impl Fn(u64) -> bool) -> bool {
        let Some(newest) = self.snapshots.last() else { return false };
        log.closed_through(newest.frame).any(|sequence| !newest.refers_to(sequence) && !is_reading(sequence))
    }

    /// A snapshot is complete: keeps it, the one before it, the segments since that one, and of the others those that
    /// `is_kept` says, given whether the one before it and it refer to it.
    fn renamed(
        &mut self,
        snapshot: KeptSnapshot,
        log: &mut Writer,
        is_kept: impl Fn(&SegmentInfo, (bool, bool)) -> bool,
    ) {
        self.must_retry_snapshot = false;
        self.snapshots.push(snapshot);
        while self.snapshots.len() > 2 {
            self.obsolete.push(FileId::Snapshot(self.snapshots.remove(0).frame));
        }
        if let [older, newer] = &self.snapshots[..] {
            let refers = |sequence| (older.refers_to(sequence), newer.refers_to(sequence));
            let is_kept = |segment: &SegmentInfo| is_kept(segment, refers(segment.sequence));
            self.obsolete.extend(log.drop_closed_through(older.frame, is_kept));
        }
    }
}

impl Draft {
    /// The ops that write about `slice_bytes` more of the file, or less if it takes many lookups, and whether these are
    /// the last.
    fn slice(&mut self, slice_bytes: usize, faults: &impl Faults) -> (bool, Vec<IoOp>) {
        let file = self.head.draft();
        let mut ops = Vec::new();
        let mut bytes = Vec::with_capacity(slice_bytes + slice_bytes / 4);
        let mut writer = self.writer.take().unwrap_or_else(|| {
            ops.push(IoOp::Create { file, capacity: 0 });
            SnapshotWriter::begin(&self.head, &mut bytes)
        });
        let mut finished = false;
        let mut lookups = 0;
        while bytes.len() < slice_bytes && lookups < SLICE_LOOKUPS_MAX {
            let Some(image) = self.images.next() else {
                finished = true;
                break;
            };
            lookups += image.lookups();
            if faults.counts_payload(&image) {
                self.live.add(&image, &self.images);
            }
            let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
            let kind = codec::kind(&record.event);
            let written = writer.record(&mut bytes, kind, codec::VERSION, |out| codec::encode(&record, out));
            written.expect("an image fits into a frame, as the records it comes from did");
        }
        if finished {
            writer.finish(&self.live.referred(), &mut bytes);
        } else {
            self.writer = Some(writer);
        }
        let at = WriteAt { epoch: self.head.epoch, position: self.position };
        self.position += bytes.len() as u64;
        ops.push(IoOp::Append { file, at, bytes });
        if finished {
            ops.push(IoOp::Sync { file });
        }
        (finished, ops)
    }
}

impl std::fmt::Debug for Maintenance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            slice_bytes: _,
            last_snapshot_bytes: _,
            task,
            snapshots,
            obsolete,
            create_at,
            snapshot_at,
            must_retry_snapshot,
        } = self;
        f.debug_struct("Maintenance")
            .field("task", task)
            .field("snapshots", snapshots)
            .field("obsolete", obsolete)
            .field("create_at", create_at)
            .field("snapshot_at", snapshot_at)
            .field("must_retry_snapshot", must_retry_snapshot)
            .finish()
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Idle => f.write_str("Idle"),
            Self::Writing(draft) => write!(f, "Writing({:?}, {} bytes)", draft.head.at, draft.position),
            Self::Written(written) => write!(f, "Written({:?}, {:?})", written.head.at, written.segments),
            Self::Discarding(head) => write!(f, "Discarding({:?})", head.at),
        }
    }
}
