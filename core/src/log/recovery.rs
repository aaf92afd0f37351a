//! Recovery: reads the files that a stop left behind and returns everything that was synced, or refuses with a reason.
//!
//! It reads files, syncs them, and changes nothing else, so repeating or interrupting it does not affect the next
//! recovery. It decides whether invalid bytes are a torn tail, which is cut, or corruption, which is refused. They are
//! *corruption* if anything valid proves that they were synced, else a *torn tail*; `docs/wal.md` describes the rule
//! and its limits.

use std::collections::BTreeMap;

use super::frame::{CONTROL_VERSION, FOOTER, Frame, RECORD_KIND_MAX, SYNCED_MARK};
use super::header::{HeaderError, LogId};
use super::proof;
use super::report::{Malformed, Notice, Proof, Recovered, RecoveryError, SegmentInfo};
use super::scan::{FolderScan, storage_error};
use super::segment::{END_ZEROS, SegmentHeader, SegmentReader, StopReason};
use super::snapshot::{SnapshotError, SnapshotHead, SnapshotReadError, read_snapshot};
use super::storage::{FileId, Storage, read_whole};
use crate::types::Lsn;

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

    /// Receives one record of the log, in the order they were written. LSNs ascend, but not always by one: marks and
    /// footers have LSNs too.
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
    let mut buffer = Vec::new();
    let scan = FolderScan::read(storage, &mut buffer)?;
    let found = scan.log_id.filter(|_| !scan.segments.is_empty());
    let mut recovery = Recovery {
        out: Recovered {
            log_id: found.or(new_log).ok_or(RecoveryError::NoLog)?,
            snapshot: None,
            last_lsn: Lsn(0),
            last_crc: 0,
            next_segment: scan.segments.last().map_or(1, |last| last.sequence + 1),
            segments: Vec::new(),
            snapshots: Vec::new(),
            garbage: Vec::new(),
            notices: Vec::new(),
            clean: false,
            frames_read: 0,
            bytes_read: 0,
        },
        scan,
        base: None,
        damaged: Vec::new(),
        ends: BTreeMap::new(),
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
    /// Damaged snapshots, newest first.
    damaged: Vec<(Lsn, SnapshotError)>,
    /// How many bytes of the segments that were read must be kept, by sequence number.
    ends: BTreeMap<u64, u64>,
    /// Reused for every segment.
    buffer: Vec<u8>,
}

impl Recovery {
    fn base_lsn(&self) -> Lsn {
        self.base.map_or(Lsn(0), |base| base.lsn)
    }

    /// Restores the newest valid snapshot, or none.
    fn restore_snapshot(
        &mut self,
        storage: &mut (impl Storage + ?Sized),
        replay: &mut (impl Replay + ?Sized),
    ) -> Result<(), RecoveryError> {
        for lsn in self.scan.snapshots.iter().rev().copied() {
            let file = FileId::Snapshot(lsn);
            replay.reset();
            let restore = |kind, version, payload: &[u8]| replay.restore(kind, version, payload);
            match read_snapshot(storage, lsn, &mut self.buffer, restore) {
                Ok(head) => {
                    replay.restored().map_err(|reason| RecoveryError::Contradictory { file, reason })?;
                    self.base = Some(head);
                    self.out.snapshot = Some(lsn);
                    return Ok(());
                }
                Err(SnapshotReadError::Damaged(error)) => {
                    self.damaged.push((lsn, error));
                    self.out.notices.push(Notice::DamagedSnapshot { file, error });
                }
                Err(SnapshotReadError::Storage(fault)) => return Err(storage_error("reading", Some(file), fault)),
                Err(SnapshotReadError::Refused { position, kind, version, reason }) => {
                    return Err(RecoveryError::Malformed { file, position, lsn, kind, version, reason });
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
        if let Some(first) = headers.first() {
            self.check_base(first.previous_lsn, first.previous_crc, first.file(), 0)?;
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
        let needed = self.base_lsn().next();
        let segments = &self.scan.segments;
        let Some(start) = segments.iter().rposition(|s| s.header.is_ok_and(|header| header.first_lsn() <= needed))
        else {
            return Err(self.start_error(needed));
        };
        for segment in &segments[..start] {
            if let Err(error) = segment.header {
                self.out.notices.push(Notice::UnneededDamage { file: segment.file(), error });
            }
        }
        Ok(start)
    }

    fn start_error(&self, needed: Lsn) -> RecoveryError {
        let segments = &self.scan.segments;
        match segments.iter().find_map(|segment| segment.header.ok()) {
            Some(oldest) if segments[0].sequence == oldest.sequence => RecoveryError::StartsTooLate {
                file: oldest.file(),
                first_lsn: oldest.first_lsn(),
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
                return Err(RecoveryError::MissingSegment { missing, after: file, lsn: before.first_lsn() });
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
        while reader.last_lsn() < next.previous_lsn {
            let Some(frame) = reader.next() else {
                return Err(corrupt(file, &reader, Proof::Successor(next.file())));
            };
            self.replay_frame(file, reader.position(), &frame, replay)?;
        }
        if (reader.last_lsn(), reader.last_crc()) != (next.previous_lsn, next.previous_crc) {
            return Err(RecoveryError::Unlinked {
                file,
                position: reader.position() as u64,
                lsn: reader.last_lsn(),
                found: reader.last_crc(),
                by: next.file(),
                expected: next.previous_crc,
            });
        }
        self.ends.insert(header.sequence, reader.position() as u64);
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
        while let Some(frame) = reader.next() {
            footer_last = frame.head.kind == FOOTER;
            self.replay_frame(file, reader.position(), &frame, replay)?;
        }
        let (position, lsn) = (reader.position(), reader.last_lsn().next());
        let reason = reader.stop().map_or(StopReason::End, |stop| stop.reason);
        // A snapshot gets its final name only once the log is synced through it. That holds for a damaged one as well.
        if let Some(newest) = self.scan.snapshots.last().filter(|newest| **newest >= lsn) {
            return Err(corrupt(file, &reader, Proof::Snapshot(*newest)));
        }
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(position, |last| (last + 1).max(position));
        let (len, ends_in_footer) = (bytes.len() as u64, footer_last && reason == StopReason::End);
        if len < header.capacity && !ends_in_footer && len - (end as u64) < END_ZEROS {
            return Err(RecoveryError::CutOff { file, len, made: header.capacity, lsn });
        }
        // Behind a footer nothing follows. Elsewhere zeros stay, which show that the file was not cut within its data.
        let keep = if ends_in_footer { end as u64 } else { (end as u64 + END_ZEROS).next_multiple_of(PAGE_BYTES) };
        self.ends.insert(header.sequence, keep);
        if reason != StopReason::End {
            let witness = proof::find_witness(bytes, position, lsn, header.seed());
            if let Some(witness) = witness {
                let proof =
                    Proof::Frame { position: witness.position as u64, lsn: witness.lsn, synced: witness.synced };
                return Err(corrupt(file, &reader, proof));
            }
            let (position, bytes) = (position as u64, (end - position) as u64);
            self.out.notices.push(Notice::TornTail { file, position, bytes, lsn, reason });
        }
        self.out.clean = ends_in_footer;
        self.out.last_lsn = reader.last_lsn();
        self.out.last_crc = reader.last_crc();
        Ok(())
    }

    /// Replays one valid frame that ends at byte `end`.
    #[inline]
    fn replay_frame(
        &mut self,
        file: FileId,
        end: usize,
        frame: &Frame<'_>,
        replay: &mut (impl Replay + ?Sized),
    ) -> Result<(), RecoveryError> {
        self.out.frames_read += 1;
        self.out.bytes_read += frame.size() as u64;
        let head = &frame.head;
        if head.lsn <= self.base_lsn() {
            return self.check_base(head.lsn, frame.crc, file, end);
        }
        let replayed = match head.kind {
            ..=RECORD_KIND_MAX => replay.replay(head.lsn, head.kind, head.version, frame.payload),
            SYNCED_MARK | FOOTER if head.version == CONTROL_VERSION => Ok(()),
            _ => Err(Malformed::new("unknown kind or version of a mark")),
        };
        replayed.map_err(|reason| RecoveryError::Malformed {
            file,
            position: (end - frame.size()) as u64,
            lsn: head.lsn,
            kind: head.kind,
            version: head.version,
            reason,
        })
    }

    /// The frame with the LSN of the snapshot must have the checksum recorded in the snapshot.
    fn check_base(&self, lsn: Lsn, crc: u32, file: FileId, end: usize) -> Result<(), RecoveryError> {
        match self.base {
            Some(base) if base.lsn == lsn && base.crc != crc => Err(RecoveryError::Unlinked {
                file,
                position: end as u64,
                lsn,
                found: crc,
                by: base.file(),
                expected: base.crc,
            }),
            _ => Ok(()),
        }
    }

    /// Separates the files to keep from the garbage.
    fn conclude(self) -> Recovered {
        let Self { mut out, scan, damaged, ends, .. } = self;
        let is_damaged = |lsn: &Lsn| damaged.iter().any(|(bad, _)| bad == lsn);
        // A damaged snapshot is garbage: left in place, it would later count as one of the two to keep, and everything
        // in it has just been recovered from elsewhere.
        let (bad, mut good): (Vec<Lsn>, Vec<Lsn>) = scan.snapshots.iter().copied().partition(is_damaged);
        out.snapshots = good.split_off(good.len().saturating_sub(2));
        let reach_back = if out.snapshots.len() == 2 { out.snapshots[0] } else { Lsn(0) };

        let mut last_lsn = out.last_lsn;
        for (index, segment) in scan.segments.iter().enumerate().rev() {
            // A segment whose header is damaged begins no earlier than the one before.
            let header = scan.segments[..=index].iter().rev().find_map(|segment| segment.header.ok());
            let first_lsn = header.map_or(Lsn(1), |header| header.first_lsn());
            let in_use = segment.sequence + 1 == out.next_segment;
            if last_lsn <= reach_back && !in_use {
                out.garbage.push(segment.file());
            } else {
                let (sequence, len) = (segment.sequence, segment.len);
                let end = ends.get(&sequence).map_or(len, |end| len.min(*end));
                out.segments.push(SegmentInfo { sequence, first_lsn, last_lsn, len, end });
            }
            // An older segment ends where this one begins, whatever the older header says.
            last_lsn = segment.header.map_or(last_lsn, |header| header.previous_lsn);
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

fn corrupt(file: FileId, reader: &SegmentReader<'_>, proof: Proof) -> RecoveryError {
    RecoveryError::Corrupt {
        file,
        position: reader.position() as u64,
        lsn: reader.last_lsn().next(),
        reason: reader.stop().map_or(StopReason::End, |stop| stop.reason),
        proof,
    }
}
