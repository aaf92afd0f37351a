//! Every flipped bit and every truncation of a small log, against an oracle that shares no code with recovery.

use super::support::{FrameSpan, SampleLog, recovered};
use driftq_core::log::{FileId, HEADER_BYTES, Notice, RecoveryError};
use driftq_core::types::FrameNumber;

/// Bytes of a header that are covered by its checksum, the checksum included.
const BLOCK_BYTES: usize = 128;

/// Which snapshots exist, and thereby which segments are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Snapshots {
    Both,
    OnlyA,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Same,
    SameByOlderSnapshot,
    Refused,
    /// Every record through this frame, with a torn-tail notice.
    Torn(FrameNumber),
    /// Every record through this frame, without a notice.
    Shorter(FrameNumber),
}

struct Oracle {
    sample: SampleLog,
    snapshots: Snapshots,
    last_crc: u32,
}

impl Oracle {
    fn new(snapshots: Snapshots) -> Self {
        let mut sample = SampleLog::new();
        if snapshots != Snapshots::Both {
            sample.storage.take_file(FileId::Snapshot(sample.b)).unwrap();
        }
        if snapshots == Snapshots::None {
            sample.storage.take_file(FileId::Snapshot(sample.a)).unwrap();
        }
        let (whole, records) = recovered(&mut sample.storage).unwrap();
        assert_eq!((whole.last, records), (sample.last, sample.records.clone()));
        assert!(!whole.notices.iter().any(|notice| !matches!(notice, Notice::NeverBegun { .. })));
        Self { sample, snapshots, last_crc: whole.last_crc }
    }

    fn newest(&self) -> Option<FrameNumber> {
        match self.snapshots {
            Snapshots::Both => Some(self.sample.b),
            Snapshots::OnlyA => Some(self.sample.a),
            Snapshots::None => None,
        }
    }

    fn first_needed(&self) -> u64 {
        match self.snapshots {
            Snapshots::Both => 4,
            Snapshots::OnlyA => 2,
            Snapshots::None => 1,
        }
    }

    fn frames(&self, file: FileId) -> impl Iterator<Item = &FrameSpan> {
        self.sample.live.iter().filter(move |frame| frame.file == file)
    }

    fn flipped(&self, file: FileId, byte: usize) -> Expect {
        let hit = self.frames(file).find(|frame| frame.bytes.contains(&byte));
        match file {
            FileId::Segment(5) if byte < HEADER_BYTES => Expect::Same,
            FileId::Segment(5) => Expect::Refused,
            FileId::Segment(sequence) if sequence < self.first_needed() => Expect::Same,
            FileId::Segment(_) if byte < BLOCK_BYTES => Expect::Refused,
            FileId::Segment(_) if byte < HEADER_BYTES => Expect::Same,
            FileId::Segment(4) => match hit {
                Some(hit) => {
                    let others = self.frames(file).filter(|frame| *frame != hit);
                    let proven = others.map(|frame| frame.synced).max().unwrap();
                    if hit.number <= proven { Expect::Refused } else { Expect::Torn(FrameNumber(hit.number.0 - 1)) }
                }
                None => Expect::Torn(self.sample.last.frame),
            },
            FileId::Segment(_) => hit.map_or(Expect::Same, |_| Expect::Refused),
            FileId::Snapshot(number) if Some(number) == self.newest() => {
                if (BLOCK_BYTES..HEADER_BYTES).contains(&byte) { Expect::Same } else { Expect::SameByOlderSnapshot }
            }
            FileId::Snapshot(_) | FileId::SnapshotDraft(_) => Expect::Same,
        }
    }

    fn truncated(&self, file: FileId, len: usize) -> Expect {
        let end = self.frames(file).map(|frame| frame.bytes.end).max().unwrap_or(0);
        match file {
            FileId::Segment(5) => Expect::Same,
            FileId::Segment(sequence) if sequence < self.first_needed() => Expect::Same,
            FileId::Segment(_) if len >= end => Expect::Same,
            // A file has its full length before its header is written.
            FileId::Segment(_) if (1..HEADER_BYTES).contains(&len) => Expect::Refused,
            FileId::Segment(4) => {
                let whole = self.frames(file).filter(|frame| frame.bytes.end <= len).last();
                let first = self.frames(file).next().unwrap();
                let before = FrameNumber(first.number.0 - 1);
                let (last, boundary) = whole.map_or((before, HEADER_BYTES), |f| (f.number, f.bytes.end));
                // The first bytes of a frame without payload are zeros: truncated within those, it looks never written.
                let left = self.sample.storage.bytes(file).unwrap();
                let unwritten = left.get(boundary..len).unwrap_or_default().iter().all(|byte| *byte == 0);
                if unwritten { Expect::Shorter(last) } else { Expect::Torn(last) }
            }
            FileId::Segment(_) => Expect::Refused,
            FileId::Snapshot(number) if Some(number) == self.newest() => Expect::SameByOlderSnapshot,
            FileId::Snapshot(_) | FileId::SnapshotDraft(_) => Expect::Same,
        }
    }

    fn check(&mut self, expect: Expect, what: &str) {
        let outcome = recovered(&mut self.sample.storage);
        let (found, records) = match (outcome, expect) {
            (Err(RecoveryError::Storage { .. } | RecoveryError::Malformed { .. }), _) => {
                panic!("{what}: refused for the wrong reason")
            }
            (Err(_), Expect::Refused) => return,
            (Err(error), _) => panic!("{what}: {error}"),
            (Ok((found, _)), Expect::Refused) => panic!("{what}: accepted, {found:?}"),
            (Ok(outcome), _) => outcome,
        };
        let torn = found.notices.iter().find_map(|notice| match notice {
            Notice::TornTail { frame, .. } => Some(*frame),
            _ => None,
        });
        let damaged = found.notices.iter().any(|notice| matches!(notice, Notice::DamagedSnapshot { .. }));
        let last = match expect {
            Expect::Torn(last) | Expect::Shorter(last) => last,
            _ => self.sample.last.frame,
        };
        let position = self.sample.position(last);
        assert_eq!(records, self.sample.records_through(position.lsn), "{what}");
        assert_eq!(found.last, position, "{what}");
        assert_eq!(found.last_crc == self.last_crc, position == self.sample.last, "{what}");
        assert_eq!(torn, matches!(expect, Expect::Torn(_)).then(|| last.next()), "{what}");
        assert_eq!(damaged, expect == Expect::SameByOlderSnapshot, "{what}");
    }
}

fn every_bit(snapshots: Snapshots) {
    let mut oracle = Oracle::new(snapshots);
    for file in oracle.sample.files() {
        for bit in 0..oracle.sample.storage.bytes(file).unwrap().len() * 8 {
            oracle.sample.storage.bytes_mut(file).unwrap().flip(bit);
            oracle.check(oracle.flipped(file, bit / 8), &format!("{snapshots:?}, {file}, bit {bit}"));
            oracle.sample.storage.bytes_mut(file).unwrap().flip(bit);
        }
    }
}

fn every_truncation(snapshots: Snapshots) {
    let mut oracle = Oracle::new(snapshots);
    for file in oracle.sample.files() {
        let whole = oracle.sample.storage.bytes(file).unwrap().to_vec();
        for len in (0..whole.len()).rev() {
            oracle.sample.storage.bytes_mut(file).unwrap().truncate(len);
            oracle.check(oracle.truncated(file, len), &format!("{snapshots:?}, {file}, truncated to {len}"));
        }
        oracle.sample.storage.put_file(file, whole);
    }
}

#[test]
fn flipped_bit_with_two_snapshots_is_refused_or_cut_above_proven_or_harmless() {
    every_bit(Snapshots::Both);
}

#[test]
fn flipped_bit_with_one_snapshot_is_refused_or_cut_above_proven_or_harmless() {
    every_bit(Snapshots::OnlyA);
}

#[test]
fn flipped_bit_without_snapshot_is_refused_or_cut_above_proven_or_harmless() {
    every_bit(Snapshots::None);
}

#[test]
fn truncation_is_refused_or_loses_only_unproven() {
    for snapshots in [Snapshots::Both, Snapshots::OnlyA, Snapshots::None] {
        every_truncation(snapshots);
    }
}

#[test]
fn missing_file_is_refused_unless_unneeded() {
    for snapshots in [Snapshots::Both, Snapshots::OnlyA, Snapshots::None] {
        let mut oracle = Oracle::new(snapshots);
        for file in oracle.sample.files() {
            let bytes = oracle.sample.storage.take_file(file).unwrap();
            let expect = match file {
                // Segment 5 is prepared, so the loss of segment 4, which was in use, is noticed.
                FileId::Segment(sequence) if (oracle.first_needed()..5).contains(&sequence) => Expect::Refused,
                _ => Expect::Same,
            };
            oracle.check(expect, &format!("{snapshots:?}, {file} missing"));
            oracle.sample.storage.put_file(file, bytes);
        }
    }
}
