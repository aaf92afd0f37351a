//! Checks that hold for every log that recovery accepts, whatever its contents.

use driftq_core::codec::record as codec;
use driftq_core::faults::Faults;
use driftq_core::log::{
    HEADER_BYTES, LogPosition, Malformed, MemoryStorage, Recovered, RecoveryError, Replay, SegmentHeader, SnapshotHead,
    SnapshotWriter, recover,
};
use driftq_core::pipeline::{inspect_start_with, inspect_with};
use driftq_core::record::{Event, Record};
use driftq_core::state::State;
use driftq_core::types::{FrameNumber, Lsn, Millis, Timestamp};
use driftq_core::{OpenOptions, PipelineConfig};

/// A log that recovery accepted.
#[derive(Debug)]
pub(crate) struct RecoveredLog {
    pub(crate) state: State,
    pub(crate) report: Recovered,
}

impl RecoveredLog {
    /// Recovers a log, and checks that a second recovery and a start, which reads less, have the same result and that
    /// the state is consistent.
    ///
    /// # Errors
    /// If recovery refuses the log.
    ///
    /// # Panics
    /// If a check fails.
    pub(crate) fn recover(storage: &mut MemoryStorage, faults: &impl Faults) -> Result<Self, RecoveryError> {
        let mut copy = storage.clone();
        let first = inspect_with(&mut faults.storage(storage), None, faults);
        let second = inspect_with(&mut faults.storage(&mut copy), None, faults);
        let started = inspect_start_with(&mut faults.storage(&mut copy), None, faults);
        let (state, report) = match (first, second) {
            (Ok(first), Ok(second)) => {
                assert_eq!(first.0.digest(), second.0.digest(), "a second recovery has another state");
                assert_eq!(first.1, second.1, "a second recovery has another report");
                first
            }
            (Err(first), Err(second)) => {
                assert_eq!(first, second, "a second recovery is refused with another error");
                return Err(first);
            }
            (first, second) => panic!("two recoveries differ: {:?}, {:?}", first.map(drop), second.map(drop)),
        };
        state.check().unwrap_or_else(|error| panic!("inconsistent state after recovery: {error}"));
        match started {
            Ok((started, _)) => assert_eq!(started.digest(), state.digest(), "a start has another state"),
            Err(error) => panic!("a start is refused where the whole log is readable: {error}"),
        }
        Ok(Self { state, report })
    }

    /// Starts a broker on a copy of `storage`, crashes it, and does both once more.
    ///
    /// # Panics
    /// If a broker does not start, or its state is inconsistent.
    pub(crate) fn check_restarts(&self, storage: &MemoryStorage) {
        let mut storage = storage.clone();
        let config = PipelineConfig {
            segment_bytes: 2 * HEADER_BYTES as u64,
            reserve_bytes: 512,
            slice_bytes: 4_096,
            ..PipelineConfig::default()
        };
        for start in 1..=2 {
            let now = self.state.clock().after(Millis(start));
            let opened = OpenOptions::new().config(config.clone()).open(&mut storage, now);
            let (mut pipeline, _) =
                opened.unwrap_or_else(|error| panic!("start {start} of a broker on a recovered log fails: {error}"));
            for _ in 0..3 {
                pipeline.drive(now, &mut storage);
                while pipeline.poll_output().is_some() {}
                pipeline.handle_timeout(now);
            }
            let checked = pipeline.state().check();
            checked.unwrap_or_else(|error| panic!("inconsistent state after start {start} of a broker: {error}"));
            storage = storage.crash();
        }
    }

    /// Writes the state as a snapshot, with an empty segment after it, and checks that both recover to the same state.
    ///
    /// # Panics
    /// If they do not.
    pub(crate) fn check_snapshot_round_trip(&self) {
        let (at, log_id) = (LogPosition { frame: FrameNumber(2), lsn: Lsn(1) }, self.report.log_id);
        let head = SnapshotHead { log_id, at, crc: 0, epoch: 1 };
        let mut bytes = Vec::new();
        let mut writer = SnapshotWriter::begin(&head, &mut bytes);
        for image in self.state.view_in_chunks() {
            let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
            let kind = codec::kind(&record.event);
            let written = writer.record(&mut bytes, kind, codec::VERSION, |out| codec::encode(&record, out));
            written.expect("an image that was read from a frame fits in a frame");
        }
        writer.finish(&[], &mut bytes);
        let header =
            SegmentHeader { log_id, sequence: 1, previous: at, previous_crc: 0, synced: at.frame, capacity: 0 };
        let mut storage = MemoryStorage::new();
        storage.put_file(head.file(), bytes);
        storage.put_file(header.file(), header.encode());
        // Its payloads are left out, so no broker would start on it.
        let mut restored = RestoredState::default();
        recover(&mut storage, None, &mut restored)
            .unwrap_or_else(|error| panic!("a snapshot of a consistent state is refused: {error}"));
        assert_eq!(restored.0.digest(), self.state.digest(), "a snapshot restores another state");
    }
}

/// The state in a snapshot.
#[derive(Default)]
struct RestoredState(State);

impl Replay for RestoredState {
    fn reset(&mut self) {
        *self = Self::default();
    }

    fn restore(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = codec::decode(kind, version, payload).map_err(|error| Malformed::new(error.to_string()))?;
        self.0.apply(&record).map_err(|error| Malformed::new(error.to_string()))
    }

    fn restored(&mut self) -> Result<(), Malformed> {
        self.0.check().map_err(|error| Malformed::new(error.to_string()))
    }

    fn replay(&mut self, _lsn: Lsn, _kind: u8, _version: u8, _payload: &[u8]) -> Result<(), Malformed> {
        Err(Malformed::new("a record behind the snapshot"))
    }
}
