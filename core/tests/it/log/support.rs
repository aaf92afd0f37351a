//! Writes logs by the rules of `docs/wal.md` and records where each frame was written.

use std::ops::Range;

use driftq_core::log::{
    FileId, FrameChain, HEADER_BYTES, IoOp, LogId, LogPosition, Malformed, MemoryStorage, Recovered, RecoveryError,
    Replay, SegmentHeader, SnapshotHead, SnapshotWriter, Storage, WriteAt, recover,
};
use driftq_core::types::{FrameNumber, Lsn};

pub const LOG: LogId = LogId(*b"sixteen byte id.");
pub const CAPACITY: u64 = 8192;
/// The kind of a snapshot record of [`LogWriter`]: the LSN, kind and payload of a log record.
pub const SAVED: u8 = 0x77;

/// LSN, kind and payload of each record.
pub type Records = Vec<(Lsn, u8, Vec<u8>)>;

/// A state that consists of every record so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collector {
    pub records: Records,
    pub resets: u32,
}

impl Replay for Collector {
    fn reset(&mut self) {
        self.records.clear();
        self.resets += 1;
    }

    fn restore(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let (lsn, rest) = payload.split_first_chunk().ok_or_else(|| Malformed::new("too short"))?;
        if kind != SAVED || version != 1 || rest.is_empty() {
            return Err(Malformed::new("not a saved record"));
        }
        self.records.push((Lsn(u64::from_le_bytes(*lsn)), rest[0], rest[1..].to_vec()));
        Ok(())
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        if version != 1 {
            return Err(Malformed::new(format!("version {version}")));
        }
        self.records.push((lsn, kind, payload.to_vec()));
        Ok(())
    }
}

/// The ops that begin a segment whose header does not record the size of the file, which the tests change.
fn create_ops(header: &SegmentHeader, epoch: u64) -> Vec<IoOp> {
    let unsized_header = |op| match op {
        IoOp::Append { file, at, .. } => IoOp::Append { file, at, bytes: header.encode() },
        op => op,
    };
    header.create_ops(epoch, CAPACITY).into_iter().map(unsized_header).collect()
}

pub fn recovered(storage: &mut impl Storage) -> Result<(Recovered, Records), RecoveryError> {
    let mut collector = Collector::default();
    let recovered = recover(storage, None, &mut collector)?;
    Ok((recovered, collector.records))
}

/// Where a frame was written, with its number, the LSN of the last record up to it, and what it records as synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSpan {
    pub file: FileId,
    pub bytes: Range<usize>,
    pub number: FrameNumber,
    pub lsn: Lsn,
    pub synced: FrameNumber,
}

/// Writes a log to a [`MemoryStorage`], one [`IoOp`] at a time.
#[derive(Clone)]
pub struct LogWriter {
    pub storage: MemoryStorage,
    pub header: SegmentHeader,
    pub chain: FrameChain,
    pub position: u64,
    /// The highest synced frame.
    pub synced: FrameNumber,
    /// The last synced record.
    pub synced_lsn: Lsn,
    pub records: Records,
    pub frames: Vec<FrameSpan>,
    pub epoch: u64,
}

impl LogWriter {
    pub fn new() -> Self {
        Self::start(MemoryStorage::new()).expect("an empty storage is a new log")
    }

    /// Recovers, cleans up and creates the next segment.
    pub fn start(mut storage: MemoryStorage) -> Result<Self, RecoveryError> {
        let mut collector = Collector::default();
        let recovered = recover(&mut storage, Some(LOG), &mut collector)?;
        let header = recovered.next_header();
        for op in recovered.cleanup_ops().iter().chain(&create_ops(&header, 1)) {
            op.perform(&mut storage).expect("the storage has no faults");
        }
        Ok(Self {
            storage,
            header,
            chain: header.chain(),
            position: HEADER_BYTES as u64,
            synced: recovered.last.frame,
            synced_lsn: recovered.last.lsn,
            records: collector.records,
            frames: Vec::new(),
            epoch: 1,
        })
    }

    pub fn perform(&mut self, op: &IoOp) {
        op.perform(&mut self.storage).expect("the storage has no faults");
    }

    fn append(&mut self, bytes: Vec<u8>) {
        let file = self.header.file();
        let start = self.position as usize;
        let placed = start..start + bytes.len();
        let LogPosition { frame: number, lsn } = self.chain.last();
        self.frames.push(FrameSpan { file, bytes: placed, number, lsn, synced: self.synced });
        let at = WriteAt { epoch: self.epoch, position: self.position };
        self.position += bytes.len() as u64;
        self.perform(&IoOp::Append { file, at, bytes });
    }

    /// Appends a record and returns the number of its frame.
    pub fn record(&mut self, payload: &[u8]) -> FrameNumber {
        let mut out = Vec::new();
        let kind = 1 + (payload.len() % 7) as u8;
        let at = self.chain.record(&mut out, self.synced, kind, 1, |buffer| buffer.extend_from_slice(payload)).unwrap();
        self.records.push((at.lsn, kind, payload.to_vec()));
        self.append(out);
        at.frame
    }

    pub fn mark(&mut self) {
        let mut out = Vec::new();
        self.chain.mark(&mut out, self.synced);
        self.append(out);
    }

    pub fn footer(&mut self) {
        let mut out = Vec::new();
        self.chain.footer(&mut out, self.synced);
        self.append(out);
    }

    pub fn sync(&mut self) {
        self.perform(&IoOp::Sync { file: self.header.file() });
        LogPosition { frame: self.synced, lsn: self.synced_lsn } = self.chain.last();
    }

    /// Creates the file of the next segment ahead of time.
    pub fn prepare(&mut self) {
        self.perform(&IoOp::Create { file: FileId::Segment(self.header.sequence + 1), capacity: CAPACITY });
    }

    pub fn rotate(&mut self) {
        self.footer();
        self.sync();
        self.header = SegmentHeader {
            log_id: LOG,
            sequence: self.header.sequence + 1,
            previous: self.chain.last(),
            previous_crc: self.chain.last_crc(),
            synced: self.synced,
            capacity: 0,
        };
        let prepared = self.storage.bytes(self.header.file()).is_some();
        for op in create_ops(&self.header, self.epoch).into_iter().skip(usize::from(prepared)) {
            self.perform(&op);
        }
        self.chain = self.header.chain();
        self.position = HEADER_BYTES as u64;
    }

    /// The ops that write a snapshot of the current state, which must be synced.
    pub fn snapshot_ops(&self) -> Vec<IoOp> {
        let (at, crc) = (self.chain.last(), self.chain.last_crc());
        assert_eq!(self.synced, at.frame);
        let head = SnapshotHead { log_id: LOG, at, crc, epoch: self.epoch };
        let mut ops = vec![IoOp::Create { file: head.draft(), capacity: 0 }];
        let mut out = Vec::new();
        let mut position = 0;
        let mut writer = SnapshotWriter::begin(&head, &mut out);
        let mut flush = |out: &mut Vec<u8>| {
            let at = WriteAt { epoch: 1, position };
            position += out.len() as u64;
            ops.push(IoOp::Append { file: head.draft(), at, bytes: std::mem::take(out) });
        };
        for (lsn, kind, payload) in &self.records {
            let saved = |buffer: &mut Vec<u8>| {
                buffer.extend_from_slice(&lsn.0.to_le_bytes());
                buffer.push(*kind);
                buffer.extend_from_slice(payload);
            };
            writer.record(&mut out, SAVED, 1, saved).unwrap();
            flush(&mut out);
        }
        writer.finish(&[], &mut out);
        flush(&mut out);
        ops.push(IoOp::Sync { file: head.draft() });
        ops.push(IoOp::Rename { from: head.draft(), to: head.file() });
        ops.push(IoOp::SyncFolder);
        ops
    }

    /// Rotates and takes a snapshot, without cleanup.
    pub fn snapshot(&mut self) -> FrameNumber {
        self.rotate();
        for op in self.snapshot_ops() {
            self.perform(&op);
        }
        self.chain.last().frame
    }
}

/// Garbles the unsynced sectors in this range and keeps the others.
pub struct GarbleSectors(pub Range<u64>);

impl driftq_core::log::CrashPlan for GarbleSectors {
    fn sector(&mut self, _file: FileId, sector: u64) -> driftq_core::log::SectorFate {
        if self.0.contains(&sector) {
            driftq_core::log::SectorFate::Garbage(0x5A)
        } else {
            driftq_core::log::SectorFate::Kept
        }
    }
}

/// A log that covers every situation, and its contents.
///
/// Snapshot A is taken at the end of segment 1. Segment 2 has a torn tail: a bad frame followed by a good one, both cut
/// by the header of segment 3, at whose end snapshot B is taken. Segment 4 holds frames that are proven synced and then
/// two that are not. Segment 5 is prepared.
#[derive(Clone)]
pub struct SampleLog {
    pub storage: MemoryStorage,
    /// The frames that belong to the log.
    pub live: Vec<FrameSpan>,
    pub records: Records,
    pub a: FrameNumber,
    pub b: FrameNumber,
    pub last: LogPosition,
}

/// The number of zeros behind the data of every segment.
pub const ZEROS: usize = 40;

impl SampleLog {
    pub fn new() -> Self {
        let mut writer = LogWriter::new();
        writer.record(b"one");
        writer.record(b"");
        writer.sync();
        writer.record(b"three");
        writer.sync();
        writer.mark();
        let a = writer.snapshot();
        writer.record(b"in the second");
        writer.sync();
        writer.record(b"and synced");
        writer.sync();
        let torn_from = writer.record(&[b'f'; 500]);
        writer.record(b"valid but dead");
        let mut live = writer.frames.clone();
        live.retain(|frame| frame.number < torn_from);
        let storage = writer.storage.crash_with(&mut GarbleSectors(8..9));
        let mut writer = LogWriter::start(storage).unwrap();
        assert_eq!((writer.header.sequence, writer.header.first_frame()), (3, torn_from));
        writer.record(b"third");
        writer.record(b"again third");
        writer.sync();
        writer.mark();
        let b = writer.snapshot();
        writer.record(b"fourth");
        writer.record(b"zeros at the end\0\0\0");
        writer.sync();
        writer.record(b"knows of two");
        writer.sync();
        writer.mark();
        writer.record(b"unproven");
        writer.record(b"unproven too");
        writer.sync();
        writer.prepare();
        live.extend(writer.frames.iter().cloned());
        let mut storage = writer.storage.crash_with(&mut KeepAll);
        for sequence in 1..=5 {
            let file = FileId::Segment(sequence);
            let mut bytes = storage.take_file(file).unwrap();
            bytes.resize(bytes.len().max(HEADER_BYTES) + ZEROS, 0);
            storage.put_file(file, bytes);
        }
        Self { storage, live, records: writer.records.clone(), a, b, last: writer.chain.last() }
    }

    pub fn files(&mut self) -> Vec<FileId> {
        self.storage.list().unwrap().iter().map(|info| info.file).collect()
    }

    pub fn records_through(&self, lsn: Lsn) -> Records {
        self.records.iter().filter(|record| record.0 <= lsn).cloned().collect()
    }

    /// The position behind the frame with this number; 0 for none.
    pub fn position(&self, number: FrameNumber) -> LogPosition {
        let frame = self.live.iter().find(|frame| frame.number == number);
        frame.map_or_else(LogPosition::default, |frame| LogPosition { frame: number, lsn: frame.lsn })
    }
}

pub struct KeepAll;

impl driftq_core::log::CrashPlan for KeepAll {
    fn keep_change(&mut self, _change: driftq_core::log::FolderChange) -> bool {
        true
    }

    fn sector(&mut self, _file: FileId, _sector: u64) -> driftq_core::log::SectorFate {
        driftq_core::log::SectorFate::Kept
    }
}
