//! A log of exactly 64 KiB with something of everything in it, and all that is known of it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::rig::*;
use driftq_core::PipelineConfig;
use driftq_core::codec::record as codec;
use driftq_core::faults::NoFaults;
use driftq_core::log::{
    FileId, Malformed, MemoryStorage, Replay, SegmentHeader, SegmentReader, Storage, read_snapshot, recover,
};
use driftq_core::state::State;
use driftq_core::state::apply::Mode;
use driftq_core::types::*;

/// The size of the log: what FAULTS asks for.
const LOG_BYTES: usize = 64 << 10;

/// A frame of the log.
#[derive(Clone, Debug)]
pub struct Placed {
    pub file: FileId,
    pub bytes: Range<usize>,
    pub lsn: Lsn,
    pub synced: Lsn,
}

/// A record or piece: kind and payload.
pub type Said = (u8, Vec<u8>);

/// The log, and what is known of it.
pub struct Truth {
    pub storage: MemoryStorage,
    pub frames: Vec<Placed>,
    /// Every record by its LSN.
    pub records: Vec<(Lsn, Said)>,
    /// The pieces of every snapshot.
    pub pieces: BTreeMap<Lsn, Vec<Said>>,
    /// The digest of the state after each record, and before the first.
    pub digests: Vec<u64>,
    before: u64,
    pub last: Lsn,
}

fn config() -> PipelineConfig {
    PipelineConfig { segment_bytes: 22 << 10, reserve_bytes: 1 << 10, ..small_config() }
}

/// Work of every kind; `round` makes it differ.
fn work(rig: &mut Rig, round: u64) {
    for number in 0..6 {
        let text = format!("order {round} {number} {}", "x".repeat(30 + 40 * number as usize));
        rig.produce_with("t", &text, |asked| {
            asked.envelope.priority = Priority::new(number as u8);
            asked.envelope.retry_policy = Some(policy(2, 1, 10));
            asked.envelope.labels = [("round".into(), round.to_string().into())].into();
        });
    }
    drop(rig.try_produce(identified("t", "said once", &format!("key-{round}"))));
    let consumer = rig.subscribe("t", "g", "w");
    for (number, delivery) in rig.delivered().iter().enumerate() {
        let claim = claim("t", "g", "w", delivery);
        let _ = match number % 5 {
            0 | 1 => rig.ack(claim),
            2 => rig.nack(claim, "not today"),
            3 => rig.extend(claim, Some(60_000)).map(drop),
            _ => rig.release(claim),
        };
    }
    rig.unsubscribe(consumer);
    let identity = effect(&format!("effect-{round}"));
    let token = granted(rig.begin(&identity));
    let _ = rig.finish(&identity, token, success("[1,2,3]"));
    rig.pass(50);
}

/// A log whose last message has `pad` more bytes than it needs: two boots, several segments; behind the last mark one message that
/// nothing tells to be synced. Snapshots on the way, if they are asked for.
fn written(rounds: u64, pad: usize, snapshots: bool) -> MemoryStorage {
    let mut rig = Rig::with(config(), NoFaults);
    rig.topic("t", 2);
    rig.group("t", "h");
    for round in 0..rounds {
        if round == rounds / 2 {
            rig.crash();
        }
        work(&mut rig, round);
        if snapshots && (round == rounds / 3 || round == 2 * rounds / 3) {
            rig.snapshot();
        }
    }
    rig.pass(200);
    rig.produce("t", &"the last, and nobody tells of it ".chars().cycle().take(40 + pad).collect::<String>());
    // Only what was written: the room ahead reads as zeros, and was never anything else.
    let (before, mut storage) = (rig.storage.crash(), MemoryStorage::new());
    for info in before.clone().list().expect("lists") {
        match before.bytes(info.file) {
            Some(bytes) if !bytes.is_empty() => storage.plant(info.file, bytes.to_vec()),
            _ => {}
        }
    }
    storage
}

fn size(storage: &MemoryStorage) -> usize {
    let mut storage = storage.clone();
    let files = storage.list().expect("lists");
    files.iter().filter(|info| matches!(info.file, FileId::Segment(_))).map(|info| info.len as usize).sum()
}

/// The log: 65,536 bytes in all its segments.
pub fn log() -> Truth {
    let rounds = (1..).find(|rounds| size(&written(rounds + 1, 0, false)) > LOG_BYTES).expect("it grows");
    let mut pad = LOG_BYTES - size(&written(rounds, 0, false));
    // A longer message also has a longer length.
    while size(&written(rounds, pad, false)) > LOG_BYTES {
        pad -= 1;
    }
    let truth = Truth::of(written(rounds, pad, false));
    assert_eq!(size(&truth.storage), LOG_BYTES);
    assert!(truth.segments().len() >= 4, "several segments: {:?}", truth.segments());
    truth
}

/// A smaller log with two snapshots.
pub fn with_snapshots() -> Truth {
    Truth::of(written(3, 0, true))
}

impl Truth {
    fn of(storage: MemoryStorage) -> Self {
        let (mut frames, mut pieces) = (Vec::new(), BTreeMap::new());
        for info in storage.clone().list().expect("lists") {
            let bytes = storage.bytes(info.file).expect("is there");
            match info.file {
                FileId::Segment(_) => frames.extend(placed(info.file, bytes)),
                FileId::Snapshot(lsn) => {
                    let mut said: Vec<Said> = Vec::new();
                    let each = |kind, _, payload: &[u8]| -> Result<(), ()> {
                        said.push((kind, payload.to_vec()));
                        Ok(())
                    };
                    read_snapshot(&mut storage.clone(), lsn, &mut Vec::new(), each).expect("whole");
                    pieces.insert(lsn, said);
                }
                FileId::SnapshotDraft(_) => {}
            }
        }
        // Where there are two snapshots, what the older one stands for may be gone.
        let mut earliest = storage.clone();
        pieces.keys().skip(1).for_each(|lsn| drop(earliest.uproot(FileId::Snapshot(*lsn))));
        let mut tale = Tale::default();
        let last = recover(&mut earliest, None, &mut tale).expect("whole").last_lsn;
        let (records, digests, before) = (tale.records, tale.digests, tale.before.digest());
        Self { storage, frames, records, pieces, digests, before, last }
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
        self.pieces.keys().map(|lsn| FileId::Snapshot(*lsn)).collect()
    }

    pub fn frames_in(&self, file: FileId) -> usize {
        self.frames.iter().filter(|frame| frame.file == file).count()
    }

    /// The digest of the state after `lsn`.
    pub fn digest_after(&self, lsn: Lsn) -> u64 {
        let records = self.records.partition_point(|(known, _)| *known <= lsn);
        records.checked_sub(1).map_or(self.before, |last| self.digests[last])
    }

    /// The frames that nothing else proves to have been synced.
    pub fn unproven(&self) -> Vec<Placed> {
        let last = self.segments().last().copied();
        let alone = |frame: &&Placed| {
            let others = self.frames.iter().filter(|other| other.lsn != frame.lsn);
            Some(frame.file) == last && others.map(|other| other.synced).max().unwrap_or_default() < frame.lsn
        };
        self.frames.iter().filter(alone).cloned().collect()
    }

    /// Everything is as it was written: all that it proves.
    pub fn proven_by_all(&self) -> Lsn {
        self.frames.iter().map(|frame| frame.synced).max().unwrap_or_default()
    }

    /// Some byte of every payload.
    pub fn payloads(&self) -> impl Iterator<Item = (FileId, usize)> {
        let with_payload = self.frames.iter().filter(|frame| frame.bytes.len() > 34);
        with_payload.map(|frame| (frame.file, frame.bytes.end - 2))
    }

    /// Takes away everything that the newest snapshot makes superfluous, and the older one. Gives its file.
    pub fn only_newest_snapshot(&mut self) -> FileId {
        let newest = *self.pieces.keys().last().expect("has snapshots");
        let older: Vec<Lsn> = self.pieces.keys().copied().filter(|lsn| *lsn != newest).collect();
        for lsn in older {
            self.pieces.remove(&lsn);
            self.storage.uproot(FileId::Snapshot(lsn));
        }
        for file in self.segments() {
            let last = self.frames.iter().filter(|frame| frame.file == file).map(|frame| frame.lsn).max();
            if last.is_some_and(|last| last <= newest) {
                self.storage.uproot(file);
                self.frames.retain(|frame| frame.file != file);
            }
        }
        FileId::Snapshot(newest)
    }
}

fn placed(file: FileId, bytes: &[u8]) -> Vec<Placed> {
    let header = SegmentHeader::decode(bytes).expect("a header");
    let mut reader = SegmentReader::new(&header, bytes);
    let mut frames = Vec::new();
    while let Some(frame) = reader.next() {
        let end = reader.position();
        let (lsn, synced) = (frame.head.lsn, frame.head.synced);
        frames.push(Placed { file, bytes: end - frame.size()..end, lsn, synced });
    }
    frames
}

/// Follows the log from record to record.
#[derive(Default)]
struct Tale {
    state: State,
    /// The state of the snapshot it begins with.
    before: State,
    records: Vec<(Lsn, Said)>,
    digests: Vec<u64>,
}

impl Tale {
    fn apply(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = codec::decode(kind, version, payload).map_err(|error| Malformed::new(error.to_string()))?;
        let applied = self.state.apply(&record, Mode::Replay, &NoFaults);
        applied.map_err(|error| Malformed::new(error.to_string()))
    }
}

impl Replay for Tale {
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
