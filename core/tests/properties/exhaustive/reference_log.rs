//! A log of exactly 64 KiB with records of many kinds, and its contents.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::scenario::without_sizes;
use crate::test_broker::*;
use driftq_core::PipelineConfig;
use driftq_core::codec::record as codec;
use driftq_core::faults::NoFaults;
use driftq_core::log::{
    FileId, LogPosition, Malformed, MemoryStorage, Replay, SegmentHeader, SegmentReader, Storage, read_snapshot,
    recover,
};
use driftq_core::state::State;
use driftq_core::types::*;

/// The size of the log.
const LOG_BYTES: usize = 64 << 10;

/// A frame of the log.
#[derive(Clone, Debug)]
pub struct FrameSpan {
    pub file: FileId,
    pub bytes: Range<usize>,
    pub number: FrameNumber,
    pub synced: FrameNumber,
}

/// The kind and payload of a log record or snapshot image.
pub type KindAndPayload = (u8, Vec<u8>);

/// The log and its contents.
pub struct ReferenceLog {
    pub storage: MemoryStorage,
    pub frames: Vec<FrameSpan>,
    /// Every record by its LSN.
    pub records: Vec<(Lsn, KindAndPayload)>,
    /// The images of every snapshot.
    pub images: BTreeMap<FrameNumber, Vec<KindAndPayload>>,
    /// The digest of the state after each record, and before the first.
    pub digests: Vec<u64>,
    before: u64,
    pub last: LogPosition,
}

fn config() -> PipelineConfig {
    PipelineConfig { segment_bytes: 22 << 10, reserve_bytes: 1 << 10, ..small_config() }
}

/// Commands of many kinds; `round` varies them.
fn mixed_commands(broker: &mut TestBroker, round: u64) {
    for number in 0..6 {
        let text = format!("order {round} {number} {}", "x".repeat(30 + 40 * number as usize));
        broker.produce_with("t", &text, |request| {
            request.envelope.priority = Priority::new(number as u8);
            request.envelope.retry_policy = Some(policy(2, 1, 10));
            request.envelope.labels = [("round".into(), round.to_string().into())].into();
        });
    }
    drop(broker.try_produce(identified("t", "said once", &format!("key-{round}"))));
    let consumer = broker.subscribe("t", "g", "w");
    for (number, delivery) in broker.delivered().iter().enumerate() {
        let claim = claim("t", "g", "w", delivery);
        let _ = match number % 5 {
            0 | 1 => broker.ack(claim),
            2 => broker.nack(claim, "not today"),
            3 => broker.extend(claim, Some(60_000)).map(drop),
            _ => broker.release(claim),
        };
    }
    broker.unsubscribe(consumer);
    let identity = effect(&format!("effect-{round}"));
    let token = granted(broker.begin(&identity));
    let _ = broker.finish(&identity, token, success("[1,2,3]"));
    broker.advance(50);
}

/// A log of two boots and several segments, ending with a message of `pad` extra bytes that no frame proves synced.
/// With snapshots if requested.
fn written(rounds: u64, pad: usize, snapshots: bool) -> MemoryStorage {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 2);
    broker.group("t", "h");
    if snapshots {
        // The first segment has no message, so that a snapshot replaces it.
        broker.crash();
    }
    for round in 0..rounds {
        if round == rounds / 2 {
            broker.crash();
        }
        mixed_commands(&mut broker, round);
        if snapshots && (round == rounds / 3 || round == 2 * rounds / 3) {
            broker.snapshot();
        }
    }
    broker.advance(200);
    broker.produce("t", &"the last message, not proven synced ".chars().cycle().take(40 + pad).collect::<String>());
    // Only written data is kept, without preallocated zeros.
    let (before, mut storage) = (broker.storage.crash(), MemoryStorage::new());
    for info in before.clone().list().expect("can be listed") {
        match before.bytes(info.file) {
            Some(bytes) if !bytes.is_empty() => storage.put_file(info.file, bytes.to_vec()),
            _ => {}
        }
    }
    without_sizes(storage)
}

fn size(storage: &MemoryStorage) -> usize {
    let mut storage = storage.clone();
    let files = storage.list().expect("can be listed");
    files.iter().filter(|info| matches!(info.file, FileId::Segment(_))).map(|info| info.len as usize).sum()
}

/// The log: 65,536 bytes in all its segments.
pub fn log() -> ReferenceLog {
    let rounds = (1..).find(|rounds| size(&written(rounds + 1, 0, false)) > LOG_BYTES).expect("the log grows");
    let mut pad = LOG_BYTES - size(&written(rounds, 0, false));
    // A longer message may need a longer length field.
    while size(&written(rounds, pad, false)) > LOG_BYTES {
        pad -= 1;
    }
    let reference = ReferenceLog::of(written(rounds, pad, false));
    assert_eq!(size(&reference.storage), LOG_BYTES);
    assert!(reference.segments().len() >= 4, "several segments: {:?}", reference.segments());
    reference
}

/// A smaller log with two snapshots.
pub fn with_snapshots() -> ReferenceLog {
    ReferenceLog::of(written(3, 0, true))
}

impl ReferenceLog {
    fn of(storage: MemoryStorage) -> Self {
        let (mut frames, mut images) = (Vec::new(), BTreeMap::new());
        for info in storage.clone().list().expect("can be listed") {
            let bytes = storage.bytes(info.file).expect("the file exists");
            match info.file {
                FileId::Segment(_) => frames.extend(frame_spans(info.file, bytes)),
                FileId::Snapshot(number) => {
                    let mut of_snapshot: Vec<KindAndPayload> = Vec::new();
                    let each = |kind, _, payload: &[u8]| -> Result<(), ()> {
                        of_snapshot.push((kind, payload.to_vec()));
                        Ok(())
                    };
                    read_snapshot(&mut storage.clone(), number, &mut Vec::new(), each).expect("whole");
                    images.insert(number, of_snapshot);
                }
                FileId::SnapshotDraft(_) => {}
            }
        }
        // With two snapshots, segments before the older one may be removed, so recovery starts from the older one.
        let mut earliest = storage.clone();
        images.keys().skip(1).for_each(|number| drop(earliest.take_file(FileId::Snapshot(*number))));
        let mut collector = RecordCollector::default();
        let last = recover(&mut earliest, None, &mut collector).expect("whole").last;
        let (records, digests, before) = (collector.records, collector.digests, collector.before.digest());
        Self { storage, frames, records, images, digests, before, last }
    }

    pub fn len(&self, file: FileId) -> usize {
        self.storage.bytes(file).map_or(0, <[u8]>::len)
    }

    pub fn segments(&self) -> Vec<FileId> {
        let mut files: Vec<_> = self.frames.iter().map(|frame| frame.file).collect();
        files.dedup();
        files
    }

    pub fn snapshot_files(&self) -> Vec<FileId> {
        self.images.keys().map(|number| FileId::Snapshot(*number)).collect()
    }

    pub fn frames_in(&self, file: FileId) -> usize {
        self.frames.iter().filter(|frame| frame.file == file).count()
    }

    /// The digest of the state after `lsn`.
    pub fn digest_after(&self, lsn: Lsn) -> u64 {
        let records = self.records.partition_point(|(known, _)| *known <= lsn);
        records.checked_sub(1).map_or(self.before, |last| self.digests[last])
    }

    /// The frames that no other frame proves synced.
    pub fn unproven(&self) -> Vec<FrameSpan> {
        let last = self.segments().last().copied();
        let alone = |frame: &&FrameSpan| {
            let others = self.frames.iter().filter(|other| other.number != frame.number);
            Some(frame.file) == last && others.map(|other| other.synced).max().unwrap_or_default() < frame.number
        };
        self.frames.iter().filter(alone).cloned().collect()
    }

    /// The highest frame number that the undamaged log proves synced.
    pub fn proven_by_all(&self) -> FrameNumber {
        self.frames.iter().map(|frame| frame.synced).max().unwrap_or_default()
    }

    /// One byte of every payload.
    pub fn payloads(&self) -> impl Iterator<Item = (FileId, usize)> {
        let with_payload = self.frames.iter().filter(|frame| frame.bytes.len() > 34);
        with_payload.map(|frame| (frame.file, frame.bytes.end - 2))
    }

    /// Removes the older snapshots and every segment that the newest one covers and does not refer to. Returns the file
    /// of the newest.
    pub fn only_newest_snapshot(&mut self) -> FileId {
        let newest = *self.images.keys().last().expect("has snapshots");
        let older: Vec<_> = self.images.keys().copied().filter(|number| *number != newest).collect();
        for number in older {
            self.images.remove(&number);
            self.storage.take_file(FileId::Snapshot(number));
        }
        let read = read_snapshot(&mut self.storage, newest, &mut Vec::new(), |_, _, _| Ok::<(), ()>(()));
        let (_, referred) = read.expect("whole");
        let is_referred = |file| referred.iter().any(|segment| segment.file() == file);
        assert!(!is_referred(FileId::Segment(1)), "the log cannot be read from its beginning");
        for file in self.segments().into_iter().filter(|file| !is_referred(*file)) {
            let last = self.frames.iter().filter(|frame| frame.file == file).map(|frame| frame.number).max();
            if last.is_some_and(|last| last <= newest) {
                self.storage.take_file(file);
                self.frames.retain(|frame| frame.file != file);
            }
        }
        FileId::Snapshot(newest)
    }
}

fn frame_spans(file: FileId, bytes: &[u8]) -> Vec<FrameSpan> {
    let header = SegmentHeader::decode(bytes).expect("a header");
    let mut reader = SegmentReader::new(&header, bytes);
    let mut frames = Vec::new();
    while let Some(frame) = reader.next() {
        let end = reader.position();
        let (number, synced) = (frame.head.number, frame.head.synced);
        frames.push(FrameSpan { file, bytes: end - frame.size()..end, number, synced });
    }
    frames
}

/// Collects the records and the digest of the state after each.
#[derive(Default)]
struct RecordCollector {
    state: State,
    /// The state restored from the snapshot.
    before: State,
    records: Vec<(Lsn, KindAndPayload)>,
    digests: Vec<u64>,
}

impl RecordCollector {
    fn apply(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = codec::decode(kind, version, payload).map_err(|error| Malformed::new(error.to_string()))?;
        let applied = self.state.apply(&record);
        applied.map_err(|error| Malformed::new(error.to_string()))
    }
}

impl Replay for RecordCollector {
    fn reset(&mut self) {
        *self = Self::default();
    }

    fn restore(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        self.apply(kind, version, payload)
    }

    fn restored(&mut self) -> Result<(), Malformed> {
        self.before = self.state.clone();
        Ok(())
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        self.apply(kind, version, payload)?;
        self.records.push((lsn, (kind, payload.to_vec())));
        self.digests.push(self.state.digest());
        Ok(())
    }
}
