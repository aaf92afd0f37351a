//! The footer of a segment: its index and the filter of what its records mention.
//!
//! The payload of a footer is empty, or:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | what follows: 1 the index, 2 the filter, 3 both |
//! | | index: number of entries `n`; for each, from the beginning of the segment on, the difference to the one before: records `n`, other frames `n`, bytes `n` |
//! | | filter: number of mentions `n`, number of blocks `n`, 32 bytes for each block |
//! | 4 | the length of the payload |
//!
//! With the length at its end, a footer is found from the end of its segment.

use super::filter::{BLOCK_BYTES, BLOCKS_MAX, MentionFilter};
use super::frame::{
    CONTROL_VERSION, FOOTER, FRAME_HEAD_BYTES, Frame, FrameError, LogPosition, MAX_PAYLOAD_BYTES, decode,
};
use super::header::HEADER_BYTES;
use super::segment::SegmentHeader;
use super::segment_index::{IndexEntry, STEP_BYTES, SegmentIndex};
use super::storage::{Storage, StorageFault, read_more};
use crate::types::{FrameNumber, Lsn};
use crate::wire::{Malformed, Reader, put_varint, varint};

const HAS_INDEX: u8 = 1;
const HAS_FILTER: u8 = 2;

/// Bytes of the length at the end.
const LENGTH_BYTES: usize = 4;

/// A filter takes at most this fraction of its segment: enough for ten bits per mention if all records are deliveries
/// and their acks. While a segment is written, the filter should not take the whole cache of a processor.
const FILTER_FRACTION: u64 = 64;
/// The most bytes of a filter.
const FILTER_BYTES_MAX: u64 = 4 << 20;

/// The first read of a footer.
const TAIL_BYTES: u64 = 64 << 10;

/// The most mentions that wait for the filter.
const WAITING_MAX: usize = 64;

/// The last mentions that are remembered; a power of two.
const RECENT: usize = 128;

/// The content of a footer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentFooter {
    /// Where the records of the segment stand, if the footer says so.
    pub index: Option<SegmentIndex>,
    /// What they mention, if the footer says so.
    pub filter: Option<MentionFilter>,
}

/// Why the content of a footer cannot be used. The segment itself may be intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FooterError {
    /// There is no frame.
    #[error("not a frame: {0}")]
    NotAFrame(#[from] FrameError),
    /// There is another frame.
    #[error("another frame")]
    AnotherFrame,
    /// The payload is none that a log writes.
    #[error("{0}")]
    Malformed(&'static str),
}

impl From<Malformed> for FooterError {
    fn from(Malformed(reason): Malformed) -> Self {
        Self::Malformed(reason)
    }
}

/// What is known of a segment without its footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentExtent {
    /// Its beginning.
    pub first: IndexEntry,
    /// The position behind its last frame, which is its footer.
    pub last: LogPosition,
    /// The byte at which its footer begins.
    pub footer_at: u64,
}

impl SegmentFooter {
    /// The payload of a footer with this content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let (None, None) = (&self.index, &self.filter) {
            return out;
        }
        out.push(u8::from(self.index.is_some()) * HAS_INDEX + u8::from(self.filter.is_some()) * HAS_FILTER);
        if let Some(index) = &self.index {
            encode_index(index, &mut out);
        }
        if let Some(filter) = &self.filter {
            put_varint(&mut out, filter.mentions());
            put_varint(&mut out, filter.blocks());
            filter.encode(&mut out);
        }
        let len = out.len() + LENGTH_BYTES;
        out.extend_from_slice(&(len as u32).to_le_bytes());
        out
    }

    /// Decodes the payload of the footer of a segment. An index is accepted only if it fits the segment.
    ///
    /// # Errors
    /// [`FooterError::Malformed`]. Never panics, whatever the bytes, and allocates no more than a small multiple of
    /// their length.
    pub fn decode(payload: &[u8], segment: &SegmentExtent) -> Result<Self, FooterError> {
        if payload.is_empty() {
            return Ok(Self::default());
        }
        let (content, length) = payload.split_last_chunk().ok_or(Malformed("ends early"))?;
        if u64::from(u32::from_le_bytes(*length)) != payload.len() as u64 {
            return Err(FooterError::Malformed("another length at its end"));
        }
        let mut reader = Reader::new(content);
        let parts = reader.byte()?;
        if parts == 0 || parts > HAS_INDEX + HAS_FILTER {
            return Err(FooterError::Malformed("unknown parts"));
        }
        let index =
            if parts & HAS_INDEX == 0 { None } else { Some(decode_index(&mut reader, content.len(), segment)?) };
        let filter = if parts & HAS_FILTER == 0 { None } else { Some(decode_filter(&mut reader)?) };
        reader.finish()?;
        Ok(Self { index, filter })
    }

    /// The content of `frame`, which should be the footer of the segment.
    ///
    /// # Errors
    /// [`FooterError`] if it is not, or has no valid content.
    pub fn of_frame(frame: &Frame<'_>, segment: &SegmentExtent) -> Result<Self, FooterError> {
        let head = &frame.head;
        if (head.kind, head.version, head.number) != (FOOTER, CONTROL_VERSION, segment.last.frame) {
            return Err(FooterError::AnotherFrame);
        }
        Self::decode(frame.payload, segment)
    }

    /// Reads the footer that ends at byte `end` of the segment, and is the frame at `last`.
    ///
    /// # Errors
    /// Of the storage. Returns why the footer cannot be used, if so.
    pub fn read(
        storage: &mut (impl Storage + ?Sized),
        header: &SegmentHeader,
        last: LogPosition,
        end: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<Result<Self, FooterError>, StorageFault> {
        let held = end.saturating_sub(HEADER_BYTES as u64);
        let mut read_tail = |len: u64, buffer: &mut Vec<u8>| {
            buffer.clear();
            read_more(storage, header.file(), end - len, buffer, len as usize)
        };
        read_tail(held.min(TAIL_BYTES), buffer)?;
        let mut size = FRAME_HEAD_BYTES as u64;
        if !starts_footer(buffer, size, last.frame) {
            let length = buffer.last_chunk().map_or(0, |length| u32::from_le_bytes(*length));
            size += u64::from(length);
        }
        if size > held || size > (FRAME_HEAD_BYTES + MAX_PAYLOAD_BYTES) as u64 {
            return Ok(Err(FooterError::AnotherFrame));
        }
        if size > buffer.len() as u64 {
            read_tail(size, buffer)?;
        }
        let start = (buffer.len() as u64).saturating_sub(size) as usize;
        let frame = match decode(&buffer[start..], header.seed()) {
            Ok(frame) if frame.size() as u64 == size => frame,
            Ok(_) => return Ok(Err(FooterError::AnotherFrame)),
            Err(error) => return Ok(Err(error.into())),
        };
        let extent = SegmentExtent { first: header.first_entry(), last, footer_at: end - size };
        Ok(Self::of_frame(&frame, &extent))
    }
}

/// Whether the last `size` bytes begin as the footer with this number does.
fn starts_footer(bytes: &[u8], size: u64, number: FrameNumber) -> bool {
    let start = (bytes.len() as u64).checked_sub(size).map(|start| start as usize);
    let head = start.and_then(|start| bytes[start..].first_chunk::<FRAME_HEAD_BYTES>());
    head.is_some_and(|head| head[..4] == [0; 4] && head[8..16] == number.0.to_le_bytes() && head[28] == FOOTER)
}

fn encode_index(index: &SegmentIndex, out: &mut Vec<u8>) {
    let entries = index.entries();
    put_varint(out, entries.len().saturating_sub(1) as u64);
    for pair in entries.windows(2) {
        differences(pair[0], pair[1]).into_iter().for_each(|number| put_varint(out, number));
    }
}

/// Records, other frames and bytes between two entries.
fn differences(before: IndexEntry, after: IndexEntry) -> [u64; 3] {
    let records = after.lsn.0 - before.lsn.0;
    [records, after.frame.0 - before.frame.0 - records, after.position - before.position]
}

fn decode_index(reader: &mut Reader<'_>, len: usize, segment: &SegmentExtent) -> Result<SegmentIndex, FooterError> {
    let count = reader.varint()?;
    // Each takes three bytes at least.
    if count > len as u64 / 3 {
        return Err(FooterError::Malformed("more entries than bytes"));
    }
    let mut index = SegmentIndex::new(segment.first);
    let mut last = segment.first;
    for _ in 0..count {
        let (records, others, bytes) = (reader.varint()?, reader.varint()?, reader.varint()?);
        let next = || {
            let frame = last.frame.0.checked_add(records)?.checked_add(others)?;
            let lsn = Lsn(last.lsn.0.checked_add(records)?);
            Some(IndexEntry { lsn, frame: FrameNumber(frame), position: last.position.checked_add(bytes)? })
        };
        let entry = next().ok_or(FooterError::Malformed("number exceeds 64 bits"))?;
        let frames = entry.frame.0 - last.frame.0;
        if frames == 0 || bytes < STEP_BYTES || frames > bytes / FRAME_HEAD_BYTES as u64 {
            return Err(FooterError::Malformed("an entry too near to the one before"));
        }
        if entry.lsn > segment.last.lsn || entry.frame >= segment.last.frame || entry.position >= segment.footer_at {
            return Err(FooterError::Malformed("an entry behind the end of the segment"));
        }
        index.add(LogPosition { frame: entry.frame, lsn: entry.lsn }, entry.position);
        last = entry;
    }
    Ok(index)
}

fn decode_filter(reader: &mut Reader<'_>) -> Result<MentionFilter, FooterError> {
    let (mentions, blocks) = (reader.varint()?, reader.varint()?);
    let bytes = blocks.min(BLOCKS_MAX + 1) * BLOCK_BYTES;
    MentionFilter::decode(mentions, reader.take(bytes)?).ok_or(FooterError::Malformed("no filter of this size"))
}

/// Collects what the footer of a segment will hold, while the segment is written.
#[derive(Clone, Debug)]
pub struct FooterBuilder {
    index: SegmentIndex,
    /// The encoded bytes of its entries.
    index_bytes: u64,
    filter: MentionFilter,
    /// Mentions that are not in the filter yet: together they take a fraction of the time that each takes alone, since
    /// the processor waits for the memory of several blocks at once.
    waiting: Vec<u64>,
    /// The last mentions, each in the place that its lower bits name: consecutive records mention the same, and what
    /// was mentioned just now is in the filter or waits for it.
    recent: Box<[u64; RECENT]>,
}

impl FooterBuilder {
    /// For a segment of `capacity` bytes that begins at `first`.
    #[must_use]
    pub fn new(first: IndexEntry, capacity: u64) -> Self {
        let filter = MentionFilter::with_bytes((capacity / FILTER_FRACTION).min(FILTER_BYTES_MAX));
        // At first each place holds a mention that belongs into another.
        let recent = Box::new(std::array::from_fn(|place| place as u64 ^ 1));
        let waiting = Vec::with_capacity(WAITING_MAX);
        Self { index: SegmentIndex::new(first), index_bytes: 0, filter, waiting, recent }
    }

    /// A record stands at `at`; its frame begins at byte `position`.
    pub fn add_record(&mut self, at: LogPosition, position: u64) {
        if self.index.add(at, position)
            && let [.., before, after] = self.index.entries()
        {
            self.index_bytes += differences(*before, *after).into_iter().map(varint_bytes).sum::<u64>();
        }
    }

    /// A record mentions something with this hash.
    #[inline]
    pub fn mention(&mut self, hash: u64) {
        let recent = &mut self.recent[hash as usize % RECENT];
        if *recent == hash {
            return;
        }
        *recent = hash;
        if self.waiting.len() == WAITING_MAX {
            self.insert_waiting();
        }
        self.waiting.push(hash);
    }

    fn insert_waiting(&mut self) {
        self.waiting.drain(..).for_each(|hash| self.filter.insert(hash));
    }

    /// The number of different mentions; those that wait count as different.
    fn mentions(&self) -> u64 {
        self.filter.mentions() + self.waiting.len() as u64
    }

    /// The index.
    #[must_use]
    pub fn index(&self) -> &SegmentIndex {
        &self.index
    }

    /// The length of the payload with index and filter, or somewhat more if something was mentioned repeatedly just
    /// now.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.bytes_with(Some(self.filter.blocks_wanted(self.mentions())))
    }

    /// An upper bound of [`FooterBuilder::payload_bytes`] that is cheap to compute.
    #[must_use]
    pub fn payload_bytes_bound(&self) -> u64 {
        const NUMBERS: u64 = 3 * 10;
        1 + NUMBERS + self.index_bytes + self.filter.bits() / 8 + LENGTH_BYTES as u64
    }

    /// The length of the payload with the index and a filter of so many blocks, if any.
    fn bytes_with(&self, blocks: Option<u64>) -> u64 {
        let index = varint_bytes(self.index.entries().len() as u64 - 1) + self.index_bytes;
        let filter =
            blocks.map_or(0, |blocks| varint_bytes(self.mentions()) + varint_bytes(blocks) + blocks * BLOCK_BYTES);
        1 + index + filter + LENGTH_BYTES as u64
    }

    /// The payload of at most `room` bytes. What does not fit is left out: first part of the filter, so that it gives
    /// more false answers, then all of it, then the index.
    #[must_use]
    pub fn payload(&mut self, room: u64) -> Vec<u8> {
        self.insert_waiting();
        let room = room.min(MAX_PAYLOAD_BYTES as u64);
        let (wanted, least) = (self.filter.blocks_wanted(self.mentions()), self.filter.blocks_least());
        let sizes = std::iter::successors(Some(wanted), |blocks| Some(blocks / 2).filter(|half| *half >= least.max(1)));
        let blocks = { sizes }.find(|blocks| self.bytes_with(Some(*blocks)) <= room);
        let content = match blocks {
            Some(blocks) => SegmentFooter { index: Some(self.index.clone()), filter: Some(self.filter.folded(blocks)) },
            None if self.bytes_with(None) <= room => SegmentFooter { index: Some(self.index.clone()), filter: None },
            None => SegmentFooter::default(),
        };
        content.encode()
    }
}

fn varint_bytes(number: u64) -> u64 {
    varint(number).1 as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: IndexEntry = IndexEntry { lsn: Lsn(3), frame: FrameNumber(5), position: 4_096 };

    fn hash(number: u64) -> u64 {
        (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    /// A footer of `records` of 1,000 bytes with a mention each, and the segment that it is of.
    fn built(records: u64, capacity: u64) -> (FooterBuilder, SegmentExtent) {
        let mut builder = FooterBuilder::new(FIRST, capacity);
        for number in 0..records {
            let at = LogPosition { frame: FrameNumber(5 + number), lsn: Lsn(3 + number) };
            builder.add_record(at, 4_096 + number * 1_000);
            builder.mention(hash(number));
        }
        let last = LogPosition { frame: FrameNumber(5 + records), lsn: Lsn(2 + records) };
        (builder, SegmentExtent { first: FIRST, last, footer_at: 4_096 + records * 1_000 })
    }

    #[test]
    fn bytes_are_as_documented() {
        let mut builder = FooterBuilder::new(FIRST, 0);
        builder.add_record(LogPosition { frame: FrameNumber(7), lsn: Lsn(3) }, 4_100);
        builder.add_record(LogPosition { frame: FrameNumber(15), lsn: Lsn(8) }, 4_096 + 16_384);
        // Block 0; bit 1 of the first part, bit 2 of the second, bit 31 of the last.
        builder.mention(1 | 2 << 5 | 31 << 35);
        let mut bytes = vec![3, 1, 5, 5, 0x80, 0x80, 1, 1, 1];
        bytes.extend([2, 0, 0, 0, 4, 0, 0, 0]);
        bytes.extend([1, 0, 0, 0].repeat(5));
        bytes.extend([0, 0, 0, 0x80]);
        bytes.extend([45, 0, 0, 0]);
        assert_eq!(builder.payload_bytes(), 45);
        assert_eq!(builder.payload(45), bytes);
    }

    #[test]
    fn first_mention_is_in_the_filter_and_a_repeated_one_counts_once() {
        for mention in (0..256).chain([u64::MAX, hash(1)]) {
            let mut builder = FooterBuilder::new(FIRST, 0);
            (0..3).for_each(|_| builder.mention(mention));
            assert_eq!(builder.mentions(), 1, "{mention}");
            builder.insert_waiting();
            assert!(builder.filter.may_contain(mention), "{mention}");
        }
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let (mut builder, extent) = built(2_000, 2 << 20);
        let full = builder.payload_bytes();
        let mut seen = Vec::new();
        for room in (0..full + 3).rev() {
            let payload = builder.payload(room);
            assert!(payload.len() as u64 <= room);
            let SegmentFooter { index, filter } = SegmentFooter::decode(&payload, &extent).unwrap();
            assert!(index.is_none_or(|index| index == *builder.index()));
            if let Some(filter) = &filter {
                assert!((0..2_000).all(|number| filter.may_contain(hash(number))));
            }
            let bits = (payload.is_empty(), filter.map_or(0, |filter| filter.bits()));
            if seen.last() != Some(&bits) {
                seen.push(bits);
            }
        }
        assert_eq!(seen, [(false, 1 << 15), (false, 1 << 14), (false, 1 << 13), (false, 0), (true, 0)]);
    }

    #[test]
    fn footer_of_a_tiny_segment_is_tiny() {
        for (records, bytes) in [(0, 8), (1, 40), (12, 40), (25, 45)] {
            let (mut builder, extent) = built(records, 8_192);
            assert_eq!(builder.payload_bytes(), bytes, "{records} records");
            let payload = builder.payload(1 << 20);
            assert_eq!(SegmentFooter::decode(&payload, &extent).unwrap().encode(), payload);
        }
    }

    #[test]
    fn index_that_does_not_fit_the_segment_is_refused() {
        let (mut builder, extent) = built(100, 1 << 20);
        let payload = builder.payload(u64::MAX);
        assert!(SegmentFooter::decode(&payload, &extent).is_ok());
        let entry = builder.index().entries().last().copied().unwrap();
        let last = |frame: u64, lsn: u64| LogPosition { frame: FrameNumber(frame), lsn: Lsn(lsn) };
        for extent in [
            SegmentExtent { last: last(entry.frame.0, 500), ..extent },
            SegmentExtent { last: last(500, entry.lsn.0 - 1), ..extent },
            SegmentExtent { footer_at: entry.position, ..extent },
        ] {
            let refused = SegmentFooter::decode(&payload, &extent);
            assert_eq!(refused, Err(FooterError::Malformed("an entry behind the end of the segment")));
        }
        for len in 1..payload.len() {
            assert!(SegmentFooter::decode(&payload[..len], &extent).is_err(), "{len}");
        }
    }
}
