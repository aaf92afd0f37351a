//! The result of recovery in each situation.

use super::support::{CAPACITY, GarbleSectors, LOG, LogWriter, SampleLog, recovered};
use driftq_core::log::{
    CrcSeed, FileId, FrameChain, HEADER_BYTES, Head, HeaderError, IoOp, LogId, LogPosition, Malformed, MemoryStorage,
    Notice, Proof, Recovered, RecoveryError, Replay, SegmentHeader, SegmentInfo, StopReason, Storage, StorageFault,
    WriteAt, frame, recover,
};
use driftq_core::types::{FrameNumber, Lsn};

fn at(frame: u64, lsn: u64) -> LogPosition {
    LogPosition { frame: FrameNumber(frame), lsn: Lsn(lsn) }
}

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
fn empty_folder_is_new_log_and_needs_log_id() {
    let mut storage = MemoryStorage::new();
    assert_eq!(recover(&mut storage, None, &mut ()), Err(RecoveryError::NoLog));
    let new = recover(&mut storage, Some(LOG), &mut ()).unwrap();
    assert_eq!((new.log_id, new.last, new.last_crc, new.next_segment), (LOG, at(0, 0), 0, 1));
    assert_eq!((new.snapshot, new.clean, new.garbage.len(), new.segments.len()), (None, false, 0, 0));
    assert!(storage.list().unwrap().is_empty(), "recovery writes nothing");
}

#[test]
fn existing_log_keeps_its_log_id() {
    let mut writer = LogWriter::new();
    let again = recover(&mut writer.storage, Some(LogId([1; 16])), &mut ()).unwrap();
    assert_eq!(again.log_id, LOG);
}

#[test]
fn first_segment_never_begun_is_new_log() {
    for written in [0, 1, 100, HEADER_BYTES] {
        let mut storage = MemoryStorage::new();
        let mut bytes = LogWriter::new().header.encode();
        bytes.truncate(written);
        bytes.iter_mut().take(20).for_each(|byte| *byte = 0);
        bytes.resize(HEADER_BYTES + 1000, 0);
        storage.put_file(FileId::Segment(1), bytes);
        assert_eq!(recover(&mut storage, None, &mut ()), Err(RecoveryError::NoLog));
        let new = recover(&mut storage, Some(LogId([2; 16])), &mut ()).unwrap();
        assert_eq!((new.log_id, new.next_segment), (LogId([2; 16]), 1));
        assert_eq!(new.garbage, [FileId::Segment(1)]);
        let writer = LogWriter::start(storage).unwrap();
        assert_eq!(writer.header.sequence, 1);
    }
}

#[test]
fn footer_as_last_frame_is_clean_close() {
    let mut writer = LogWriter::new();
    writer.record(b"one");
    writer.sync();
    assert!(!recovered(&mut writer.storage).unwrap().0.clean);
    writer.footer();
    writer.sync();
    let (found, _) = recovered(&mut writer.storage).unwrap();
    assert!(found.clean);
    assert!(!found.has_torn_tail() && found.garbage.is_empty(), "there is nothing to remove");
    let end = HEADER_BYTES as u64 + found.bytes_read;
    assert_eq!(found.cleanup_ops(), [IoOp::Trim { file: FileId::Segment(1), len: end }]);
    let bytes: usize = writer.frames.iter().map(|frame| frame.bytes.len()).sum();
    assert_eq!((found.last, found.frames_read, found.bytes_read), (at(2, 1), 2, bytes as u64));
    writer.storage.bytes_mut(FileId::Segment(1)).unwrap().overwrite(HEADER_BYTES + 200, &[1]);
    assert!(!recovered(&mut writer.storage).unwrap().0.clean, "data follows the footer");
}

#[test]
fn recovery_repeated_finds_same_and_changes_nothing() {
    let mut sample = SampleLog::new();
    let before: Vec<_> = sample.files().into_iter().map(|f| sample.storage.bytes(f).map(<[u8]>::to_vec)).collect();
    let first = recovered(&mut sample.storage).unwrap();
    let second = recovered(&mut sample.storage).unwrap();
    assert_eq!(first, second);
    let after: Vec<_> = sample.files().into_iter().map(|f| sample.storage.bytes(f).map(<[u8]>::to_vec)).collect();
    assert!(before == after, "files were changed");
}

#[test]
fn report_lists_kept_files_and_garbage() {
    let mut sample = SampleLog::new();
    sample.storage.put_file(FileId::SnapshotDraft(FrameNumber(9)), b"half".to_vec());
    let (found, _) = recovered(&mut sample.storage).unwrap();
    assert_eq!(found.snapshots, [sample.a, sample.b]);
    assert_eq!(found.snapshot, Some(sample.position(sample.b)));
    let rows: Vec<_> = found.segments.iter().map(|s| (s.sequence, s.first_frame, s.last_frame)).collect();
    let cut = sample.live.iter().rfind(|frame| frame.file == FileId::Segment(2)).unwrap().number;
    let expected = [
        (1, FrameNumber(1), sample.a),
        (2, sample.a.next(), cut),
        (3, cut.next(), sample.b),
        (4, sample.b.next(), sample.last.frame),
    ];
    assert_eq!(rows, expected);
    let garbage = [FileId::Segment(5), FileId::SnapshotDraft(FrameNumber(9))];
    assert_eq!(found.garbage, garbage);
    assert_eq!(found.next_segment, 5);
    let ops = found.cleanup_ops();
    assert_eq!(ops[..2], [IoOp::Remove { file: FileId::Segment(5) }, IoOp::SyncFolder]);
    let is_trim = |op: &&IoOp| matches!(op, IoOp::Trim { .. });
    assert_eq!(ops.iter().rfind(|op| !is_trim(op)), Some(&IoOp::SyncFolder));
    ops.iter().for_each(|op| op.perform(&mut sample.storage).unwrap());
    let left = recovered(&mut sample.storage).unwrap().0;
    let trimmed = |segment: &SegmentInfo| SegmentInfo { len: segment.end, ..segment.clone() };
    let trimmed: Vec<_> = found.segments.iter().map(trimmed).collect();
    assert_eq!((left.garbage, left.segments, left.snapshots), (vec![], trimmed, found.snapshots));
    assert_eq!(left.last, found.last);
}

/// Two records in one segment, the first damaged; `later` writes behind them.
fn damaged_first(later: impl FnOnce(&mut LogWriter)) -> MemoryStorage {
    let mut writer = LogWriter::new();
    writer.record(b"damaged");
    writer.record(b"second");
    later(&mut writer);
    writer.storage.bytes_mut(FileId::Segment(1)).unwrap().flip(8 * (HEADER_BYTES + 33));
    writer.storage
}

#[test]
fn frames_behind_bad_frame_are_torn_unless_one_proves_it_synced() {
    let (found, records) = recovered(&mut damaged_first(|_| {})).unwrap();
    assert_eq!((found.last, records.len(), notices(&found)), (at(0, 0), 0, vec!["torn"]));

    let (found, _) = recovered(&mut damaged_first(LogWriter::sync)).unwrap();
    assert_eq!(found.last, at(0, 0), "synced, but not proven yet");

    let proofs: [fn(&mut LogWriter); 3] = [LogWriter::mark, LogWriter::footer, |writer| {
        writer.record(b"third");
    }];
    for proof in proofs {
        let error = recovered(&mut damaged_first(|writer| {
            writer.sync();
            proof(writer);
        }))
        .unwrap_err();
        let RecoveryError::Corrupt { position, frame, proof: Proof::Frame { frame: by, synced, .. }, .. } = error
        else {
            panic!("{error:?}")
        };
        assert_eq!((position, [frame, by, synced]), (HEADER_BYTES as u64, [1, 3, 2].map(FrameNumber)));
    }
}

#[test]
fn truncated_witness_frame_proves_nothing() {
    let mut storage = damaged_first(|writer| {
        writer.sync();
        writer.record(&[3; 100]);
    });
    assert!(recovered(&mut storage.clone()).is_err(), "whole, it does");
    let mut bytes = storage.take_file(FileId::Segment(1)).unwrap();
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).unwrap());
    storage.put_file(FileId::Segment(1), bytes);
    let (found, records) = recovered(&mut storage).unwrap();
    assert_eq!((found.last, records.len(), notices(&found)), (at(0, 0), 0, vec!["torn"]));
}

#[test]
fn torn_tail_notice_has_position_and_length() {
    let mut writer = LogWriter::new();
    writer.record(b"damaged");
    writer.record(b"ends in two zeros\0\0");
    writer.storage.bytes_mut(FileId::Segment(1)).unwrap().flip(8 * (HEADER_BYTES + 33));
    let (found, _) = recovered(&mut writer.storage).unwrap();
    assert!(found.has_torn_tail());
    let Notice::TornTail { file, position, bytes, frame, .. } = found.notices[0] else { panic!("{:?}", found.notices) };
    assert_eq!((file, position, frame), (FileId::Segment(1), HEADER_BYTES as u64, FrameNumber(1)));
    let end = writer.frames[1].bytes.end - 2;
    assert_eq!(bytes, (end - HEADER_BYTES) as u64, "zeros at the end are not counted");
}

#[test]
fn header_with_contradicting_numbers_is_refused() {
    let header = SegmentHeader {
        log_id: LOG,
        sequence: 7,
        previous: at(0x1122_3344_5566, 0x0A0B_0C0D_0E0F),
        previous_crc: 9,
        synced: FrameNumber(0x0102_0304_0506),
        capacity: 1 << 26,
    };
    let bytes = header.encode();
    assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
    let forged = |number: u64, other: u64| {
        let mut bytes = bytes.clone();
        let at =
            bytes.windows(8).position(|window| window == number.to_le_bytes()).expect("the header contains the number");
        bytes[at..at + 8].copy_from_slice(&other.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..124]);
        bytes[124..128].copy_from_slice(&crc.to_le_bytes());
        SegmentHeader::decode(&bytes)
    };
    let (first, lsn, synced) = (header.first_frame().0, header.first_lsn().0, header.synced.0);
    assert_eq!(forged(synced, first - 1), Ok(SegmentHeader { synced: header.previous.frame, ..header }));
    let all_records = LogPosition { lsn: Lsn(first - 1), ..header.previous };
    assert_eq!(forged(lsn, first), Ok(SegmentHeader { previous: all_records, ..header }));
    let contradictions =
        [(synced, first), (first, synced), (lsn, first + 1), (first, lsn - 1), (first, u64::MAX), (lsn, 0), (first, 0)];
    for (number, other) in contradictions {
        assert_eq!(forged(number, other), Err(HeaderError::Contradiction), "{number:x} is {other:x}");
    }
}

#[test]
fn frame_with_lower_synced_number_proves_nothing() {
    let mut writer = LogWriter::new();
    writer.record(b"one");
    writer.sync();
    writer.record(b"two, damaged");
    writer.record(b"three knows of one");
    let two = writer.frames[1].bytes.start;
    writer.storage.bytes_mut(FileId::Segment(1)).unwrap().flip(8 * (two + 35));
    let (found, _) = recovered(&mut writer.storage).unwrap();
    assert_eq!((found.last, notices(&found)), (at(1, 1), vec!["torn"]));
}

#[test]
fn frame_forged_inside_payload_proves_nothing() {
    let forged_witness = |seed| {
        let mut out = Vec::new();
        let mut chain = FrameChain::new(seed, at(2, 2), 0);
        chain.record(&mut out, FrameNumber(2), 1, 1, |buffer| buffer.extend_from_slice(b"forged")).unwrap();
        out
    };
    // Without the log id, a forger can only guess the seed.
    let mut forged = forged_witness(CrcSeed::new(LogId([0; 16]), FileId::Segment(1)));
    forged.extend(forged_witness(CrcSeed::new(LOG, FileId::Segment(2))));
    forged.extend(forged_witness(CrcSeed::new(LOG, FileId::Snapshot(FrameNumber(1)))));
    let mut unseeded = forged_witness(CrcSeed::new(LOG, FileId::Segment(9)));
    let crc = crc32fast::hash(&[&unseeded[..4], &unseeded[8..]].concat());
    unseeded[4..8].copy_from_slice(&crc.to_le_bytes());
    forged.extend(unseeded);

    let storage = |payload: &[u8]| {
        let mut writer = LogWriter::new();
        writer.record(b"damaged");
        writer.record(payload);
        writer.storage.bytes_mut(FileId::Segment(1)).unwrap().flip(8 * (HEADER_BYTES + 33));
        writer.storage
    };
    let (found, _) = recovered(&mut storage(&forged)).unwrap();
    assert_eq!((found.last, notices(&found)), (at(0, 0), vec!["torn"]));
    // With the true seed the frame is accepted as proof, so the test can fail.
    let with_true_seed = forged_witness(CrcSeed::new(LOG, FileId::Segment(1)));
    assert!(matches!(recovered(&mut storage(&with_true_seed)), Err(RecoveryError::Corrupt { .. })));
}

#[test]
fn cut_tail_stays_dead_even_if_it_verifies() {
    let mut writer = LogWriter::new();
    writer.record(b"kept");
    writer.sync();
    let torn = writer.record(&[7; 470]);
    writer.record(b"dead but valid, same number as a later one");
    let garbled = GarbleSectors(8..9);
    let mut writer = LogWriter::start(writer.storage.crash_with(&mut { garbled })).unwrap();
    assert_eq!(writer.header.first_frame(), torn);
    writer.record(b"new data");
    writer.sync();
    let records = writer.records.clone();
    assert_eq!(records.len(), 2);
    let mut storage = writer.storage.crash();
    // Even if the torn frame reappears whole, it is beyond the end of its segment.
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

/// Two logs with the same frames of other contents, as if a folder was copied and both copies continued.
fn diverged_logs() -> (LogWriter, LogWriter) {
    let write = |payloads: [&[u8]; 3]| {
        let mut writer = LogWriter::new();
        for payload in payloads {
            writer.record(payload);
        }
        writer.sync();
        writer
    };
    (write([b"one", b"two", b"tri"]), write([b"uno", b"due", b"tre"]))
}

#[test]
fn valid_frame_with_wrong_number_ends_reading() {
    let (mut writer, _) = diverged_logs();
    let file = FileId::Segment(1);
    let (second, third) = (writer.frames[1].bytes.clone(), writer.frames[2].bytes.clone());
    let bytes = writer.storage.bytes(file).unwrap()[third].to_vec();
    writer.storage.bytes_mut(file).unwrap().overwrite(second.start, &bytes);
    let (found, records) = recovered(&mut writer.storage).unwrap();
    assert_eq!(records, writer.records[..1]);
    let Notice::TornTail { reason, frame, .. } = found.notices[0] else { panic!("{:?}", found.notices) };
    assert_eq!((frame, reason), (FrameNumber(2), StopReason::WrongNumber { found: FrameNumber(3) }));
}

#[test]
fn valid_frame_with_broken_chain_ends_reading() {
    let (mut writer, other) = diverged_logs();
    let file = FileId::Segment(1);
    let second = writer.frames[1].bytes.clone();
    let bytes = other.storage.bytes(file).unwrap()[second.start..].to_vec();
    writer.storage.bytes_mut(file).unwrap().overwrite(second.start, &bytes);
    let (found, records) = recovered(&mut writer.storage).unwrap();
    assert_eq!(records, writer.records[..1], "records of two diverged logs are not mixed");
    let Notice::TornTail { reason, frame, .. } = found.notices[0] else { panic!("{:?}", found.notices) };
    assert!(frame == FrameNumber(2) && matches!(reason, StopReason::BrokenChain { .. }), "{reason:?}");
}

#[test]
fn bad_header_with_data_behind_is_corruption_and_without_is_never_begun() {
    let mut writer = LogWriter::new();
    writer.record(b"one");
    writer.rotate();
    let mut bare = writer.storage.clone();
    // The first byte of this payload length is zero.
    writer.record(&[2; 256]);
    for storage in [&mut bare, &mut writer.storage] {
        storage.bytes_mut(FileId::Segment(2)).unwrap().flip(8 * 40);
    }
    let (found, records) = recovered(&mut bare).unwrap();
    assert_eq!((records.len(), found.next_segment, notices(&found)), (1, 2, vec!["never begun"]));
    assert!(found.clean, "segment 1 is the last one again and ends with a footer");
    let error = recovered(&mut writer.storage).unwrap_err();
    let RecoveryError::DamagedHeader { file, proof: Proof::DataBehind { position }, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!((file, position), (FileId::Segment(2), HEADER_BYTES as u64 + 1));
}

#[test]
fn damaged_first_header_is_named_instead_of_its_successor() {
    let mut writer = LogWriter::new();
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
fn segments_never_begun_are_removed_highest_first() {
    let mut writer = LogWriter::new();
    writer.record(b"one");
    writer.sync();
    for sequence in 2..=4 {
        writer.perform(&IoOp::Create { file: FileId::Segment(sequence), capacity: CAPACITY });
    }
    let (found, _) = recovered(&mut writer.storage).unwrap();
    assert_eq!((found.next_segment, notices(&found)), (2, vec!["never begun"; 3]));
    let ops = found.cleanup_ops();
    for performed in 0..=ops.len() {
        let mut storage = writer.storage.clone();
        ops[..performed].iter().for_each(|op| op.perform(&mut storage).unwrap());
        let again = LogWriter::start(storage.crash()).unwrap();
        assert_eq!((again.header.sequence, again.records.len()), (2, 1), "after {performed} ops");
    }
}

#[test]
fn missing_segment_is_named() {
    let mut writer = LogWriter::new();
    for _ in 0..3 {
        writer.record(b"x");
        writer.rotate();
    }
    let mut storage = writer.storage.clone();
    storage.take_file(FileId::Segment(2)).unwrap();
    let (missing, after, frame) = (FileId::Segment(2), FileId::Segment(3), FrameNumber(1));
    assert_eq!(recovered(&mut storage).unwrap_err(), RecoveryError::MissingSegment { missing, after, frame });

    let mut storage = writer.storage.clone();
    storage.take_file(FileId::Segment(1)).unwrap();
    assert!(matches!(recovered(&mut storage), Err(RecoveryError::StartsTooLate { needed: FrameNumber(1), .. })));

    for sequence in 1..=4 {
        writer.storage.take_file(FileId::Segment(sequence)).unwrap();
    }
    writer.storage.put_file(FileId::Snapshot(FrameNumber(6)), vec![]);
    let witness = FileId::Snapshot(FrameNumber(6));
    assert_eq!(recovered(&mut writer.storage).unwrap_err(), RecoveryError::NoSegments { witness });
}

#[test]
fn segment_foreign_or_misnamed_is_named() {
    let mut writer = LogWriter::new();
    writer.record(b"x");
    writer.rotate();
    let other = LogId([3; 16]);
    let header = SegmentHeader { log_id: other, ..writer.header };
    let mut storage = writer.storage.clone();
    storage.put_file(FileId::Segment(2), header.encode());
    let (file, found, expected) = (FileId::Segment(2), other, LOG);
    assert_eq!(recovered(&mut storage).unwrap_err(), RecoveryError::Foreign { file, found, expected });

    let first = writer.storage.bytes(FileId::Segment(1)).unwrap().to_vec();
    writer.storage.put_file(FileId::Segment(3), first);
    let file = FileId::Segment(3);
    assert_eq!(recovered(&mut writer.storage).unwrap_err(), RecoveryError::Misnamed { file, found: 1 });
}

#[test]
fn segments_that_do_not_link_are_refused() {
    let mut writer = LogWriter::new();
    writer.record(b"this");
    writer.rotate();
    writer.record(b"and that");
    writer.sync();
    let mut other = LogWriter::new();
    other.record(b"thus");
    other.footer();
    // Same log id, same sequence number, same frame numbers: as if a folder was copied and both copies continued.
    let bytes = other.storage.bytes(FileId::Segment(1)).unwrap().to_vec();
    writer.storage.put_file(FileId::Segment(1), bytes);
    let error = recovered(&mut writer.storage).unwrap_err();
    assert!(matches!(error, RecoveryError::Unlinked { frame: FrameNumber(2), by: FileId::Segment(2), .. }), "{error}");
}

#[test]
fn newer_format_version_is_refused_as_unknown() {
    let newer = |bytes: &mut [u8]| {
        bytes[8] = 3;
        let crc = crc32fast::hash(&bytes[..124]);
        bytes[124..128].copy_from_slice(&crc.to_le_bytes());
    };
    let sample = SampleLog::new();
    for file in [FileId::Segment(2), FileId::Segment(4), FileId::Snapshot(sample.a), FileId::Snapshot(sample.b)] {
        let mut storage = sample.storage.clone();
        let mut bytes = storage.take_file(file).unwrap();
        newer(&mut bytes);
        storage.put_file(file, bytes);
        assert_eq!(recovered(&mut storage).unwrap_err(), RecoveryError::UnknownVersion { file, version: 3 });
    }
}

#[test]
fn malformed_record_error_names_file_position_and_lsn() {
    struct Strict;
    impl Replay for Strict {
        fn reset(&mut self) {}
        fn restore(&mut self, _: u8, _: u8, _: &[u8]) -> Result<(), Malformed> {
            Err(Malformed::new("no snapshots"))
        }
        fn replay(&mut self, _: Lsn, _: u8, _: u8, payload: &[u8]) -> Result<(), Malformed> {
            if payload == b"two" { Err(Malformed::new("no twos")) } else { Ok(()) }
        }
    }
    let mut writer = LogWriter::new();
    writer.record(b"one");
    writer.record(b"two");
    writer.sync();
    let (file, reason) = (FileId::Segment(1), Malformed::new("no twos"));
    let position = writer.frames[1].bytes.start as u64;
    let expected = RecoveryError::Malformed { file, position, at: at(2, 2), kind: 4, version: 1, reason };
    assert_eq!(recover(&mut writer.storage, None, &mut Strict), Err(expected));

    let number = writer.snapshot();
    let error = recover(&mut writer.storage, None, &mut Strict).unwrap_err();
    let RecoveryError::Malformed { file, at: found, .. } = error else { panic!("{error}") };
    assert_eq!((file, found), (FileId::Snapshot(number), at(number.0, 2)));
}

#[test]
fn marks_of_unknown_kind_or_version_are_refused() {
    let (mut mark, mut footer) = (LogWriter::new(), LogWriter::new());
    mark.mark();
    footer.footer();
    let known = |writer: &mut LogWriter| {
        let bytes = writer.storage.take_file(FileId::Segment(1)).unwrap();
        frame::decode(&bytes[HEADER_BYTES..], writer.header.seed()).unwrap().head
    };
    let (mark, footer) = (known(&mut mark), known(&mut footer));
    let unknown = [
        Head { kind: 0xF2, ..mark },
        Head { version: mark.version + 1, ..mark },
        Head { version: footer.version + 1, ..footer },
    ];
    for head in unknown {
        let mut writer = LogWriter::new();
        let mut bytes = Vec::new();
        frame::encode_with(&mut bytes, writer.header.seed(), &head, |_| {}).unwrap();
        let at = WriteAt { epoch: 1, position: HEADER_BYTES as u64 };
        writer.perform(&IoOp::Append { file: FileId::Segment(1), at, bytes });
        let error = recovered(&mut writer.storage).unwrap_err();
        let named = matches!(error, RecoveryError::Malformed { kind, version, .. }
            if (kind, version) == (head.kind, head.version));
        assert!(named, "{error}");
    }
}

#[test]
fn read_error_is_error_not_end_of_file() {
    let mut sample = SampleLog::new();
    let needed = [FileId::Segment(4), FileId::Segment(5), FileId::Snapshot(sample.b)];
    for file in sample.files() {
        for byte in [0, HEADER_BYTES as u64 + 3] {
            sample.storage.set_unreadable(Some((file, byte)));
            let outcome = recovered(&mut sample.storage);
            if byte == 0 || needed.contains(&file) {
                let unreadable = StorageFault::Io("injected read failure".to_owned());
                let expected = RecoveryError::Storage { doing: "reading", file: Some(file), fault: unreadable };
                assert_eq!(outcome.unwrap_err(), expected);
            } else {
                assert_eq!(outcome.unwrap().1, sample.records);
            }
        }
    }
}

#[test]
fn unsynced_data_of_killed_process_is_synced_by_recovery() {
    let mut writer = LogWriter::new();
    writer.record(b"written, not synced");
    let mut storage = writer.storage.clone();
    let (found, _) = recovered(&mut storage).unwrap();
    assert_eq!(found.last, at(1, 1));
    assert_eq!(recovered(&mut storage.crash()).unwrap().0.last, at(1, 1));
    assert_eq!(recovered(&mut writer.storage.crash()).unwrap().0.last, at(0, 0));

    // A prepared file is durable only once the folder is synced.
    writer.prepare();
    let mut storage = writer.storage.clone();
    recovered(&mut storage).unwrap();
    assert!(storage.crash().bytes(FileId::Segment(2)).is_some());
}

#[test]
fn failed_sync_during_recovery_refuses_start() {
    let mut writer = LogWriter::new();
    writer.record(b"x");
    writer.storage.fail_syncs(1);
    let error = recovered(&mut writer.storage).unwrap_err();
    let RecoveryError::Storage { doing, file, .. } = &error else { panic!("{error}") };
    assert_eq!((*doing, *file), ("syncing", Some(FileId::Segment(1))));
}

#[test]
fn damage_error_names_location_and_remedy() {
    let mut sample = SampleLog::new();
    let hit = sample.live.iter().find(|frame| frame.file == FileId::Segment(4)).unwrap().clone();
    sample.storage.bytes_mut(FileId::Segment(4)).unwrap().flip(8 * (hit.bytes.start + 30));
    let text = recovered(&mut sample.storage).unwrap_err().to_string();
    let frame = format!("frame {}", hit.number);
    for part in [
        "wal-00000000000000000004.seg",
        "byte 4096",
        &frame,
        "driftqd wal verify DIR",
        "driftqd wal salvage DIR --accept-loss",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}
