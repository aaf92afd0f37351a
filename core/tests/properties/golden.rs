//! The bytes of version 1, for ever: they are read as they always were, and written as they always were.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use driftq_core::Body;
use driftq_core::codec::record as codec;
use driftq_core::log::frame::{FOOTER, SYNCED_MARK};
use driftq_core::log::{
    FileId, Head, MemoryStorage, SegmentHeader, SegmentReader, SnapshotWriter, Storage, read_snapshot,
};
use driftq_core::record::{Event, Image, Record};
use driftq_core::types::Lsn;

use super::scenario::{Read, told, without_snapshots};

/// The state at the end of the story, by its digest.
const DIGEST: u64 = 0x233d_87dc_939e_68f5;

/// Where the files are.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1")
}

/// What the story leaves on the disk, without the zeros ahead of the data and the segments nothing was written to.
fn files(storage: &mut MemoryStorage) -> Vec<(FileId, Vec<u8>)> {
    let files = storage.list().expect("lists").into_iter().map(|info| info.file).collect::<Vec<_>>();
    let bytes = |file: FileId| storage.bytes(file).unwrap_or_default().to_vec();
    files.into_iter().map(|file| (file, bytes(file))).filter(|(_, bytes)| !bytes.is_empty()).collect()
}

#[allow(clippy::disallowed_methods, reason = "the golden files are real files")]
fn read(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The golden files as a storage.
fn kept() -> MemoryStorage {
    let mut storage = MemoryStorage::new();
    let names = String::from_utf8(read("files.txt")).expect("text");
    for name in names.lines() {
        storage.plant(name.parse().expect("a file of the log"), read(name));
    }
    storage
}

fn text(body: &Body) -> String {
    let (key, value) = (String::from_utf8_lossy(body.key()), String::from_utf8_lossy(body.value()));
    let told = if body.has_metadata() { format!(" {:?}", body.metadata()) } else { String::new() };
    format!("key {key:?} value {value:?}{told}")
}

fn line(record: &Record) -> String {
    let mut line = format!("{:?}", record.event);
    if let Event::Produced { body, .. } | Event::Restored(Image::Message { body, .. }) = &record.event {
        let _ = write!(line, " with {}", text(body));
    }
    // What is not said need not be told, and a number is a number.
    let said: Vec<_> = line.split(", ").filter(|field| !field.ends_with(": None")).collect();
    let types = "TopicId GroupId PartitionId Offset Position Timestamp Millis Boot TopicName GroupName OwnerName";
    types.split(' ').fold(said.join(", "), |line, name| line.replace(&format!(" {name}("), " ("))
}

/// All records in words: the whole log, then the snapshot.
fn dump(storage: &MemoryStorage) -> String {
    let (whole, read) = (Read::from(&without_snapshots(storage)), Read::from(storage));
    let mut text = String::new();
    for (lsn, record, _) in &whole.replayed {
        let _ = writeln!(text, "{lsn} at {}: {}", record.at, line(record));
    }
    for record in &read.restored {
        let _ = writeln!(text, "snapshot: {}", line(record));
    }
    assert!(whole.replayed.ends_with(&read.replayed), "behind the snapshot follows the rest of the log");
    text
}

/// Writes the golden files anew where `DRIFTQ_WRITE_GOLDEN` is set; see their README.
#[allow(clippy::disallowed_methods, reason = "the golden files are real files")]
fn write_if_asked() {
    if std::env::var("DRIFTQ_WRITE_GOLDEN").is_err() {
        return;
    }
    let mut storage = told();
    let files = files(&mut storage);
    let names: String = files.iter().map(|(file, _)| format!("{file}\n")).collect();
    std::fs::create_dir_all(folder()).expect("makes the folder");
    for (file, bytes) in &files {
        std::fs::write(folder().join(file.to_string()), bytes).expect("writes a golden file");
    }
    std::fs::write(folder().join("files.txt"), names).expect("writes the list");
    std::fs::write(folder().join("records.txt"), dump(&storage)).expect("writes the records");
    println!("the digest is {:#018x}", Read::from(&storage).state.digest());
}

#[test]
fn golden_files_are_read_as_they_always_were() {
    write_if_asked();
    let storage = kept();
    let expected = String::from_utf8(read("records.txt")).expect("text");
    for (found, expected) in dump(&storage).lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(dump(&storage).lines().count(), expected.lines().count());
    let state = Read::from(&storage).state;
    assert_eq!(state.digest(), DIGEST, "{:#018x}", state.digest());
}

/// A segment written once more from what was read from it.
fn segment_again(bytes: &[u8]) -> Vec<u8> {
    let header = SegmentHeader::decode(bytes).expect("a header");
    let (mut again, mut chain) = (header.encode(), header.chain());
    for frame in SegmentReader::new(&header, bytes) {
        let Head { synced, kind, version, .. } = frame.head;
        match kind {
            SYNCED_MARK => drop(chain.mark(&mut again, synced)),
            FOOTER => drop(chain.footer(&mut again, synced)),
            _ => {
                let record = codec::decode(kind, version, frame.payload).expect("a record");
                let kind = codec::kind(&record.event);
                let written = chain.record(&mut again, synced, kind, codec::VERSION, |out| codec::encode(&record, out));
                written.expect("no longer than it was");
            }
        }
    }
    again
}

/// The same for a snapshot.
fn snapshot_again(storage: &mut MemoryStorage, lsn: Lsn) -> Vec<u8> {
    let mut records = Vec::new();
    let each = |kind, version, payload: &[u8]| codec::decode(kind, version, payload).map(|record| records.push(record));
    let head = read_snapshot(storage, lsn, &mut Vec::new(), each).expect("a snapshot");
    let mut again = Vec::new();
    let mut writer = SnapshotWriter::begin(&head, &mut again);
    for record in &records {
        let kind = codec::kind(&record.event);
        let written = writer.record(&mut again, kind, codec::VERSION, |out| codec::encode(record, out));
        written.expect("no longer than it was");
    }
    writer.finish(&mut again);
    again
}

#[test]
fn what_is_read_from_golden_files_is_written_in_their_very_bytes() {
    write_if_asked();
    let mut storage = kept();
    for (file, bytes) in files(&mut storage) {
        let again = match file {
            FileId::Snapshot(lsn) | FileId::SnapshotDraft(lsn) => snapshot_again(&mut storage, lsn),
            FileId::Segment(_) => segment_again(&bytes),
        };
        assert!(again == bytes, "{file}");
    }
}

#[test]
fn the_story_is_written_in_the_very_bytes_of_the_golden_files() {
    write_if_asked();
    let (told, kept) = (files(&mut told()), files(&mut kept()));
    let names = |files: &[(FileId, Vec<u8>)]| files.iter().map(|(file, _)| *file).collect::<Vec<_>>();
    assert_eq!(names(&told), names(&kept));
    for ((file, told), (_, kept)) in told.iter().zip(&kept) {
        let differs = told.iter().zip(kept).position(|(told, kept)| told != kept);
        assert_eq!((differs, told.len()), (None, kept.len()), "{file} differs at the first byte named");
    }
}
