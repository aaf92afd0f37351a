//! The golden files of format version 2 decode to the same records and are written with the same bytes in every
//! release.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use driftq_core::Body;
use driftq_core::codec::record as codec;
use driftq_core::log::frame::{FOOTER, SYNCED_MARK};
use driftq_core::log::{
    FileId, Head, MemoryStorage, SegmentExtent, SegmentFooter, SegmentHeader, SegmentReader, SnapshotWriter, Storage,
    read_snapshot,
};
use driftq_core::record::{Event, Record};
use driftq_core::types::FrameNumber;

use super::keys_scenario::keys_log;
use super::scenario::{ReadLog, scenario_log, without_snapshots};

/// A scenario and its golden files.
struct Golden {
    /// The folder of the files.
    folder: &'static str,
    /// Writes the log.
    scenario: fn() -> MemoryStorage,
    /// The digest of the state at the end of the scenario.
    digest: u64,
}

const GOLDEN: [Golden; 2] = [
    Golden { folder: "v2", scenario: scenario_log, digest: 0x516e_d643_dfa4_e523 },
    Golden { folder: "v2-keys", scenario: keys_log, digest: 0xd99c_8999_a962_14ea },
];

impl Golden {
    fn folder(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(self.folder)
    }
}

/// The files of a storage, without preallocated zeros and without empty segments.
fn files(storage: &mut MemoryStorage) -> Vec<(FileId, Vec<u8>)> {
    let files = storage.list().expect("lists").into_iter().map(|info| info.file).collect::<Vec<_>>();
    let bytes = |file: FileId| storage.bytes(file).unwrap_or_default().to_vec();
    files.into_iter().map(|file| (file, bytes(file))).filter(|(_, bytes)| !bytes.is_empty()).collect()
}

#[allow(clippy::disallowed_methods, reason = "the golden files are real files")]
fn read(golden: &Golden, name: &str) -> Vec<u8> {
    let path = golden.folder().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The golden files as a storage.
fn golden_storage(golden: &Golden) -> MemoryStorage {
    let mut storage = MemoryStorage::new();
    let names = String::from_utf8(read(golden, "files.txt")).expect("text");
    for name in names.lines() {
        storage.put_file(name.parse().expect("a file of the log"), read(golden, name));
    }
    storage
}

fn text(body: &Body) -> String {
    let (key, value) = (String::from_utf8_lossy(body.key()), String::from_utf8_lossy(body.value()));
    let metadata = if body.has_metadata() { format!(" {:?}", body.metadata()) } else { String::new() };
    format!("key {key:?} value {value:?}{metadata}")
}

fn line(record: &Record) -> String {
    let mut line = format!("{:?}", record.event);
    if let Event::Produced { body, .. } = &record.event {
        let _ = write!(line, " with {}", text(body));
    }
    // Absent fields and the names of number types are omitted.
    let fields: Vec<_> = line.split(", ").filter(|field| !field.ends_with(": None")).collect();
    let types = "TopicId GroupId PartitionId Offset Position Timestamp Millis Boot TopicName GroupName OwnerName";
    types.split(' ').fold(fields.join(", "), |line, name| line.replace(&format!(" {name}("), " ("))
}

/// All records as text: the whole log, then the snapshot.
fn dump(storage: &MemoryStorage) -> String {
    let (whole, read) = (ReadLog::from(&without_snapshots(storage)), ReadLog::from(storage));
    let mut text = String::new();
    for (lsn, record, _) in &whole.replayed {
        let _ = writeln!(text, "{lsn} at {}: {}", record.at, line(record));
    }
    for record in &read.restored {
        let _ = writeln!(text, "snapshot: {}", line(record));
    }
    assert!(whole.replayed.ends_with(&read.replayed), "the rest of the log follows the snapshot");
    text
}

/// Rewrites the golden files if `DRIFTQ_WRITE_GOLDEN` is set; see their README.
#[allow(clippy::disallowed_methods, reason = "the golden files are real files")]
fn rewrite_if_requested(golden: &Golden) {
    if std::env::var("DRIFTQ_WRITE_GOLDEN").is_err() {
        return;
    }
    let mut storage = (golden.scenario)();
    let files = files(&mut storage);
    let names: String = files.iter().map(|(file, _)| format!("{file}\n")).collect();
    std::fs::create_dir_all(golden.folder()).expect("makes the folder");
    for (file, bytes) in &files {
        std::fs::write(golden.folder().join(file.to_string()), bytes).expect("writes a golden file");
    }
    std::fs::write(golden.folder().join("files.txt"), names).expect("writes the list");
    std::fs::write(golden.folder().join("records.txt"), dump(&storage)).expect("writes the records");
    println!("{}: the digest is {:#018x}", golden.folder, ReadLog::from(&storage).state.digest());
}

#[test]
fn golden_files_decode_to_golden_records() {
    for golden in &GOLDEN {
        rewrite_if_requested(golden);
        let storage = golden_storage(golden);
        let expected = String::from_utf8(read(golden, "records.txt")).expect("text");
        for (found, expected) in dump(&storage).lines().zip(expected.lines()) {
            assert_eq!(found, expected);
        }
        assert_eq!(dump(&storage).lines().count(), expected.lines().count());
        let state = ReadLog::from(&storage).state;
        assert_eq!(state.digest(), golden.digest, "{}: {:#018x}", golden.folder, state.digest());
    }
}

/// A segment decoded and encoded again.
fn reencoded_segment(bytes: &[u8]) -> Vec<u8> {
    let header = SegmentHeader::decode(bytes).expect("a header");
    let (mut again, mut chain) = (header.encode(), header.chain());
    for frame in SegmentReader::new(&header, bytes) {
        let Head { synced, kind, version, .. } = frame.head;
        match kind {
            SYNCED_MARK => drop(chain.mark(&mut again, synced)),
            FOOTER => {
                let (first, footer_at) = (header.first_entry(), again.len() as u64);
                let extent = SegmentExtent { first, last: chain.last().after(kind), footer_at };
                let footer = SegmentFooter::of_frame(&frame, &extent).expect("a footer");
                chain.footer_with(&mut again, synced, &footer.encode());
            }
            _ => {
                let record = codec::decode(kind, version, frame.payload).expect("a record");
                let kind = codec::kind(&record.event);
                let written = chain.record(&mut again, synced, kind, codec::VERSION, |out| codec::encode(&record, out));
                written.expect("fits as before");
            }
        }
    }
    again
}

/// A snapshot decoded and encoded again.
fn reencoded_snapshot(storage: &mut MemoryStorage, number: FrameNumber) -> Vec<u8> {
    let mut records = Vec::new();
    let each = |kind, version, payload: &[u8]| codec::decode(kind, version, payload).map(|record| records.push(record));
    let (head, segments) = read_snapshot(storage, number, &mut Vec::new(), each).expect("a snapshot");
    let mut again = Vec::new();
    let mut writer = SnapshotWriter::begin(&head, &mut again);
    for record in &records {
        let kind = codec::kind(&record.event);
        let written = writer.record(&mut again, kind, codec::VERSION, |out| codec::encode(record, out));
        written.expect("fits as before");
    }
    writer.finish(&segments, &mut again);
    again
}

#[test]
fn golden_files_reencode_to_same_bytes() {
    for golden in &GOLDEN {
        rewrite_if_requested(golden);
        let mut storage = golden_storage(golden);
        for (file, bytes) in files(&mut storage) {
            let again = match file {
                FileId::Snapshot(number) | FileId::SnapshotDraft(number) => reencoded_snapshot(&mut storage, number),
                FileId::Segment(_) => reencoded_segment(&bytes),
            };
            assert!(again == bytes, "{} {file}", golden.folder);
        }
    }
}

#[test]
fn scenario_writes_bytes_of_golden_files() {
    for golden in &GOLDEN {
        rewrite_if_requested(golden);
        let (written, golden) = (files(&mut (golden.scenario)()), files(&mut golden_storage(golden)));
        let names = |files: &[(FileId, Vec<u8>)]| files.iter().map(|(file, _)| *file).collect::<Vec<_>>();
        assert_eq!(names(&written), names(&golden));
        for ((file, written), (_, golden)) in written.iter().zip(&golden) {
            let differs = written.iter().zip(golden).position(|(written, golden)| written != golden);
            assert_eq!((differs, written.len()), (None, golden.len()), "{file}: first differing byte, and length");
        }
    }
}
