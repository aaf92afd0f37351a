//! Every turned bit and every cut of a real log: refused, or a state that was; never less than is proven, never a
//! panic.

use std::collections::BTreeMap;

use driftq_core::faults::NoFaults;
use driftq_core::log::frame::FRAME_HEAD_BYTES;
use driftq_core::log::{FileId, HEADER_BYTES, MemoryStorage, SegmentHeader, SegmentReader, Storage};
use driftq_core::pipeline::inspect;
use driftq_core::types::Lsn;

use super::scenario::{Read, segments, told, told_but_for_the_mark, without_snapshots};

/// The part of a header that its checksum covers; what follows is zeros.
const BLOCK_BYTES: usize = 128;

/// One frame of the undamaged log.
#[derive(Clone, Copy, Debug)]
struct Placed {
    file: FileId,
    start: usize,
    end: usize,
    lsn: Lsn,
    synced: Lsn,
}

/// A log, and what is known of it.
struct Case {
    storage: MemoryStorage,
    files: Vec<FileId>,
    frames: Vec<Placed>,
    /// The digest after each LSN.
    history: BTreeMap<Lsn, u64>,
    last_segment: FileId,
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
                let (lsn, synced, end) = (frame.head.lsn, frame.head.synced, reader.position());
                frames.push(Placed { file: *file, start, end, lsn, synced });
                start = end;
            }
        }
        let mut history = BTreeMap::from([(Lsn(0), driftq_core::state::State::default().digest())]);
        let records: BTreeMap<Lsn, u64> =
            Read::from(&without_snapshots(&storage)).replayed.iter().map(|(lsn, _, digest)| (*lsn, *digest)).collect();
        for frame in &frames {
            let digest = records.get(&frame.lsn).copied().unwrap_or(history[&Lsn(frame.lsn.0 - 1)]);
            history.insert(frame.lsn, digest);
        }
        let files = storage.list().expect("lists").iter().map(|info| info.file).collect();
        Self { files, frames, history, last_segment: *segments.last().expect("has segments"), storage }
    }

    fn whole(&self) -> u64 {
        self.history[&self.last()]
    }

    fn last(&self) -> Lsn {
        *self.history.keys().last().expect("has a beginning")
    }

    /// What a recovery of the damaged storage comes to; `None` where it refuses.
    fn found(&mut self) -> Option<u64> {
        inspect(&mut self.storage, None, &NoFaults).ok().map(|(state, _)| state.digest())
    }

    /// Whether the byte is part of what says where things are and how far they are synced.
    fn is_head(&self, file: FileId, byte: usize) -> bool {
        let head =
            |frame: &&Placed| frame.file == file && (frame.start..frame.start + FRAME_HEAD_BYTES).contains(&byte);
        byte < BLOCK_BYTES || self.frames.iter().any(|frame| head(&frame))
    }

    /// The highest LSN that is proven to be synced by what is whole beyond one damaged frame.
    fn proven_without(&self, damaged: Lsn) -> Lsn {
        let others = self.frames.iter().filter(|frame| frame.lsn != damaged).map(|frame| frame.synced);
        others.max().unwrap_or_default()
    }
}

/// Turns every bit of `files`, and finds a state that was, or none.
fn every_flip(mut case: Case, files: &[FileId]) -> (usize, usize) {
    let (mut refused, mut torn) = (0, 0);
    let whole = case.whole();
    for file in files.iter().copied() {
        let len = case.storage.bytes(file).map_or(0, <[u8]>::len);
        for byte in 0..len {
            // Every bit of a head; one of every byte that a checksum covers as a whole, or that is a zero behind a header.
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
                        let hit = hit.unwrap_or_else(|| panic!("{file}, byte {byte}, bit {bit}: another state"));
                        let before = Lsn(hit.lsn.0 - 1);
                        assert_eq!(digest, case.history[&before], "{file}, byte {byte}, bit {bit}: no state that was");
                        let proven = case.proven_without(hit.lsn);
                        assert!(
                            before >= proven,
                            "{file}, byte {byte}, bit {bit}: {before} of {proven} that is proven"
                        );
                        torn += 1;
                    }
                }
            }
        }
    }
    assert_eq!(case.found(), Some(whole), "all damage is undone");
    (refused, torn)
}

#[test]
fn no_turned_bit_of_a_log_that_ends_in_a_mark_changes_what_is_recovered() {
    let case = Case::new(told());
    let files = case.files.clone();
    let (refused, torn) = every_flip(case, &files);
    assert!(refused > 10_000, "{refused} were refused");
    assert_eq!(torn, 0, "everything before the mark is proven, and the mark itself says nothing");
}

#[test]
fn a_turned_bit_takes_no_more_than_what_nothing_proves_to_be_synced() {
    let case = Case::new(told_but_for_the_mark());
    let files = [case.last_segment];
    let (refused, torn) = every_flip(case, &files);
    assert!(refused > 500, "{refused} were refused");
    assert!(torn > 100, "in the last batch, {torn} look torn");
}

#[test]
fn every_cut_of_every_file_is_refused_or_leaves_a_state_that_was() {
    let (marked, unmarked) = (Case::new(told()), Case::new(told_but_for_the_mark()));
    let (all, last) = (marked.files.clone(), vec![unmarked.last_segment]);
    for (mut case, files) in [(marked, all), (unmarked, last)] {
        let whole = case.whole();
        for file in files {
            let len = case.storage.bytes(file).map_or(0, <[u8]>::len);
            let kept = case.storage.clone();
            // What reads as zeros was never written; nothing is lost by cutting it off.
            // Behind a header, one cut through its zeros is as good as another.
            let plain = |cut: &usize| !(BLOCK_BYTES + 1..HEADER_BYTES).contains(cut) || cut.is_multiple_of(64);
            for cut in (0..len).rev().filter(plain) {
                case.storage.bytes_mut(file).expect("is there").truncate(cut);
                let Some(digest) = case.found() else { continue };
                if digest == whole {
                    continue;
                }
                assert_eq!(file, case.last_segment, "cut at {cut}: only the end of the log can go unseen");
                let left = case.frames.iter().filter(|frame| frame.file != file || frame.end <= cut);
                let left = left.map(|frame| frame.lsn).max().unwrap_or_default();
                assert_eq!(digest, case.history[&left], "{file} cut at {cut}: everything whole is read");
            }
            case.storage = kept;
        }
        assert_eq!(case.found(), Some(whole), "all damage is undone");
    }
}

#[test]
fn a_missing_file_is_refused_or_missed_by_nobody() {
    let mut case = Case::new(told());
    let whole = case.whole();
    for file in case.files.clone() {
        let kept = case.storage.clone();
        case.storage.uproot(file);
        match case.found() {
            None => {}
            Some(digest) if digest == whole => {}
            Some(digest) => {
                assert_eq!(file, case.last_segment, "only the last segment can go unseen");
                let left = case.frames.iter().filter(|frame| frame.file != file).map(|frame| frame.lsn).max();
                assert_eq!(digest, case.history[&left.expect("more than one segment")]);
            }
        }
        case.storage = kept;
    }
}
