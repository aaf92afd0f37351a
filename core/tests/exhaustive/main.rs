//! Every bit and every length of a log of 64 KiB, and of its snapshots: refused, or torn above everything proven synced, or without
//! effect. There is no other outcome; where there is one, it is a bug, and planted bugs show that it would be found.
//!
//! Half a million recoveries are quick because a recovery is judged by its records: it must hand on, one after the other, the very
//! records that were written. Every state that is not the whole one is built once besides, and its digest compared.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod judge;
#[path = "../it/rig.rs"]
#[allow(dead_code, reason = "only a little of it is needed here")]
mod rig;
mod truth;

use driftq_core::faults::Fault;
use driftq_core::log::{FileId, HEADER_BYTES};

use self::judge::{Counts, Judge, Outcome};
use self::truth::{log, with_snapshots};

/// Flips every bit of `files`, and counts what comes of it.
fn every_bit(judge: &mut Judge<'_>, files: &[FileId]) -> Result<Counts, String> {
    let mut counts = Counts::default();
    for file in files.iter().copied() {
        for bit in 0..judge.len(file) * 8 {
            let outcome = judge.flipped(file, bit).map_err(|wrong| format!("{file}, bit {bit}: {wrong}"))?;
            counts.count(outcome);
        }
    }
    Ok(counts)
}

/// Cuts `files` to every length, and counts what comes of it.
fn every_cut(judge: &mut Judge<'_>, files: &[FileId]) -> Result<Counts, String> {
    let mut counts = Counts::default();
    for file in files.iter().copied() {
        for len in 0..judge.len(file) {
            let outcome = judge.cut(file, len).map_err(|wrong| format!("{file}, cut to {len}: {wrong}"))?;
            counts.count(outcome);
        }
    }
    Ok(counts)
}

#[test]
fn every_bit_of_64_kib_is_refused_or_torn_above_what_is_proven_or_without_effect() {
    let truth = log();
    let files = truth.segments();
    let mut judge = Judge::new(&truth, None);
    let counts = every_bit(&mut judge, &files).expect("no third outcome");
    println!("64 KiB, every bit: {counts}");
    assert_eq!(counts.all(), 8 * 65_536);
    assert_eq!(counts.ended, 0, "a flipped bit never looks like an end");
    // Without effect is only what nobody looks at: the zeros that fill up the headers.
    assert_eq!(counts.identical, files.len() as u64 * 8 * (HEADER_BYTES as u64 - 128));
    // Torn is only what was written last and nothing tells of: the last message, and the mark before it.
    let unproven: u64 = truth.unproven().iter().map(|frame| 8 * frame.bytes.len() as u64).sum();
    assert_eq!(counts.torn, unproven);
    assert!(counts.torn > 0 && counts.refused > 300_000, "{counts}");
}

#[test]
fn every_length_of_64_kib_is_refused_or_torn_above_what_is_proven_or_loses_its_proof_with_it() {
    let truth = log();
    let files = truth.segments();
    let mut judge = Judge::new(&truth, None);
    let counts = every_cut(&mut judge, &files).expect("no third outcome");
    println!("64 KiB, every length: {counts}");
    assert_eq!(counts.all(), 65_536);
    // Every cut but of the last segment is refused. There, a cut takes the proof along, which is the limit that docs/wal.md states:
    // where it leaves part of a frame it is said to be torn, where it leaves none it cannot be told from a log that ends there.
    let last = *files.last().expect("has segments");
    let inner: u64 = files[..files.len() - 1].iter().map(|file| truth.len(*file) as u64).sum();
    assert_eq!(counts.refused, inner);
    assert_eq!(counts.torn + counts.ended, truth.len(last) as u64);
    assert!(counts.ended as usize >= truth.frames_in(last), "{counts}");
}

#[test]
fn every_bit_and_every_length_of_a_snapshot_is_passed_over_or_without_effect() {
    let truth = with_snapshots();
    let snapshots = truth.snapshot_files();
    assert_eq!(snapshots.len(), 2);
    let bytes: u64 = snapshots.iter().map(|file| truth.len(*file) as u64).sum();
    let mut judge = Judge::new(&truth, None);
    let bits = every_bit(&mut judge, &snapshots).expect("no other state");
    let cuts = every_cut(&mut judge, &snapshots).expect("no other state");
    println!("two snapshots of {bytes} bytes, every bit: {bits}; every length: {cuts}");
    assert_eq!((bits.all(), cuts.all()), (8 * bytes, bytes));
    assert_eq!((bits.identical, cuts.identical), (bits.all(), cuts.all()), "the older one and the log do as well");
    assert!(judge.passed_over > 10_000, "{} damaged snapshots were passed over", judge.passed_over);
}

#[test]
fn where_nothing_older_is_left_every_bit_and_every_length_of_a_snapshot_is_refused_or_without_effect() {
    let mut truth = with_snapshots();
    let newest = truth.only_newest_snapshot();
    let bytes = truth.len(newest) as u64;
    let mut judge = Judge::new(&truth, None);
    let bits = every_bit(&mut judge, &[newest]).expect("no other state");
    let cuts = every_cut(&mut judge, &[newest]).expect("no other state");
    println!("the only snapshot, {bytes} bytes, every bit: {bits}; every length: {cuts}");
    assert_eq!((bits.torn, bits.ended, cuts.torn, cuts.ended), (0, 0, 0, 0));
    assert_eq!(bits.identical, 8 * (HEADER_BYTES as u64 - 128), "but for the zeros behind its header it is all needed");
    assert_eq!((cuts.refused, bits.all()), (bytes, 8 * bytes));
}

#[test]
fn a_recovery_that_takes_rot_for_a_torn_tail_is_caught() {
    let truth = log();
    let last = *truth.segments().last().expect("has segments");
    let mut judge = Judge::new(&truth, Some(Fault::RotTakenForTornTail));
    let caught = every_bit(&mut judge, &[last]).expect_err("it loses what is proven");
    assert!(caught.contains("is proven synced"), "{caught}");
}

#[test]
fn a_recovery_that_refuses_torn_tails_is_caught() {
    let truth = log();
    let unproven = truth.unproven();
    let frame = unproven.last().expect("the last message");
    let mut judge = Judge::new(&truth, Some(Fault::TornTailTakenForRot));
    let outcome = judge.flipped(frame.file, frame.bytes.start * 8 + 70);
    assert_eq!(
        outcome,
        Ok(Outcome::Refused),
        "so the count of what is torn would be 0, and the sum above would not hold"
    );
}

/// To a judge, a recovery that believes bytes with wrong checksums is the same as bytes whose checksums were put right.
#[test]
fn a_recovery_that_accepts_wrong_checksums_is_caught() {
    let truth = log();
    let last = *truth.segments().last().expect("has segments");
    let mut caught = 0;
    // Before another segment it would be refused all the same: the next header names the last checksum.
    let payloads: Vec<_> = truth.payloads().filter(|(file, _)| *file == last).collect();
    for (file, byte) in &payloads {
        let mut judge = Judge::new(&truth, None);
        judge.flip_unseen(*file, *byte);
        caught += usize::from(judge.judge(&truth.proven_by_all()).is_err());
    }
    assert!(payloads.len() > 20);
    assert_eq!(caught, payloads.len(), "another record, and it is noticed");
}
