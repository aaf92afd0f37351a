//! Damaged bits and every length of a 64 KiB log and of its snapshots: recovery refuses, or cuts a torn tail above
//! everything proven synced, or is unaffected. Any other result is a bug; planted faults show that it would be
//! detected.
//!
//! Of the segments, every bit is flipped of a header's block, of the heads of the first and the last frames of a
//! segment and of every fourth head between them; of every other byte one bit, since one checksum covers a frame, and
//! the padding of a header is never read. The ignored test
//! `segment_with_any_bit_flipped_is_refused_or_torn_above_proven_or_harmless` flips every bit; `.ci/run` runs it.
//!
//! Half a million recoveries are fast because each is checked by its records: recovery must return exactly the written
//! records, in order. The state itself is rebuilt and compared once for every distinct end of the log.

mod checker;
mod reference_log;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use driftq_core::faults::Fault;
use driftq_core::log::frame::FRAME_HEAD_BYTES;
use driftq_core::log::{FileId, HEADER_BYTES};

use self::checker::{Counts, DamageChecker};
use self::reference_log::{ReferenceLog, log, with_snapshots};

/// The part of a header that is covered by its checksum; the rest is zeros.
const BLOCK_BYTES: usize = 128;

/// Flips every bit of `files`, one at a time, and counts the verdicts.
fn every_bit(checker: &mut DamageChecker<'_>, files: &[FileId]) -> Result<Counts, String> {
    bits(checker, files, |_, _| true)
}

/// Flips the bits of `files` that are `selected`, one at a time, and counts the verdicts.
fn bits(
    checker: &mut DamageChecker<'_>,
    files: &[FileId],
    selected: impl Fn(FileId, usize) -> bool,
) -> Result<Counts, String> {
    let mut counts = Counts::default();
    for file in files.iter().copied() {
        for bit in (0..checker.len(file) * 8).filter(|bit| selected(file, *bit)) {
            let verdict = checker.flipped(file, bit).map_err(|wrong| format!("{file}, bit {bit}: {wrong}"))?;
            counts.count(verdict);
        }
    }
    Ok(counts)
}

/// Truncates `files` to every length and counts the verdicts.
fn every_truncation(checker: &mut DamageChecker<'_>, files: &[FileId]) -> Result<Counts, String> {
    let mut counts = Counts::default();
    for file in files.iter().copied() {
        for len in 0..checker.len(file) {
            let verdict =
                checker.truncated(file, len).map_err(|wrong| format!("{file}, truncated to {len}: {wrong}"))?;
            counts.count(verdict);
        }
    }
    Ok(counts)
}

/// Flips the `selected` bits of every segment. Returns the number of each verdict.
fn segment_bits(reference: &ReferenceLog, selected: impl Fn(FileId, usize) -> bool) -> Counts {
    let files = reference.segments();
    let mut checker = DamageChecker::new(reference, None);
    let counts = bits(&mut checker, &files, &selected).expect("no unexpected result");
    println!("64 KiB, flipped bits: {counts}");
    let number_of = |file: FileId, bytes: Range<usize>| {
        (bytes.start * 8..bytes.end * 8).filter(|bit| selected(file, *bit)).count() as u64
    };
    assert_eq!(counts.all(), files.iter().map(|file| number_of(*file, 0..reference.len(*file))).sum::<u64>());
    assert_eq!(counts.ended, 0, "a flipped bit never looks like the end of the log");
    // Only the zero padding of the headers is unaffected.
    assert_eq!(counts.identical, files.iter().map(|file| number_of(*file, BLOCK_BYTES..HEADER_BYTES)).sum::<u64>());
    // Torn are only the frames that no other frame proves synced: the last message and the mark before it.
    let unproven: u64 = reference.unproven().iter().map(|frame| number_of(frame.file, frame.bytes.clone())).sum();
    assert_eq!(counts.torn, unproven);
    assert!(counts.torn > 0);
    counts
}

#[test]
fn segment_flipped_bit_is_refused_or_torn_above_proven_or_harmless() {
    let reference = log();
    let mut heads: BTreeMap<FileId, BTreeSet<usize>> = BTreeMap::new();
    for file in reference.segments() {
        let frames: Vec<_> = reference.frames.iter().filter(|frame| frame.file == file).collect();
        let swept = |nth: usize| nth < 3 || nth + 3 >= frames.len() || nth.is_multiple_of(4);
        let swept = frames.iter().enumerate().filter(|(nth, _)| swept(*nth));
        heads.insert(file, swept.flat_map(|(_, frame)| frame.bytes.clone().take(FRAME_HEAD_BYTES)).collect());
    }
    let is_head = |file, byte| byte < BLOCK_BYTES || heads.get(&file).is_some_and(|heads| heads.contains(&byte));
    let counts = segment_bits(&reference, |file, bit| is_head(file, bit / 8) || bit % 8 == bit / 8 % 8);
    assert!(counts.all() > 65_536 && counts.refused > 60_000, "{counts}");
}

#[test]
#[ignore = "half a million recoveries take 15 s; .ci/run runs it"]
fn segment_with_any_bit_flipped_is_refused_or_torn_above_proven_or_harmless() {
    let counts = segment_bits(&log(), |_, _| true);
    assert_eq!(counts.all(), 8 * 65_536);
    assert!(counts.refused > 300_000, "{counts}");
}

#[test]
fn segment_truncated_anywhere_is_refused_or_torn_or_ends_log_early() {
    let reference = log();
    let files = reference.segments();
    let mut checker = DamageChecker::new(&reference, None);
    let counts = every_truncation(&mut checker, &files).expect("no unexpected result");
    println!("64 KiB, every length: {counts}");
    assert_eq!(counts.all(), 65_536);
    // Every truncation except of the last segment is refused, and there within its header. Behind that it removes the
    // proof as well, as docs/wal.md states for segments of unknown size: if it leaves a partial frame, the tail is
    // torn; otherwise the log ends there without a notice.
    let last = *files.last().expect("has segments");
    let inner: u64 = files[..files.len() - 1].iter().map(|file| reference.len(*file) as u64).sum();
    let header = HEADER_BYTES as u64 - 1;
    assert_eq!(counts.refused, inner + header);
    assert_eq!(counts.torn + counts.ended, reference.len(last) as u64 - header);
    assert!(counts.ended as usize >= reference.frames_in(last), "{counts}");
}

#[test]
fn snapshot_damaged_with_older_one_left_is_skipped_or_harmless() {
    let reference = with_snapshots();
    let snapshots = reference.snapshot_files();
    assert_eq!(snapshots.len(), 2);
    let bytes: u64 = snapshots.iter().map(|file| reference.len(*file) as u64).sum();
    let mut checker = DamageChecker::new(&reference, None);
    let bits = every_bit(&mut checker, &snapshots).expect("no unexpected result");
    let cuts = every_truncation(&mut checker, &snapshots).expect("no unexpected result");
    println!("two snapshots of {bytes} bytes, every bit: {bits}; every length: {cuts}");
    assert_eq!((bits.all(), cuts.all()), (8 * bytes, bytes));
    assert_eq!(
        (bits.identical, cuts.identical),
        (bits.all(), cuts.all()),
        "the older snapshot and the log give the same state"
    );
    assert!(checker.skipped_snapshots > 10_000, "{} damaged snapshots were skipped", checker.skipped_snapshots);
}

#[test]
fn snapshot_damaged_with_no_older_one_is_refused_or_harmless() {
    let mut reference = with_snapshots();
    let newest = reference.only_newest_snapshot();
    let bytes = reference.len(newest) as u64;
    let mut checker = DamageChecker::new(&reference, None);
    let bits = every_bit(&mut checker, &[newest]).expect("no unexpected result");
    let cuts = every_truncation(&mut checker, &[newest]).expect("no unexpected result");
    println!("the only snapshot, {bytes} bytes, every bit: {bits}; every length: {cuts}");
    assert_eq!((bits.torn, bits.ended, cuts.torn, cuts.ended), (0, 0, 0, 0));
    assert_eq!(bits.identical, 8 * (HEADER_BYTES as u64 - 128), "everything but the header padding is needed");
    assert_eq!((cuts.refused, bits.all()), (bytes, 8 * bytes));
}

#[test]
fn fault_rot_taken_for_torn_tail_is_detected() {
    let reference = log();
    let last = *reference.segments().last().expect("has segments");
    let mut checker = DamageChecker::new(&reference, Some(Fault::RotTakenForTornTail));
    // The fault concerns frames, which begin behind the header.
    let mut frame_bits = HEADER_BYTES * 8..reference.len(last) * 8;
    let detected = frame_bits.find_map(|bit| checker.flipped(last, bit).err()).expect("the fault loses proven records");
    assert!(detected.contains("is proven synced"), "{detected}");
}

#[test]
fn fault_torn_tail_taken_for_rot_is_detected() {
    let reference = log();
    let unproven = reference.unproven();
    let frame = unproven.last().expect("the last message");
    let mut checker = DamageChecker::new(&reference, Some(Fault::TornTailTakenForRot));
    let found =
        checker.flipped(frame.file, frame.bytes.start * 8 + 70).expect_err("a torn tail is no reason to refuse");
    assert!(found.contains("refused for another reason"), "{found}");
}

/// Recovery that accepts wrong checksums is simulated by damage with recomputed checksums.
#[test]
fn recovery_accepting_wrong_checksums_is_detected() {
    let reference = log();
    let last = *reference.segments().last().expect("has segments");
    let mut detected = 0;
    // In earlier segments it would be refused in any case: the next header contains the last checksum.
    let payloads: Vec<_> = reference.payloads().filter(|(file, _)| *file == last).collect();
    for (file, byte) in &payloads {
        let mut checker = DamageChecker::new(&reference, None);
        checker.flip_with_valid_checksums(*file, *byte);
        detected += usize::from(checker.check(&reference.proven_by_all()).is_err());
    }
    assert!(payloads.len() > 20);
    assert_eq!(detected, payloads.len(), "every changed record is detected");
}
