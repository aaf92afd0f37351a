//! Recovery: reads the files that a stop left behind and returns everything that was synced, or refuses with a reason.
//!
//! It reads files, syncs them, and changes nothing else, so repeating or interrupting it does not affect the next
//! recovery. It decides whether invalid bytes are a torn tail, which is cut, or corruption, which is refused. They are
//! *corruption* if anything valid proves that they were synced, else a *torn tail*; `docs/wal.md` describes the rule
//! and its limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::frame::{CONTROL_VERSION, FOOTER, Frame, LogPosition, RECORD_KIND_MAX, SYNCED_MARK};
use super::header::{HeaderError, LogId, last_nonzero};
use super::listed;
use super::proof;
use super::report::{Malformed, Notice, Proof, Recovered, RecoveryError, SegmentInfo};
use super::scan::{FolderScan, storage_error};
use super::segment::{END_ZEROS, SegmentHeader, SegmentReader, StopReason};
use super::segment_index::SegmentIndex;
use super::snapshot::{ReferredSegment, SnapshotError, SnapshotHead, SnapshotReadError, read_snapshot};
use super::storage::{FileId, Storage, read_whole};
use crate::types::{FrameNumber, Lsn};

/// Receives the records that recovery finds.
///
/// The received records are the state of the log only once [`recover`] has returned `Ok`.
pub trait Replay {
    /// Discards everything received so far: it came from a snapshot that turned out to be damaged. Also called before
    /// the first record.
    fn reset(&mut self);

    /// Receives one record of a snapshot, in the order they were written.
    ///
    /// # Errors
    /// [`Malformed`] if it cannot be decoded or applied; recovery then refuses.
    fn restore(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed>;

    /// The whole snapshot was valid and has been received; records of the log follow, if any.
    ///
    /// # Errors
    /// [`Malformed`] if its records contradict each other; recovery then refuses.
    fn restored(&mut self) -> Result<(), Malformed> {
        Ok(())
    }

    /// Receives one record of the log, in the order they were written. Each LSN is one more than the last; the first
    /// is one more than that of the snapshot, or 1.
    ///
    /// # Errors
    /// [`Malformed`] if it cannot be decoded or applied; recovery then refuses.
    fn replay(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed>;
}

/// Accepts and discards every record, to check whether a log is intact.
impl Replay for () {
    fn reset(&mut self) {}

    fn restore(&mut self, _kind: u8, _version: u8, _payload: &[u8]) -> Result<(), Malformed> {
        Ok(())
    }

    fn replay(&mut self, _lsn: Lsn, _kind: u8, _version: u8, _payload: &[u8]) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Reads the log in `storage` and passes its state to `replay`: the newest valid snapshot, then every record after it.
///
/// A storage without a log becomes a new one with the id `new_log`; an existing log keeps its id, and `new_log` is
/// ignored. Every synced record is replayed, or recovery refuses; of the unsynced records, those before the first
/// invalid one are replayed. Nothing is written: to continue the log, perform [`Recovered::cleanup_ops`] and create a
/// segment with [`Recovered::next_header`].
///
/// # Errors
/// [`RecoveryError`]. What `replay` received until then must be discarded.
pub fn recover(
    storage: &mut (impl Storage + ?Sized),
    new_log: Option<LogId>,
    replay: &mut (impl Replay + ?Sized),
) -> Result<Recovered, RecoveryError> {
    recover_with(storage, new_log, replay, ListedSegments::Whole)
}

/// How a recovery checks the segments before those that it replays, to whose payloads the snapshot refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedSegments {
    /// Reads them from the first frame to the last.
    Whole,
    /// Checks their headers and sizes and reads their footers, as a start does: damage to a payload is found when the
    /// payload is read. A segment without a usable footer is indexed when it is first read.
    Footers,
}

/// Like [`recover`], which reads every segment that is needed as a whole.
///
/// # Errors
/// As [`recover`].
pub fn recover_with(
    storage: &mut (impl Storage + ?Sized),
    new_log: Option<LogId>,
    replay: &mut (impl Replay + ?Sized),
    listed: ListedSegments,
) -> Result<Recovered, RecoveryError> {
    let mut buffer = Vec::new();
    let scan = FolderScan::read(storage, &mut buffer)?;
    let found = scan.log_id.filter(|_| !scan.segments.is_empty());
    let mut recovery = Recovery {
        out: Recovered {
            log_id: found.or(new_log).ok_or(RecoveryError::NoLog)?,
            snapshot: None,
            last: LogPosition::default(),
            last_crc: 0,
            next_segment: scan.segments.last().map_or(1, |last| last.sequence + 1),
            segments: Vec::new(),
            referred: Vec::new(),
            snapshots: Vec::new(),
            garbage: Vec::new(),
            notices: Vec::new(),
            clean: false,
            frames_read: 0,
            bytes_read: 0,
        },
        scan,
        base: None,
        listed,
        damaged: Vec::new(),
        read: BTreeMap::new(),
        buffer,
    };
    recovery.restore_snapshot(storage, replay)?;
    if found.is_some() {
        recovery.replay_segments(storage, replay)?;
    }
    Ok(recovery.conclude())
}

/// A trimmed segment keeps whole pages, unless it ends in a footer.
const PAGE_BYTES: u64 = 4096;

/// A recovery in progress.
struct Recovery {
    out: Recovered,
    scan: FolderScan,
    /// The snapshot that the state is restored from.
    base: Option<SnapshotHead>,
    listed: ListedSegments,
    /// Damaged snapshots, newest first.
    damaged: Vec<(FrameNumber, SnapshotError)>,
    /// What is known of the segments that were read, by sequence number.
    read: BTreeMap<u64, ReadSegment>,
    /// Reused for every segment.
    buffer: Vec<u8>,
}

/// What is known of a segment that was read.
#[derive(Debug, Default)]
struct ReadSegment {
    /// How many bytes of it must be kept.
    end: u64,
    /// The byte at which its last frame ends.
    frames_end: u64,
    /// The position behind its last frame.
    last: LogPosition,
    index: SegmentIndex,
}

impl Recovery {
    fn base_frame(&self) -> FrameNumber {
        self.base.map_or(FrameNumber(0), |base| base.at.frame)
    }

    /// Restores the newest valid snapshot, or none.
    fn restore_snapshot(
        &mut self,
        storage: &mut (impl Storage + ?Sized),
        replay: &mut (impl Replay + ?Sized),
    ) -> Result<(), RecoveryError> {
        for frame in self.scan.snapshots.iter().rev().copied() {
            let file = FileId::Snapshot(frame);
            replay.reset();
            let restore = |kind, version, payload: &[u8]| replay.restore(kind, version, payload);
            match read_snapshot(storage, frame, &mut self.buffer, restore) {
                Ok((head, referred)) => {
                    self.out.referred = referred;
                    replay.restored().map_err(|reason| RecoveryError::Contradictory { file, reason })?;
                    self.base = Some(head);
                    self.out.snapshot = Some(head.at);
                    return Ok(());
                }
                Err(SnapshotReadError::Damaged(error)) => {
                    self.damaged.push((frame, error));
                    self.out.notices.push(Notice::DamagedSnapshot { file, error });
                }
                Err(SnapshotReadError::Storage(fault)) => return Err(storage_error("reading", Some(file), fault)),
                Err(SnapshotReadError::Refused { at, position, kind, version, reason }) => {
                    return Err(RecoveryError::Malformed { file, position, at, kind, version, reason });
                }
            }
        }
        replay.reset();
        Ok(())
    }

    fn replay_segments(
        &mut self,
        storage: &mut (impl Storage + ?Sized),
        replay: &mut (impl Replay + ?Sized),
    ) -> Result<(), RecoveryError> {
        let start = self.find_start()?;
        let headers = self.check_headers(start)?;
        self.read_referred(start, storage)?;
        if let Some(first) = headers.first() {
            self.check_base(first.previous, first.previous_crc, first.file(), 0)?;
        }
        for (index, header) in headers.iter().enumerate() {
            let file = header.file();
            let mut buffer = std::mem::take(&mut self.buffer);
            read_whole(storage, file, &mut buffer).map_err(|fault| storage_error("reading", Some(file), fault))?;
            match headers.get(index + 1) {
                Some(next) => self.replay_closed_segment(header, next, &buffer, replay)?,
                None => self.replay_open_segment(header, &buffer, replay)?,
            }
            self.buffer = buffer;
        }
        Ok(())
    }

    /// The index of the segment that contains, or would contain, the first frame after the snapshot.
    fn find_start(&mut self) -> Result<usize, RecoveryError> {
        let needed = self.base_frame().next();
        let segments = &self.scan.segments;
        let Some(start) = segments.iter().rposition(|s| s.header.is_ok_and(|header| header.first_frame() <= needed))
        else {
            return Err(self.start_error(needed));
        };
        let referred = &self.out.referred;
        for segment in &segments[..start] {
            let is_referred = referred.binary_search_by_key(&segment.sequence, |referred| referred.sequence).is_ok();
            if let (false, Err(error)) = (is_referred, segment.header) {
                self.out.notices.push(Notice::UnneededDamage { file: segment.file(), error });
            }
        }
        Ok(start)
    }

    /// Checks the segments before `start` to which the snapshot refers, and gets their indexes.
    fn read_referred(&mut self, start: usize, storage: &mut (impl Storage + ?Sized)) -> Result<(), RecoveryError> {
        let Some(base) = self.base else { return Ok(()) };
        let referred = self.out.referred.clone();
        let listed = listed::before(&self.scan.segments, start, &referred, base)?;
        for segment in listed {
            let mut buffer = std::mem::take(&mut self.buffer);
            let index = match self.listed {
                ListedSegments::Footers => listed::index_of_footer(&segment, base, storage, &mut buffer)?,
                ListedSegments::Whole => listed::index_of_frames(&segment, base, storage, &mut buffer)?,
            };
            self.buffer = buffer;
            let ReferredSegment { end, last, .. } = segment.referred;
            self.read.insert(segment.header.sequence, ReadSegment { end, frames_end: end, last, index });
        }
        Ok(())
    }

    fn start_error(&self, needed: FrameNumber) -> RecoveryError {
        let segments = &self.scan.segments;
        match segments.iter().find_map(|segment| segment.header.ok()) {
            Some(oldest) if segments[0].sequence == oldest.sequence => RecoveryError::StartsTooLate {
                file: oldest.file(),
                first_frame: oldest.first_frame(),
                needed,
                damaged: self.damaged.first().copied(),
            },
            whole => {
                let file = segments[0].file();
                let error = segments[0].header.err().unwrap_or(HeaderError::Contradiction);
                let proof = Proof::Successor(whole.map_or(file, |whole| whole.file()));
                RecoveryError::DamagedHeader { file, error, proof }
            }
        }
    }

    /// The headers from `start` on, without gaps and all valid.
    fn check_headers(&self, start: usize) -> Result<Vec<SegmentHeader>, RecoveryError> {
        let last = &self.scan.segments[self.scan.segments.len() - 1];
        let mut headers: Vec<SegmentHeader> = Vec::new();
        for segment in &self.scan.segments[start..] {
            let file = segment.file();
            if let Some(before) = headers.last().filter(|before| before.sequence + 1 != segment.sequence) {
                let missing = FileId::Segment(before.sequence + 1);
                return Err(RecoveryError::MissingSegment { missing, after: file, frame: before.first_frame() });
            }
            let proof = Proof::Successor(last.file());
            headers.push(segment.header.map_err(|error| RecoveryError::DamagedHeader { file, error, proof })?);
        }
        Ok(headers)
    }

    /// A segment with a successor ends where the successor's header says; bytes behind that are dead.
    fn replay_closed_segment(
        &mut self,
        header: &SegmentHeader,
        next: &SegmentHeader,
        bytes: &[u8],
        replay: &mut (impl Replay + ?Sized),
    ) -> Result<(), RecoveryError> {
        let file = header.file();
        let mut reader = SegmentReader::new(header, bytes);
        let mut read = ReadSegment::of(header);
        while reader.log_position().frame < next.previous.frame {
            let Some(frame) = reader.next() else {
                return Err(corrupt(file, &reader, Proof::Successor(next.file())));
            };
            read.add(&reader, &frame);
            self.replay_frame(file, &reader, &frame, replay)?;
        }
        let (position, last) = (reader.position() as u64, reader.log_position());
        if (last.frame, reader.last_crc()) != (next.previous.frame, next.previous_crc) {
            return Err(RecoveryError::Unlinked {
                file,
                position,
                frame: last.frame,
                found: reader.last_crc(),
                by: next.file(),
                expected: next.previous_crc,
            });
        }
        check_count(file, position, last, next.file(), next.previous.lsn)?;
        read.end = position;
        self.read.insert(header.sequence, read);
        Ok(())
    }

    /// The last segment ends at its last valid frame, unless something proves that more was synced.
    fn replay_open_segment(
        &mut self,
        header: &SegmentHeader,
        bytes: &[u8],
        replay: &mut (impl Replay + ?Sized),
    ) -> Result<(), RecoveryError> {
        let file = header.file();
        let mut reader = SegmentReader::new(header, bytes);
        let mut footer_last = false;
        let mut read = ReadSegment::of(header);
        while let Some(frame) = reader.next() {
            read.add(&reader, &frame);
            footer_last = frame.head.kind == FOOTER;
            self.replay_frame(file, &reader, &frame, replay)?;
        }
        let (position, frame) = (reader.position(), reader.log_position().frame.next());
        let reason = reader.stop().map_or(StopReason::End, |stop| stop.reason);
        // A snapshot gets its final name only once the log is synced through it. That holds for a damaged one as well.
        if let Some(newest) = self.scan.snapshots.last().filter(|newest| **newest >= frame) {
            return Err(corrupt(file, &reader, Proof::Snapshot(*newest)));
        }
        let end = last_nonzero(bytes).map_or(position, |last| (last + 1).max(position));
        let (len, ends_in_footer) = (bytes.len() as u64, footer_last && reason == StopReason::End);
        if len < header.capacity && !ends_in_footer && len - (end as u64) < END_ZEROS {
            return Err(RecoveryError::CutOff { file, len, made: header.capacity, frame });
        }
        // Behind a footer nothing follows. Elsewhere zeros stay, which show that the file was not cut within its data.
        let keep = if ends_in_footer { end as u64 } else { (end as u64 + END_ZEROS).next_multiple_of(PAGE_BYTES) };
        read.end = keep;
        self.read.insert(header.sequence, read);
        if reason != StopReason::End {
            let witness = proof::find_witness(bytes, position, frame, header.seed());
            if let Some(witness) = witness {
                let (position, frame, synced) = (witness.position as u64, witness.number, witness.synced);
                let proof = Proof::Frame { position, frame, synced };
                return Err(corrupt(file, &reader, proof));
            }
            let (position, bytes) = (position as u64, (end - position) as u64);
            self.out.notices.push(Notice::TornTail { file, position, bytes, frame, reason });
        }
        self.out.clean = ends_in_footer;
        self.out.last = reader.log_position();
        self.out.last_crc = reader.last_crc();
        Ok(())
    }

    /// Replays one valid frame, the last that `reader` has returned.
    #[inline]
    fn replay_frame(
        &mut self,
        file: FileId,
        reader: &SegmentReader<'_>,
        frame: &Frame<'_>,
        replay: &mut (impl Replay + ?Sized),
    ) -> Result<(), RecoveryError> {
        self.out.frames_read += 1;
        self.out.bytes_read += frame.size() as u64;
        let (head, at, end) = (&frame.head, reader.log_position(), reader.position());
        if at.frame <= self.base_frame() {
            return self.check_base(at, frame.crc, file, end);
        }
        let replayed = match head.kind {
            ..=RECORD_KIND_MAX => replay.replay(at.lsn, head.kind, head.version, frame.payload),
            SYNCED_MARK | FOOTER if head.version == CONTROL_VERSION => Ok(()),
            _ => Err(Malformed::new("unknown kind or version of a mark")),
        };
        replayed.map_err(|reason| RecoveryError::Malformed {
            file,
            position: (end - frame.size()) as u64,
            at,
            kind: head.kind,
            version: head.version,
            reason,
        })
    }

    /// The frame that the snapshot was taken after must have the checksum recorded in the snapshot, and as many records
    /// up to it as the snapshot says.
    fn check_base(&self, at: LogPosition, crc: u32, file: FileId, end: usize) -> Result<(), RecoveryError> {
        let Some(base) = self.base.filter(|base| base.at.frame == at.frame) else { return Ok(()) };
        if base.crc != crc {
            return Err(RecoveryError::Unlinked {
                file,
                position: end as u64,
                frame: at.frame,
                found: crc,
                by: base.file(),
                expected: base.crc,
            });
        }
        check_count(file, end as u64, at, base.file(), base.at.lsn)
    }

    /// Separates the files to keep from the garbage.
    fn conclude(self) -> Recovered {
        let Self { mut out, scan, damaged, mut read, .. } = self;
        let is_damaged = |frame: &FrameNumber| damaged.iter().any(|(bad, _)| bad == frame);
        // A damaged snapshot is garbage: left in place, it would later count as one of the two to keep, and everything
        // in it has just been recovered from elsewhere.
        let (bad, mut good): (Vec<_>, Vec<_>) = scan.snapshots.iter().copied().partition(is_damaged);
        out.snapshots = good.split_off(good.len().saturating_sub(2));
        let mut last_frame = out.last.frame;
        for (index, segment) in scan.segments.iter().enumerate().rev() {
            // A segment whose header is damaged begins no earlier than the one before.
            let header = scan.segments[..=index].iter().rev().find_map(|segment| segment.header.ok());
            let first_frame = header.map_or(FrameNumber(1), |header| header.first_frame());
            let (sequence, len) = (segment.sequence, segment.len);
            let read = read.remove(&sequence);
            let first_lsn = segment.header.map_or(Lsn(0), |header| header.previous.lsn.next());
            let last = read.as_ref().map_or(LogPosition::default(), |read| read.last);
            let lsns = first_lsn..if read.is_some() { last.lsn.next().max(first_lsn) } else { first_lsn };
            // Of a segment that was read it is known; others may be missing behind it.
            let own_last = if last.frame >= first_frame { last.frame } else { last_frame };
            let end = read.as_ref().map_or(len, |read| len.min(read.end));
            let frames_end = read.as_ref().map_or(len, |read| read.frames_end.min(end));
            let index = Arc::new(read.unwrap_or_default().index);
            out.segments.push(SegmentInfo {
                sequence,
                first_frame,
                last_frame: own_last,
                len,
                end,
                frames_end,
                lsns,
                index,
            });
            // An older segment ends where this one begins, whatever the older header says.
            last_frame = segment.header.map_or(last_frame, |header| header.previous.frame);
        }
        out.segments.reverse();
        for sequence in scan.never_begun {
            out.notices.push(Notice::NeverBegun { file: FileId::Segment(sequence) });
            out.garbage.push(FileId::Segment(sequence));
        }
        out.garbage.extend(good.into_iter().chain(bad).map(FileId::Snapshot));
        out.garbage.extend(scan.drafts.into_iter().map(FileId::SnapshotDraft));
        out.garbage.sort();
        out
    }
}

impl ReadSegment {
    /// Of a segment from which nothing was read yet.
    fn of(header: &SegmentHeader) -> Self {
        let frames_end = header.first_entry().position;
        Self { end: 0, frames_end, last: LogPosition::default(), index: SegmentIndex::new(header.first_entry()) }
    }

    /// Adds a frame, the last that `reader` has returned.
    fn add(&mut self, reader: &SegmentReader<'_>, frame: &Frame<'_>) {
        self.last = reader.log_position();
        self.frames_end = reader.position() as u64;
        if frame.head.kind <= RECORD_KIND_MAX {
            self.index.add(reader.log_position(), (reader.position() - frame.size()) as u64);
        }
    }
}

pub(super) fn corrupt(file: FileId, reader: &SegmentReader<'_>, proof: Proof) -> RecoveryError {
    RecoveryError::Corrupt {
        file,
        position: reader.position() as u64,
        frame: reader.log_position().frame.next(),
        reason: reader.stop().map_or(StopReason::End, |stop| stop.reason),
        proof,
    }
}

/// The last record up to the end of `at` must have the LSN that the file `by` continues from.
pub(super) fn check_count(
    file: FileId,
    position: u64,
    at: LogPosition,
    by: FileId,
    expected: Lsn,
) -> Result<(), RecoveryError> {
    if at.lsn == expected {
        return Ok(());
    }
    Err(RecoveryError::Miscounted { file, position, frame: at.frame, found: at.lsn, by, expected })
}
