//! What must hold of every log that opens, whatever is in it.

use driftq_core::OpenOptions;

use driftq_core::PipelineConfig;
use driftq_core::codec::record as codec;
use driftq_core::faults::Faults;
use driftq_core::log::{
    HEADER_BYTES, MemoryStorage, Recovered, RecoveryError, SegmentHeader, SnapshotHead, SnapshotWriter,
};
use driftq_core::pipeline::{inspect, inspect_with};
use driftq_core::record::{Event, Record};
use driftq_core::state::State;
use driftq_core::types::{Lsn, Millis, Timestamp};

/// A log that opened.
#[derive(Debug)]
pub struct Opened {
    /// What is in it.
    pub state: State,
    /// What recovery said.
    pub recovered: Recovered,
}

impl Opened {
    /// Opens a log, if it can be, and checks what must hold then: the state is sound; to recover changes nothing and does the same
    /// again; a broker starts, and after it another one.
    ///
    /// # Errors
    /// What recovery refuses it with.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn from(storage: &mut MemoryStorage, faults: &impl Faults) -> Result<Self, RecoveryError> {
        let mut again = storage.clone();
        let first = inspect_with(&mut faults.storage(storage), None, faults);
        let second = inspect_with(&mut faults.storage(&mut again), None, faults);
        let (state, recovered) = match (first, second) {
            (Ok(first), Ok(second)) => {
                assert_eq!(first.0.digest(), second.0.digest(), "recovering twice gives one state");
                assert_eq!(first.1, second.1, "and one report");
                first
            }
            (Err(first), Err(second)) => {
                assert_eq!(first, second, "recovering twice is refused for one reason");
                return Err(first);
            }
            (first, second) => panic!("recovering twice came to {:?} and {:?}", first.map(drop), second.map(drop)),
        };
        state.check().unwrap_or_else(|unsound| panic!("recovered, and unsound: {unsound}"));
        Ok(Self { state, recovered })
    }

    /// Starts a broker on it, pulls the plug, and starts another.
    ///
    /// # Panics
    /// If one does not start, or the state is not sound.
    pub fn go_on(&self, storage: &MemoryStorage) {
        let mut storage = storage.clone();
        let config = PipelineConfig {
            segment_bytes: 2 * HEADER_BYTES as u64,
            reserve_bytes: 512,
            slice_bytes: 4_096,
            ..PipelineConfig::default()
        };
        for life in 1..=2 {
            let now = self.state.clock().after(Millis(life));
            let opened = OpenOptions::new().config(config.clone()).open(&mut storage, now);
            let (mut pipeline, _) = opened.unwrap_or_else(|error| panic!("recovers, and does not start: {error}"));
            for _ in 0..3 {
                pipeline.drive(now, &mut storage);
                while pipeline.poll_output().is_some() {}
                pipeline.handle_timeout(now);
            }
            pipeline.state().check().unwrap_or_else(|unsound| panic!("started, and unsound: {unsound}"));
            storage = storage.crash();
        }
    }

    /// Writes a snapshot of it beside an empty segment; that must open again as the very same state.
    ///
    /// # Panics
    /// If it does not.
    pub fn snapshot_again(&self) {
        let (lsn, log_id) = (Lsn(1), self.recovered.log_id);
        let head = SnapshotHead { log_id, lsn, crc: 0, epoch: 1 };
        let mut bytes = Vec::new();
        let mut writer = SnapshotWriter::begin(&head, &mut bytes);
        for image in self.state.view() {
            let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
            let kind = codec::kind(&record.event);
            let written = writer.record(&mut bytes, kind, codec::VERSION, |out| codec::encode(&record, out));
            written.expect("what was read from a frame fits one");
        }
        writer.finish(&mut bytes);
        let mut storage = MemoryStorage::new();
        let header = SegmentHeader { log_id, sequence: 1, previous_lsn: lsn, previous_crc: 0, synced: lsn };
        storage.put_file(head.file(), bytes);
        storage.put_file(header.file(), header.encode());
        let (again, _) = inspect(&mut storage, None)
            .unwrap_or_else(|error| panic!("a snapshot of a good state is refused: {error}"));
        assert_eq!(again.digest(), self.state.digest(), "a snapshot is the state it was taken of");
    }
}
