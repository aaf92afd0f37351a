//! The maintenance of files: has the next segment ready, writes snapshots beside the running broker, removes what is no longer
//! needed.

use super::writer::{NextSegment, Writer};
use crate::codec::record as codec;
use crate::log::{FileId, IoOp, SnapshotHead, SnapshotWriter, StorageFault, WriteAt};
use crate::record::{Event, Record};
use crate::state::view::View;
use crate::types::{Lsn, Millis, Timestamp};

/// How long after a full disk the maintenance tries again.
const RETRY: Millis = Millis(1_000);

/// How long after a snapshot that did not fit the next is tried. Each try takes whatever room there is until it fails.
const RETRY_SNAPSHOT: Millis = Millis(10_000);

/// What the maintenance is in the middle of.
#[derive(Clone)]
pub(super) struct Maintenance {
    slice_bytes: usize,
    task: Task,
    /// Finished snapshots, oldest first.
    snapshots: Vec<Lsn>,
    /// Files that nothing needs.
    unneeded: Vec<FileId>,
    /// When to try again to make the next segment.
    prepare_at: Option<Timestamp>,
    /// When to try again to take a snapshot.
    snapshot_at: Option<Timestamp>,
    /// The last snapshot that was begun did not fit, so one is still to be taken.
    owes_snapshot: bool,
}

#[derive(Clone)]
enum Task {
    Nothing,
    /// The draft is being written.
    Writing(Box<Draft>),
    /// The draft is written and synced; it gets its name when the log is synced as far.
    Written(SnapshotHead),
    /// There was no room for the draft.
    Discarding(SnapshotHead),
}

#[derive(Clone)]
struct Draft {
    head: SnapshotHead,
    writer: Option<SnapshotWriter>,
    images: View,
    position: u64,
}

/// What a background job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaintenanceTask {
    Prepare,
    Write { finished: bool },
    Name,
    Discard,
    Remove,
}

impl Maintenance {
    pub(super) fn new(slice_bytes: usize, snapshots: Vec<Lsn>) -> Self {
        Self {
            // A slice of nothing would be followed by the next for ever.
            slice_bytes: slice_bytes.max(1),
            task: Task::Nothing,
            snapshots,
            unneeded: Vec::new(),
            prepare_at: None,
            snapshot_at: None,
            owes_snapshot: false,
        }
    }

    /// Whether a snapshot may be begun.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.task, Task::Nothing) && self.snapshot_at.is_none()
    }

    /// Whether a snapshot is still to be taken because the last one did not fit.
    pub(super) fn owes_snapshot(&self) -> bool {
        self.owes_snapshot
    }

    /// The finished snapshots, oldest first.
    pub(super) fn snapshots(&self) -> &[Lsn] {
        &self.snapshots
    }

    /// When the maintenance wants to try something again.
    pub(super) fn retry_at(&self) -> Option<Timestamp> {
        self.prepare_at.into_iter().chain(self.snapshot_at).min()
    }

    pub(super) fn on_time(&mut self, now: Timestamp) {
        for retry_at in [&mut self.prepare_at, &mut self.snapshot_at] {
            if retry_at.is_some_and(|at| at <= now) {
                *retry_at = None;
            }
        }
    }

    /// Begins a snapshot of the state after `head.lsn`.
    pub(super) fn begin(&mut self, head: SnapshotHead, images: View) {
        assert!(self.is_free(), "one snapshot at a time");
        self.task = Task::Writing(Box::new(Draft { head, writer: None, images, position: 0 }));
    }

    /// The next thing to do, if there is one.
    pub(super) fn next(&mut self, log: &mut Writer) -> Option<(MaintenanceTask, Vec<IoOp>)> {
        let retry = log.next_segment() == NextSegment::NoRoom && self.prepare_at.is_none();
        if log.next_segment() == NextSegment::Wanted || retry {
            log.set_next_segment(NextSegment::Asked);
            let create = IoOp::Create { file: log.next_file(), capacity: log.segment_bytes() };
            return Some((MaintenanceTask::Prepare, vec![create, IoOp::SyncFolder]));
        }
        match &mut self.task {
            Task::Writing(draft) => {
                let (finished, ops) = draft.slice(self.slice_bytes);
                return Some((MaintenanceTask::Write { finished }, ops));
            }
            Task::Written(head) if log.synced() >= head.lsn => {
                let rename = IoOp::Rename { from: head.draft(), to: head.file() };
                return Some((MaintenanceTask::Name, vec![rename, IoOp::SyncFolder]));
            }
            Task::Discarding(head) => {
                return Some((MaintenanceTask::Discard, vec![IoOp::Remove { file: head.draft() }, IoOp::SyncFolder]));
            }
            Task::Nothing | Task::Written(_) => {}
        }
        if self.unneeded.is_empty() {
            return None;
        }
        Some(self.removal())
    }

    fn removal(&mut self) -> (MaintenanceTask, Vec<IoOp>) {
        let mut ops: Vec<_> = self.unneeded.drain(..).map(|file| IoOp::Remove { file }).collect();
        ops.push(IoOp::SyncFolder);
        (MaintenanceTask::Remove, ops)
    }

    /// A task is done, or failed. What failed for want of room is tried again later; any other failure is the log's end.
    pub(super) fn done(
        &mut self,
        task: MaintenanceTask,
        result: Result<(), StorageFault>,
        now: Timestamp,
        log: &mut Writer,
    ) -> Result<(), StorageFault> {
        match (task, result) {
            (MaintenanceTask::Prepare, Ok(())) => log.set_next_segment(NextSegment::Ready),
            (MaintenanceTask::Prepare, Err(StorageFault::Full)) => {
                log.set_next_segment(NextSegment::NoRoom);
                self.prepare_at = Some(now.after(RETRY));
            }
            (MaintenanceTask::Write { .. }, Err(StorageFault::Full)) => {
                self.snapshot_at = Some(now.after(RETRY_SNAPSHOT));
                self.owes_snapshot = true;
                self.task = match std::mem::replace(&mut self.task, Task::Nothing) {
                    Task::Writing(draft) => Task::Discarding(draft.head),
                    other => other,
                };
            }
            (MaintenanceTask::Write { finished: true }, Ok(())) => {
                if let Task::Writing(draft) = std::mem::replace(&mut self.task, Task::Nothing) {
                    self.task = Task::Written(draft.head);
                }
            }
            (MaintenanceTask::Name, Ok(())) => {
                if let Task::Written(head) = std::mem::replace(&mut self.task, Task::Nothing) {
                    self.named(head.lsn, log);
                }
                if log.next_segment() == NextSegment::NoRoom {
                    // One was taken to get room; the next may wait a little.
                    self.snapshot_at = Some(now.after(RETRY));
                }
            }
            // Where the draft's creation was what failed there is no file to remove.
            (MaintenanceTask::Discard, Ok(()) | Err(StorageFault::NotFound)) => self.task = Task::Nothing,
            (MaintenanceTask::Remove, Ok(())) => {
                // Room may have come back.
                self.prepare_at = None;
            }
            (MaintenanceTask::Write { finished: false }, Ok(())) => {}
            (_, Err(fault)) => return Err(fault),
        }
        Ok(())
    }

    /// A snapshot has its name: of the older ones one stays, and the segments back to that one.
    fn named(&mut self, lsn: Lsn, log: &mut Writer) {
        self.owes_snapshot = false;
        self.snapshots.push(lsn);
        while self.snapshots.len() > 2 {
            self.unneeded.push(FileId::Snapshot(self.snapshots.remove(0)));
        }
        if let [older, _newer] = self.snapshots[..] {
            self.unneeded.extend(log.drop_closed_through(older));
        }
    }
}

impl Draft {
    /// The next piece of the file, and whether it is the last.
    fn slice(&mut self, bytes_wanted: usize) -> (bool, Vec<IoOp>) {
        let file = self.head.draft();
        let mut ops = Vec::new();
        let mut bytes = Vec::with_capacity(bytes_wanted + bytes_wanted / 4);
        let mut writer = self.writer.take().unwrap_or_else(|| {
            ops.push(IoOp::Create { file, capacity: 0 });
            SnapshotWriter::begin(&self.head, &mut bytes)
        });
        let mut finished = false;
        while bytes.len() < bytes_wanted {
            let Some(image) = self.images.next() else {
                finished = true;
                break;
            };
            let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
            let kind = codec::kind(&record.event);
            let written = writer.record(&mut bytes, kind, codec::VERSION, |out| codec::encode(&record, out));
            written.expect("a piece of state is no longer than the records it came from allow");
        }
        if finished {
            writer.finish(&mut bytes);
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
        let Self { slice_bytes: _, task, snapshots, unneeded, prepare_at, snapshot_at, owes_snapshot } = self;
        f.debug_struct("Maintenance")
            .field("task", task)
            .field("snapshots", snapshots)
            .field("unneeded", unneeded)
            .field("prepare_at", prepare_at)
            .field("snapshot_at", snapshot_at)
            .field("owes_snapshot", owes_snapshot)
            .finish()
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => f.write_str("Nothing"),
            Self::Writing(draft) => write!(f, "Writing({:?}, {} bytes)", draft.head.lsn, draft.position),
            Self::Written(head) => write!(f, "Written({:?})", head.lsn),
            Self::Discarding(head) => write!(f, "Discarding({:?})", head.lsn),
        }
    }
}
