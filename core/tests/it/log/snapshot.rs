//! Snapshots: encoding, damage, and how recovery falls back.

use super::support::{LOG, LogWriter, SampleLog, recovered};
use driftq_core::log::snapshot::SnapshotReadError;
use driftq_core::log::{
    CrcSeed, FileId, HEADER_BYTES, Head, LogId, LogPosition, MemoryStorage, Notice, Proof, RecoveryError,
    SnapshotError, SnapshotHead, SnapshotWriter, StopReason, frame, read_snapshot,
};
use driftq_core::types::{FrameNumber, Lsn};

const HEAD: SnapshotHead =
    SnapshotHead { log_id: LOG, at: LogPosition { frame: FrameNumber(42), lsn: Lsn(17) }, crc: 7, epoch: 3 };

fn written(sizes: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = SnapshotWriter::begin(&HEAD, &mut out);
    for (index, size) in sizes.iter().enumerate() {
        writer.record(&mut out, 1 + index as u8, 9, |buffer| buffer.resize(buffer.len() + size, 5)).unwrap();
    }
    writer.finish(&[], &mut out);
    out
}

/// Kind, version and payload length of each record.
type Seen = Vec<(u8, u8, usize)>;

fn read(bytes: Vec<u8>) -> Result<(SnapshotHead, Seen), SnapshotError> {
    let mut storage = MemoryStorage::new();
    storage.put_file(HEAD.file(), bytes);
    let mut seen = Vec::new();
    let each = |kind, version, payload: &[u8]| {
        seen.push((kind, version, payload.len()));
        Ok::<(), ()>(())
    };
    match read_snapshot(&mut storage, HEAD.at.frame, &mut vec![1, 2, 3], each) {
        Ok((head, _)) => Ok((head, seen)),
        Err(SnapshotReadError::Damaged(error)) => Err(error),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn snapshot_round_trips_at_any_record_size() {
    for sizes in [&[][..], &[0], &[1, 0, 70_000], &[65_000, 600, 3_000_000, 1, 65_536, 65_506]] {
        let (head, seen) = read(written(sizes)).unwrap();
        assert_eq!(head, HEAD);
        let expected: Vec<_> = sizes.iter().enumerate().map(|(index, size)| (1 + index as u8, 9, *size)).collect();
        assert_eq!(seen, expected);
    }
}

#[test]
fn snapshot_without_footer_or_with_wrong_count_or_trailing_bytes_is_damaged() {
    let whole = written(&[10, 20]);
    let footer = whole.len() - 38;
    let position = footer as u64;
    assert!(
        matches!(read(whole[..footer].to_vec()), Err(SnapshotError::BadFrame { position: at, .. }) if at == position)
    );

    let mut followed = whole.clone();
    followed.resize(whole.len() + 100_000, 0);
    assert!(read(followed.clone()).is_ok(), "trailing zeros are ignored");
    followed.push(1);
    assert_eq!(read(followed).unwrap_err(), SnapshotError::Trailing { position: whole.len() as u64 });

    let mut even = whole.clone();
    even.extend([7, 7]);
    even.resize(whole.len() + 128, 0);
    assert_eq!(read(even).unwrap_err(), SnapshotError::Trailing { position: whole.len() as u64 });

    // Frames of another snapshot behind this header: only the header's checksum links the first frame.
    let mut other = Vec::new();
    let elsewhere = SnapshotHead { epoch: 4, ..HEAD };
    SnapshotWriter::begin(&elsewhere, &mut other).finish(&[], &mut other);
    let mut mixed = whole[..HEADER_BYTES].to_vec();
    mixed.extend_from_slice(&other[HEADER_BYTES..]);
    assert_eq!(read(mixed).unwrap_err(), SnapshotError::OutOfPlace { position: HEADER_BYTES as u64 });
}

#[test]
fn footer_of_unknown_version_or_mark_in_its_place_is_damaged() {
    let whole = written(&[]);
    let seed = CrcSeed::new(LOG, HEAD.file());
    let footer = frame::decode(&whole[HEADER_BYTES..], seed).unwrap();
    for (kind, version) in [(footer.head.kind, footer.head.version + 1), (frame::SYNCED_MARK, footer.head.version)] {
        let mut other = whole[..HEADER_BYTES].to_vec();
        let head = Head { kind, version, ..footer.head };
        frame::encode_with(&mut other, seed, &head, |out| out.extend_from_slice(footer.payload)).unwrap();
        assert_eq!(read(other).unwrap_err(), SnapshotError::BadKind { position: HEADER_BYTES as u64, kind, version });
    }
}

#[test]
fn snapshot_under_wrong_number_is_damaged_and_of_other_log_is_foreign() {
    let mut storage = MemoryStorage::new();
    storage.put_file(FileId::Snapshot(FrameNumber(41)), written(&[1]));
    let outcome = read_snapshot(&mut storage, FrameNumber(41), &mut Vec::new(), |_, _, _| Ok::<(), ()>(()));
    assert!(matches!(outcome, Err(SnapshotReadError::Damaged(SnapshotError::Misnamed { found: FrameNumber(42) }))));

    let mut writer = LogWriter::new();
    writer.record(b"x");
    writer.sync();
    let head = SnapshotHead { log_id: LogId([0; 16]), at: LogPosition { frame: FrameNumber(1), lsn: Lsn(1) }, ..HEAD };
    let mut bytes = Vec::new();
    SnapshotWriter::begin(&head, &mut bytes).finish(&[], &mut bytes);
    writer.storage.put_file(head.file(), bytes);
    assert!(matches!(recovered(&mut writer.storage), Err(RecoveryError::Foreign { .. })));
}

#[test]
fn refused_record_is_not_damage() {
    let mut storage = MemoryStorage::new();
    storage.put_file(HEAD.file(), written(&[3, 4]));
    let each = |kind, _, _: &[u8]| if kind == 2 { Err("no") } else { Ok(()) };
    let outcome = read_snapshot(&mut storage, HEAD.at.frame, &mut Vec::new(), each);
    let Err(SnapshotReadError::Refused { at, position, kind, version, reason }) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(at, HEAD.at);
    assert_eq!((position, kind, version, reason), (HEADER_BYTES as u64 + 33, 2, 9, "no"));
}

#[test]
fn damaged_newest_snapshot_falls_back_to_older_and_is_garbage() {
    let mut sample = SampleLog::new();
    let newest = FileId::Snapshot(sample.b);
    sample.storage.bytes_mut(newest).unwrap().flip(8 * (HEADER_BYTES + 31));
    let (found, records) = recovered(&mut sample.storage).unwrap();
    assert_eq!(records, sample.records);
    assert_eq!((found.snapshot, &found.snapshots), (Some(sample.position(sample.a)), &vec![sample.a]));
    assert!(matches!(found.notices[0], Notice::DamagedSnapshot { file, .. } if file == newest));
    assert!(found.garbage.contains(&newest));
    let kept: Vec<_> = found.segments.iter().map(|s| s.sequence).collect();
    assert_eq!(kept, [1, 2, 3, 4], "with one good snapshot left, the whole log is kept as fallback");
}

#[test]
fn both_snapshots_damaged_recover_from_whole_log_or_refuse() {
    let mut sample = SampleLog::new();
    for number in [sample.a, sample.b] {
        sample.storage.bytes_mut(FileId::Snapshot(number)).unwrap().truncate(HEADER_BYTES + 10);
    }
    let (found, records) = recovered(&mut sample.storage).unwrap();
    assert_eq!((records, found.snapshot), (sample.records.clone(), None));
    sample.storage.take_file(FileId::Segment(1)).unwrap();
    let error = recovered(&mut sample.storage).unwrap_err();
    let RecoveryError::StartsTooLate { file, first_frame, needed, damaged } = &error else { panic!("{error:?}") };
    assert_eq!((*file, *first_frame, *needed), (FileId::Segment(2), sample.a.next(), FrameNumber(1)));
    assert_eq!(damaged.map(|(number, _)| number), Some(sample.b));
}

#[test]
fn snapshot_beyond_end_of_log_is_corruption() {
    let mut sample = SampleLog::new();
    for damage in [false, true] {
        let mut storage = sample.storage.clone();
        let b = FileId::Snapshot(sample.b);
        storage.take_file(FileId::Segment(5)).unwrap();
        storage.take_file(FileId::Segment(4)).unwrap();
        if damage {
            storage.bytes_mut(b).unwrap().flip(1);
        }
        assert!(recovered(&mut storage).is_ok(), "segment 3 ends where the snapshot was taken");
        let footer = sample.live.iter().rfind(|frame| frame.file == FileId::Segment(3)).unwrap();
        storage.bytes_mut(FileId::Segment(3)).unwrap().truncate(footer.bytes.start);
        let error = recovered(&mut storage).unwrap_err();
        let proof = Proof::Snapshot(sample.b);
        let position = footer.bytes.start as u64;
        let (file, frame, reason) = (FileId::Segment(3), sample.b, StopReason::End);
        assert_eq!(error, RecoveryError::Corrupt { file, position, frame, reason, proof });
    }
    assert!(recovered(&mut sample.storage).is_ok());
}

#[test]
fn snapshot_of_diverged_log_is_refused() {
    for footer in [true, false] {
        let mut writer = LogWriter::new();
        writer.record(b"this");
        writer.sync();
        if footer {
            writer.rotate();
        }
        let at = writer.chain.last();
        let head = SnapshotHead { log_id: LOG, at, crc: writer.chain.last_crc() ^ 1, epoch: 1 };
        let mut bytes = Vec::new();
        SnapshotWriter::begin(&head, &mut bytes).finish(&[], &mut bytes);
        writer.storage.put_file(head.file(), bytes);
        let error = recovered(&mut writer.storage).unwrap_err();
        assert!(matches!(error, RecoveryError::Unlinked { .. }), "{error}");
    }
}

#[test]
fn snapshot_inside_segment_skips_covered_records() {
    let mut writer = LogWriter::new();
    writer.record(b"one");
    writer.record(b"two");
    writer.sync();
    writer.snapshot_ops().into_iter().for_each(|op| writer.perform(&op));
    writer.record(b"three");
    writer.sync();
    let (found, records) = recovered(&mut writer.storage).unwrap();
    assert_eq!((found.snapshot, records), (Some(LogPosition { frame: FrameNumber(2), lsn: Lsn(2) }), writer.records));
}
