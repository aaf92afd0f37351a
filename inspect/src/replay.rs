//! A log read from as far back as its files reach, record by record, with the state before and after each.

use driftq_core::codec::record as codec;
use driftq_core::faults::NoFaults;
use driftq_core::log::frame::FRAME_HEAD_BYTES;
use driftq_core::log::{FileId, Malformed, Recovered, RecoveryError, Replay, Storage, recover};
use driftq_core::record::{Event, Image, Record};
use driftq_core::state::State;
use driftq_core::state::apply::Mode;
use driftq_core::types::{Boot, Lsn, Timestamp};

use crate::snapshot_limit::OldestSnapshots;

/// A record, and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Logged {
    /// Its LSN.
    pub lsn: u64,
    /// The bytes of its frame.
    pub bytes: u64,
    /// When and what.
    pub record: Record,
}

/// What looks on while a log is replayed. What it was shown is of worth only when the replay has succeeded.
pub trait Watch {
    /// Forgets everything: the reading begins anew, from another message_ref.
    fn reset(&mut self);

    /// A piece of the snapshot everything is built on, and the state it has become part of.
    fn piece(&mut self, state: &State, image: &Image) {
        let _ = (state, image);
    }

    /// All of the snapshot has been taken; it is the state after this LSN. Not called where the log is there from its beginning.
    fn base(&mut self, state: &State, lsn: u64) {
        let _ = (state, lsn);
    }

    /// A record, and the state it was decided against.
    fn before(&mut self, state: &State, logged: &Logged) {
        let _ = (state, logged);
    }

    /// The same record, and the state it has made.
    fn after(&mut self, state: &State, logged: &Logged) {
        let _ = (state, logged);
    }
}

/// Nobody looks on: for the state alone.
impl Watch for () {
    fn reset(&mut self) {}
}

/// How far a log is replayed. It is read to its end in any case, so that damage is found wherever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// To its end.
    #[default]
    End,
    /// Through this LSN.
    Lsn(u64),
    /// Through the last record that was decided at this moment or before it.
    Time(Timestamp),
}

/// What a replay has come to.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The state after the last record that was replayed.
    pub state: State,
    /// The LSN everything was built on; 0 if the log is there from its beginning.
    pub base: u64,
    /// The last moment recorded in the snapshot everything was built on; 0 if there is none.
    pub base_at: Timestamp,
    /// The LSN of the last record that was replayed; that of the snapshot if none was.
    pub reached: u64,
    /// How many records were replayed.
    pub records: u64,
    /// The moments of the first and the last record there are, the replayed ones and those beyond.
    pub moments: Option<(Timestamp, Timestamp)>,
    /// How far it was to be replayed.
    pub bound: Bound,
    /// What recovery has to say about the whole log.
    pub recovered: Recovered,
}

impl Replayed {
    /// The LSN this is the state of: what was asked for, else the last there is.
    #[must_use]
    pub fn through(&self) -> u64 {
        match self.bound {
            Bound::End => self.recovered.last_lsn.0,
            Bound::Lsn(lsn) => lsn,
            Bound::Time(_) => self.reached,
        }
    }
}

/// Replays the log in `storage` through [`State::apply`], as a start would, but from as far back as its files reach, and shows every
/// record within the bound to `watch`. Changes nothing.
///
/// # Errors
/// [`RecoveryError`] where a start would refuse.
pub fn replay(
    storage: &mut impl Storage,
    bound: Bound,
    watch: &mut (impl Watch + ?Sized),
) -> Result<Replayed, RecoveryError> {
    let listed = storage.list().map_err(|fault| RecoveryError::Storage { doing: "listing", file: None, fault })?;
    let snapshots = listed.iter().filter_map(|info| match info.file {
        FileId::Snapshot(lsn) => Some(lsn.0),
        _ => None,
    });
    let mut snapshots: Vec<u64> = snapshots.collect();
    snapshots.sort_unstable();
    let mut count = 0;
    loop {
        let mut run = Run::new(bound, watch, &snapshots[..count]);
        match recover(&mut OldestSnapshots { inner: storage, count }, None, &mut run) {
            Ok(recovered) => return Ok(run.conclude(recovered)),
            // What came before an old snapshot may be gone, and the snapshot itself damaged: a newer one does as well.
            Err(_) if count < snapshots.len() => count += 1,
            Err(error) => return Err(error),
        }
    }
}

/// One replay under way.
struct Run<'w, W: ?Sized> {
    watch: &'w mut W,
    bound: Bound,
    /// Snapshots that recovery has not tried yet, oldest first; it tries the newest, then the one before.
    untried: &'w [u64],
    trying: u64,
    state: State,
    base_at: Timestamp,
    reached: Option<u64>,
    records: u64,
    moments: Option<(Timestamp, Timestamp)>,
}

impl<'w, W: Watch + ?Sized> Run<'w, W> {
    fn new(bound: Bound, watch: &'w mut W, snapshots: &'w [u64]) -> Self {
        Self {
            watch,
            bound,
            untried: snapshots,
            trying: 0,
            state: State::default(),
            base_at: Timestamp(0),
            reached: None,
            records: 0,
            moments: None,
        }
    }

    fn apply(&mut self, record: &Record) -> Result<(), Malformed> {
        let applied = self.state.apply(record, Mode::Replay, &NoFaults);
        applied.map_err(|contradiction| Malformed::new(contradiction.to_string()))
    }

    fn is_within(&self, lsn: u64, at: Timestamp) -> bool {
        match self.bound {
            Bound::End => true,
            Bound::Lsn(last) => lsn <= last,
            Bound::Time(last) => at <= last,
        }
    }

    fn conclude(self, recovered: Recovered) -> Replayed {
        let base = recovered.snapshot.map_or(0, |lsn| lsn.0);
        let Self { state, base_at, reached, records, moments, bound, .. } = self;
        Replayed { state, base, base_at, reached: reached.unwrap_or(base), records, moments, bound, recovered }
    }
}

impl<W: Watch + ?Sized> Replay for Run<'_, W> {
    fn reset(&mut self) {
        self.watch.reset();
        self.state = State::default();
        if let [older @ .., newest] = self.untried {
            (self.untried, self.trying) = (older, *newest);
        }
    }

    fn restore(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = decode(kind, version, payload)?;
        self.apply(&record)?;
        match &record.event {
            Event::Restored(image) => self.watch.piece(&self.state, image),
            _ => return Err(Malformed::new("a log record in a snapshot")),
        }
        Ok(())
    }

    fn restored(&mut self) -> Result<(), Malformed> {
        if self.state.boot() == Boot(0) {
            return Err(Malformed::new("it has no origin"));
        }
        self.state.check().map_err(|unsound| Malformed::new(unsound.to_string()))?;
        self.base_at = self.state.clock();
        self.watch.base(&self.state, self.trying);
        Ok(())
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = decode(kind, version, payload)?;
        if let Event::Restored(_) = record.event {
            return Err(Malformed::new("a piece of a snapshot in the log"));
        }
        let at = record.at;
        self.moments = Some((self.moments.map_or(at, |(first, _)| first), at));
        if !self.is_within(lsn.0, at) {
            return Ok(());
        }
        let logged = Logged { lsn: lsn.0, bytes: (FRAME_HEAD_BYTES + payload.len()) as u64, record };
        self.watch.before(&self.state, &logged);
        self.apply(&logged.record)?;
        self.watch.after(&self.state, &logged);
        self.reached = Some(lsn.0);
        self.records += 1;
        Ok(())
    }
}

fn decode(kind: u8, version: u8, payload: &[u8]) -> Result<Record, Malformed> {
    codec::decode(kind, version, payload).map_err(|error| Malformed::new(error.to_string()))
}
