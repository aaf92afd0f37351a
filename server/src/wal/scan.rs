//! Reads a possibly damaged log: which files belong to it, and every frame in them that verifies, also after damage.
//!
//! Unlike recovery it does not decide whether the log can be used. It continues wherever it can and reports the gaps.

use std::collections::BTreeMap;

use driftq_core::codec::record as codec;
use driftq_core::log::{
    CrcSeed, FileId, Frame, FrameError, HEADER_BYTES, HeaderError, LogId, RECORD_KIND_MAX, RecoveryError,
    ReferredSegment, SegmentHeader, SnapshotError, SnapshotHead, SnapshotReadError, StopReason, Storage, find_frame,
    frame, read_snapshot, read_snapshot_head, read_whole,
};
use driftq_core::record::{Event, Image, Record};
use driftq_core::types::{FrameNumber, Lsn};

use super::error::WalError;

/// The highest frame number that a segment header accepts.
pub(super) const FRAME_MAX: FrameNumber = FrameNumber(1 << 62);
/// File numbers from this one on are never assigned: no header could name the successor. A salvage moves such a file to
/// quarantine and ignores its name and content.
const NUMBER_END: u64 = FRAME_MAX.0 - 2;

/// A segment, as far as it can be read.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: FileId,
    pub(super) len: u64,
    pub(super) header: Result<SegmentHeader, HeaderError>,
    seed: CrcSeed,
    /// Its number, by its header or its name.
    pub(super) sequence: u64,
    /// The number of its first frame, by its header; without a valid header, that of its first frame that verifies.
    first: Option<FrameNumber>,
    /// The number of the first frame of a later segment, or of the first behind the end in a snapshot's list. Frames
    /// from this number on were cut off here.
    dead_from: Option<FrameNumber>,
    /// Whether the next segment exists, or a snapshot says where this one ends, so that frames missing before
    /// `dead_from` are missing in this one.
    has_successor: bool,
}

impl Segment {
    /// Scans its bytes for frames.
    pub(super) fn scan<'a>(&self, bytes: &'a [u8]) -> Scanner<'a> {
        Scanner {
            bytes,
            seed: self.seed,
            position: HEADER_BYTES.min(bytes.len()),
            last: self.header.ok().map(|header| (header.previous.frame, header.previous_crc)),
            last_lsn: self.header.ok().map(|header| header.previous.lsn),
            dead_from: self.dead_from,
            has_successor: self.has_successor,
            ended: false,
        }
    }
}

/// The files of a log, as far as they can be read.
#[derive(Debug)]
pub(super) struct LogFiles {
    pub(super) log_id: LogId,
    /// The segments of this log, in order.
    pub(super) segments: Vec<Segment>,
    /// Finished snapshots, newest first, and whether each is intact.
    pub(super) snapshots: Vec<(FrameNumber, Result<SnapshotHead, SnapshotError>)>,
    /// The segments to which each intact snapshot refers.
    pub(super) referred: BTreeMap<FrameNumber, Vec<ReferredSegment>>,
    /// Snapshots by their names that hold neither a header nor a frame of this log.
    pub(super) stray: Vec<FrameNumber>,
    /// Files of other logs.
    pub(super) foreign: Vec<(FileId, LogId)>,
    /// All files with the name of a segment or snapshot.
    pub(super) files: Vec<FileId>,
}

impl LogFiles {
    /// Reads all headers and snapshots.
    pub(super) fn read(storage: &mut impl Storage) -> Result<Self, WalError> {
        let files = storage.list().map_err(|fault| WalError::Storage { file: None, fault })?;
        let mut window = Vec::new();
        let (mut found, mut snapshots, mut referred) = (Vec::new(), Vec::new(), BTreeMap::new());
        for info in &files {
            match info.file {
                FileId::Segment(sequence) => {
                    let mut bytes = [0; HEADER_BYTES];
                    let got = storage.read(info.file, 0, &mut bytes).map_err(WalError::storage(info.file))?;
                    let header = SegmentHeader::decode(&bytes[..got]);
                    refuse_unsupported(info.file, header.err())?;
                    found.push((info, sequence, header));
                }
                FileId::Snapshot(frame) => {
                    let head = match read_snapshot(storage, frame, &mut window, |_, _, _| Ok::<(), ()>(())) {
                        Ok((head, segments)) => {
                            referred.insert(frame, segments);
                            Ok(head)
                        }
                        Err(SnapshotReadError::Damaged(error)) => {
                            let header = if let SnapshotError::Header(error) = error { Some(error) } else { None };
                            refuse_unsupported(info.file, header)?;
                            Err(error)
                        }
                        Err(SnapshotReadError::Storage(fault)) => return Err(WalError::storage(info.file)(fault)),
                        Err(SnapshotReadError::Refused { .. }) => unreachable!("the callback accepts every record"),
                    };
                    snapshots.push((frame, head));
                }
                FileId::SnapshotDraft(_) => {}
            }
        }
        let log_id = majority_log_id(&found.iter().map(|(_, _, header)| *header).collect::<Vec<_>>(), &snapshots)?;
        let mut foreign: Vec<_> = snapshots
            .iter()
            .filter_map(|(frame, head)| Some((FileId::Snapshot(*frame), head.ok()?.log_id)))
            .filter(|(_, other)| *other != log_id)
            .collect();
        snapshots.retain(|(_, head)| head.is_err() || head.is_ok_and(|head| head.log_id == log_id));
        snapshots.reverse();
        referred.retain(|frame, _| snapshots.iter().any(|(kept, head)| kept == frame && head.is_ok()));
        let mut segments = Vec::new();
        for (info, sequence, header) in found {
            let file = info.file;
            let (seed, sequence, first) = match header {
                Ok(header) if header.log_id != log_id => {
                    foreign.push((file, header.log_id));
                    continue;
                }
                // A renamed segment is identified by its header.
                Ok(header) => (header.seed(), header.sequence, Some(header.first_frame())),
                Err(_) => {
                    let seed = CrcSeed::new(log_id, file);
                    read_whole(storage, file, &mut window).map_err(WalError::storage(file))?;
                    let from = HEADER_BYTES.min(window.len());
                    let first = find_frame(&window, from, FrameNumber(1)..=FRAME_MAX, seed);
                    let first = first.and_then(|at| frame::decode(&window[at..], seed).ok());
                    (seed, sequence, first.map(|frame| frame.head.number))
                }
            };
            segments.push(Segment {
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
        segments.sort_by_key(|segment| segment.sequence);
        let (mut dead_from, mut after) = (None, None);
        for segment in segments.iter_mut().rev() {
            segment.dead_from = dead_from;
            segment.has_successor = after == segment.sequence.checked_add(1);
            after = Some(segment.sequence);
            dead_from = segment.first.into_iter().chain(dead_from).min();
        }
        for segment in segments.iter_mut().filter(|segment| !segment.has_successor && segment.header.is_ok()) {
            // Its successor may have been removed, which says where it ends; a snapshot of later frames says so too.
            if let Some(last) = listed_end(&referred, segment.sequence) {
                segment.dead_from = segment.dead_from.into_iter().chain([last.next()]).min();
                segment.has_successor = true;
            }
        }
        let mut stray = Vec::new();
        for (frame, head) in &snapshots {
            if head.is_err() && !holds_frames_of(storage, log_id, *frame, &mut window)? {
                stray.push(*frame);
            }
        }
        let files = files.iter().map(|info| info.file).collect();
        Ok(Self { log_id, segments, snapshots, referred, stray, foreign, files })
    }

    /// Snapshots that must be usable, newest first, each with the segments that it refers to. Of any before them,
    /// segments may be removed already.
    pub(super) fn kept_snapshots(&self) -> impl Iterator<Item = (FrameNumber, &[ReferredSegment])> {
        self.referred.iter().rev().take(2).map(|(frame, segments)| (*frame, &segments[..]))
    }

    /// The highest number of a segment, by name or by header.
    pub(super) fn last_sequence(&self) -> u64 {
        let names = self.files.iter().map(|file| if let FileId::Segment(sequence) = file { *sequence } else { 0 });
        let headers = self.segments.iter().map(|segment| segment.sequence);
        names.chain(headers).filter(|sequence| *sequence < NUMBER_END).max().unwrap_or(0)
    }

    /// The highest frame number that a header or a finished snapshot proves to have been synced. The name of a file
    /// that holds nothing of this log proves nothing.
    pub(super) fn last_frame_synced(&self) -> FrameNumber {
        let headers = self.segments.iter().filter_map(|segment| Some(segment.header.ok()?.previous.frame));
        let names = self.snapshots.iter().map(|(frame, _)| *frame).filter(|frame| !self.stray.contains(frame));
        headers.chain(names).filter(|frame| frame.0 < NUMBER_END).max().unwrap_or_default()
    }

    /// The highest frame number in a file name, of any log, synced or not.
    pub(super) fn last_frame_named(&self) -> FrameNumber {
        let names = self.files.iter().map(|file| match file {
            FileId::Segment(_) => FrameNumber(0),
            FileId::Snapshot(frame) | FileId::SnapshotDraft(frame) => *frame,
        });
        names.filter(|frame| frame.0 < NUMBER_END).max().unwrap_or_default()
    }
}

/// The last frame of a segment, by the newest snapshot that refers to it, if the segment was complete then.
fn listed_end(referred: &BTreeMap<FrameNumber, Vec<ReferredSegment>>, sequence: u64) -> Option<FrameNumber> {
    let ends = referred.iter().rev().filter_map(|(at, segments)| {
        let listed = segments.binary_search_by_key(&sequence, |segment| segment.sequence).ok()?;
        Some((*at, segments[listed].last.frame))
    });
    { ends }.next().and_then(|(at, last)| (last < at).then_some(last))
}

/// Refuses a file whose header is valid and not supported by this program.
fn refuse_unsupported(file: FileId, error: Option<HeaderError>) -> Result<(), WalError> {
    let refusal = error.and_then(|error| RecoveryError::unsupported(file, error));
    refusal.map_or(Ok(()), |refusal| Err(WalError::Recovery(refusal)))
}

/// Whether the damaged snapshot of frame `number` has a header or a frame of the log.
fn holds_frames_of(
    storage: &mut impl Storage,
    log_id: LogId,
    number: FrameNumber,
    window: &mut Vec<u8>,
) -> Result<bool, WalError> {
    let file = FileId::Snapshot(number);
    let head = read_snapshot_head(storage, number).map_err(WalError::storage(file))?;
    if head.is_ok_and(|head| head.log_id == log_id) {
        return Ok(true);
    }
    read_whole(storage, file, window).map_err(WalError::storage(file))?;
    let from = HEADER_BYTES.min(window.len());
    Ok(find_frame(window, from, FrameNumber(1)..=FRAME_MAX, CrcSeed::new(log_id, file)).is_some())
}

/// What is whole in a damaged snapshot.
#[derive(Debug, Default)]
pub(super) struct SnapshotParts {
    /// Its intact images.
    pub(super) images: Vec<Image>,
    /// Images that are missing; at least one if its end is.
    pub(super) lost: u64,
}

/// Every image in the snapshot of frame `number` that verifies, also behind damage.
pub(super) fn scan_snapshot(bytes: &[u8], log_id: LogId, number: FrameNumber) -> SnapshotParts {
    let seed = CrcSeed::new(log_id, FileId::Snapshot(number));
    let mut parts = SnapshotParts::default();
    let (mut position, mut last, mut ended) = (HEADER_BYTES.min(bytes.len()), FrameNumber(0), false);
    while !ended {
        let frame = match frame::decode(&bytes[position..], seed) {
            Ok(frame) if frame.head.number > last => frame,
            _ => match find_frame(bytes, position, last.next()..=FRAME_MAX, seed) {
                Some(found) => {
                    position = found;
                    continue;
                }
                None => break,
            },
        };
        parts.lost += frame.head.number.0 - last.0 - 1;
        (position, last) = (position + frame.size(), frame.head.number);
        if frame.head.kind > RECORD_KIND_MAX {
            ended = true;
        } else {
            match codec::decode(frame.head.kind, frame.head.version, frame.payload) {
                Ok(Record { event: Event::Restored(image), .. }) => parts.images.push(image),
                _ => parts.lost += 1,
            }
        }
    }
    parts.lost += u64::from(!ended);
    parts
}

/// The log id in most segment headers and snapshots.
fn majority_log_id(
    headers: &[Result<SegmentHeader, HeaderError>],
    snapshots: &[(FrameNumber, Result<SnapshotHead, SnapshotError>)],
) -> Result<LogId, WalError> {
    let mut votes: BTreeMap<LogId, u64> = BTreeMap::new();
    let heads = snapshots.iter().filter_map(|(_, head)| Some(head.ok()?.log_id));
    let segments = headers.iter().filter_map(|header| Some(header.ok()?.log_id));
    for log_id in segments.chain(heads) {
        *votes.entry(log_id).or_default() += 1;
    }
    votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(log_id, _)| log_id).ok_or(WalError::NoIdentity)
}

/// A byte where a frame of the log should begin and does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// Where a frame should begin.
    pub(super) position: usize,
    /// The number that the frame should have, if known.
    pub(super) expected: Option<FrameNumber>,
    /// What is wrong with the frame.
    pub(super) reason: StopReason,
    /// Where the next frame in this file begins, if there is one.
    pub(super) resumes_at: Option<usize>,
}

/// What a scanner finds.
#[derive(Clone, Copy, Debug)]
pub(super) enum ScanItem<'a> {
    /// A frame.
    Frame {
        /// Where it begins.
        position: usize,
        /// The frame.
        frame: Frame<'a>,
        /// The LSN of the last record up to it, if known: behind a loss it is not known how many records there were.
        lsn: Option<Lsn>,
    },
    /// Damage between frames.
    Damage(Damage),
}

/// Yields every frame of a segment that verifies and was not cut off, and the damage between them.
#[derive(Debug)]
pub(super) struct Scanner<'a> {
    bytes: &'a [u8],
    seed: CrcSeed,
    position: usize,
    /// Number and checksum of the previous frame, if known.
    last: Option<(FrameNumber, u32)>,
    /// The LSN of the last record up to it, if known.
    last_lsn: Option<Lsn>,
    dead_from: Option<FrameNumber>,
    has_successor: bool,
    ended: bool,
}

impl<'a> Scanner<'a> {
    /// The byte after the last frame yielded.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    fn expected(&self) -> Option<FrameNumber> {
        self.last.map(|(number, _)| number.next())
    }

    /// Whether all frames that belong to this segment have been yielded.
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
            Some((last, _)) if frame.head.number != last.next() => {
                Err(StopReason::WrongNumber { found: frame.head.number })
            }
            Some((_, expected)) if frame.head.prev_crc != expected => {
                Err(StopReason::BrokenChain { expected, found: frame.head.prev_crc })
            }
            _ => Ok(frame),
        }
    }

    /// Moves to the next frame that verifies and belongs to this segment, if there is one.
    fn resume(&mut self) -> Option<usize> {
        let last = self.dead_from.map_or(FRAME_MAX, |dead| FrameNumber(dead.0.saturating_sub(1)));
        let numbers = self.expected().unwrap_or(FrameNumber(1))..=last;
        let position = find_frame(self.bytes, self.position, numbers, self.seed)?;
        let frame = frame::decode(&self.bytes[position..], self.seed).ok()?;
        self.position = position;
        if self.expected() != Some(frame.head.number) {
            self.last_lsn = None;
        }
        self.last = Some((FrameNumber(frame.head.number.0 - 1), frame.head.prev_crc));
        Some(position)
    }
}

impl<'a> Iterator for Scanner<'a> {
    type Item = ScanItem<'a>;

    fn next(&mut self) -> Option<ScanItem<'a>> {
        if self.ended || self.is_complete() {
            return None;
        }
        match self.frame_here() {
            Ok(frame) => {
                let position = self.position;
                self.position += frame.size();
                self.last = Some((frame.head.number, frame.crc));
                if frame.is_record() {
                    self.last_lsn = self.last_lsn.map(Lsn::next);
                }
                Some(ScanItem::Frame { position, frame, lsn: self.last_lsn })
            }
            // Zeros to the end of the file, and no proof that a frame should follow.
            Err(StopReason::End) if self.dead_from.is_none() || self.last.is_none() || !self.has_successor => {
                self.ended = true;
                None
            }
            Err(reason) => {
                let (position, expected) = (self.position, self.expected());
                let resumes_at = if reason == StopReason::End { None } else { self.resume() };
                self.ended = resumes_at.is_none();
                Some(ScanItem::Damage(Damage { position, expected, reason, resumes_at }))
            }
        }
    }
}
