//! A small broker without a brain: writes a log by the rules of `docs/wal.md`, and remembers what it wrote where.

use std::ops::Range;

use driftq_core::log::{
    FileId, FrameChain, HEADER_BYTES, IoOp, LogId, Malformed, MemoryStorage, Recovered, RecoveryError, Replay,
    SegmentHeader, SnapshotHead, SnapshotWriter, Storage, WriteAt, recover,
};
use driftq_core::types::Lsn;

pub const LOG: LogId = LogId(*b"sixteen byte id.");
pub const CAPACITY: u64 = 8192;
/// What snapshots of [`Writer`] hold: an old record with its LSN in front.
pub const SAVED: u8 = 0x77;

/// LSN, kind and payload of each.
pub type Records = Vec<(Lsn, u8, Vec<u8>)>;

/// Every record ever, which is the state of a broker that forgets nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub records: Records,
    pub resets: u32,
}

impl Replay for Taken {
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

pub fn recovered(storage: &mut impl Storage) -> Result<(Recovered, Records), RecoveryError> {
    let mut taken = Taken::default();
    let recovered = recover(storage, None, &mut taken)?;
    Ok((recovered, taken.records))
}

/// Where a frame was written, and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub file: FileId,
    pub bytes: Range<usize>,
    pub lsn: Lsn,
    pub synced: Lsn,
}

/// Writes a log on a [`MemoryStorage`], every operation as its own steps.
#[derive(Clone)]
pub struct Writer {
    pub storage: MemoryStorage,
    pub header: SegmentHeader,
    pub chain: FrameChain,
    pub position: u64,
    /// The highest LSN that a finished sync covers.
    pub synced: Lsn,
    pub records: Records,
    pub frames: Vec<Placed>,
    pub epoch: u64,
}

impl Writer {
    pub fn new() -> Self {
        Self::start(MemoryStorage::new()).expect("an empty storage is a new log")
    }

    /// Recovers, clears away, begins the next segment.
    pub fn start(mut storage: MemoryStorage) -> Result<Self, RecoveryError> {
        let mut taken = Taken::default();
        let recovered = recover(&mut storage, Some(LOG), &mut taken)?;
        let header = recovered.next_header();
        for step in recovered.cleanup_ops().iter().chain(&header.create_ops(1, CAPACITY)) {
            step.perform(&mut storage).expect("a good disk");
        }
        Ok(Self {
            storage,
            header,
            chain: header.chain(),
            position: HEADER_BYTES as u64,
            synced: recovered.last_lsn,
            records: taken.records,
            frames: Vec::new(),
            epoch: 1,
        })
    }

    pub fn step(&mut self, step: &IoOp) {
        step.perform(&mut self.storage).expect("a good disk");
    }

    fn append(&mut self, bytes: Vec<u8>) {
        let file = self.header.file();
        let start = self.position as usize;
        let placed = start..start + bytes.len();
        self.frames.push(Placed { file, bytes: placed, lsn: self.chain.last_lsn(), synced: self.synced });
        let at = WriteAt { epoch: self.epoch, position: self.position };
        self.position += bytes.len() as u64;
        self.step(&IoOp::Append { file, at, bytes });
    }

    pub fn record(&mut self, payload: &[u8]) -> Lsn {
        let mut out = Vec::new();
        let kind = 1 + (payload.len() % 7) as u8;
        let lsn =
            self.chain.record(&mut out, self.synced, kind, 1, |buffer| buffer.extend_from_slice(payload)).unwrap();
        self.records.push((lsn, kind, payload.to_vec()));
        self.append(out);
        lsn
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
        self.step(&IoOp::Sync { file: self.header.file() });
        self.synced = self.chain.last_lsn();
    }

    /// Makes the next segment's file ahead of time.
    pub fn prepare(&mut self) {
        self.step(&IoOp::Create { file: FileId::Segment(self.header.sequence + 1), capacity: CAPACITY });
    }

    pub fn rotate(&mut self) {
        self.footer();
        self.sync();
        self.header = SegmentHeader {
            log_id: LOG,
            sequence: self.header.sequence + 1,
            previous_lsn: self.chain.last_lsn(),
            previous_crc: self.chain.last_crc(),
            synced: self.synced,
        };
        let prepared = self.storage.bytes(self.header.file()).is_some();
        for step in self.header.create_ops(self.epoch, CAPACITY).into_iter().skip(usize::from(prepared)) {
            self.step(&step);
        }
        self.chain = self.header.chain();
        self.position = HEADER_BYTES as u64;
    }

    /// The steps that write a snapshot of the state so far, which must be synced.
    pub fn snapshot_steps(&self) -> Vec<IoOp> {
        assert_eq!(self.synced, self.chain.last_lsn());
        let (lsn, crc) = (self.chain.last_lsn(), self.chain.last_crc());
        let head = SnapshotHead { log_id: LOG, lsn, crc, epoch: self.epoch };
        let mut steps = vec![IoOp::Create { file: head.draft(), capacity: 0 }];
        let mut out = Vec::new();
        let mut position = 0;
        let mut writer = SnapshotWriter::begin(&head, &mut out);
        let mut flush = |out: &mut Vec<u8>| {
            let at = WriteAt { epoch: 1, position };
            position += out.len() as u64;
            steps.push(IoOp::Append { file: head.draft(), at, bytes: std::mem::take(out) });
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
        writer.finish(&mut out);
        flush(&mut out);
        steps.push(IoOp::Sync { file: head.draft() });
        steps.push(IoOp::Rename { from: head.draft(), to: head.file() });
        steps.push(IoOp::SyncFolder);
        steps
    }

    /// Rotates and takes a snapshot; clears nothing away.
    pub fn snapshot(&mut self) -> Lsn {
        self.rotate();
        for step in self.snapshot_steps() {
            self.step(&step);
        }
        self.chain.last_lsn()
    }
}

/// Garbles the unsynced sectors named, keeps the others.
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

/// A log with everything in it, and what is known of it.
///
/// Segment 1 ends in snapshot A. Segment 2 was torn: its end holds a bad frame and, behind it, a good one, both dead by
/// the word of segment 3, which ends in snapshot B. Segment 4 holds frames that are proven synced and, at its end, two
/// that are not. Segment 5 is prepared.
#[derive(Clone)]
pub struct World {
    pub storage: MemoryStorage,
    /// The frames that count.
    pub live: Vec<Placed>,
    pub records: Records,
    pub a: Lsn,
    pub b: Lsn,
    pub last: Lsn,
}

/// Zeros behind the data of every segment.
pub const ZEROS: usize = 40;

impl World {
    pub fn new() -> Self {
        let mut writer = Writer::new();
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
        live.retain(|frame| frame.lsn < torn_from);
        let storage = writer.storage.crash_with(&mut GarbleSectors(8..9));
        let mut writer = Writer::start(storage).unwrap();
        assert_eq!((writer.header.sequence, writer.header.first_lsn()), (3, torn_from));
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
            let mut bytes = storage.uproot(file).unwrap();
            bytes.resize(bytes.len().max(HEADER_BYTES) + ZEROS, 0);
            storage.plant(file, bytes);
        }
        Self { storage, live, records: writer.records.clone(), a, b, last: writer.chain.last_lsn() }
    }

    pub fn files(&mut self) -> Vec<FileId> {
        self.storage.list().unwrap().iter().map(|info| info.file).collect()
    }

    pub fn records_through(&self, lsn: Lsn) -> Records {
        self.records.iter().filter(|record| record.0 <= lsn).cloned().collect()
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
