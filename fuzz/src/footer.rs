//! Fuzz target for the footers of segments: their index and their filter.

use arbitrary::Unstructured;
use driftq_core::log::frame::FRAME_HEAD_BYTES;
use driftq_core::log::{
    FooterBuilder, HEADER_BYTES, IndexEntry, LogPosition, SegmentExtent, SegmentFooter, SegmentIndex,
};
use driftq_core::types::{FrameNumber, Lsn};

use crate::damage::damage;

/// Encodes the content of a footer. Tests replace it to plant a bug.
pub type FooterEncoder = fn(&SegmentFooter) -> Vec<u8>;

/// Where the segments of this target begin.
const FIRST: IndexEntry = IndexEntry { lsn: Lsn(7), frame: FrameNumber(11), position: HEADER_BYTES as u64 };

/// Decodes the input as the payload of a footer, or builds one from the input and decodes it with and without damage.
///
/// Checks that the decoder does not panic, that what it accepts encodes to the same bytes and has its entries within
/// the segment, that a payload has no more bytes than there is room, and that a filter contains what was mentioned and
/// an index finds each record.
pub fn footer(data: &[u8]) {
    footer_with(data, SegmentFooter::encode);
}

/// [`footer`] with another encoder.
///
/// # Panics
/// If a check fails.
pub fn footer_with(data: &[u8], encode: FooterEncoder) {
    let mut input = Unstructured::new(data);
    if input.arbitrary().unwrap_or(false) {
        let (mut payload, extent) = built(&mut input);
        check_decoded(&payload, &extent, encode);
        damage(&mut input, &mut payload);
        check_decoded(&payload, &extent, encode);
    } else {
        let last = LogPosition { frame: number(&mut input, 20), lsn: Lsn(number(&mut input, 16).0) };
        let footer_at = FIRST.position + u64::from(input.arbitrary::<u32>().unwrap_or(0));
        let ends_in_length = input.arbitrary().unwrap_or(false);
        let mut payload = input.take_rest().to_vec();
        if ends_in_length {
            let len = payload.len() as u32 + 4;
            payload.extend_from_slice(&len.to_le_bytes());
        }
        check_decoded(&payload, &SegmentExtent { first: FIRST, last, footer_at }, encode);
    }
}

/// A frame number behind the first, of up to so many bits.
fn number(input: &mut Unstructured<'_>, bits: u32) -> FrameNumber {
    let above = u64::from(input.arbitrary::<u32>().unwrap_or(0)) >> (u32::BITS - bits);
    FrameNumber(FIRST.frame.0 + above)
}

fn check_decoded(payload: &[u8], extent: &SegmentExtent, encode: FooterEncoder) {
    let Ok(footer) = SegmentFooter::decode(payload, extent) else { return };
    assert_eq!(encode(&footer), payload, "a decoded footer encodes to other bytes");
    let entries = footer.index.iter().flat_map(SegmentIndex::entries).skip(1);
    for entry in entries {
        let is_within = entry.lsn <= extent.last.lsn && entry.frame < extent.last.frame;
        assert!(is_within && entry.position < extent.footer_at, "an index points behind its segment");
    }
}

/// The payload of a footer that was built as a log does it, and checked, and the segment that it is of.
fn built(input: &mut Unstructured<'_>) -> (Vec<u8>, SegmentExtent) {
    let capacity = u64::from(input.arbitrary::<u16>().unwrap_or(0)) << input.int_in_range(0..=8).unwrap_or(0);
    let room = u64::from(input.arbitrary::<u16>().unwrap_or(0)) >> input.int_in_range(0..=12).unwrap_or(0);
    let mut builder = FooterBuilder::new(FIRST, capacity);
    let (mut next, mut mentions, mut records) = (FIRST, Vec::new(), Vec::new());
    for _ in 0..input.int_in_range(0..=64).unwrap_or(0) {
        let is_record = input.ratio(3, 4).unwrap_or(true);
        if is_record {
            builder.add_record(LogPosition { frame: next.frame, lsn: next.lsn }, next.position);
            records.push(next);
            let mention = u64::from(input.arbitrary::<u16>().unwrap_or(0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            builder.mention(mention);
            mentions.push(mention);
        }
        let size = FRAME_HEAD_BYTES as u64 + u64::from(input.arbitrary::<u16>().unwrap_or(0));
        let lsn = if is_record { next.lsn.next() } else { next.lsn };
        next = IndexEntry { lsn, frame: next.frame.next(), position: next.position + size };
    }
    let payload = builder.payload(room);
    assert!(payload.len() as u64 <= room, "a footer is longer than its room");
    assert!(room < builder.payload_bytes() || payload.len() as u64 == builder.payload_bytes(), "a part is left out");
    let last = LogPosition { frame: next.frame, lsn: Lsn(next.lsn.0 - 1) };
    let extent = SegmentExtent { first: FIRST, last, footer_at: next.position };
    let footer = SegmentFooter::decode(&payload, &extent).expect("a footer that was just built decodes");
    if let Some(filter) = &footer.filter {
        assert!(mentions.iter().all(|mention| filter.may_contain(*mention)), "a mention is not in the filter");
    }
    if let Some(index) = &footer.index {
        for record in records {
            let found = index.find(record.lsn).expect("the record is in the segment");
            assert!(found.lsn <= record.lsn && found.position <= record.position, "an index points behind a record");
            let step = record.position - found.position;
            assert!(step < (16 << 10) + u64::from(u16::MAX) + 30, "an index points far before a record");
        }
    }
    (payload, extent)
}
