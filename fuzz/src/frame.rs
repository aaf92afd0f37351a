//! Fuzz target for the frame decoder and the search for frames in damaged bytes.

use arbitrary::Unstructured;
use driftq_core::log::frame::{decode, encode_with};
use driftq_core::log::{CrcSeed, FileId, Frame, FrameChain, Head, LogId, LogPosition, find_frame};
use driftq_core::types::FrameNumber;

use crate::damage::damage;
use crate::forgery::fix_checksum;

/// Encodes a frame. Tests replace it to plant a bug.
pub type FrameEncoder = fn(&mut Vec<u8>, CrcSeed, &Head, &[u8]);

/// Decodes the input, or valid frames with damage, at every position.
///
/// Checks that the decoder does not panic, that a decoded frame encodes to the same bytes, and that a search finds
/// exactly the first position at which a frame decodes.
pub fn frame(data: &[u8]) {
    frame_with(data, |out, seed, head, payload| {
        let encoded = encode_with(out, seed, head, |out| out.extend_from_slice(payload));
        encoded.expect("a decoded frame is not too long to encode");
    });
}

/// [`frame`] with another encoder.
///
/// # Panics
/// If a check fails.
pub fn frame_with(data: &[u8], encode: FrameEncoder) {
    let mut input = Unstructured::new(data);
    let (log_id, file) = (LogId([7; 16]), FileId::Segment(u64::from(input.arbitrary::<u8>().unwrap_or(0))));
    let seed = CrcSeed::new(log_id, file);
    let bytes = if input.arbitrary().unwrap_or(false) {
        damaged_frames(&mut input, seed)
    } else {
        let has_valid_checksum = input.arbitrary().unwrap_or(false);
        let mut bytes = input.take_rest().to_vec();
        if has_valid_checksum {
            fix_checksum(&mut bytes, log_id, file);
        }
        bytes
    };
    // The frame that starts at each position, if one decodes there.
    let frames: Vec<Option<Frame<'_>>> = (0..=bytes.len()).map(|start| decode(&bytes[start..], seed).ok()).collect();
    check_round_trip(&bytes, &frames, seed, encode);
    check_search(&bytes, &frames, seed);
}

fn check_round_trip(bytes: &[u8], frames: &[Option<Frame<'_>>], seed: CrcSeed, encode: FrameEncoder) {
    for (start, frame) in found(frames) {
        let mut encoded = Vec::new();
        encode(&mut encoded, seed, &frame.head, frame.payload);
        assert_eq!(encoded, bytes[start..start + frame.size()], "a decoded frame encodes to other bytes");
    }
}

fn check_search(bytes: &[u8], frames: &[Option<Frame<'_>>], seed: CrcSeed) {
    let first = frames.iter().position(Option::is_some);
    let any_number = FrameNumber(0)..=FrameNumber(u64::MAX);
    assert_eq!(find_frame(bytes, 0, any_number, seed), first, "a search does not find the first frame");
    for (start, frame) in found(frames) {
        let number = frame.head.number;
        let position = find_frame(bytes, 0, number..=number, seed);
        let position = position.unwrap_or_else(|| panic!("a search does not find frame {number} at {start}"));
        let has_number = frames[position].is_some_and(|frame| frame.head.number == number);
        assert!(position <= start && has_number, "a search for frame {number} at {start} returns {position}");
    }
}

/// The frames that decode, with their positions.
fn found<'a>(frames: &[Option<Frame<'a>>]) -> impl Iterator<Item = (usize, Frame<'a>)> {
    frames.iter().enumerate().filter_map(|(start, frame)| Some((start, (*frame)?)))
}

/// A chain of valid frames with damage.
fn damaged_frames(input: &mut Unstructured<'_>, seed: CrcSeed) -> Vec<u8> {
    let (mut bytes, mut chain) = (Vec::new(), FrameChain::new(seed, LogPosition::default(), 0));
    for _ in 0..input.int_in_range(1..=6).unwrap_or(1) {
        let synced = FrameNumber(input.int_in_range(0..=chain.last().frame.0).unwrap_or(0));
        let len = input.int_in_range(0..=40).unwrap_or(0);
        let payload = input.bytes(len.min(input.len())).unwrap_or_default();
        match input.int_in_range(0..=3_u8).unwrap_or(0) {
            0 => drop(chain.mark(&mut bytes, synced)),
            1 => drop(chain.footer(&mut bytes, synced)),
            _ => {
                let kind = input.int_in_range(1..=0xEF).unwrap_or(1);
                let appended = chain.record(&mut bytes, synced, kind, 1, |out| out.extend_from_slice(payload));
                appended.expect("the payload is short and the kind is a record's");
            }
        }
    }
    damage(input, &mut bytes);
    bytes
}
