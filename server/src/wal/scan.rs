//! Reads a possibly damaged log: which files belong to it, and every frame in them that verifies, also after damage.
//!
//! Unlike recovery it does not decide whether the log can be used. It continues wherever it can and reports the gaps.

use std::collections::BTreeMap;

use driftq_core::codec::record as codec;
use driftq_core::log::{
    CrcSeed, FileId, Frame, FrameError, HEADER_BYTES, HeaderError, LogId, RECORD_KIND_MAX, RecoveryError,
    SegmentHeader, SnapshotError, SnapshotHead, SnapshotReadError, StopReason, Storage, find_frame, frame,
    read_snapshot, read_snapshot_head, read_whole,
};
use driftq_core::record::{Event, Image, Record};
use driftq_core::types::Lsn;

use super::error::WalError;

/// The highest LSN that a segment header accepts.
pub(super) const LSN_MAX: Lsn = Lsn(1 << 62);
/// File numbers from this one on are never assigned: no header could name the successor. A salvage moves such a file to
/// quarantine and ignores its name and content.
const NUMBER_END: u64 = LSN_MAX.0 - 2;

/// A segment, as far as it can be read.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: FileId,
    pub(super) len: u64,
    pub(super) header: Result<SegmentHeader, HeaderError>,
    seed: CrcSeed,
    /// Its number, by its header or its name.
    sequence: u64,
    /// Its first LSN, by its header; without a valid header, that of its first frame that verifies.
    first: Option<Lsn>,
    /// The first LSN of a later segment. Frames from this LSN on were cut off here.
    dead_from: Option<Lsn>,
    /// Whether the next segment exists, so that frames missing before `dead_from` are missing in this one.
    has_successor: bool,
}

impl Segment {
    /// Scans its bytes for frames.
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

/// The files of a log, as far as they can be read.
#[derive(Debug)]
pub(super) struct LogFiles {
    pub(super) log_id: LogId,
    /// The segments of this log, in order.
    pub(super) segments: Vec<Segment>,
    /// Finished snapshots, newest first, and whether each is intact.
    pub(super) snapshots: Vec<(Lsn, Result<SnapshotHead, SnapshotError>)>,
    /// Snapshots by their names that hold neither a header nor a frame of this log.
    pub(super) stray: Vec<Lsn>,
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
                    let head = match read_snapshot(storage, lsn, &mut window, |_, _, _| Ok::<(), ()>(())) {
                        Ok(head) => Ok(head),
                        Err(SnapshotReadError::Damaged(error)) => Err(error),
                        Err(SnapshotReadError::Storage(fault)) => return Err(WalError::storage(info.file)(fault)),
                        Err(SnapshotReadError::Refused { .. }) => unreachable!("the callback accepts every record"),
                    };
                    snapshots.push((lsn, head));
                }
                FileId::SnapshotDraft(_) => {}
            }
        }
        let log_id = majority_log_id(&found.iter().map(|(_, _, header)| *header).collect::<Vec<_>>(), &snapshots)?;
        let mut foreign: Vec<_> = snapshots
            .iter()
            .filter_map(|(lsn, head)| Some((FileId::Snapshot(*lsn), head.ok()?.log_id)))
            .filter(|(_, other)| *other != log_id)
            .collect();
        snapshots.retain(|(_, head)| head.is_err() || head.is_ok_and(|head| head.log_id == log_id));
        snapshots.reverse();
        let mut segments = Vec::new();
        for (info, sequence, header) in found {
            let file = info.file;
            let (seed, sequence, first) = match header {
                Ok(header) if header.log_id != log_id => {
                    foreign.push((file, header.log_id));
                    continue;
                }
                // A renamed segment is identified by its header.
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
        let mut stray = Vec::new();
        for (lsn, head) in &snapshots {
            if head.is_err() && !holds_frames_of(storage, log_id, *lsn, &mut window)? {
                stray.push(*lsn);
            }
        }
        let files = files.iter().map(|info| info.file).collect();
        Ok(Self { log_id, segments, snapshots, stray, foreign, files })
    }

    /// The highest number of a segment, by name or by header.
    pub(super) fn last_sequence(&self) -> u64 {
        let names = self.files.iter().map(|file| if let FileId::Segment(sequence) = file { *sequence } else { 0 });
        let headers = self.segments.iter().map(|segment| segment.sequence);
        names.chain(headers).filter(|sequence| *sequence < NUMBER_END).max().unwrap_or(0)
    }

    /// The highest LSN that a header or a finished snapshot proves to have been synced. The name of a file that holds
    /// nothing of this log proves nothing.
    pub(super) fn last_lsn_synced(&self) -> Lsn {
        let headers = self.segments.iter().filter_map(|segment| Some(segment.header.ok()?.previous_lsn));
        let names = self.snapshots.iter().map(|(lsn, _)| *lsn).filter(|lsn| !self.stray.contains(lsn));
        headers.chain(names).filter(|lsn| lsn.0 < NUMBER_END).max().unwrap_or_default()
    }

    /// The highest LSN in a file name, of any log, synced or not.
    pub(super) fn last_lsn_named(&self) -> Lsn {
        let names = self.files.iter().map(|file| match file {
            FileId::Segment(_) => Lsn(0),
            FileId::Snapshot(lsn) | FileId::SnapshotDraft(lsn) => *lsn,
        });
        names.filter(|lsn| lsn.0 < NUMBER_END).max().unwrap_or_default()
    }
}

/// Whether the damaged snapshot of `lsn` has a header or a frame of the log.
fn holds_frames_of(
    storage: &mut impl Storage,
    log_id: LogId,
    lsn: Lsn,
    window: &mut Vec<u8>,
) -> Result<bool, WalError> {
    let file = FileId::Snapshot(lsn);
    let head = read_snapshot_head(storage, lsn).map_err(WalError::storage(file))?;
    if head.is_ok_and(|head| head.log_id == log_id) {
        return Ok(true);
    }
    read_whole(storage, file, window).map_err(WalError::storage(file))?;
    let from = HEADER_BYTES.min(window.len());
    Ok(find_frame(window, from, Lsn(1)..=LSN_MAX, CrcSeed::new(log_id, file)).is_some())
}

/// What is whole in a damaged snapshot.
#[derive(Debug, Default)]
pub(super) struct SnapshotParts {
    /// Its intact images.
    pub(super) images: Vec<Image>,
    /// Images that are missing; at least one if its end is.
    pub(super) lost: u64,
}

/// Every image in the snapshot of `lsn` that verifies, also behind damage.
pub(super) fn scan_snapshot(bytes: &[u8], log_id: LogId, lsn: Lsn) -> SnapshotParts {
    let seed = CrcSeed::new(log_id, FileId::Snapshot(lsn));
    let mut parts = SnapshotParts::default();
    let (mut position, mut last, mut ended) = (HEADER_BYTES.min(bytes.len()), Lsn(0), false);
    while !ended {
        let frame = match frame::decode(&bytes[position..], seed) {
            Ok(frame) if frame.head.lsn > last => frame,
            _ => match find_frame(bytes, position, last.next()..=LSN_MAX, seed) {
                Some(found) => {
                    position = found;
                    continue;
                }
                None => break,
            },
        };
        parts.lost += frame.head.lsn.0 - last.0 - 1;
        (position, last) = (position + frame.size(), frame.head.lsn);
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
    snapshots: &[(Lsn, Result<SnapshotHead, SnapshotError>)],
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
    /// The LSN that the frame should have, if known.
    pub(super) expected: Option<Lsn>,
    /// What is wrong with the frame.
    pub(super) reason: StopReason,
    /// Where the next frame in this file begins, if there is one.
    pub(super) resumes_at: Option<usize>,
}

/// What a scanner finds.
#[derive(Clone, Copy, Debug)]
pub(super) enum ScanItem<'a> {
    /// A frame, and where it begins.
    Frame(usize, Frame<'a>),
    /// Damage between frames.
    Damage(Damage),
}

/// Yields every frame of a segment that verifies and was not cut off, and the damage between them.
#[derive(Debug)]
pub(super) struct Scanner<'a> {
    bytes: &'a [u8],
    seed: CrcSeed,
    position: usize,
    /// LSN and checksum of the previous frame, if known.
    last: Option<(Lsn, u32)>,
    dead_from: Option<Lsn>,
    has_successor: bool,
    ended: bool,
}

impl<'a> Scanner<'a> {
    /// The byte after the last frame yielded.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    fn expected(&self) -> Option<Lsn> {
        self.last.map(|(lsn, _)| lsn.next())
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
            Some((last, _)) if frame.head.lsn != last.next() => Err(StopReason::WrongLsn { found: frame.head.lsn }),
            Some((_, expected)) if frame.head.prev_crc != expected => {
                Err(StopReason::BrokenChain { expected, found: frame.head.prev_crc })
            }
            _ => Ok(frame),
        }
    }

    /// Moves to the next frame that verifies and belongs to this segment, if there is one.
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
    type Item = ScanItem<'a>;

    fn next(&mut self) -> Option<ScanItem<'a>> {
        if self.ended || self.is_complete() {
            return None;
        }
        match self.frame_here() {
            Ok(frame) => {
                let position = self.position;
                self.position += frame.size();
                self.last = Some((frame.head.lsn, frame.crc));
                Some(ScanItem::Frame(position, frame))
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
