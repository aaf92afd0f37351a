//! The log writer: encodes records into frames, collects them into batches and rotates segments.

use std::fmt;
use std::sync::Arc;

pub(super) use super::segments::{Batch, NextSegment, Sizes};
use super::{Room, canonical, state_bound};
use crate::broker::{LogRefusal, LogSink, SpaceClass};
use crate::codec::record as codec;
use crate::log::frame::FRAME_HEAD_BYTES;
use crate::log::{
    FileId, FooterBuilder, FrameChain, HEADER_BYTES, IoOp, LogId, LogPosition, Recovered, SegmentHeader, SegmentInfo,
    WriteAt,
};
use crate::record::Record;
use crate::types::{FrameNumber, Lsn};

/// Bytes reserved at the end of a segment for its footer, if that has no content. Room for the content is kept as long
/// as there is a next segment; where space is short, the content gives way.
const FOOTER_BYTES: u64 = FRAME_HEAD_BYTES as u64;

/// Beside a new segment, this fraction of it must be free.
const SPARE_FRACTION: u64 = 16;
/// Beside a new segment, at least this much must be free.
const SPARE_BYTES_MIN: u64 = 3 * HEADER_BYTES as u64;
/// A buffer for more bytes than this is not kept for the next batch.
const SPARE_BUFFER_MAX: usize = 8 << 20;

/// Bytes for two marks, which records may not use as long as there is no next segment: that of an idle log, and that of
/// a snapshot which frees space.
const MARKS_BYTES: u64 = 2 * FRAME_HEAD_BYTES as u64;

/// Appends records to the current batch. Performs no I/O: collects ops.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    log_id: LogId,
    epoch: u64,
    pub(super) segment_bytes: u64,
    segment_bytes_min: u64,
    reserve_bytes: u64,
    pub(super) sequence: u64,
    /// Bytes of the current segment: fewer than `segment_bytes_min` if the disk was full when the log was opened.
    capacity: u64,
    pub(super) first_frame: FrameNumber,
    pub(super) first_lsn: Lsn,
    /// What the footer of the current segment will hold.
    pub(super) footer: FooterBuilder,
    pub(super) chain: FrameChain,
    /// Frames of the current segment that are in no op yet, and their position in it.
    buffer: Vec<u8>,
    buffer_at: u64,
    /// Ops to perform before the buffer is written: they end full segments and begin new ones.
    ops: Vec<IoOp>,
    /// A used buffer, kept for its allocation.
    spare: Vec<u8>,
    synced: LogPosition,
    /// Where the synced frames end: a segment and a byte in it.
    pub(super) synced_end: (u64, u64),
    next: NextSegment,
    /// Bytes of the next segment, once it is ready.
    next_capacity: u64,
    /// Bytes that the next segment is created with.
    next_target: u64,
    /// How often it was raised.
    growths: u64,
    pub(super) closed: Vec<SegmentInfo>,
    ends_in_mark: bool,
    /// The records appended or refused since [`Writer::begin_call`].
    attempts: usize,
    refused: Vec<RefusedAppend>,
    /// Whether records that make the state grow are refused.
    refuses_growth: bool,
}

/// The most refused records that are remembered of one call.
const REFUSED_MAX: usize = 64;

/// A record for which the log had no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedAppend {
    /// How many records the same call had appended, or tried to, before.
    pub attempt: usize,
    /// The part of the reserve that it could use.
    pub class: SpaceClass,
    /// The bytes of its frame; 0 if it is too long for one.
    pub bytes: u64,
    /// Why it was refused.
    pub refusal: LogRefusal,
}

impl Writer {
    /// Continues a recovered log in the segment that `header` begins.
    pub(super) fn new(header: &SegmentHeader, recovered: &Recovered, epoch: u64, sizes: Sizes) -> Self {
        let Sizes { segment_bytes, segment_bytes_min, reserve_bytes, capacity } = sizes;
        let trimmed = |segment: &SegmentInfo| SegmentInfo { len: segment.end, ..segment.clone() };
        Self {
            log_id: header.log_id,
            epoch,
            segment_bytes,
            segment_bytes_min,
            reserve_bytes,
            sequence: header.sequence,
            capacity,
            first_frame: header.first_frame(),
            first_lsn: header.previous.lsn.next(),
            footer: FooterBuilder::new(header.first_entry(), capacity),
            chain: header.chain(),
            buffer: Vec::new(),
            buffer_at: HEADER_BYTES as u64,
            ops: Vec::new(),
            spare: Vec::new(),
            synced: recovered.last,
            synced_end: (header.sequence, HEADER_BYTES as u64),
            next: NextSegment::Missing,
            next_capacity: 0,
            next_target: segment_bytes_min,
            growths: 0,
            closed: recovered.segments.iter().map(trimmed).collect(),
            ends_in_mark: true,
            attempts: 0,
            refused: Vec::new(),
            refuses_growth: false,
        }
    }

    /// A call begins, of which the refused records are to be known.
    pub(super) fn begin_call(&mut self) {
        self.attempts = 0;
        self.refused.clear();
        self.refuses_growth = false;
    }

    /// Refuses records that make the state grow until the next call begins, if `refuses`.
    pub(super) fn refuse_growth(&mut self, refuses: bool) {
        self.refuses_growth = refuses;
    }

    /// The records that were refused since [`Writer::begin_call`], in order.
    pub(super) fn refused(&self) -> &[RefusedAppend] {
        &self.refused
    }

    pub(super) fn log_id(&self) -> LogId {
        self.log_id
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The position behind the last frame, and its checksum.
    pub(super) fn last(&self) -> (LogPosition, u32) {
        (self.chain.last(), self.chain.last_crc())
    }

    pub(super) fn synced(&self) -> LogPosition {
        self.synced
    }

    pub(super) fn on_synced(&mut self, through: LogPosition, end: (u64, u64)) {
        if through.frame > self.synced.frame {
            self.synced = through;
            self.synced_end = end;
        }
    }

    pub(super) fn next_segment(&self) -> NextSegment {
        self.next
    }

    pub(super) fn set_next_segment(&mut self, next: NextSegment) {
        self.next = next;
    }

    /// The file of the segment after the current one.
    pub(super) fn next_file(&self) -> FileId {
        FileId::Segment(self.sequence + 1)
    }

    /// The ops that create the next segment. They succeed only if as much space is left as a snapshot of a drained
    /// broker needs: without it a full disk could not be freed.
    pub(super) fn create_next(&mut self) -> [IoOp; 3] {
        self.next = NextSegment::Creating;
        self.next_capacity = self.next_target;
        let (file, len) = (self.next_file(), self.next_capacity);
        let spare = (len / SPARE_FRACTION).max(SPARE_BYTES_MIN);
        [IoOp::Create { file, capacity: len + spare }, IoOp::Trim { file, len }, IoOp::SyncFolder]
    }

    /// Whether the next segment is ready, but not of the size it should have.
    pub(super) fn must_replace_next(&self) -> bool {
        self.next == NextSegment::Ready && self.next_capacity != self.next_target
    }

    /// Reduces the size of the next segment, for which there was no space. Returns `false` if it is the smallest.
    pub(super) fn reduce_next(&mut self) -> bool {
        let before = self.next_target;
        self.next_target = (before / 2).max(self.segment_bytes_min).min(before);
        self.next_target < before
    }

    /// How often larger segments were asked for, by a record that found no room.
    pub(super) fn growths(&self) -> u64 {
        self.growths
    }

    /// Makes the next segments as small as possible.
    pub(super) fn use_smallest_segments(&mut self) {
        self.next_target = self.segment_bytes_min;
    }

    /// Whether the current segment and the next are larger than they must be.
    pub(super) fn has_large_segments(&self) -> bool {
        self.capacity > self.segment_bytes_min
            || self.next_target > self.segment_bytes_min
            || (self.next == NextSegment::Ready && self.next_capacity > self.segment_bytes_min)
    }

    /// Whether there are closed segments, which a snapshot can make obsolete.
    pub(super) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// The sequence numbers of the closed segments that end at or before `frame`.
    pub(super) fn closed_through(&self, frame: FrameNumber) -> impl Iterator<Item = u64> {
        let closed = self.closed.iter().filter(move |segment| segment.last_frame <= frame);
        closed.map(|segment| segment.sequence)
    }

    /// The bytes of the closed segments.
    pub(super) fn closed_bytes(&self) -> u64 {
        self.closed.iter().map(|segment| segment.end).sum()
    }

    /// The number of closed segments that end or were begun behind `frame`; some may be empty.
    pub(super) fn closed_since(&self, frame: FrameNumber) -> usize {
        self.closed.iter().rev().take_while(|segment| segment.last_frame.max(segment.first_frame) > frame).count()
    }

    /// The ops that cut the closed segments to what they hold. Their successors are synced, so the rest is dead.
    pub(super) fn trim_closed(&mut self) -> Vec<IoOp> {
        let synced = self.synced.frame;
        let untrimmed = |segment: &&mut SegmentInfo| segment.end < segment.len && segment.last_frame <= synced;
        let trim = |segment: &mut SegmentInfo| {
            segment.len = segment.end;
            IoOp::Trim { file: FileId::Segment(segment.sequence), len: segment.end }
        };
        self.closed
            .iter_mut()
            .rev()
            .take_while(|segment| segment.end < segment.len)
            .filter(untrimmed)
            .map(trim)
            .collect()
    }

    /// Removes and returns the closed segments that end at or before `frame` and are not `kept`.
    pub(super) fn drop_closed_through(
        &mut self,
        frame: FrameNumber,
        kept: impl Fn(&SegmentInfo) -> bool,
    ) -> Vec<FileId> {
        let is_dropped = |segment: &SegmentInfo| segment.last_frame <= frame && !kept(segment);
        let dropped = self.closed.iter().filter(|segment| is_dropped(segment));
        let dropped = dropped.map(|segment| FileId::Segment(segment.sequence)).collect();
        self.closed.retain(|segment| !is_dropped(segment));
        dropped
    }

    pub(super) fn is_idle(&self) -> bool {
        self.buffer.is_empty() && self.ops.is_empty()
    }

    /// Whether the last frame is a mark, a footer or none, so that another mark would add nothing.
    pub(super) fn ends_in_mark(&self) -> bool {
        self.ends_in_mark
    }

    /// Appends a mark, a frame that records `synced`, if the segment has space for it and another. In a full segment
    /// the footer takes its place, and the next segment begins. Returns `false` if there is none.
    pub(super) fn mark(&mut self, synced: FrameNumber) -> bool {
        if self.end() + FOOTER_BYTES + MARKS_BYTES <= self.capacity {
            self.append_mark(synced);
            return true;
        }
        let has_next = self.next == NextSegment::Ready;
        if has_next {
            self.rotate();
        }
        has_next
    }

    /// Appends a mark, so that another snapshot can be taken. Returns `false` if the segment has no space for it.
    pub(super) fn mark_for_snapshot(&mut self) -> bool {
        let fits = self.end() + 2 * FOOTER_BYTES <= self.capacity;
        if fits {
            self.append_mark(self.synced.frame);
        }
        fits
    }

    fn append_mark(&mut self, synced: FrameNumber) {
        self.chain.mark(&mut self.buffer, synced);
        self.ends_in_mark = true;
    }

    /// Appends the last footer and cuts the segment to what it holds. The reserve stays, for a start on a full disk: in
    /// the next segment if there is one, which is cut to it, else behind the footer.
    pub(super) fn close(&mut self) {
        let has_next = self.next == NextSegment::Ready;
        self.append_footer(if has_next { 0 } else { self.reserve_bytes });
        self.flush();
        let len = self.buffer_at + if has_next { 0 } else { self.reserve_bytes };
        if len < self.capacity {
            self.ops.push(IoOp::Trim { file: FileId::Segment(self.sequence), len });
            self.capacity = len;
        }
        if has_next {
            self.trim_next(self.reserve_bytes);
        }
    }

    /// Cuts the next segment to `len`: the log is closed and does not use it.
    pub(super) fn trim_next(&mut self, len: u64) {
        if self.next == NextSegment::Ready && len < self.next_capacity {
            self.ops.push(IoOp::Trim { file: self.next_file(), len });
            self.next_capacity = len;
        }
    }

    /// Appends a footer. Its content may not use the last `kept` bytes of the segment.
    fn append_footer(&mut self, kept: u64) {
        let room = self.capacity.saturating_sub(self.end() + FOOTER_BYTES + kept);
        self.chain.footer_with(&mut self.buffer, self.synced.frame, &self.footer.payload(room));
        self.ends_in_mark = true;
    }

    /// Ends the current segment, unless it is empty, and begins the next, which must be ready.
    pub(super) fn rotate(&mut self) {
        if self.chain.last().frame < self.first_frame {
            return;
        }
        assert_eq!(self.next, NextSegment::Ready, "the next segment is ready before the current one ends");
        self.append_footer(0);
        self.flush();
        let info = SegmentInfo {
            sequence: self.sequence,
            first_frame: self.first_frame,
            last_frame: self.chain.last().frame,
            len: self.capacity,
            end: self.buffer_at,
            frames_end: self.buffer_at,
            lsns: self.first_lsn..self.chain.last().lsn.next(),
            index: Arc::new(self.footer.index().clone()),
        };
        self.closed.push(info);
        let header = SegmentHeader {
            log_id: self.log_id,
            sequence: self.sequence + 1,
            previous: self.chain.last(),
            previous_crc: self.chain.last_crc(),
            // The op before the header's syncs the segment that ends here.
            synced: self.chain.last().frame,
            capacity: self.next_capacity,
        };
        let at = WriteAt { epoch: self.epoch, position: 0 };
        self.ops.push(IoOp::Append { file: header.file(), at, bytes: header.encode() });
        self.ops.push(IoOp::Sync { file: header.file() });
        self.sequence = header.sequence;
        self.capacity = self.next_capacity;
        self.first_frame = header.first_frame();
        self.first_lsn = header.previous.lsn.next();
        self.footer = FooterBuilder::new(header.first_entry(), self.capacity);
        self.chain = header.chain();
        self.buffer_at = HEADER_BYTES as u64;
        self.next = NextSegment::Missing;
    }

    /// Everything appended since the last batch; `None` if nothing was.
    pub(super) fn take_batch(&mut self) -> Option<Batch> {
        if self.is_idle() {
            return None;
        }
        self.flush();
        let end = (self.sequence, self.buffer_at);
        Some(Batch { ops: std::mem::take(&mut self.ops), through: self.chain.last(), end })
    }

    /// Reuses the largest buffer of a completed batch, unless it is too large to be kept.
    pub(super) fn recycle(&mut self, ops: Vec<IoOp>) {
        for op in ops {
            if let IoOp::Append { mut bytes, .. } = op
                && bytes.capacity() > self.spare.capacity()
                && bytes.capacity() <= SPARE_BUFFER_MAX
            {
                bytes.clear();
                self.spare = bytes;
            }
        }
    }

    /// Turns the buffer into ops.
    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let file = FileId::Segment(self.sequence);
        let at = WriteAt { epoch: self.epoch, position: self.buffer_at };
        self.buffer_at += self.buffer.len() as u64;
        let bytes = std::mem::replace(&mut self.buffer, std::mem::take(&mut self.spare));
        self.ops.push(IoOp::Append { file, at, bytes });
        self.ops.push(IoOp::Sync { file });
    }

    pub(super) fn end(&self) -> u64 {
        self.buffer_at + self.buffer.len() as u64
    }

    fn encode(&mut self, record: &Record) -> Result<Lsn, LogRefusal> {
        let kind = codec::kind(&record.event);
        self.chain
            .record(&mut self.buffer, self.synced.frame, kind, codec::VERSION, |out| codec::encode(record, out))
            .map(|position| position.lsn)
            .map_err(|_| LogRefusal::TooLong)
    }

    /// The part of the reserve that a record of this class may not use.
    fn reserved_from(&self, class: SpaceClass) -> u64 {
        match class {
            SpaceClass::Growth => self.reserve_bytes,
            SpaceClass::Churn => self.reserve_bytes / 2,
            SpaceClass::Drain => 0,
        }
    }

    /// As [`Pipeline::room`](super::Pipeline::room).
    pub(super) fn room(&self) -> Room {
        let kept = FOOTER_BYTES + self.reserve_bytes.max(MARKS_BYTES);
        let left = self.capacity.saturating_sub(self.end().saturating_add(kept));
        match self.next {
            NextSegment::Missing | NextSegment::Creating => Room::UntilPrepared(left),
            // A frame that does not fit into the one begins the other, so the rest of the one is not counted.
            _ => Room::Prepared(left.max(self.next_capacity.saturating_sub(HEADER_BYTES as u64 + kept))),
        }
    }

    /// Whether the frame of `len` bytes just appended to the buffer takes the room of the footer's content, and should
    /// go to the next segment, which is ready.
    fn crowds_footer(&self, len: u64) -> bool {
        if self.end() + FOOTER_BYTES + self.footer.payload_bytes_bound() + MARKS_BYTES <= self.capacity {
            return false;
        }
        let content = self.footer.payload_bytes() + MARKS_BYTES;
        let is_alone = self.chain.last().frame == self.first_frame;
        let is_crowded = self.end() + FOOTER_BYTES + content > self.capacity;
        is_crowded && !is_alone && frame_segment_bytes(len) <= self.next_capacity
    }

    /// Whether the frame of `len` bytes just appended to the buffer certainly fits, and the footer behind it: as
    /// [`Writer::fit`] decides in most cases.
    #[inline]
    fn has_room_to_spare(&self, len: u64) -> bool {
        self.next == NextSegment::Ready
            && frame_segment_bytes(len) <= self.segment_bytes
            && self.end() + FOOTER_BYTES + self.footer.payload_bytes_bound() + MARKS_BYTES <= self.capacity
    }

    /// Whether the frame of `len` bytes just appended to the buffer fits into the current segment.
    fn fit(&self, len: u64, class: SpaceClass) -> Fit {
        let exceeds = |spare: u64| self.end() + FOOTER_BYTES + spare > self.capacity;
        let reserved = self.reserved_from(class).max(MARKS_BYTES);
        match (self.next, class) {
            (NextSegment::Ready, _) if exceeds(0) && frame_segment_bytes(len) > self.next_capacity => Fit::Neither,
            (NextSegment::Ready, _) if exceeds(0) => Fit::NextSegment,
            (NextSegment::Ready, _) if self.crowds_footer(len) => Fit::NextSegment,
            (NextSegment::Ready, _) => Fit::Current,
            (next, _) => match exceeds(reserved) {
                false => Fit::Current,
                true if next == NextSegment::NoSpace => Fit::Refused(LogRefusal::Full),
                true => Fit::Refused(LogRefusal::Busy),
            },
        }
    }
}

/// Where a record is written.
enum Fit {
    Current,
    NextSegment,
    /// The next segment is too small.
    Neither,
    Refused(LogRefusal),
}

/// Bytes of a segment that holds one frame of this length.
const fn frame_segment_bytes(len: u64) -> u64 {
    HEADER_BYTES as u64 + len + FOOTER_BYTES
}

impl Writer {
    /// As [`Pipeline::canonical`](super::Pipeline::canonical).
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self {
            log_id,
            epoch,
            segment_bytes: _,
            segment_bytes_min: _,
            reserve_bytes: _,
            sequence,
            capacity: _,
            first_frame: _,
            first_lsn: _,
            footer: _,
            chain,
            buffer,
            buffer_at: _,
            ops,
            spare: _,
            synced,
            synced_end: _,
            next,
            next_capacity,
            next_target,
            growths: _,
            closed,
            ends_in_mark,
            attempts: _,
            refused: _,
            refuses_growth: _,
        } = self;
        let (last, closed) = (chain.last(), closed.len());
        let must_replace = next_capacity != next_target;
        write!(out, "{epoch} {sequence} {last:?} {synced:?} {next:?} {must_replace} {closed} {ends_in_mark} ")?;
        canonical::frames(FileId::Segment(*sequence), *log_id, buffer, out)?;
        ops.iter().try_for_each(|op| canonical::canonical(op, *log_id, out))
    }
}

impl LogSink for Writer {
    fn append(&mut self, record: &Record, class: SpaceClass) -> Result<Lsn, LogRefusal> {
        let attempt = self.attempts;
        self.attempts += 1;
        let appended = match self.refuses_growth && state_bound::grows(&record.event, class) {
            true => Err((LogRefusal::Memory, 0)),
            false => self.try_append(record, class),
        };
        appended.map_err(|(refusal, bytes)| {
            if self.refused.len() < REFUSED_MAX {
                self.refused.push(RefusedAppend { attempt, class, bytes, refusal });
            }
            refusal
        })
    }
}

impl Writer {
    /// Appends a record; if there is no space for it, returns the length of its frame.
    fn try_append(&mut self, record: &Record, class: SpaceClass) -> Result<Lsn, (LogRefusal, u64)> {
        let (before, start) = (self.chain.point(), self.buffer.len());
        let mut lsn = self.encode(record).map_err(|refusal| (refusal, 0))?;
        let len = (self.buffer.len() - start) as u64;
        if self.has_room_to_spare(len) {
            self.appended(record, self.buffer_at + start as u64);
            return Ok(lsn);
        }
        let fit = match self.fit(len, class) {
            _ if frame_segment_bytes(len) > self.segment_bytes => Fit::Refused(LogRefusal::TooLong),
            fit => fit,
        };
        if let Fit::Current = fit {
            self.appended(record, self.buffer_at + start as u64);
            return Ok(lsn);
        }
        self.buffer.truncate(start);
        self.chain.rewind(before);
        match fit {
            Fit::Refused(refusal) => return Err((refusal, len)),
            Fit::Neither => {
                self.next_target = self.segment_bytes;
                self.growths += 1;
                return Err((LogRefusal::Busy, len));
            }
            Fit::Current | Fit::NextSegment => {}
        }
        self.rotate();
        // A full segment is followed by larger ones.
        self.next_target = self.capacity.saturating_mul(2).clamp(self.segment_bytes_min, self.segment_bytes);
        self.growths += 1;
        lsn = self.encode(record).map_err(|refusal| (refusal, len))?;
        self.appended(record, self.buffer_at);
        Ok(lsn)
    }

    /// A record was appended; its frame, the last one, begins at byte `position`.
    fn appended(&mut self, record: &Record, position: u64) {
        self.footer.add_record(self.chain.last(), position);
        record.event.mentions(|mention| self.footer.mention(mention.hash()));
        self.ends_in_mark = false;
    }
}
