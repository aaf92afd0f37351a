//! Reading what is left: which files belong to the log, and every frame in them that verifies, also behind damage.
//!
//! Unlike recovery this does not judge. It goes on wherever it can, and says where it could not.

use std::collections::BTreeMap;

use driftq_core::log::{
    CrcSeed, FileId, Frame, FrameError, HEADER_BYTES, HeaderError, LogId, RecoveryError, SegmentHeader, SnapshotError,
    SnapshotHead, SnapshotReadError, StopReason, Storage, find_frame, frame, read_snapshot, read_whole,
};
use driftq_core::types::Lsn;

use super::WalError;

/// The highest LSN a header may name; see the log's headers.
pub(super) const LSN_MAX: Lsn = Lsn(1 << 62);
/// Numbers of files from this on were never given: no header could have named what comes next. A file of such a name is set aside with the
/// others and believed in nothing.
const NUMBER_END: u64 = LSN_MAX.0 - 2;

/// A segment, as far as it can be read.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) file: FileId,
    pub(super) len: u64,
    pub(super) header: Result<SegmentHeader, HeaderError>,
    seed: CrcSeed,
    /// Its place in the row.
    sequence: u64,
    /// Its first LSN by its header; without one, that of the first frame that verifies, if any does.
    first: Option<Lsn>,
    /// From this LSN on the log goes on in a later segment; what has such an LSN here was cut.
    dead_from: Option<Lsn>,
    /// Whether the segment after it is there, so that what is missing up to `dead_from` is missing here.
    has_successor: bool,
}

impl Source {
    /// Its frames, given its bytes.
    pub(super) fn scan<'a>(&self, bytes: &'a [u8]) -> Scanner<'a> {
        Scanner {
            bytes,
            seed: self.seed,
            position: HEADER_BYTES.min(bytes.len()),
            last: self.header.ok().map(|header| (header.previous_lsn, header.previous_crc)),
            dead_from: self.dead_from,
            has_successor: self.has_successor,
            ended: false,
        }
    }
}

/// A folder of log files, as far as they can be read.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) log_id: LogId,
    /// Segments of this log, in their order.
    pub(super) segments: Vec<Source>,
    /// Finished snapshots, newest first, and whether each is whole.
    pub(super) snapshots: Vec<(Lsn, Result<SnapshotHead, SnapshotError>)>,
    /// Files of other logs.
    pub(super) foreign: Vec<(FileId, LogId)>,
    /// All files of a log's names.
    pub(super) files: Vec<FileId>,
}

impl Folder {
    /// Reads all headers and snapshots.
    pub(super) fn survey(storage: &mut impl Storage) -> Result<Self, WalError> {
        let files = storage.list().map_err(|fault| WalError::Storage { file: None, fault })?;
        let mut window = Vec::new();
        let (mut found, mut snapshots) = (Vec::new(), Vec::new());
        for info in &files {
            match info.file {
                FileId::Segment(sequence) => {
                    let mut bytes = [0; HEADER_BYTES];
                    let got = storage.read(info.file, 0, &mut bytes).map_err(WalError::storage(info.file))?;
                    let header = SegmentHeader::decode(&bytes[..got]);
                    if let Err(HeaderError::UnknownVersion(version)) = header {
                        return Err(WalError::Recovery(RecoveryError::UnknownVersion { file: info.file, version }));
                    }
                    found.push((info, sequence, header));
                }
                FileId::Snapshot(lsn) => {
                    let whole = match read_snapshot(storage, lsn, &mut window, |_, _, _| Ok::<(), ()>(())) {
                        Ok(head) => Ok(head),
                        Err(SnapshotReadError::Damaged(error)) => Err(error),
                        Err(SnapshotReadError::Storage(fault)) => return Err(WalError::storage(info.file)(fault)),
                        Err(SnapshotReadError::Refused { .. }) => unreachable!("nothing is refused here"),
                    };
                    snapshots.push((lsn, whole));
                }
                FileId::SnapshotDraft(_) => {}
            }
        }
        let log_id = owner(&found.iter().map(|(_, _, header)| *header).collect::<Vec<_>>(), &snapshots)?;
        let mut foreign: Vec<_> = snapshots
            .iter()
            .filter_map(|(lsn, whole)| Some((FileId::Snapshot(*lsn), whole.ok()?.log_id)))
            .filter(|(_, other)| *other != log_id)
            .collect();
        snapshots.retain(|(_, whole)| whole.is_err() || whole.is_ok_and(|head| head.log_id == log_id));
        snapshots.reverse();
        let mut segments = Vec::new();
        for (info, sequence, header) in found {
            let file = info.file;
            let source = match header {
                Ok(header) if header.log_id != log_id => {
                    foreign.push((file, header.log_id));
                    continue;
                }
                // One that bears another's name is still what its header says.
                Ok(header) => (header.seed(), header.sequence, Some(header.first_lsn())),
                Err(_) => {
                    let seed = CrcSeed::new(log_id, file);
                    read_whole(storage, file, &mut window).map_err(WalError::storage(file))?;
                    let from = HEADER_BYTES.min(window.len());
                    let first = find_frame(&window, from, Lsn(1)..=LSN_MAX, seed);
                    let first = first.and_then(|at| frame::decode(&window[at..], seed).ok());
                    (seed, sequence, first.map(|frame| frame.head.lsn))
                }
            };
            let (seed, sequence, first) = source;
            segments.push(Source {
                file,
                len: info.len,
                header,
                seed,
                sequence,
                first,
                dead_from: None,
                has_successor: false,
            });
        }
        segments.sort_by_key(|source| source.sequence);
        let (mut dead_from, mut after) = (None, None);
        for source in segments.iter_mut().rev() {
            source.dead_from = dead_from;
            source.has_successor = after == source.sequence.checked_add(1);
            after = Some(source.sequence);
            dead_from = source.first.into_iter().chain(dead_from).min();
        }
        let files = files.iter().map(|info| info.file).collect();
        Ok(Self { log_id, segments, snapshots, foreign, files })
    }

    /// The highest number of a segment, by name or by header.
    pub(super) fn last_sequence(&self) -> u64 {
        let names = self.files.iter().map(|file| if let FileId::Segment(sequence) = file { *sequence } else { 0 });
        let headers = self.segments.iter().map(|source| source.sequence);
        names.chain(headers).filter(|sequence| *sequence < NUMBER_END).max().unwrap_or(0)
    }

    /// The highest LSN that a header or a finished snapshot's name proves to have been synced.
    pub(super) fn last_lsn_synced(&self) -> Lsn {
        let headers = self.segments.iter().filter_map(|source| Some(source.header.ok()?.previous_lsn));
        let names = self.snapshots.iter().map(|(lsn, _)| *lsn);
        headers.chain(names).filter(|lsn| lsn.0 < NUMBER_END).max().unwrap_or_default()
    }

    /// The highest LSN in a file's name, whoever's it is and whether or not it was synced.
    pub(super) fn last_lsn_named(&self) -> Lsn {
        let names = self.files.iter().map(|file| match file {
            FileId::Segment(_) => Lsn(0),
            FileId::Snapshot(lsn) | FileId::SnapshotDraft(lsn) => *lsn,
        });
        names.filter(|lsn| lsn.0 < NUMBER_END).max().unwrap_or_default()
    }
}

/// Whose log this is: what most headers say. Only where no segment has one are snapshots asked.
fn owner(
    headers: &[Result<SegmentHeader, HeaderError>],
    snapshots: &[(Lsn, Result<SnapshotHead, SnapshotError>)],
) -> Result<LogId, WalError> {
    let mut votes: BTreeMap<LogId, u64> = BTreeMap::new();
    let heads = snapshots.iter().filter_map(|(_, whole)| Some(whole.ok()?.log_id));
    let segments = headers.iter().filter_map(|header| Some(header.ok()?.log_id));
    for log_id in segments.chain(heads) {
        *votes.entry(log_id).or_default() += 1;
    }
    votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(log_id, _)| log_id).ok_or(WalError::NoIdentity)
}

/// A place where no frame of the log stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// Where a frame should begin.
    pub(super) position: usize,
    /// The LSN it should have, where that is known.
    pub(super) expected: Option<Lsn>,
    /// What is there instead.
    pub(super) reason: StopReason,
    /// Where frames go on, if they do in this file.
    pub(super) resumes_at: Option<usize>,
}

/// What a scanner finds next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'a> {
    /// A frame, and where it begins.
    Frame(usize, Frame<'a>),
    /// Something else.
    Damage(Damage),
}

/// Gives every frame of a segment that verifies and is not cut, and every damage between them.
#[derive(Debug)]
pub(super) struct Scanner<'a> {
    bytes: &'a [u8],
    seed: CrcSeed,
    position: usize,
    /// LSN and checksum of the frame before, where they are known.
    last: Option<(Lsn, u32)>,
    dead_from: Option<Lsn>,
    has_successor: bool,
    ended: bool,
}

impl<'a> Scanner<'a> {
    /// The byte behind the last frame given.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    fn expected(&self) -> Option<Lsn> {
        self.last.map(|(lsn, _)| lsn.next())
    }

    /// Whether everything that belongs here has been given.
    fn is_complete(&self) -> bool {
        matches!((self.expected(), self.dead_from), (Some(next), Some(dead)) if next >= dead)
    }

    fn frame_here(&self) -> Result<Frame<'a>, StopReason> {
        let rest = &self.bytes[self.position..];
        let frame = match frame::decode(rest, self.seed) {
            Ok(frame) => frame,
            Err(FrameError::Unwritten | FrameError::TooShort { .. }) if rest.iter().all(|byte| *byte == 0) => {
                return Err(StopReason::End);
            }
            Err(error) => return Err(error.into()),
        };
        match self.last {
            Some((last, _)) if frame.head.lsn != last.next() => Err(StopReason::WrongLsn { found: frame.head.lsn }),
            Some((_, expected)) if frame.head.prev_crc != expected => {
                Err(StopReason::BrokenChain { expected, found: frame.head.prev_crc })
            }
            _ => Ok(frame),
        }
    }

    /// Goes to the next frame that verifies, if there is one that belongs here.
    fn resume(&mut self) -> Option<usize> {
        let last = self.dead_from.map_or(LSN_MAX, |dead| Lsn(dead.0.saturating_sub(1)));
        let lsns = self.expected().unwrap_or(Lsn(1))..=last;
        let position = find_frame(self.bytes, self.position, lsns, self.seed)?;
        let frame = frame::decode(&self.bytes[position..], self.seed).ok()?;
        self.position = position;
        self.last = Some((Lsn(frame.head.lsn.0 - 1), frame.head.prev_crc));
        Some(position)
    }
}

impl<'a> Iterator for Scanner<'a> {
    type Item = Found<'a>;

    fn next(&mut self) -> Option<Found<'a>> {
        if self.ended || self.is_complete() {
            return None;
        }
        match self.frame_here() {
            Ok(frame) => {
                let position = self.position;
                self.position += frame.size();
                self.last = Some((frame.head.lsn, frame.crc));
                Some(Found::Frame(position, frame))
            }
            // The end, as far as anything in this file or behind it tells.
            Err(StopReason::End) if self.dead_from.is_none() || self.last.is_none() || !self.has_successor => {
                self.ended = true;
                None
            }
            Err(reason) => {
                let (position, expected) = (self.position, self.expected());
                let resumes_at = if reason == StopReason::End { None } else { self.resume() };
                self.ended = resumes_at.is_none();
                Some(Found::Damage(Damage { position, expected, reason, resumes_at }))
            }
        }
    }
}
