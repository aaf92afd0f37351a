//! Opening a log: recovers the state, begins a new segment and boots.

use super::cleaning::Cleaning;
use super::maintenance::{KeptSnapshot, Maintenance};
use super::reads::Reads;
use super::scrub::Scrub;
use super::state_bound::StateBound;
use super::writer::{Sizes, Writer};
use super::{Pipeline, PipelineConfig};
use std::collections::VecDeque;

use crate::broker::{Broker, LogRefusal};
use crate::codec::{image, record as codec};
use crate::faults::{Faults, NoFaults};
use crate::log::{
    FileId, HEADER_BYTES, IoOp, ListedSegments, LogId, Malformed, Recovered, RecoveryError, ReferredSegment, Replay,
    SegmentHeader, Storage, StorageFault, recover_with,
};
use crate::state::State;
use crate::types::{Boot, Limits, Lsn, Now};

/// On a full disk, the first segment has at least this many bytes: a header and a few records.
const FIRST_SEGMENT_BYTES_MIN: u64 = 2 * HEADER_BYTES as u64;

/// Why a log could not be opened.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Recovery refused the log.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The new segment could not be created.
    #[error("beginning a new segment: {0}")]
    Storage(#[from] StorageFault),
    /// The new segment has no space for the boot record.
    #[error("the segment size leaves no room: {0}")]
    NoRoom(#[from] LogRefusal),
}

/// Rebuilds the state from records.
struct Rebuild<'a, F> {
    state: State,
    faults: &'a F,
}

impl<F: Faults> Rebuild<'_, F> {
    fn apply(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = codec::decode(kind, version, payload).map_err(|error| Malformed::new(error.to_string()))?;
        self.faults.replay(&mut self.state, &record).map_err(|error| Malformed::new(error.to_string()))
    }
}

impl<F: Faults> Replay for Rebuild<'_, F> {
    fn reset(&mut self) {
        self.state = State::default();
    }

    fn restore(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        if !image::is_image(kind) {
            return Err(Malformed::new("a record in a snapshot"));
        }
        self.apply(kind, version, payload)
    }

    fn restored(&mut self) -> Result<(), Malformed> {
        if self.state.boot() == Boot(0) {
            return Err(Malformed::new("the snapshot has no origin"));
        }
        self.state.check().map_err(|inconsistent| Malformed::new(inconsistent.to_string()))
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        if image::is_image(kind) {
            return Err(Malformed::new("an image in the log"));
        }
        self.state.continue_behind(Lsn(lsn.0 - 1));
        self.apply(kind, version, payload)
    }
}

/// Recovers the state of a log without writing to it.
///
/// # Errors
/// [`RecoveryError`] if recovery refuses the log, or if there is none and no `new_log`.
pub fn inspect(
    storage: &mut (impl Storage + ?Sized),
    new_log: Option<LogId>,
) -> Result<(State, Recovered), RecoveryError> {
    inspect_with(storage, new_log, &NoFaults)
}

/// [`inspect`] with a planted bug.
///
/// # Errors
/// As [`inspect`].
#[doc(hidden)]
pub fn inspect_with(
    storage: &mut (impl Storage + ?Sized),
    new_log: Option<LogId>,
    faults: &impl Faults,
) -> Result<(State, Recovered), RecoveryError> {
    recover_state(storage, new_log, faults, ListedSegments::Whole)
}

/// [`inspect_with`], but reads no more than a start does: damage to a payload before the snapshot is not found.
///
/// # Errors
/// As [`inspect`].
#[doc(hidden)]
pub fn inspect_start_with(
    storage: &mut (impl Storage + ?Sized),
    new_log: Option<LogId>,
    faults: &impl Faults,
) -> Result<(State, Recovered), RecoveryError> {
    recover_state(storage, new_log, faults, ListedSegments::Footers)
}

fn recover_state(
    storage: &mut (impl Storage + ?Sized),
    new_log: Option<LogId>,
    faults: &impl Faults,
    listed: ListedSegments,
) -> Result<(State, Recovered), RecoveryError> {
    let mut rebuild = Rebuild { state: State::default(), faults };
    let recovered = recover_with(storage, new_log, &mut rebuild, listed)?;
    check_references(&rebuild.state, &recovered)?;
    Ok((rebuild.state, faults.recovered(recovered)))
}

/// A message must refer to a record in a segment that the snapshot lists, or that was replayed.
fn check_references(state: &State, recovered: &Recovered) -> Result<(), RecoveryError> {
    let segments = recovered.segments.iter().filter(|segment| !segment.lsns.is_empty());
    let held: Vec<_> = segments.map(|segment| segment.lsns.clone()).collect();
    let Some(lsn) = state.record_outside(&held) else { return Ok(()) };
    let last_segment = FileId::Segment(recovered.next_segment - 1);
    let file = recovered.snapshot.map_or(last_segment, |at| FileId::Snapshot(at.frame));
    let reason = format!("a message refers to record {lsn}, which stands in no segment that it lists or that follows");
    Err(RecoveryError::Contradictory { file, reason: Malformed::new(reason) })
}

/// Creates a segment and returns its size, which is reduced on a full disk: a broker must start on a full disk, since
/// only a running one can free space.
fn begin_segment(
    storage: &mut (impl Storage + ?Sized),
    header: &SegmentHeader,
    epoch: u64,
    segment_bytes: u64,
) -> Result<u64, StorageFault> {
    let file = header.file();
    let mut capacity = segment_bytes;
    loop {
        match storage.create(file, capacity) {
            Ok(()) => break,
            Err(StorageFault::Full) if capacity / 2 >= FIRST_SEGMENT_BYTES_MIN => capacity /= 2,
            Err(fault) => return Err(fault),
        }
    }
    if capacity < segment_bytes && capacity / 2 >= FIRST_SEGMENT_BYTES_MIN {
        // Half of the space is left to the snapshot that the segments before can be removed after.
        capacity /= 2;
        storage.trim(file, capacity)?;
    }
    for op in header.create_ops(epoch, capacity).iter().filter(|op| !matches!(op, IoOp::Create { .. })) {
        op.perform(storage)?;
    }
    Ok(capacity)
}

/// The snapshots of a recovered log, each with the segments that it refers to; of one that was not read none, since
/// segments are removed only once a newer one has replaced it.
fn kept_snapshots(recovered: &Recovered) -> Vec<KeptSnapshot> {
    let used = recovered.snapshot.map(|at| at.frame);
    let listed = |segment: &ReferredSegment| (segment.sequence, segment.live_bytes);
    let kept = recovered.snapshots.iter().map(|frame| {
        let referred = if Some(*frame) == used { &recovered.referred[..] } else { &[] };
        KeptSnapshot { frame: *frame, segments: referred.iter().map(listed).collect() }
    });
    kept.collect()
}

/// The size of the snapshot that the state was restored from; 0 without one.
fn snapshot_bytes(storage: &mut (impl Storage + ?Sized), recovered: &Recovered) -> Result<u64, StorageFault> {
    let Some(at) = recovered.snapshot else { return Ok(0) };
    let found = storage.list()?.into_iter().find(|info| info.file == FileId::Snapshot(at.frame));
    Ok(found.map_or(0, |info| info.len))
}

/// Options for opening a log, in the manner of [`std::fs::OpenOptions`].
///
/// ```
/// use driftq_core::log::{LogId, MemoryStorage};
/// use driftq_core::types::Timestamp;
/// use driftq_core::{Limits, OpenOptions};
///
/// let mut storage = MemoryStorage::new();
/// let options = OpenOptions::new().create(LogId([7; 16])).limits(Limits::spec());
/// let (broker, recovered) = options.open(&mut storage, Timestamp(1_000))?;
/// assert!(recovered.notices.is_empty());
/// # let _ = broker;
/// # Ok::<(), driftq_core::OpenError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until `open` is called"]
pub struct OpenOptions<F = NoFaults> {
    config: PipelineConfig,
    new_log: Option<LogId>,
    faults: F,
}

impl OpenOptions {
    /// The default configuration; a storage without a log is refused.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<F: Faults> OpenOptions<F> {
    /// Sets the whole configuration.
    pub fn config(mut self, config: PipelineConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the broker's limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.config.limits = limits;
        self
    }

    /// Creates a log with this id if the storage is empty. Ids should be random; the core draws no random numbers.
    pub fn create(mut self, log_id: impl Into<Option<LogId>>) -> Self {
        self.new_log = log_id.into();
        self
    }

    /// Plants a bug.
    #[doc(hidden)]
    pub fn faults<G: Faults>(self, faults: G) -> OpenOptions<G> {
        OpenOptions { config: self.config, new_log: self.new_log, faults }
    }

    /// Recovers the log in `storage` and continues it.
    ///
    /// Performs I/O itself. Appends the boot record, which is durable before any output leaves.
    ///
    /// # Errors
    /// [`OpenError`]; the log is unchanged then, except for files that recovery ignores.
    pub fn open(
        self,
        storage: &mut (impl Storage + ?Sized),
        now: impl Into<Now>,
    ) -> Result<(Pipeline<F>, Recovered), OpenError> {
        let Self { config, new_log, faults } = self;
        let (state, recovered) = inspect_start_with(storage, new_log, &faults)?;
        let snapshot_bytes = snapshot_bytes(storage, &recovered)?;
        let epoch = u64::from(state.boot().0) + 1;
        let header = faults.next_header(&recovered);
        for op in recovered.cleanup_ops() {
            op.perform(storage)?;
        }
        let PipelineConfig { segment_bytes, reserve_bytes, .. } = config;
        let segment_bytes_min = config.segment_bytes_min.min(segment_bytes);
        let capacity = begin_segment(storage, &header, epoch, segment_bytes_min)?;
        let sizes = Sizes { segment_bytes, segment_bytes_min, reserve_bytes, capacity };
        let mut log = Writer::new(&header, &recovered, epoch, sizes);
        let bytes_since_snapshot = faults.bytes_since_snapshot(recovered.bytes_read);
        let mut broker = Broker::new(state, recovered.last.lsn, config.limits, config.memory_bytes, faults)
            .with_read_ahead(config.read_ahead_bytes);
        let now = now.into();
        broker.boot(now, &mut log)?;
        let spare_bytes = segment_bytes.saturating_mul(config.clean_spare_segments);
        let mut pipeline = Pipeline {
            broker,
            log,
            maintenance: Maintenance::new(config.slice_bytes, kept_snapshots(&recovered), snapshot_bytes),
            reads: Reads::default(),
            cleaning: Cleaning::new(spare_bytes),
            scrub: Scrub::new(config.scrub_interval, now.mono),
            notices: VecDeque::new(),
            state_bound: StateBound::new(config.state_bytes_max),
            snapshot_every_bytes: config.snapshot_every_bytes,
            snapshot_every_segments: config.snapshot_every_segments,
            rest_after: config.rest_after,
            bytes_since_snapshot,
            snapshot_wanted: false,
            log_busy: false,
            maintenance_busy: false,
            mark_at: None,
            rest_at: None,
            rest_is_deferred: false,
            rested: None,
            reclaim_at: None,
            closing: false,
        };
        pipeline.plan_cleaning();
        Ok((pipeline, recovered))
    }
}
