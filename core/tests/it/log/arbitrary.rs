//! Arbitrary files and arbitrarily damaged files: recovery never panics and never returns records that were not
//! written.

use super::support::{Collector, LOG, SampleLog, recovered};
use driftq_core::log::{
    FileId, HEADER_BYTES, LogPosition, MemoryStorage, SegmentHeader, SegmentReader, SnapshotHead, SnapshotWriter,
    read_snapshot, recover,
};
use driftq_core::types::{FrameNumber, Lsn};
use proptest::prelude::*;

fn file() -> impl Strategy<Value = FileId> {
    prop_oneof![
        4 => (1..6_u64).prop_map(FileId::Segment),
        1 => prop_oneof![Just(0), Just(u64::MAX), any::<u64>()].prop_map(FileId::Segment),
        2 => (0..30_u64).prop_map(|number| FileId::Snapshot(FrameNumber(number))),
        1 => prop_oneof![Just(u64::MAX), any::<u64>()].prop_map(|number| FileId::Snapshot(FrameNumber(number))),
        1 => (0..30_u64).prop_map(|number| FileId::SnapshotDraft(FrameNumber(number))),
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![Just(0), any::<u8>()], 0..300)
}

/// A header with a valid checksum and numbers within or beyond their limits.
fn header() -> impl Strategy<Value = Vec<u8>> {
    let number = || prop_oneof![0..20_u64, Just(1 << 62), Just((1 << 62) - 1), Just(u64::MAX), any::<u64>()];
    (any::<bool>(), number(), number(), number(), any::<u32>(), number(), bytes()).prop_map(
        |(snapshot, n0, n1, n2, crc, n3, behind)| {
            let mut block = if snapshot { b"DRIFTQSN".to_vec() } else { b"DRIFTQWL".to_vec() };
            block.extend_from_slice(&1_u32.to_le_bytes());
            block.extend_from_slice(&4096_u32.to_le_bytes());
            block.extend_from_slice(&LOG.0);
            for number in [n0, n1, n2] {
                block.extend_from_slice(&number.to_le_bytes());
            }
            block.extend_from_slice(&crc.to_le_bytes());
            block.extend_from_slice(&n3.to_le_bytes());
            block.resize(124, 0);
            let sum = crc32fast::hash(&block);
            block.extend_from_slice(&sum.to_le_bytes());
            block.resize(HEADER_BYTES, 0);
            block.extend_from_slice(&behind);
            block
        },
    )
}

/// A file with a valid header for its name, followed by arbitrary bytes.
fn headed(file: FileId, previous: u64, behind: &[u8]) -> Vec<u8> {
    let mut out = match file {
        FileId::Segment(sequence) => SegmentHeader {
            log_id: LOG,
            sequence,
            previous: LogPosition { frame: FrameNumber(previous), lsn: Lsn(previous / 3) },
            previous_crc: 0,
            synced: FrameNumber(previous / 2),
            capacity: 0,
        }
        .encode(),
        FileId::Snapshot(frame) | FileId::SnapshotDraft(frame) => {
            let mut out = Vec::new();
            let at = LogPosition { frame, lsn: Lsn(frame.0 / 3) };
            let head = SnapshotHead { log_id: LOG, at, crc: 0, epoch: 1 };
            let _ = SnapshotWriter::begin(&head, &mut out);
            out
        }
    };
    out.extend_from_slice(behind);
    out
}

fn content(file: FileId) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        bytes(),
        header(),
        (prop_oneof![0..10_u64, Just((1 << 62) - 1)], bytes())
            .prop_map(move |(previous, behind)| headed(file, previous, &behind)),
    ]
}

#[derive(Clone, Debug)]
enum Damage {
    Overwrite(prop::sample::Index, prop::sample::Index, Vec<u8>),
    Zero(prop::sample::Index, prop::sample::Index, usize),
    CopyBytes {
        from: (prop::sample::Index, prop::sample::Index),
        to: (prop::sample::Index, prop::sample::Index),
        len: usize,
    },
    Truncate(prop::sample::Index, prop::sample::Index),
    Remove(prop::sample::Index),
    CopyFile(prop::sample::Index, prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = || any::<prop::sample::Index>();
    prop_oneof![
        (at(), at(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(f, p, b)| Damage::Overwrite(f, p, b)),
        (at(), at(), 1..200_usize).prop_map(|(f, p, len)| Damage::Zero(f, p, len)),
        (at(), at(), at(), at(), 1..300_usize).prop_map(|(f, p, g, q, len)| Damage::CopyBytes {
            from: (f, p),
            to: (g, q),
            len
        }),
        (at(), at()).prop_map(|(f, p)| Damage::Truncate(f, p)),
        at().prop_map(Damage::Remove),
        (at(), at()).prop_map(|(f, g)| Damage::CopyFile(f, g)),
    ]
}

/// A position in the file, mostly behind its header.
fn position_in(index: &prop::sample::Index, len: usize) -> usize {
    let at = index.index(len + len / 4 + 1);
    if at >= len { at % 128 % len.max(1) } else { at.max(HEADER_BYTES.min(len.saturating_sub(1))) }
}

fn apply_damage(storage: &mut MemoryStorage, files: &[FileId], damage: &Damage) {
    let pick = |index: &prop::sample::Index| *index.get(files);
    let len = |storage: &MemoryStorage, file| storage.bytes(file).map_or(0, <[u8]>::len);
    let put = |storage: &mut MemoryStorage, file, at: usize, bytes: &[u8]| {
        if let Some(mut open) = storage.bytes_mut(file) {
            open.overwrite(at, bytes);
        }
    };
    match damage {
        Damage::Overwrite(f, p, bytes) => {
            let (file, at) = (pick(f), position_in(p, len(storage, pick(f))));
            put(storage, file, at, bytes);
        }
        Damage::Zero(f, p, count) => {
            let (file, at) = (pick(f), position_in(p, len(storage, pick(f))));
            put(storage, file, at, &vec![0; *count]);
        }
        Damage::CopyBytes { from, to, len: count } => {
            let start = position_in(&from.1, len(storage, pick(&from.0)));
            let source = storage.bytes(pick(&from.0)).unwrap_or_default();
            let bytes = source[start.min(source.len())..(start + count).min(source.len())].to_vec();
            let at = position_in(&to.1, len(storage, pick(&to.0)));
            put(storage, pick(&to.0), at, &bytes);
        }
        Damage::Truncate(f, p) => {
            let at = position_in(p, len(storage, pick(f)));
            if let Some(mut open) = storage.bytes_mut(pick(f)) {
                open.truncate(at);
            }
        }
        Damage::Remove(f) => drop(storage.take_file(pick(f))),
        Damage::CopyFile(f, g) => {
            if let Some(bytes) = storage.bytes(pick(f)).map(<[u8]>::to_vec) {
                storage.put_file(pick(g), bytes);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn recovery_of_arbitrary_files_never_panics(
        files in prop::collection::vec(file().prop_flat_map(|file| (Just(file), content(file))), 0..6),
    ) {
        let mut storage = MemoryStorage::new();
        for (file, bytes) in files {
            storage.put_file(file, bytes);
        }
        let mut again = storage.clone();
        let first = recover(&mut storage, Some(LOG), &mut Collector::default());
        prop_assert_eq!(&first, &recover(&mut again, Some(LOG), &mut Collector::default()));
        if let Ok(found) = first {
            for op in found.cleanup_ops() {
                op.perform(&mut storage).unwrap();
            }
            prop_assert!(found.next_header().encode().len() == HEADER_BYTES);
        }
    }

    #[test]
    fn readers_of_arbitrary_bytes_never_panic(bytes in prop_oneof![bytes(), header()]) {
        if let Ok(header) = SegmentHeader::decode(&bytes) {
            let mut reader = SegmentReader::new(&header, &bytes);
            let _ = reader.by_ref().count();
            prop_assert!(reader.stop().is_some());
        }
        let mut storage = MemoryStorage::new();
        storage.put_file(FileId::Snapshot(FrameNumber(3)), bytes);
        let outcome = read_snapshot(&mut storage, FrameNumber(3), &mut Vec::new(), |_, _, _| Ok::<(), ()>(()));
        prop_assert!(outcome.is_err());
    }

    #[test]
    fn recovery_after_arbitrary_damage_refuses_or_returns_written_records(damages in prop::collection::vec(damage(), 1..5)) {
        let mut sample = SampleLog::new();
        let files = sample.files();
        let mut storage = sample.storage.clone();
        for damage in &damages {
            apply_damage(&mut storage, &files, damage);
        }
        if let Ok((found, records)) = recovered(&mut storage) {
            prop_assert_eq!(records, sample.records_through(found.last.lsn), "recovered records were never written");
            let intact = sample.live.iter().filter(|frame| {
                let now = storage.bytes(frame.file).and_then(|bytes| bytes.get(frame.bytes.clone()));
                now == sample.storage.bytes(frame.file).map(|bytes| &bytes[frame.bytes.clone()])
            });
            let by_frame = intact.map(|frame| frame.synced).max().unwrap_or_default();
            let snapshots = [sample.a, sample.b];
            let present = snapshots.iter().filter(|number| storage.bytes(FileId::Snapshot(**number)).is_some());
            let proven = by_frame.max(present.max().copied().unwrap_or_default());
            prop_assert!(found.last.frame >= proven, "{} found, {proven} proven", found.last.frame);
        }
    }
}
