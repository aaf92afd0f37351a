//! Frame numbers count every frame, LSNs count records only; headers state both, and files must agree on them.

use super::support::{Collector, LOG, LogWriter, SampleLog, recovered};
use driftq_core::log::{
    FileId, HEADER_BYTES, HeaderError, LogPosition, MemoryStorage, RecoveryError, Replay, SegmentHeader, SnapshotHead,
    SnapshotWriter, recover,
};
use driftq_core::types::{FrameNumber, Lsn};

fn at(frame: u64, lsn: u64) -> LogPosition {
    LogPosition { frame: FrameNumber(frame), lsn: Lsn(lsn) }
}

fn assert_dense(records: &[(Lsn, u8, Vec<u8>)]) {
    let lsns: Vec<u64> = records.iter().map(|(lsn, ..)| lsn.0).collect();
    assert_eq!(lsns, (1..=records.len() as u64).collect::<Vec<_>>());
}

/// Corrects the checksum of a header.
fn seal(bytes: &mut [u8]) {
    let crc = crc32fast::hash(&bytes[..124]);
    bytes[124..128].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn lsns_are_dense_across_marks_footers_rotations_restarts_and_snapshots() {
    let mut writer = LogWriter::new();
    let mut frames = 0;
    for round in 0..4 {
        writer.record(b"one");
        writer.sync();
        writer.mark();
        writer.record(b"two");
        writer.rotate();
        // Segments without a record, and with nothing but a mark.
        writer.rotate();
        writer.mark();
        writer.sync();
        writer.rotate();
        if round % 2 == 0 {
            writer.snapshot();
        }
        writer.record(b"three");
        writer.sync();
        let last = writer.chain.last();
        assert_eq!(last.lsn, Lsn(3 * (round + 1)));
        assert!(last.frame.0 >= frames + 8, "every frame is counted");
        frames = last.frame.0;
        writer = LogWriter::start(writer.storage.crash()).unwrap();
        assert_eq!((writer.header.previous, writer.header.first_lsn()), (last, last.lsn.next()));
        assert_dense(&writer.records);
    }
    assert_eq!(writer.records.len(), 12);
}

#[test]
fn segment_without_record_has_first_lsn_of_its_successor() {
    let mut writer = LogWriter::new();
    writer.record(b"one");
    writer.rotate();
    let empty = writer.header;
    writer.rotate();
    assert_eq!((empty.first_lsn(), writer.header.first_lsn()), (Lsn(2), Lsn(2)));
    assert!(writer.header.first_frame() > empty.first_frame());
    let (found, _) = recovered(&mut writer.storage).unwrap();
    assert_eq!(found.last, at(3, 1));
}

#[test]
fn second_snapshot_behind_a_mark_has_another_name_and_the_same_lsn() {
    let mut writer = LogWriter::new();
    writer.record(b"one");
    writer.sync();
    let snapshot = |writer: &mut LogWriter| {
        let ops = writer.snapshot_ops();
        ops.iter().for_each(|op| writer.perform(op));
        recovered(&mut writer.storage).unwrap().0.snapshot
    };
    assert_eq!(snapshot(&mut writer), Some(at(1, 1)));
    writer.mark();
    writer.sync();
    assert_eq!(snapshot(&mut writer), Some(at(2, 1)));
    writer.record(b"two");
    writer.sync();
    let (found, records) = recovered(&mut writer.storage).unwrap();
    assert_eq!((found.snapshots, found.last), (vec![FrameNumber(1), FrameNumber(2)], at(3, 2)));
    assert_dense(&records);
}

#[test]
fn records_behind_a_snapshot_continue_its_lsn() {
    struct First(Option<Lsn>, Collector);
    impl Replay for First {
        fn reset(&mut self) {}
        fn restore(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), driftq_core::log::Malformed> {
            self.1.restore(kind, version, payload)
        }
        fn replay(&mut self, lsn: Lsn, _: u8, _: u8, _: &[u8]) -> Result<(), driftq_core::log::Malformed> {
            self.0.get_or_insert(lsn);
            Ok(())
        }
    }
    let mut sample = SampleLog::new();
    let mut first = First(None, Collector::default());
    recover(&mut sample.storage, None, &mut first).unwrap();
    assert_eq!(first.0, Some(sample.position(sample.b).lsn.next()));
    assert_eq!(first.1.records.len() as u64, sample.position(sample.b).lsn.0);
}

#[test]
fn files_that_count_records_differently_are_refused() {
    let mut writer = LogWriter::new();
    writer.record(b"one");
    writer.record(b"two");
    writer.sync();
    let head = |lsn: u64, writer: &LogWriter| SnapshotHead {
        log_id: LOG,
        at: LogPosition { lsn: Lsn(lsn), ..writer.chain.last() },
        crc: writer.chain.last_crc(),
        epoch: 1,
    };
    let with_snapshot = |head: SnapshotHead, writer: &LogWriter| {
        let (mut storage, mut bytes) = (writer.storage.clone(), Vec::new());
        SnapshotWriter::begin(&head, &mut bytes).finish(&[], &mut bytes);
        storage.put_file(head.file(), bytes);
        recovered(&mut storage)
    };
    assert!(with_snapshot(head(2, &writer), &writer).is_ok());
    let error = with_snapshot(head(1, &writer), &writer).unwrap_err();
    let (file, by) = (FileId::Segment(1), FileId::Snapshot(FrameNumber(2)));
    let position = writer.frames[1].bytes.end as u64;
    let (found, expected) = (Lsn(2), Lsn(1));
    let miscounted = RecoveryError::Miscounted { file, position, frame: FrameNumber(2), found, by, expected };
    assert_eq!(error, miscounted);
    assert!(error.to_string().contains("has LSN 2, but snap-00000000000000000002.snap follows LSN 1"), "{error}");

    writer.rotate();
    let error = with_snapshot(head(1, &writer), &writer).unwrap_err();
    assert!(matches!(error, RecoveryError::Miscounted { file: FileId::Segment(2), .. }), "{error}");
    let header = SegmentHeader { previous: at(3, 1), ..writer.header };
    writer.storage.put_file(header.file(), header.encode());
    let error = recovered(&mut writer.storage).unwrap_err();
    assert!(matches!(error, RecoveryError::Miscounted { by: FileId::Segment(2), .. }), "{error}");
}

/// The header of a segment, or of a snapshot of LSN 0, as preview 0.1 wrote it.
fn version_1(magic: &[u8; 8]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(4096_u32.to_le_bytes());
    bytes.extend(LOG.0);
    if magic == b"DRIFTQWL" {
        // Sequence, first LSN, previous LSN, previous CRC, synced LSN, size.
        bytes.extend([1_u64, 1, 0].map(u64::to_le_bytes).concat());
        bytes.extend([0; 12]);
        bytes.extend(8192_u64.to_le_bytes());
    } else {
        // LSN, CRC, epoch.
        bytes.extend([0; 12]);
        bytes.extend(1_u64.to_le_bytes());
    }
    bytes.resize(HEADER_BYTES, 0);
    seal(&mut bytes);
    bytes
}

#[test]
fn log_of_preview_format_is_refused_with_what_to_do() {
    for (file, magic) in [(FileId::Segment(1), b"DRIFTQWL"), (FileId::Snapshot(FrameNumber(0)), b"DRIFTQSN")] {
        let mut storage = MemoryStorage::new();
        if file != FileId::Segment(1) {
            storage.put_file(FileId::Segment(1), LogWriter::new().header.encode());
        }
        storage.put_file(file, version_1(magic));
        let error = recover(&mut storage, Some(LOG), &mut ()).unwrap_err();
        assert_eq!(error, RecoveryError::UnknownVersion { file, version: 1 });
        let text = error.to_string();
        for part in [
            &file.to_string(),
            "format version 1, which this program cannot read",
            "preview 0.1",
            "Run the program that wrote it until every message is consumed",
            "start this one in an empty folder",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert!(!text.contains("salvage") && !text.contains("newer version"), "{text}");
    }
    let newer = RecoveryError::UnknownVersion { file: FileId::Segment(1), version: 3 }.to_string();
    assert!(newer.contains("use a newer version of the program") && !newer.contains("preview"), "{newer}");
}

#[test]
fn header_with_a_field_of_a_cluster_is_refused_as_such() {
    let mut writer = LogWriter::new();
    writer.record(b"one");
    let snapshot = FileId::Snapshot(writer.snapshot());
    // First index, cluster id and node id of a segment; index and term of a snapshot.
    let fields = [(FileId::Segment(1), 76..108), (writer.header.file(), 76..108), (snapshot, 60..76)];
    for (file, bytes) in fields {
        for byte in bytes {
            let mut storage = writer.storage.clone();
            let mut damaged = storage.take_file(file).unwrap();
            damaged[byte] = 1;
            seal(&mut damaged);
            if file != snapshot {
                assert_eq!(SegmentHeader::decode(&damaged), Err(HeaderError::OfCluster), "byte {byte}");
            }
            storage.put_file(file, damaged);
            let error = recovered(&mut storage).unwrap_err();
            assert_eq!(error, RecoveryError::OfCluster { file }, "byte {byte}");
            assert!(!error.is_damage() && error.to_string().contains("belongs to a node of a cluster"), "{error}");
        }
    }
}
