//! Power losses anywhere, each keeping whatever it likes of what was not synced: nothing synced is ever lost.

use super::support::{CAPACITY, LOG, Records, Taken, Writer, recovered};
use driftq_core::log::{
    CrashPlan, FileId, FolderChange, IoOp, MemoryStorage, Recovered, RecoveryError, Replay, SectorFate, recover,
};
use driftq_core::types::Lsn;
use proptest::prelude::*;

/// Fates drawn from a number.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides
    }
}

impl CrashPlan for Dice {
    fn keep_change(&mut self, _change: FolderChange) -> bool {
        self.roll(2) == 0
    }

    fn sector(&mut self, _file: FileId, _sector: u64) -> SectorFate {
        match self.roll(4) {
            0 => SectorFate::Lost,
            1 => SectorFate::Garbage(self.roll(256) as u8),
            _ => SectorFate::Kept,
        }
    }

    fn keep_bytes(&mut self, _file: FileId, unsynced: u64) -> u64 {
        if self.roll(3) == 0 { self.roll(unsynced + 1) } else { unsynced }
    }
}

/// What was found is a beginning of what was written, and holds all that was synced.
fn check(found: &Records, written: &Records, synced: Lsn) {
    assert!(written.starts_with(found), "found {found:?}\nwritten {written:?}");
    let lost = written[found.len()..].first().map(|record| record.0);
    assert!(lost.is_none_or(|lsn| lsn > synced), "LSN {lost:?} lost, {synced} was synced");
}

fn recover_any(storage: &mut MemoryStorage) -> Result<(Recovered, Records), RecoveryError> {
    let mut taken = Taken::default();
    Ok((recover(storage, Some(LOG), &mut taken)?, taken.records))
}

/// Starts on what a power loss has left, with up to three more of them while starting.
fn restart(mut storage: MemoryStorage, dice: &mut Dice) -> Writer {
    let (mut found, mut records) = recover_any(&mut storage).unwrap();
    for _ in 0..dice.roll(4) {
        let header = found.next_header();
        let steps: Vec<_> = found.cleanup_ops().into_iter().chain(header.create_ops(1, 8192)).collect();
        let done = dice.roll(steps.len() as u64 + 1) as usize;
        steps[..done].iter().for_each(|step| step.perform(&mut storage).unwrap());
        storage = storage.crash_with(dice);
        let before = (found.last_lsn, found.last_crc);
        let (now, now_records) = recover_any(&mut storage).unwrap();
        assert_eq!((now.last_lsn, now.last_crc), before, "starting again changed where the log ends");
        assert_eq!(now_records, records, "starting again changed what is there");
        (found, records) = (now, now_records);
    }
    let writer = Writer::start(storage).unwrap();
    assert_eq!(writer.records, records);
    writer
}

fn act(writer: &mut Writer, dice: &mut Dice) {
    match dice.roll(16) {
        0..=7 => {
            let sizes = [0, 1, 30, 200, 480, 512, 900];
            let len = sizes[dice.roll(sizes.len() as u64) as usize];
            let fill = if dice.roll(4) == 0 { 0 } else { dice.roll(256) as u8 };
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
    fn nothing_synced_is_lost_whatever_a_power_loss_does_to_the_rest(seed in any::<u64>()) {
        let mut dice = Dice(seed);
        let mut writer = Writer::new();
        for _ in 0..4 {
            for _ in 0..dice.roll(25) {
                act(&mut writer, &mut dice);
            }
            let mut storage = writer.storage.crash_with(&mut dice);
            let (_, found) = recovered(&mut storage).unwrap();
            check(&found, &writer.records, writer.synced);
            writer = restart(storage, &mut dice);
        }
    }
}

#[test]
fn a_power_loss_at_every_byte_of_an_unsynced_tail_loses_only_that_tail() {
    struct KeepPrefix(u64);
    impl CrashPlan for KeepPrefix {
        fn keep_bytes(&mut self, _file: FileId, _unsynced: u64) -> u64 {
            self.0
        }
        fn sector(&mut self, _file: FileId, _sector: u64) -> SectorFate {
            SectorFate::Kept
        }
    }
    let mut writer = Writer::new();
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
        assert_eq!(found.last_lsn, whole.next_back().unwrap().lsn, "{kept} bytes kept");
        check(&records, &writer.records, writer.synced);
    }
}

#[test]
fn a_power_loss_between_any_two_steps_of_a_snapshot_leaves_the_state_whole() {
    let mut writer = Writer::new();
    writer.record(b"one");
    writer.snapshot();
    writer.record(&[3; 700]);
    writer.rotate();
    let steps = writer.snapshot_steps();
    for done in 0..=steps.len() {
        let mut storage = writer.storage.clone();
        steps[..done].iter().for_each(|step| step.perform(&mut storage).unwrap());
        for seed in 0..50 {
            let mut dice = Dice(seed);
            let mut after = storage.crash_with(&mut dice);
            let (found, records) = recovered(&mut after).unwrap();
            assert_eq!(records, writer.records, "{done} steps, seed {seed}");
            assert!(found.notices.is_empty(), "{done} steps, seed {seed}: {:?}", found.notices);
            assert_eq!(restart(after, &mut dice).records, writer.records);
        }
    }
}

#[test]
fn a_power_loss_amid_clearing_away_leaves_the_state_whole() {
    let mut writer = Writer::new();
    for word in [b"one", b"two", b"tri", b"for"] {
        writer.record(word);
        writer.rotate();
        writer.record(word);
        writer.snapshot();
    }
    for ahead in 1..=3 {
        writer.step(&IoOp::Create { file: FileId::Segment(writer.header.sequence + ahead), capacity: CAPACITY });
    }
    let (found, _) = recovered(&mut writer.storage).unwrap();
    assert!(found.garbage.len() >= 8, "{:?}", found.garbage);
    let steps = found.cleanup_ops();
    for done in 0..=steps.len() {
        let mut storage = writer.storage.clone();
        steps[..done].iter().for_each(|step| step.perform(&mut storage).unwrap());
        for seed in 0..100 {
            let mut dice = Dice(seed);
            let restarted = restart(storage.crash_with(&mut dice), &mut dice);
            assert_eq!(restarted.records, writer.records, "{done} steps, seed {seed}");
        }
    }
}

#[test]
fn a_fallback_is_possible_after_every_clearing_away() {
    let mut writer = Writer::new();
    for word in [b"one", b"two", b"tri"] {
        writer.record(word);
        writer.snapshot();
        writer = Writer::start(writer.storage).unwrap();
        let (found, _) = recovered(&mut writer.storage).unwrap();
        let newest = *found.snapshots.last().unwrap();
        let mut storage = writer.storage.clone();
        storage.bytes_mut(FileId::Snapshot(newest)).unwrap().flip(0);
        let mut taken = Taken::default();
        recover(&mut storage, None, &mut taken).unwrap();
        assert_eq!(taken.records, writer.records);
        assert!(taken.resets >= 2, "what the damaged one gave was taken back");
        taken.reset();
    }
}
