//! Every flipped bit and every cut of a small log, against an oracle that shares no code with recovery.

use super::support::{Placed, World, recovered};
use driftq_core::log::{FileId, HEADER_BYTES, Notice, RecoveryError};
use driftq_core::types::Lsn;

/// Bytes of a header that its checksum covers, and the checksum.
const BLOCK_BYTES: usize = 128;

/// Which snapshots are there, and so which segments are needed.
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
    /// Everything through this LSN, and a notice of a torn tail.
    Torn(Lsn),
    /// Everything through this LSN; nothing shows that there was more.
    Shorter(Lsn),
}

struct Oracle {
    world: World,
    snapshots: Snapshots,
    last_crc: u32,
}

impl Oracle {
    fn new(snapshots: Snapshots) -> Self {
        let mut world = World::new();
        if snapshots != Snapshots::Both {
            world.storage.uproot(FileId::Snapshot(world.b)).unwrap();
        }
        if snapshots == Snapshots::None {
            world.storage.uproot(FileId::Snapshot(world.a)).unwrap();
        }
        let (whole, records) = recovered(&mut world.storage).unwrap();
        assert_eq!((whole.last_lsn, records), (world.last, world.records.clone()));
        assert!(!whole.notices.iter().any(|notice| !matches!(notice, Notice::NeverBegun { .. })));
        Self { world, snapshots, last_crc: whole.last_crc }
    }

    fn newest(&self) -> Option<Lsn> {
        match self.snapshots {
            Snapshots::Both => Some(self.world.b),
            Snapshots::OnlyA => Some(self.world.a),
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

    fn frames(&self, file: FileId) -> impl Iterator<Item = &Placed> {
        self.world.live.iter().filter(move |frame| frame.file == file)
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
                    if hit.lsn <= proven { Expect::Refused } else { Expect::Torn(Lsn(hit.lsn.0 - 1)) }
                }
                None => Expect::Torn(self.world.last),
            },
            FileId::Segment(_) => hit.map_or(Expect::Same, |_| Expect::Refused),
            FileId::Snapshot(lsn) if Some(lsn) == self.newest() => {
                if (BLOCK_BYTES..HEADER_BYTES).contains(&byte) {
                    Expect::Same
                } else {
                    Expect::SameByOlderSnapshot
                }
            }
            FileId::Snapshot(_) | FileId::SnapshotDraft(_) => Expect::Same,
        }
    }

    fn cut(&self, file: FileId, len: usize) -> Expect {
        let end = self.frames(file).map(|frame| frame.bytes.end).max().unwrap_or(0);
        match file {
            FileId::Segment(5) => Expect::Same,
            FileId::Segment(sequence) if sequence < self.first_needed() => Expect::Same,
            FileId::Segment(_) if len >= end => Expect::Same,
            FileId::Segment(4) => {
                let whole = self.frames(file).filter(|frame| frame.bytes.end <= len).last();
                let first = self.frames(file).next().unwrap();
                let (last, boundary) = whole.map_or((Lsn(first.lsn.0 - 1), HEADER_BYTES), |f| (f.lsn, f.bytes.end));
                // The first bytes of a frame without payload are zeros: cut behind those, it looks never written.
                let left = self.world.storage.bytes(file).unwrap();
                let nothing = left.get(boundary..len).unwrap_or_default().iter().all(|byte| *byte == 0);
                if nothing { Expect::Shorter(last) } else { Expect::Torn(last) }
            }
            FileId::Segment(_) => Expect::Refused,
            FileId::Snapshot(lsn) if Some(lsn) == self.newest() => Expect::SameByOlderSnapshot,
            FileId::Snapshot(_) | FileId::SnapshotDraft(_) => Expect::Same,
        }
    }

    fn check(&mut self, expect: Expect, what: &str) {
        let outcome = recovered(&mut self.world.storage);
        let (found, records) = match (outcome, expect) {
            (Err(RecoveryError::Storage { .. } | RecoveryError::Malformed { .. }), _) => panic!("{what}: wrong reason"),
            (Err(_), Expect::Refused) => return,
            (Err(error), _) => panic!("{what}: {error}"),
            (Ok((found, _)), Expect::Refused) => panic!("{what}: taken, {found:?}"),
            (Ok(outcome), _) => outcome,
        };
        let torn = found.notices.iter().find_map(|notice| match notice {
            Notice::TornTail { lsn, .. } => Some(*lsn),
            _ => None,
        });
        let damaged = found.notices.iter().any(|notice| matches!(notice, Notice::DamagedSnapshot { .. }));
        let last = match expect {
            Expect::Torn(last) | Expect::Shorter(last) => last,
            _ => self.world.last,
        };
        assert_eq!(records, self.world.records_through(last), "{what}");
        assert_eq!(found.last_lsn, last, "{what}");
        assert_eq!(found.last_crc == self.last_crc, last == self.world.last, "{what}");
        assert_eq!(torn, matches!(expect, Expect::Torn(_)).then(|| last.next()), "{what}");
        assert_eq!(damaged, expect == Expect::SameByOlderSnapshot, "{what}");
    }
}

fn every_bit(snapshots: Snapshots) {
    let mut oracle = Oracle::new(snapshots);
    for file in oracle.world.files() {
        for bit in 0..oracle.world.storage.bytes(file).unwrap().len() * 8 {
            oracle.world.storage.bytes_mut(file).unwrap().flip(bit);
            oracle.check(oracle.flipped(file, bit / 8), &format!("{snapshots:?}, {file}, bit {bit}"));
            oracle.world.storage.bytes_mut(file).unwrap().flip(bit);
        }
    }
}

fn every_cut(snapshots: Snapshots) {
    let mut oracle = Oracle::new(snapshots);
    for file in oracle.world.files() {
        let whole = oracle.world.storage.bytes(file).unwrap().to_vec();
        for len in (0..whole.len()).rev() {
            oracle.world.storage.bytes_mut(file).unwrap().truncate(len);
            oracle.check(oracle.cut(file, len), &format!("{snapshots:?}, {file}, cut at {len}"));
        }
        oracle.world.storage.plant(file, whole);
    }
}

#[test]
fn every_flipped_bit_is_refused_or_cut_above_what_is_proven_or_without_effect() {
    every_bit(Snapshots::Both);
}

#[test]
fn every_flipped_bit_is_judged_the_same_with_one_snapshot() {
    every_bit(Snapshots::OnlyA);
}

#[test]
fn every_flipped_bit_is_judged_the_same_without_a_snapshot() {
    every_bit(Snapshots::None);
}

#[test]
fn every_cut_is_refused_or_loses_only_what_nothing_proves() {
    for snapshots in [Snapshots::Both, Snapshots::OnlyA, Snapshots::None] {
        every_cut(snapshots);
    }
}

#[test]
fn every_file_taken_away_is_missed_unless_nothing_needs_it() {
    for snapshots in [Snapshots::Both, Snapshots::OnlyA, Snapshots::None] {
        let mut oracle = Oracle::new(snapshots);
        for file in oracle.world.files() {
            let bytes = oracle.world.storage.uproot(file).unwrap();
            let expect = match file {
                // Segment 5 is prepared, so the loss of 4, which was in use, shows.
                FileId::Segment(sequence) if (oracle.first_needed()..5).contains(&sequence) => Expect::Refused,
                _ => Expect::Same,
            };
            oracle.check(expect, &format!("{snapshots:?}, {file} taken away"));
            oracle.world.storage.plant(file, bytes);
        }
    }
}
