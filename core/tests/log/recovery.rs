//! What recovery makes of each situation it can meet, by name.

use super::support::{CAPACITY, GarbleSectors, LOG, World, Writer, recovered};
use driftq_core::log::{
    CrcSeed, FileId, FrameChain, HEADER_BYTES, Head, HeaderError, IoOp, LogId, Malformed, MemoryStorage, Notice, Proof,
    Recovered, RecoveryError, Replay, SegmentHeader, StopReason, Storage, StorageFault, WriteAt, frame, recover,
};
use driftq_core::types::Lsn;

fn notices(recovered: &Recovered) -> Vec<&'static str> {
    let name = |notice: &Notice| match notice {
        Notice::TornTail { .. } => "torn",
        Notice::DamagedSnapshot { .. } => "snapshot",
        Notice::UnneededDamage { .. } => "unneeded",
        Notice::NeverBegun { .. } => "never begun",
    };
    recovered.notices.iter().map(name).collect()
}

#[test]
fn an_empty_folder_is_a_new_log_and_needs_an_identity() {
    let mut storage = MemoryStorage::new();
    assert_eq!(recover(&mut storage, None, &mut ()), Err(RecoveryError::NoLog));
    let new = recover(&mut storage, Some(LOG), &mut ()).unwrap();
    assert_eq!((new.log_id, new.last_lsn, new.last_crc, new.next_segment), (LOG, Lsn(0), 0, 1));
    assert_eq!((new.snapshot, new.clean, new.garbage.len(), new.segments.len()), (None, false, 0, 0));
    assert!(storage.list().unwrap().is_empty(), "recovery writes nothing");
}

#[test]
fn an_existing_log_keeps_its_identity() {
    let mut writer = Writer::new();
    let again = recover(&mut writer.storage, Some(LogId([1; 16])), &mut ()).unwrap();
    assert_eq!(again.log_id, LOG);
}

#[test]
fn a_first_segment_that_was_never_begun_is_still_a_new_log() {
    for written in [0, 1, 100, HEADER_BYTES] {
        let mut storage = MemoryStorage::new();
        let mut bytes = Writer::new().header.encode();
        bytes.truncate(written);
        bytes.iter_mut().take(20).for_each(|byte| *byte = 0);
        bytes.resize(HEADER_BYTES + 1000, 0);
        storage.plant(FileId::Segment(1), bytes);
        assert_eq!(recover(&mut storage, None, &mut ()), Err(RecoveryError::NoLog));
        let new = recover(&mut storage, Some(LogId([2; 16])), &mut ()).unwrap();
        assert_eq!((new.log_id, new.next_segment), (LogId([2; 16]), 1));
        assert_eq!(new.garbage, [FileId::Segment(1)]);
        let writer = Writer::start(storage).unwrap();
        assert_eq!(writer.header.sequence, 1);
    }
}

#[test]
fn a_footer_as_last_frame_is_a_clean_close_and_any_other_is_not() {
    let mut writer = Writer::new();
    writer.record(b"one");
    writer.sync();
    assert!(!recovered(&mut writer.storage).unwrap().0.clean);
    writer.footer();
    writer.sync();
    let (found, _) = recovered(&mut writer.storage).unwrap();
    assert!(found.clean);
    assert!(!found.has_torn_tail() && found.cleanup_ops().is_empty(), "nothing is to be cleared away");
    let bytes: usize = writer.frames.iter().map(|frame| frame.bytes.len()).sum();
    assert_eq!((found.last_lsn, found.frames_read, found.bytes_read), (Lsn(2), 2, bytes as u64));
    writer.storage.bytes_mut(FileId::Segment(1)).unwrap().overwrite(HEADER_BYTES + 200, &[1]);
    assert!(!recovered(&mut writer.storage).unwrap().0.clean, "something was written after it");
}

#[test]
fn recovering_twice_finds_the_same_and_changes_nothing() {
    let mut world = World::new();
    let before: Vec<_> = world.files().into_iter().map(|f| world.storage.bytes(f).map(<[u8]>::to_vec)).collect();
    let first = recovered(&mut world.storage).unwrap();
    let second = recovered(&mut world.storage).unwrap();
    assert_eq!(first, second);
    let after: Vec<_> = world.files().into_iter().map(|f| world.storage.bytes(f).map(<[u8]>::to_vec)).collect();
    assert!(before == after, "files were changed");
}

#[test]
fn the_report_names_what_stays_and_what_may_go() {
    let mut world = World::new();
    world.storage.plant(FileId::SnapshotDraft(Lsn(9)), b"half".to_vec());
    let (found, _) = recovered(&mut world.storage).unwrap();
    assert_eq!(found.snapshots, [world.a, world.b]);
    assert_eq!(found.snapshot, Some(world.b));
    let rows: Vec<_> = found.segments.iter().map(|s| (s.sequence, s.first_lsn, s.last_lsn)).collect();
    let cut = world.live.iter().rfind(|frame| frame.file == FileId::Segment(2)).unwrap().lsn;
    let expected = [(2, world.a.next(), cut), (3, cut.next(), world.b), (4, world.b.next(), world.last)];
    assert_eq!(rows, expected);
    let garbage = [FileId::Segment(1), FileId::Segment(5), FileId::SnapshotDraft(Lsn(9))];
    assert_eq!(found.garbage, garbage);
    assert_eq!(found.next_segment, 5);
    let steps = found.cleanup_ops();
    assert_eq!(steps[..2], [IoOp::Remove { file: FileId::Segment(5) }, IoOp::SyncFolder]);
    assert_eq!(steps.last(), Some(&IoOp::SyncFolder));
    steps.iter().for_each(|step| step.perform(&mut world.storage).unwrap());
    let left = recovered(&mut world.storage).unwrap().0;
    assert_eq!((left.garbage, left.segments, left.snapshots), (vec![], found.segments, found.snapshots));
    assert_eq!(left.last_lsn, found.last_lsn);
}

/// Two records in one segment, the first damaged; `later` is written behind them.
fn damaged_first(later: impl FnOnce(&mut Writer)) -> MemoryStorage {
    let mut writer = Writer::new();
    writer.record(b"damaged");
    writer.record(b"second");
    later(&mut writer);
    writer.storage.bytes_mut(FileId::Segment(1)).unwrap().flip(8 * (HEADER_BYTES + 33));
    writer.storage
}

#[test]
fn frames_behind_a_bad_one_are_torn_too_unless_one_knows_it_synced() {
    let (found, records) = recovered(&mut damaged_first(|_| {})).unwrap();
    assert_eq!((found.last_lsn, records.len(), notices(&found)), (Lsn(0), 0, vec!["torn"]));

    let (found, _) = recovered(&mut damaged_first(Writer::sync)).unwrap();
    assert_eq!(found.last_lsn, Lsn(0), "synced, but nothing says so yet");

    let proofs: [fn(&mut Writer); 3] = [Writer::mark, Writer::footer, |writer| {
        writer.record(b"third");
    }];
    for proof in proofs {
        let error = recovered(&mut damaged_first(|writer| {
            writer.sync();
            proof(writer);
        }))
        .unwrap_err();
        let RecoveryError::Corrupt { position, lsn, proof: Proof::Frame { lsn: by, synced, .. }, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!((position, lsn, by, synced), (HEADER_BYTES as u64, Lsn(1), Lsn(3), Lsn(2)));
    }
}

#[test]
fn a_frame_that_would_prove_a_bad_one_synced_proves_nothing_where_it_is_cut() {
    let mut storage = damaged_first(|writer| {
        writer.sync();
        writer.record(&[3; 100]);
    });
    assert!(recovered(&mut storage.clone()).is_err(), "whole, it does");
    let mut bytes = storage.uproot(FileId::Segment(1)).unwrap();
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).unwrap());
    storage.plant(FileId::Segment(1), bytes);
    let (found, records) = recovered(&mut storage).unwrap();
    assert_eq!((found.last_lsn, records.len(), notices(&found)), (Lsn(0), 0, vec!["torn"]));
}

#[test]
fn a_torn_tail_is_told_with_its_place_and_length() {
    let mut writer = Writer::new();
    writer.record(b"damaged");
    writer.record(b"ends in two zeros\0\0");
    writer.storage.bytes_mut(FileId::Segment(1)).unwrap().flip(8 * (HEADER_BYTES + 33));
    let (found, _) = recovered(&mut writer.storage).unwrap();
    assert!(found.has_torn_tail());
    let Notice::TornTail { file, position, bytes, lsn, .. } = found.notices[0] else { panic!("{:?}", found.notices) };
    assert_eq!((file, position, lsn), (FileId::Segment(1), HEADER_BYTES as u64, Lsn(1)));
    let end = writer.frames[1].bytes.end - 2;
    assert_eq!(bytes, (end - HEADER_BYTES) as u64, "what was never written reads as zeros");
}

#[test]
fn a_header_is_read_back_unless_its_numbers_contradict_each_other() {
    let header = SegmentHeader {
        log_id: LOG,
        sequence: 7,
        previous_lsn: Lsn(0x1122_3344_5566),
        previous_crc: 9,
        synced: Lsn(0x0102_0304_0506),
    };
    let bytes = header.encode();
    assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
    let forged = |number: u64, other: u64| {
        let mut bytes = bytes.clone();
        let at = bytes.windows(8).position(|window| window == number.to_le_bytes()).expect("the number stands there");
        bytes[at..at + 8].copy_from_slice(&other.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..124]);
        bytes[124..128].copy_from_slice(&crc.to_le_bytes());
        SegmentHeader::decode(&bytes)
    };
    let (first, previous, synced) = (header.first_lsn().0, header.previous_lsn.0, header.synced.0);
    assert_eq!(forged(synced, previous), Ok(SegmentHeader { synced: header.previous_lsn, ..header }));
    for (number, other) in [(synced, previous + 1), (first, first + 1), (previous, previous - 1), (first, u64::MAX)] {
        assert_eq!(forged(number, other), Err(HeaderError::Contradiction), "{number:x} is {other:x}");
    }
}

#[test]
fn what_knows_less_than_the_bad_frame_proves_nothing() {
    let mut writer = Writer::new();
    writer.record(b"one");
    writer.sync();
    writer.record(b"two, damaged");
    writer.record(b"three knows of one");
    let two = writer.frames[1].bytes.start;
    writer.storage.bytes_mut(FileId::Segment(1)).unwrap().flip(8 * (two + 35));
    let (found, _) = recovered(&mut writer.storage).unwrap();
    assert_eq!((found.last_lsn, notices(&found)), (Lsn(1), vec!["torn"]));
}

#[test]
fn a_frame_forged_inside_a_payload_proves_nothing() {
    let claims_much = |seed| {
        let mut out = Vec::new();
        let mut chain = FrameChain::new(seed, Lsn(2), 0);
        chain.record(&mut out, Lsn(2), 1, 1, |buffer| buffer.extend_from_slice(b"forged")).unwrap();
        out
    };
    // Whoever does not know the log's identity can only guess it.
    let mut forged = claims_much(CrcSeed::new(LogId([0; 16]), FileId::Segment(1)));
    forged.extend(claims_much(CrcSeed::new(LOG, FileId::Segment(2))));
    forged.extend(claims_much(CrcSeed::new(LOG, FileId::Snapshot(Lsn(1)))));
    let mut unseeded = claims_much(CrcSeed::new(LOG, FileId::Segment(9)));
    let crc = crc32fast::hash(&[&unseeded[..4], &unseeded[8..]].concat());
    unseeded[4..8].copy_from_slice(&crc.to_le_bytes());
    forged.extend(unseeded);

    let storage = |payload: &[u8]| {
        let mut writer = Writer::new();
        writer.record(b"damaged");
        writer.record(payload);
        writer.storage.bytes_mut(FileId::Segment(1)).unwrap().flip(8 * (HEADER_BYTES + 33));
        writer.storage
    };
    let (found, _) = recovered(&mut storage(&forged)).unwrap();
    assert_eq!((found.last_lsn, notices(&found)), (Lsn(0), vec!["torn"]));
    // The test can fail: with the true seed it is taken for proof.
    let true_one = claims_much(CrcSeed::new(LOG, FileId::Segment(1)));
    assert!(matches!(recovered(&mut storage(&true_one)), Err(RecoveryError::Corrupt { .. })));
}

#[test]
fn what_was_cut_stays_dead_even_where_it_verifies() {
    let mut writer = Writer::new();
    writer.record(b"kept");
    writer.sync();
    let torn = writer.record(&[7; 470]);
    writer.record(b"dead but valid, same number as a later one");
    let garbled = GarbleSectors(8..9);
    let mut writer = Writer::start(writer.storage.crash_with(&mut { garbled })).unwrap();
    assert_eq!(writer.header.first_lsn(), torn);
    writer.record(b"new life");
    writer.sync();
    let records = writer.records.clone();
    assert_eq!(records.len(), 2);
    let mut storage = writer.storage.crash();
    // Even should the torn frame come back whole, as from a disk that had kept it elsewhere, it is beyond the end.
    assert_eq!(recovered(&mut storage).unwrap().1, records);
    let garbled_at = HEADER_BYTES + 34..HEADER_BYTES + 512;
    let healed: Vec<u8> =
        storage.bytes(FileId::Segment(1)).unwrap()[garbled_at.clone()].iter().map(|b| b ^ 0x5A).collect();
    storage.bytes_mut(FileId::Segment(1)).unwrap().overwrite(garbled_at.start, &healed);
    let header = SegmentHeader::decode(storage.bytes(FileId::Segment(1)).unwrap()).unwrap();
    let readable = driftq_core::log::SegmentReader::new(&header, storage.bytes(FileId::Segment(1)).unwrap()).count();
    assert_eq!(readable, 3, "the dead frames verify");
    assert_eq!(recovered(&mut storage).unwrap().1, records);
}

/// Three frames of one size, written twice with other words: as when a folder was copied and both copies went on.
fn two_ways() -> (Writer, Writer) {
    let write = |words: [&[u8]; 3]| {
        let mut writer = Writer::new();
        for word in words {
            writer.record(word);
        }
        writer.sync();
        writer
    };
    (write([b"one", b"two", b"tri"]), write([b"uno", b"due", b"tre"]))
}

#[test]
fn a_good_frame_in_the_place_of_another_ends_what_can_be_read() {
    let (mut writer, _) = two_ways();
    let file = FileId::Segment(1);
    let (second, third) = (writer.frames[1].bytes.clone(), writer.frames[2].bytes.clone());
    let bytes = writer.storage.bytes(file).unwrap()[third].to_vec();
    writer.storage.bytes_mut(file).unwrap().overwrite(second.start, &bytes);
    let (found, records) = recovered(&mut writer.storage).unwrap();
    assert_eq!(records, writer.records[..1]);
    let Notice::TornTail { reason, lsn, .. } = found.notices[0] else { panic!("{:?}", found.notices) };
    assert_eq!((lsn, reason), (Lsn(2), StopReason::WrongLsn { found: Lsn(3) }));
}

#[test]
fn a_good_frame_that_continues_another_one_ends_what_can_be_read() {
    let (mut writer, other) = two_ways();
    let file = FileId::Segment(1);
    let second = writer.frames[1].bytes.clone();
    let bytes = other.storage.bytes(file).unwrap()[second.start..].to_vec();
    writer.storage.bytes_mut(file).unwrap().overwrite(second.start, &bytes);
    let (found, records) = recovered(&mut writer.storage).unwrap();
    assert_eq!(records, writer.records[..1], "half of one history and half of another");
    let Notice::TornTail { reason, lsn, .. } = found.notices[0] else { panic!("{:?}", found.notices) };
    assert!(lsn == Lsn(2) && matches!(reason, StopReason::BrokenChain { .. }), "{reason:?}");
}

#[test]
fn a_bad_header_with_anything_behind_it_is_corruption_and_with_nothing_was_never_begun() {
    let mut writer = Writer::new();
    writer.record(b"one");
    writer.rotate();
    let mut bare = writer.storage.clone();
    // The first byte of this length is zero.
    writer.record(&[2; 256]);
    for storage in [&mut bare, &mut writer.storage] {
        storage.bytes_mut(FileId::Segment(2)).unwrap().flip(8 * 40);
    }
    let (found, records) = recovered(&mut bare).unwrap();
    assert_eq!((records.len(), found.next_segment, notices(&found)), (1, 2, vec!["never begun"]));
    assert!(found.clean, "segment 1 is the last again, and has its footer");
    let error = recovered(&mut writer.storage).unwrap_err();
    let RecoveryError::DamagedHeader { file, proof: Proof::DataBehind { position }, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!((file, position), (FileId::Segment(2), HEADER_BYTES as u64 + 1));
}

#[test]
fn a_damaged_header_at_the_front_of_the_row_is_named_and_not_the_whole_one_behind_it() {
    let mut writer = Writer::new();
    writer.record(b"one");
    writer.rotate();
    writer.record(b"two");
    writer.sync();
    writer.storage.bytes_mut(FileId::Segment(1)).unwrap().flip(8 * 40);
    let error = recovered(&mut writer.storage).unwrap_err();
    let proof = Proof::Successor(FileId::Segment(2));
    let named =
        matches!(error, RecoveryError::DamagedHeader { file: FileId::Segment(1), proof: by, .. } if by == proof);
    assert!(named, "{error}");
}

#[test]
fn several_segments_prepared_and_never_begun_are_cleared_away_highest_first() {
    let mut writer = Writer::new();
    writer.record(b"one");
    writer.sync();
    for sequence in 2..=4 {
        writer.step(&IoOp::Create { file: FileId::Segment(sequence), capacity: CAPACITY });
    }
    let (found, _) = recovered(&mut writer.storage).unwrap();
    assert_eq!((found.next_segment, notices(&found)), (2, vec!["never begun"; 3]));
    let steps = found.cleanup_ops();
    for done in 0..=steps.len() {
        let mut storage = writer.storage.clone();
        steps[..done].iter().for_each(|step| step.perform(&mut storage).unwrap());
        let again = Writer::start(storage.crash()).unwrap();
        assert_eq!((again.header.sequence, again.records.len()), (2, 1), "after {done} steps");
    }
}

#[test]
fn a_segment_missing_from_the_row_is_named() {
    let mut writer = Writer::new();
    for _ in 0..3 {
        writer.record(b"x");
        writer.rotate();
    }
    let mut storage = writer.storage.clone();
    storage.uproot(FileId::Segment(2)).unwrap();
    let (missing, after, lsn) = (FileId::Segment(2), FileId::Segment(3), Lsn(1));
    assert_eq!(recovered(&mut storage).unwrap_err(), RecoveryError::MissingSegment { missing, after, lsn });

    let mut storage = writer.storage.clone();
    storage.uproot(FileId::Segment(1)).unwrap();
    assert!(matches!(recovered(&mut storage), Err(RecoveryError::StartsTooLate { needed: Lsn(1), .. })));

    for sequence in 1..=4 {
        writer.storage.uproot(FileId::Segment(sequence)).unwrap();
    }
    writer.storage.plant(FileId::Snapshot(Lsn(6)), vec![]);
    let witness = FileId::Snapshot(Lsn(6));
    assert_eq!(recovered(&mut writer.storage).unwrap_err(), RecoveryError::NoSegments { witness });
}

#[test]
fn a_segment_of_another_log_or_under_another_number_is_named() {
    let mut writer = Writer::new();
    writer.record(b"x");
    writer.rotate();
    let other = LogId([3; 16]);
    let header = SegmentHeader { log_id: other, ..writer.header };
    let mut storage = writer.storage.clone();
    storage.plant(FileId::Segment(2), header.encode());
    let (file, found, expected) = (FileId::Segment(2), other, LOG);
    assert_eq!(recovered(&mut storage).unwrap_err(), RecoveryError::Foreign { file, found, expected });

    let first = writer.storage.bytes(FileId::Segment(1)).unwrap().to_vec();
    writer.storage.plant(FileId::Segment(3), first);
    let file = FileId::Segment(3);
    assert_eq!(recovered(&mut writer.storage).unwrap_err(), RecoveryError::Misnamed { file, found: 1 });
}

#[test]
fn files_that_are_each_whole_but_do_not_continue_each_other_are_refused() {
    let mut writer = Writer::new();
    writer.record(b"this");
    writer.rotate();
    writer.record(b"and that");
    writer.sync();
    let mut other = Writer::new();
    other.record(b"thus");
    other.footer();
    // Same log, same number, same LSNs: as when a folder was copied and both copies went on.
    let bytes = other.storage.bytes(FileId::Segment(1)).unwrap().to_vec();
    writer.storage.plant(FileId::Segment(1), bytes);
    let error = recovered(&mut writer.storage).unwrap_err();
    assert!(matches!(error, RecoveryError::Unlinked { lsn: Lsn(2), by: FileId::Segment(2), .. }), "{error}");
}

#[test]
fn a_newer_format_is_neither_damage_nor_passed_over() {
    let newer = |bytes: &mut [u8]| {
        bytes[8] = 2;
        let crc = crc32fast::hash(&bytes[..124]);
        bytes[124..128].copy_from_slice(&crc.to_le_bytes());
    };
    let world = World::new();
    for file in [FileId::Segment(2), FileId::Segment(4), FileId::Snapshot(world.a), FileId::Snapshot(world.b)] {
        let mut storage = world.storage.clone();
        let mut bytes = storage.uproot(file).unwrap();
        newer(&mut bytes);
        storage.plant(file, bytes);
        assert_eq!(recovered(&mut storage).unwrap_err(), RecoveryError::UnknownVersion { file, version: 2 });
    }
}

#[test]
fn a_record_without_meaning_is_an_error_of_its_own_that_says_where() {
    struct Picky;
    impl Replay for Picky {
        fn reset(&mut self) {}
        fn restore(&mut self, _: u8, _: u8, _: &[u8]) -> Result<(), Malformed> {
            Err(Malformed::new("no snapshots"))
        }
        fn replay(&mut self, _: Lsn, _: u8, _: u8, payload: &[u8]) -> Result<(), Malformed> {
            if payload == b"two" { Err(Malformed::new("no twos")) } else { Ok(()) }
        }
    }
    let mut writer = Writer::new();
    writer.record(b"one");
    writer.record(b"two");
    writer.sync();
    let (file, reason) = (FileId::Segment(1), Malformed::new("no twos"));
    let position = writer.frames[1].bytes.start as u64;
    let expected = RecoveryError::Malformed { file, position, lsn: Lsn(2), kind: 4, version: 1, reason };
    assert_eq!(recover(&mut writer.storage, None, &mut Picky), Err(expected));

    let lsn = writer.snapshot();
    let error = recover(&mut writer.storage, None, &mut Picky).unwrap_err();
    assert!(matches!(error, RecoveryError::Malformed { file: FileId::Snapshot(at), .. } if at == lsn), "{error}");
}

#[test]
fn marks_of_a_kind_or_a_version_that_is_not_known_are_not_ignored() {
    let (mut mark, mut footer) = (Writer::new(), Writer::new());
    mark.mark();
    footer.footer();
    let known = |writer: &mut Writer| {
        let bytes = writer.storage.uproot(FileId::Segment(1)).unwrap();
        frame::decode(&bytes[HEADER_BYTES..], writer.header.seed()).unwrap().head
    };
    let (mark, footer) = (known(&mut mark), known(&mut footer));
    let unknown = [
        Head { kind: 0xF2, ..mark },
        Head { version: mark.version + 1, ..mark },
        Head { version: footer.version + 1, ..footer },
    ];
    for head in unknown {
        let mut writer = Writer::new();
        let mut bytes = Vec::new();
        frame::encode_with(&mut bytes, writer.header.seed(), &head, |_| {}).unwrap();
        let at = WriteAt { epoch: 1, position: HEADER_BYTES as u64 };
        writer.step(&IoOp::Append { file: FileId::Segment(1), at, bytes });
        let error = recovered(&mut writer.storage).unwrap_err();
        let named = matches!(error, RecoveryError::Malformed { kind, version, .. }
            if (kind, version) == (head.kind, head.version));
        assert!(named, "{error}");
    }
}

#[test]
fn a_read_error_is_an_error_and_not_an_end() {
    let mut world = World::new();
    let needed = [FileId::Segment(4), FileId::Segment(5), FileId::Snapshot(world.b)];
    for file in world.files() {
        for byte in [0, HEADER_BYTES as u64 + 3] {
            world.storage.set_unreadable(Some((file, byte)));
            let outcome = recovered(&mut world.storage);
            if byte == 0 || needed.contains(&file) {
                let unreadable = StorageFault::Io("injected read failure".to_owned());
                let expected = RecoveryError::Storage { doing: "reading", file: Some(file), fault: unreadable };
                assert_eq!(outcome.unwrap_err(), expected);
            } else {
                assert_eq!(outcome.unwrap().1, world.records);
            }
        }
    }
}

#[test]
fn what_a_killed_process_left_unsynced_is_synced_before_it_is_relied_on() {
    let mut writer = Writer::new();
    writer.record(b"written, not synced");
    let mut storage = writer.storage.clone();
    let (found, _) = recovered(&mut storage).unwrap();
    assert_eq!(found.last_lsn, Lsn(1));
    assert_eq!(recovered(&mut storage.crash()).unwrap().0.last_lsn, Lsn(1));
    assert_eq!(recovered(&mut writer.storage.crash()).unwrap().0.last_lsn, Lsn(0));

    // A prepared file and a renamed one are only as durable as the folder.
    writer.prepare();
    let mut storage = writer.storage.clone();
    recovered(&mut storage).unwrap();
    assert!(storage.crash().bytes(FileId::Segment(2)).is_some());
}

#[test]
fn a_sync_that_fails_refuses_the_start() {
    let mut writer = Writer::new();
    writer.record(b"x");
    writer.storage.fail_syncs(1);
    let error = recovered(&mut writer.storage).unwrap_err();
    assert!(matches!(error, RecoveryError::Storage { doing: "syncing", .. }), "{error}");
}

#[test]
fn every_refusal_about_damage_says_where_and_names_the_way_out() {
    let mut world = World::new();
    let hit = world.live.iter().find(|frame| frame.file == FileId::Segment(4)).unwrap().clone();
    world.storage.bytes_mut(FileId::Segment(4)).unwrap().flip(8 * (hit.bytes.start + 30));
    let text = recovered(&mut world.storage).unwrap_err().to_string();
    let lsn = format!("LSN {}", hit.lsn);
    for part in [
        "wal-00000000000000000004.seg",
        "byte 4096",
        &lsn,
        "driftqd wal verify DIR",
        "driftqd wal salvage DIR --accept-loss",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}
