//! The log's writing end: frames into a batch, a batch into a job, one segment after the other.

use std::fmt;

use super::canonical;
use crate::broker::{LogRefusal, LogSink, SpaceClass};
use crate::codec::record as codec;
use crate::log::frame::FRAME_HEAD_BYTES;
use crate::log::{FileId, FrameChain, HEADER_BYTES, IoOp, LogId, Recovered, SegmentHeader, SegmentInfo, WriteAt};
use crate::record::Record;
use crate::types::Lsn;

/// Room kept at the end of a segment for its footer.
const FOOTER_BYTES: u64 = FRAME_HEAD_BYTES as u64;

/// Appends records to the current batch. Pure: what is to be done to files is collected as ops.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    log_id: LogId,
    epoch: u64,
    segment_bytes: u64,
    reserve_bytes: u64,
    sequence: u64,
    /// Bytes of the current segment: fewer than usual where the disk had no more when the log was opened.
    capacity: u64,
    first_lsn: Lsn,
    chain: FrameChain,
    /// Frames not yet handed to a job, all for the current segment, and where in it they go.
    buffer: Vec<u8>,
    buffer_at: u64,
    /// What must happen before the buffer may be written: the ends of full segments, the beginnings of new ones.
    ops: Vec<IoOp>,
    /// A used buffer, for its memory.
    spare: Vec<u8>,
    synced: Lsn,
    next: NextSegment,
    closed: Vec<SegmentInfo>,
    ends_in_mark: bool,
}

/// Whether there is a segment to go on in when the current one is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextSegment {
    /// It is to be made.
    Wanted,
    /// It is being made.
    Asked,
    /// It stands ready, empty.
    Ready,
    /// There was no room to make it.
    NoRoom,
}

/// How large segments are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Bytes of a segment.
    pub(super) segment_bytes: u64,
    /// Bytes kept for what drains the broker when there is no next segment.
    pub(super) reserve_bytes: u64,
    /// Bytes of the segment to begin with.
    pub(super) capacity: u64,
}

/// A batch on its way to the disk.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) ops: Vec<IoOp>,
    pub(super) through: Lsn,
}

impl Writer {
    /// Goes on behind what was recovered, in the segment that `header` begins.
    pub(super) fn new(header: &SegmentHeader, recovered: &Recovered, epoch: u64, sizes: Sizes) -> Self {
        let Sizes { segment_bytes, reserve_bytes, capacity } = sizes;
        Self {
            log_id: header.log_id,
            epoch,
            segment_bytes,
            reserve_bytes,
            sequence: header.sequence,
            capacity,
            first_lsn: header.first_lsn(),
            chain: header.chain(),
            buffer: Vec::new(),
            buffer_at: HEADER_BYTES as u64,
            ops: Vec::new(),
            spare: Vec::new(),
            synced: recovered.last_lsn,
            next: NextSegment::Wanted,
            closed: recovered.segments.clone(),
            ends_in_mark: true,
        }
    }

    pub(super) fn log_id(&self) -> LogId {
        self.log_id
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn last(&self) -> (Lsn, u32) {
        (self.chain.last_lsn(), self.chain.last_crc())
    }

    pub(super) fn synced(&self) -> Lsn {
        self.synced
    }

    pub(super) fn on_synced(&mut self, through: Lsn) {
        self.synced = self.synced.max(through);
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

    pub(super) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Whether there are segments behind the current one, which a snapshot could make unneeded.
    pub(super) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Forgets segments that nothing needs once a snapshot at `lsn` is the older of two.
    pub(super) fn drop_closed_through(&mut self, lsn: Lsn) -> Vec<FileId> {
        let old: Vec<_> = self.closed.iter().take_while(|segment| segment.last_lsn <= lsn).copied().collect();
        self.closed.drain(..old.len());
        old.iter().map(|segment| FileId::Segment(segment.sequence)).collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.buffer.is_empty() && self.ops.is_empty()
    }

    /// Whether the last frame is the log's own, so that a mark behind it would say nothing new.
    pub(super) fn ends_in_mark(&self) -> bool {
        self.ends_in_mark
    }

    /// Writes a frame that says what is synced, if there is room for it.
    pub(super) fn mark(&mut self) {
        if self.end() + 2 * FOOTER_BYTES <= self.capacity {
            self.chain.mark(&mut self.buffer, self.synced);
            self.ends_in_mark = true;
        }
    }

    /// Writes the last frame of an orderly stop.
    pub(super) fn footer(&mut self) {
        self.chain.footer(&mut self.buffer, self.synced);
        self.ends_in_mark = true;
    }

    /// Ends the current segment, if anything is in it, and goes on in the next, which must stand ready.
    pub(super) fn rotate(&mut self) {
        if self.chain.last_lsn() < self.first_lsn {
            return;
        }
        assert_eq!(self.next, NextSegment::Ready, "a segment ends when the next stands ready");
        self.footer();
        self.flush();
        let info = SegmentInfo {
            sequence: self.sequence,
            first_lsn: self.first_lsn,
            last_lsn: self.chain.last_lsn(),
            len: self.buffer_at,
        };
        self.closed.push(info);
        let header = SegmentHeader {
            log_id: self.log_id,
            sequence: self.sequence + 1,
            previous_lsn: self.chain.last_lsn(),
            previous_crc: self.chain.last_crc(),
            // True when the header is written: the op before it syncs the segment that ends here.
            synced: self.chain.last_lsn(),
        };
        let at = WriteAt { epoch: self.epoch, position: 0 };
        self.ops.push(IoOp::Append { file: header.file(), at, bytes: header.encode() });
        self.ops.push(IoOp::Sync { file: header.file() });
        self.sequence = header.sequence;
        self.capacity = self.segment_bytes;
        self.first_lsn = header.first_lsn();
        self.chain = header.chain();
        self.buffer_at = HEADER_BYTES as u64;
        self.next = NextSegment::Wanted;
    }

    /// Everything appended since the last batch, to be written and synced; `None` if that is nothing.
    pub(super) fn take_batch(&mut self) -> Option<Batch> {
        if self.is_idle() {
            return None;
        }
        self.flush();
        Some(Batch { ops: std::mem::take(&mut self.ops), through: self.chain.last_lsn() })
    }

    /// Takes back the memory of a batch that is done.
    pub(super) fn recycle(&mut self, ops: Vec<IoOp>) {
        for op in ops {
            if let IoOp::Append { mut bytes, .. } = op
                && bytes.capacity() > self.spare.capacity()
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

    fn end(&self) -> u64 {
        self.buffer_at + self.buffer.len() as u64
    }

    fn encode(&mut self, record: &Record) -> Result<Lsn, LogRefusal> {
        let kind = codec::kind(&record.event);
        self.chain
            .record(&mut self.buffer, self.synced, kind, codec::VERSION, |out| codec::encode(record, out))
            .map_err(|_| LogRefusal::TooLong)
    }

    /// How much of the reserve a record of this class must leave.
    fn kept_from(&self, class: SpaceClass) -> u64 {
        match class {
            SpaceClass::Growth => self.reserve_bytes,
            SpaceClass::Churn => self.reserve_bytes / 2,
            SpaceClass::Drain => 0,
        }
    }

    /// Whether the frame that has just been put at the end may stay there.
    fn place(&self, class: SpaceClass) -> Place {
        let over = |spare: u64| self.end() + FOOTER_BYTES + spare > self.capacity;
        match (self.next, class) {
            (NextSegment::Ready, _) if over(0) => Place::NextSegment,
            (NextSegment::Ready, _) => Place::Here,
            (next, class) => match over(self.kept_from(class)) {
                false => Place::Here,
                true if next == NextSegment::NoRoom => Place::Nowhere(LogRefusal::Full),
                true => Place::Nowhere(LogRefusal::Busy),
            },
        }
    }
}

enum Place {
    Here,
    NextSegment,
    Nowhere(LogRefusal),
}

impl Writer {
    /// As [`Pipeline::canonical`](super::Pipeline::canonical).
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self {
            log_id,
            epoch,
            segment_bytes: _,
            reserve_bytes: _,
            sequence,
            capacity: _,
            first_lsn: _,
            chain,
            buffer,
            buffer_at: _,
            ops,
            spare: _,
            synced,
            next,
            closed,
            ends_in_mark,
        } = self;
        let (last, closed) = (chain.last_lsn(), closed.len());
        write!(out, "{epoch} {sequence} {last:?} {synced:?} {next:?} {closed} {ends_in_mark} ")?;
        canonical::frames(FileId::Segment(*sequence), *log_id, buffer, out)?;
        ops.iter().try_for_each(|op| canonical::canonical(op, *log_id, out))
    }
}

impl LogSink for Writer {
    fn append(&mut self, record: &Record, class: SpaceClass) -> Result<Lsn, LogRefusal> {
        let (chain, start) = (self.chain.clone(), self.buffer.len());
        let mut lsn = self.encode(record)?;
        let len = (self.buffer.len() - start) as u64;
        let place = match self.place(class) {
            _ if HEADER_BYTES as u64 + len + FOOTER_BYTES > self.segment_bytes => Place::Nowhere(LogRefusal::TooLong),
            place => place,
        };
        if let Place::Here = place {
            self.ends_in_mark = false;
            return Ok(lsn);
        }
        self.buffer.truncate(start);
        self.chain = chain;
        if let Place::Nowhere(refusal) = place {
            return Err(refusal);
        }
        self.rotate();
        lsn = self.encode(record)?;
        self.ends_in_mark = false;
        Ok(lsn)
    }
}
