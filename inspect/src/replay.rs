//! Replays a log from the oldest usable snapshot, record by record, with the state before and after each.

use driftq_core::codec::record as codec;
use driftq_core::log::frame::FRAME_HEAD_BYTES;
use driftq_core::log::{FileId, Malformed, Recovered, RecoveryError, Replay, Storage, read_snapshot_head, recover};
use driftq_core::record::{Event, Image, Record};
use driftq_core::state::State;
use driftq_core::types::{Boot, Lsn, Timestamp};

use crate::snapshot_limit::OldestSnapshots;

/// A record and its place in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedRecord {
    /// Its LSN.
    pub lsn: u64,
    /// The size of its frame.
    pub bytes: u64,
    /// Its time and event.
    pub record: Record,
}

/// Receives what a replay reads. What it has collected is valid only if the replay succeeds.
pub trait ReplayObserver {
    /// Discards everything collected: the replay starts over from another snapshot.
    fn reset(&mut self);

    /// One image of the snapshot that the replay starts from, and the state with the image applied.
    fn snapshot_image(&mut self, state: &State, image: &Image) {
        let _ = (state, image);
    }

    /// The whole snapshot has been read; `state` is the state after `lsn`. Not called if the log is complete from its
    /// beginning.
    fn snapshot_end(&mut self, state: &State, lsn: u64) {
        let _ = (state, lsn);
    }

    /// A record, and the state it was decided against.
    fn before_record(&mut self, state: &State, logged: &LoggedRecord) {
        let _ = (state, logged);
    }

    /// The same record, and the state with the record applied.
    fn after_record(&mut self, state: &State, logged: &LoggedRecord) {
        let _ = (state, logged);
    }
}

/// Observes nothing: for callers that need only the state.
impl ReplayObserver for () {
    fn reset(&mut self) {}
}

/// How far a log is replayed. It is read to its end in any case, so that damage is found wherever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayLimit {
    /// To its end.
    #[default]
    End,
    /// Up to and including this LSN.
    Lsn(u64),
    /// Up to and including the last record decided at this time or earlier.
    Time(Timestamp),
}

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The state after the last replayed record.
    pub state: State,
    /// The LSN of the snapshot that the replay started from; 0 if the log is complete from its beginning.
    pub base: u64,
    /// The clock of that snapshot; 0 if there is none.
    pub base_at: Timestamp,
    /// The LSN of the last replayed record; [`base`](Self::base) if there was none.
    pub reached: u64,
    /// The number of replayed records.
    pub records: u64,
    /// The times of the first and the last record in the log, those beyond the limit included.
    pub times: Option<(Timestamp, Timestamp)>,
    /// The limit of the replay.
    pub limit: ReplayLimit,
    /// What recovery reports about the whole log.
    pub recovered: Recovered,
}

impl Replayed {
    /// The LSN that [`state`](Self::state) belongs to: the requested one, or the last of the log.
    #[must_use]
    pub fn through(&self) -> u64 {
        match self.limit {
            ReplayLimit::End => self.recovered.last.lsn.0,
            ReplayLimit::Lsn(lsn) => lsn,
            ReplayLimit::Time(_) => self.reached,
        }
    }
}

/// Replays the log in `storage` as broker startup does, but from the oldest usable snapshot, and passes every record
/// within `limit` to `observer`. Changes nothing.
///
/// # Errors
/// [`RecoveryError`] where a broker would refuse to start.
pub fn replay(
    storage: &mut impl Storage,
    limit: ReplayLimit,
    observer: &mut (impl ReplayObserver + ?Sized),
) -> Result<Replayed, RecoveryError> {
    let files = storage.list().map_err(|fault| RecoveryError::Storage { doing: "listing", file: None, fault })?;
    let mut snapshots = Vec::new();
    for info in &files {
        if let FileId::Snapshot(frame) = info.file {
            // Recovery reports what cannot be read or is damaged.
            let head = read_snapshot_head(storage, frame).ok().and_then(Result::ok);
            snapshots.push((frame, head.map_or(0, |head| head.at.lsn.0)));
        }
    }
    snapshots.sort_unstable();
    let snapshots: Vec<u64> = snapshots.into_iter().map(|(_, lsn)| lsn).collect();
    let mut count = 0;
    loop {
        let mut attempt = Attempt::new(limit, observer, &snapshots[..count]);
        match recover(&mut OldestSnapshots { inner: storage, count }, None, &mut attempt) {
            Ok(recovered) => return Ok(attempt.finish(recovered)),
            // The segments before an old snapshot may be gone, and the snapshot damaged; a newer one may still work.
            Err(_) if count < snapshots.len() => count += 1,
            Err(error) => return Err(error),
        }
    }
}

/// One attempt to replay, from one snapshot.
struct Attempt<'w, O: ?Sized> {
    observer: &'w mut O,
    limit: ReplayLimit,
    /// The LSNs of the snapshots that recovery has not tried yet, oldest first; it tries the newest, then the one
    /// before.
    untried: &'w [u64],
    snapshot: u64,
    state: State,
    base_at: Timestamp,
    reached: Option<u64>,
    records: u64,
    times: Option<(Timestamp, Timestamp)>,
}

impl<'w, O: ReplayObserver + ?Sized> Attempt<'w, O> {
    fn new(limit: ReplayLimit, observer: &'w mut O, snapshots: &'w [u64]) -> Self {
        Self {
            observer,
            limit,
            untried: snapshots,
            snapshot: 0,
            state: State::default(),
            base_at: Timestamp(0),
            reached: None,
            records: 0,
            times: None,
        }
    }

    fn apply(&mut self, record: &Record) -> Result<(), Malformed> {
        let applied = self.state.apply(record);
        applied.map_err(|contradiction| Malformed::new(contradiction.to_string()))
    }

    fn is_within_limit(&self, lsn: u64, at: Timestamp) -> bool {
        match self.limit {
            ReplayLimit::End => true,
            ReplayLimit::Lsn(last) => lsn <= last,
            ReplayLimit::Time(last) => at <= last,
        }
    }

    fn finish(self, recovered: Recovered) -> Replayed {
        let base = recovered.snapshot.map_or(0, |at| at.lsn.0);
        let Self { state, base_at, reached, records, times, limit, .. } = self;
        Replayed { state, base, base_at, reached: reached.unwrap_or(base), records, times, limit, recovered }
    }
}

impl<O: ReplayObserver + ?Sized> Replay for Attempt<'_, O> {
    fn reset(&mut self) {
        self.observer.reset();
        self.state = State::default();
        if let [older @ .., newest] = self.untried {
            (self.untried, self.snapshot) = (older, *newest);
        }
    }

    fn restore(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = decode(kind, version, payload)?;
        self.apply(&record)?;
        match &record.event {
            Event::Restored(image) => self.observer.snapshot_image(&self.state, image),
            _ => return Err(Malformed::new("a record in a snapshot")),
        }
        Ok(())
    }

    fn restored(&mut self) -> Result<(), Malformed> {
        if self.state.boot() == Boot(0) {
            return Err(Malformed::new("the snapshot has no origin"));
        }
        self.state.check().map_err(|inconsistency| Malformed::new(inconsistency.to_string()))?;
        self.base_at = self.state.clock();
        self.observer.snapshot_end(&self.state, self.snapshot);
        Ok(())
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = decode(kind, version, payload)?;
        if let Event::Restored(_) = record.event {
            return Err(Malformed::new("an image in the log"));
        }
        let at = record.at;
        self.times = Some((self.times.map_or(at, |(first, _)| first), at));
        if !self.is_within_limit(lsn.0, at) {
            return Ok(());
        }
        let logged = LoggedRecord { lsn: lsn.0, bytes: (FRAME_HEAD_BYTES + payload.len()) as u64, record };
        self.observer.before_record(&self.state, &logged);
        self.state.continue_behind(Lsn(lsn.0 - 1));
        self.apply(&logged.record)?;
        self.observer.after_record(&self.state, &logged);
        self.reached = Some(lsn.0);
        self.records += 1;
        Ok(())
    }
}

fn decode(kind: u8, version: u8, payload: &[u8]) -> Result<Record, Malformed> {
    codec::decode(kind, version, payload).map_err(|error| Malformed::new(error.to_string()))
}
