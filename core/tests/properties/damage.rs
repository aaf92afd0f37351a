//! Every flipped bit and every truncation of a real log: recovery refuses, or returns an earlier state that contains
//! everything proven synced.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use driftq_core::log::frame::FRAME_HEAD_BYTES;
use driftq_core::log::{
    FileId, HEADER_BYTES, Malformed, MemoryStorage, Replay, SegmentHeader, SegmentReader, Storage, recover,
};
use driftq_core::pipeline::inspect;
use driftq_core::types::{FrameNumber, Lsn};

use super::scenario::{ReadLog, scenario_log, scenario_log_without_mark, segments, without_snapshots};

/// The part of a header that is covered by its checksum; the rest is zeros.
const BLOCK_BYTES: usize = 128;

/// One frame of the undamaged log.
#[derive(Clone, Copy, Debug)]
struct FrameSpan {
    file: FileId,
    start: usize,
    end: usize,
    number: FrameNumber,
    /// Of the last record up to it.
    lsn: Lsn,
    synced: FrameNumber,
}

/// A log and its contents.
struct Case {
    storage: MemoryStorage,
    files: Vec<FileId>,
    frames: Vec<FrameSpan>,
    /// The digest after each frame.
    history: BTreeMap<FrameNumber, u64>,
    last_segment: FileId,
    /// The digests found so far, by what recovery read.
    digests: BTreeMap<u64, Option<u64>>,
}

/// A hash of all that recovery passes on. The state, or the refusal to build it, is a function of that.
#[derive(Default)]
struct ReplayHash(DefaultHasher);

impl Replay for ReplayHash {
    fn reset(&mut self) {
        *self = Self::default();
    }

    fn restore(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        (kind, version, payload).hash(&mut self.0);
        Ok(())
    }

    fn restored(&mut self) -> Result<(), Malformed> {
        "restored".hash(&mut self.0);
        Ok(())
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        (lsn.0, kind, version, payload).hash(&mut self.0);
        Ok(())
    }
}

impl Case {
    fn new(mut storage: MemoryStorage) -> Self {
        let mut frames = Vec::new();
        let segments = segments(&mut storage);
        for file in &segments {
            let bytes = storage.bytes(*file).expect("is there");
            let header = SegmentHeader::decode(bytes).expect("a header");
            let mut reader = SegmentReader::new(&header, bytes);
            let mut start = reader.position();
            while let Some(frame) = reader.next() {
                let (number, synced, end) = (frame.head.number, frame.head.synced, reader.position());
                frames.push(FrameSpan { file: *file, start, end, number, lsn: reader.log_position().lsn, synced });
                start = end;
            }
        }
        let initial = driftq_core::state::State::default().digest();
        let mut history = BTreeMap::from([(FrameNumber(0), initial)]);
        let records: BTreeMap<Lsn, u64> = ReadLog::from(&without_snapshots(&storage))
            .replayed
            .iter()
            .map(|(lsn, _, digest)| (*lsn, *digest))
            .collect();
        for frame in &frames {
            history.insert(frame.number, records.get(&frame.lsn).copied().unwrap_or(initial));
        }
        let files = storage.list().expect("lists").iter().map(|info| info.file).collect();
        let last_segment = *segments.last().expect("has segments");
        Self { files, frames, history, last_segment, storage, digests: BTreeMap::new() }
    }

    fn whole(&self) -> u64 {
        self.history[&self.last()]
    }

    fn last(&self) -> FrameNumber {
        *self.history.keys().last().expect("has an initial state")
    }

    /// The digest of the state recovered from the damaged storage; `None` if recovery refuses. Every damaged storage is
    /// read, but the state is built once for everything that recovery can pass on.
    fn found(&mut self) -> Option<u64> {
        let mut replayed = ReplayHash::default();
        let recovered = recover(&mut self.storage, None, &mut replayed).ok()?;
        // Messages must refer to records in one of these.
        recovered.segments.iter().for_each(|segment| (segment.lsns.start.0, segment.lsns.end.0).hash(&mut replayed.0));
        let storage = &mut self.storage;
        let build = || inspect(storage, None).ok().map(|(state, _)| state.digest());
        *self.digests.entry(replayed.0.finish()).or_insert_with(build)
    }

    /// Whether the byte is part of a file header or a frame head.
    fn is_head(&self, file: FileId, byte: usize) -> bool {
        let head =
            |frame: &&FrameSpan| frame.file == file && (frame.start..frame.start + FRAME_HEAD_BYTES).contains(&byte);
        byte < BLOCK_BYTES || self.frames.iter().any(|frame| head(&frame))
    }

    /// The highest frame number that the other frames prove synced.
    fn proven_without(&self, damaged: FrameNumber) -> FrameNumber {
        let others = self.frames.iter().filter(|frame| frame.number != damaged).map(|frame| frame.synced);
        others.max().unwrap_or_default()
    }
}

/// Flips bits of `files` one at a time; every recovery refuses or returns an earlier state. Counts refused and torn.
fn every_flip(mut case: Case, files: &[FileId]) -> (usize, usize) {
    let (mut refused, mut torn) = (0, 0);
    let whole = case.whole();
    for (nth, file) in files.iter().copied().enumerate() {
        let len = case.storage.bytes(file).map_or(0, <[u8]>::len);
        // Header padding is never read, so one byte in 16 is enough, other ones in the next file.
        let distinct = |byte: &usize| !(BLOCK_BYTES..HEADER_BYTES).contains(byte) || byte % 16 == nth % 16;
        for byte in (0..len).filter(distinct) {
            // Every bit of a head, and one bit of every other byte: one checksum covers a payload.
            let bits = if case.is_head(file, byte) { 0..8 } else { byte % 8..byte % 8 + 1 };
            for bit in bits {
                case.storage.bytes_mut(file).expect("is there").flip(byte * 8 + bit);
                let found = case.found();
                case.storage.bytes_mut(file).expect("is there").flip(byte * 8 + bit);
                match found {
                    None => refused += 1,
                    Some(digest) if digest == whole => {}
                    Some(digest) => {
                        let hit = case.frames.iter().find(|f| f.file == file && (f.start..f.end).contains(&byte));
                        let hit = hit.unwrap_or_else(|| panic!("{file}, byte {byte}, bit {bit}: unexpected state"));
                        let before = FrameNumber(hit.number.0 - 1);
                        assert_eq!(
                            digest, case.history[&before],
                            "{file}, byte {byte}, bit {bit}: not an earlier state"
                        );
                        let proven = case.proven_without(hit.number);
                        assert!(
                            before >= proven,
                            "{file}, byte {byte}, bit {bit}: ends at frame {before}, but {proven} is proven synced"
                        );
                        torn += 1;
                    }
                }
            }
        }
    }
    assert_eq!(case.found(), Some(whole), "all damage is reverted");
    (refused, torn)
}

#[test]
fn flipped_bit_in_log_ending_in_mark_never_changes_recovered_state() {
    let case = Case::new(scenario_log());
    let files = case.files.clone();
    let (refused, torn) = every_flip(case, &files);
    assert!(refused > 10_000, "{refused} were refused");
    assert_eq!(torn, 0, "every record before the mark is proven synced, and the mark itself carries no record");
}

#[test]
fn flipped_bit_loses_only_records_not_proven_synced() {
    let case = Case::new(scenario_log_without_mark());
    let files = [case.last_segment];
    let (refused, torn) = every_flip(case, &files);
    assert!(refused > 500, "{refused} were refused");
    assert!(torn > 100, "{torn} flips in the last batch look torn");
}

#[test]
fn truncation_of_any_file_is_refused_or_leaves_earlier_state() {
    let (marked, unmarked) = (Case::new(scenario_log()), Case::new(scenario_log_without_mark()));
    let (all, last) = (marked.files.clone(), vec![unmarked.last_segment]);
    for (mut case, files) in [(marked, all), (unmarked, last)] {
        let whole = case.whole();
        for file in files {
            let len = case.storage.bytes(file).map_or(0, <[u8]>::len);
            let kept = case.storage.clone();
            // Truncations within the zeros of a header are all alike, so one in 64 is enough.
            let distinct = |cut: &usize| !(BLOCK_BYTES + 1..HEADER_BYTES).contains(cut) || cut.is_multiple_of(64);
            for cut in (0..len).rev().filter(distinct) {
                case.storage.bytes_mut(file).expect("is there").truncate(cut);
                let Some(digest) = case.found() else { continue };
                if digest == whole {
                    continue;
                }
                assert_eq!(
                    file, case.last_segment,
                    "truncated to {cut}: only the end of the log can be lost unnoticed"
                );
                let left = case.frames.iter().filter(|frame| frame.file != file || frame.end <= cut);
                let left = left.map(|frame| frame.number).max().unwrap_or_default();
                assert_eq!(digest, case.history[&left], "{file} truncated to {cut}: every whole frame is read");
            }
            case.storage = kept;
        }
        assert_eq!(case.found(), Some(whole), "all damage is reverted");
    }
}

#[test]
fn missing_file_is_refused_or_unneeded() {
    let mut case = Case::new(scenario_log());
    let whole = case.whole();
    for file in case.files.clone() {
        let kept = case.storage.clone();
        case.storage.take_file(file);
        match case.found() {
            None => {}
            Some(digest) if digest == whole => {}
            Some(digest) => {
                assert_eq!(file, case.last_segment, "only the last segment can be lost unnoticed");
                let left = case.frames.iter().filter(|frame| frame.file != file).map(|frame| frame.number).max();
                assert_eq!(digest, case.history[&left.expect("more than one segment")]);
            }
        }
        case.storage = kept;
    }
}
