//! Power losses at any point, each keeping an arbitrary part of the unsynced data: nothing synced is ever lost.

use super::support::{CAPACITY, Collector, LOG, LogWriter, Records, recovered};
use driftq_core::log::{
    CrashPlan, FileId, FolderChange, IoOp, MemoryStorage, Recovered, RecoveryError, Replay, SectorFate, recover,
};
use driftq_core::types::Lsn;
use proptest::prelude::*;

/// A crash plan drawn from a seed.
#[derive(Clone)]
struct RandomPlan(u64);

impl RandomPlan {
    fn draw(&mut self, limit: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }
}

impl CrashPlan for RandomPlan {
    fn keep_change(&mut self, _change: FolderChange) -> bool {
        self.draw(2) == 0
    }

    fn sector(&mut self, _file: FileId, _sector: u64) -> SectorFate {
        match self.draw(4) {
            0 => SectorFate::Lost,
            1 => SectorFate::Garbage(self.draw(256) as u8),
            _ => SectorFate::Kept,
        }
    }

    fn keep_bytes(&mut self, _file: FileId, unsynced: u64) -> u64 {
        if self.draw(3) == 0 { self.draw(unsynced + 1) } else { unsynced }
    }
}

/// Asserts that the recovered records are a prefix of the written ones and contain every synced one.
fn check(found: &Records, written: &Records, synced: Lsn) {
    assert!(written.starts_with(found), "found {found:?}\nwritten {written:?}");
    let lost = written[found.len()..].first().map(|record| record.0);
    assert!(lost.is_none_or(|lsn| lsn > synced), "LSN {lost:?} lost, {synced} was synced");
}

fn recover_any(storage: &mut MemoryStorage) -> Result<(Recovered, Records), RecoveryError> {
    let mut collector = Collector::default();
    Ok((recover(storage, Some(LOG), &mut collector)?, collector.records))
}

/// Starts after a power loss, with up to three more power losses during the start.
fn restart(mut storage: MemoryStorage, plan: &mut RandomPlan) -> LogWriter {
    let (mut found, mut records) = recover_any(&mut storage).unwrap();
    for _ in 0..plan.draw(4) {
        let header = found.next_header();
        let ops: Vec<_> = found.cleanup_ops().into_iter().chain(header.create_ops(1, 8192)).collect();
        let performed = plan.draw(ops.len() as u64 + 1) as usize;
        ops[..performed].iter().for_each(|op| op.perform(&mut storage).unwrap());
        storage = storage.crash_with(plan);
        let before = (found.last, found.last_crc);
        let (now, now_records) = recover_any(&mut storage).unwrap();
        assert_eq!((now.last, now.last_crc), before, "a repeated start changed the end of the log");
        assert_eq!(now_records, records, "a repeated start changed the records");
        (found, records) = (now, now_records);
    }
    let writer = LogWriter::start(storage).unwrap();
    assert_eq!(writer.records, records);
    writer
}

fn act(writer: &mut LogWriter, plan: &mut RandomPlan) {
    match plan.draw(16) {
        0..=7 => {
            let sizes = [0, 1, 30, 200, 480, 512, 900];
            let len = sizes[plan.draw(sizes.len() as u64) as usize];
            let fill = if plan.draw(4) == 0 { 0 } else { plan.draw(256) as u8 };
            writer.record(&vec![fill; len]);
        }
        8..=11 => writer.sync(),
        12 => writer.mark(),
        13 if writer.storage.bytes(FileId::Segment(writer.header.sequence + 1)).is_none() => writer.prepare(),
        14 => writer.rotate(),
        15 => {
            writer.snapshot();
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn power_loss_at_random_points_loses_nothing_synced(seed in any::<u64>()) {
        let mut plan = RandomPlan(seed);
        let mut writer = LogWriter::new();
        for _ in 0..4 {
            for _ in 0..plan.draw(25) {
                act(&mut writer, &mut plan);
            }
            let mut storage = writer.storage.crash_with(&mut plan);
            let (_, found) = recovered(&mut storage).unwrap();
            check(&found, &writer.records, writer.synced_lsn);
            writer = restart(storage, &mut plan);
        }
    }
}

#[test]
fn power_loss_at_every_byte_of_unsynced_tail_loses_only_that_tail() {
    struct KeepPrefix(u64);
    impl CrashPlan for KeepPrefix {
        fn keep_bytes(&mut self, _file: FileId, _unsynced: u64) -> u64 {
            self.0
        }
        fn sector(&mut self, _file: FileId, _sector: u64) -> SectorFate {
            SectorFate::Kept
        }
    }
    let mut writer = LogWriter::new();
    writer.record(b"synced");
    writer.sync();
    writer.record(b"");
    writer.record(b"tail");
    writer.mark();
    writer.record(&[9; 40]);
    let tail = writer.frames[0].bytes.end..writer.frames[4].bytes.end;
    for kept in 0..=tail.len() {
        let (found, records) = recovered(&mut writer.storage.crash_with(&mut KeepPrefix(kept as u64))).unwrap();
        let mut whole = writer.frames.iter().filter(|frame| frame.bytes.end <= tail.start + kept);
        assert_eq!(found.last.frame, whole.next_back().unwrap().number, "{kept} bytes kept");
        check(&records, &writer.records, writer.synced_lsn);
    }
}

#[test]
fn power_loss_between_snapshot_ops_leaves_state_whole() {
    let mut writer = LogWriter::new();
    writer.record(b"one");
    writer.snapshot();
    writer.record(&[3; 700]);
    writer.rotate();
    let ops = writer.snapshot_ops();
    for performed in 0..=ops.len() {
        let mut storage = writer.storage.clone();
        ops[..performed].iter().for_each(|op| op.perform(&mut storage).unwrap());
        for seed in 0..50 {
            let mut plan = RandomPlan(seed);
            let mut after = storage.crash_with(&mut plan);
            let (found, records) = recovered(&mut after).unwrap();
            assert_eq!(records, writer.records, "{performed} ops, seed {seed}");
            assert!(found.notices.is_empty(), "{performed} ops, seed {seed}: {:?}", found.notices);
            assert_eq!(restart(after, &mut plan).records, writer.records);
        }
    }
}

#[test]
fn power_loss_during_cleanup_leaves_state_whole() {
    let mut writer = LogWriter::new();
    for payload in [b"one", b"two", b"tri", b"for"] {
        writer.record(payload);
        writer.rotate();
        writer.record(payload);
        writer.snapshot();
    }
    for ahead in 1..=3 {
        writer.perform(&IoOp::Create { file: FileId::Segment(writer.header.sequence + ahead), capacity: CAPACITY });
    }
    let (found, _) = recovered(&mut writer.storage).unwrap();
    assert!(found.garbage.len() >= 5, "{:?}", found.garbage);
    let ops = found.cleanup_ops();
    for performed in 0..=ops.len() {
        let mut storage = writer.storage.clone();
        ops[..performed].iter().for_each(|op| op.perform(&mut storage).unwrap());
        for seed in 0..100 {
            let mut plan = RandomPlan(seed);
            let restarted = restart(storage.crash_with(&mut plan), &mut plan);
            assert_eq!(restarted.records, writer.records, "{performed} ops, seed {seed}");
        }
    }
}

#[test]
fn cleanup_always_leaves_fallback_snapshot() {
    let mut writer = LogWriter::new();
    for payload in [b"one", b"two", b"tri"] {
        writer.record(payload);
        writer.snapshot();
        writer = LogWriter::start(writer.storage).unwrap();
        let (found, _) = recovered(&mut writer.storage).unwrap();
        let newest = *found.snapshots.last().unwrap();
        let mut storage = writer.storage.clone();
        storage.bytes_mut(FileId::Snapshot(newest)).unwrap().flip(0);
        let mut collector = Collector::default();
        recover(&mut storage, None, &mut collector).unwrap();
        assert_eq!(collector.records, writer.records);
        assert!(collector.resets >= 2, "records of the damaged snapshot were discarded");
        collector.reset();
    }
}
