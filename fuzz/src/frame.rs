//! Frames: what decodes is what was written, and what is searched for is found where it is.

use arbitrary::Unstructured;
use driftq_core::log::frame::{decode, encode_with};
use driftq_core::log::{CrcSeed, FileId, Frame, FrameChain, Head, LogId, find_frame};
use driftq_core::types::Lsn;

use crate::script;

/// Writes a frame anew: what a planted bug replaces.
pub type Encode = fn(&mut Vec<u8>, CrcSeed, &Head, &[u8]);

/// Bytes as frames: no bytes make the decoder panic, what decodes is written again in the very same bytes, and a search finds exactly
/// the first place at which a frame decodes.
pub fn frame(data: &[u8]) {
    frame_with(data, |out, seed, head, payload| {
        let written = encode_with(out, seed, head, |out| out.extend_from_slice(payload));
        written.expect("what was read as a frame can be written as one");
    });
}

/// As [`frame`], with another way of writing frames.
///
/// # Panics
/// If something is wrong.
pub fn frame_with(data: &[u8], encode: Encode) {
    let mut input = Unstructured::new(data);
    let (log_id, file) = (LogId([7; 16]), FileId::Segment(u64::from(input.arbitrary::<u8>().unwrap_or(0))));
    let seed = CrcSeed::new(log_id, file);
    let bytes = if input.arbitrary().unwrap_or(false) {
        made(&mut input, seed)
    } else {
        // Taken as they are, but for the checksum of the first frame: it may fit.
        let fits = input.arbitrary().unwrap_or(false);
        let mut bytes = input.take_rest().to_vec();
        if fits {
            script::fix_checksum(&mut bytes, log_id, file);
        }
        bytes
    };
    let frames: Vec<Option<Frame<'_>>> = (0..=bytes.len()).map(|at| decode(&bytes[at..], seed).ok()).collect();
    for (at, frame) in frames.iter().enumerate() {
        let Some(frame) = frame else { continue };
        let mut again = Vec::new();
        encode(&mut again, seed, &frame.head, frame.payload);
        assert_eq!(again, bytes[at..at + frame.size()], "a frame is written as it was read");
    }
    let first = frames.iter().position(Option::is_some);
    assert_eq!(find_frame(&bytes, 0, Lsn(0)..=Lsn(u64::MAX), seed), first, "a search finds what is there");
    for (at, frame) in frames.iter().enumerate().filter_map(|(at, frame)| Some((at, (*frame)?))) {
        let lsn = frame.head.lsn;
        let found = find_frame(&bytes, 0, lsn..=lsn, seed).expect("it is there");
        assert!(found <= at && frames[found].is_some_and(|found| found.head.lsn == lsn), "the first of that number");
    }
}

/// Good frames in a row, and then things done to them.
fn made(input: &mut Unstructured<'_>, seed: CrcSeed) -> Vec<u8> {
    let (mut bytes, mut chain) = (Vec::new(), FrameChain::new(seed, Lsn(0), 0));
    for _ in 0..input.int_in_range(1..=6).unwrap_or(1) {
        let synced = Lsn(input.int_in_range(0..=chain.last_lsn().0).unwrap_or(0));
        let len = input.int_in_range(0..=40).unwrap_or(0);
        let payload = input.bytes(len.min(input.len())).unwrap_or_default();
        match input.int_in_range(0..=3_u8).unwrap_or(0) {
            0 => drop(chain.mark(&mut bytes, synced)),
            1 => drop(chain.footer(&mut bytes, synced)),
            _ => {
                let kind = input.int_in_range(1..=0xEF).unwrap_or(1);
                let written = chain.record(&mut bytes, synced, kind, 1, |out| out.extend_from_slice(payload));
                written.expect("short, and of a record's kind");
            }
        }
    }
    script::damage(input, &mut bytes);
    bytes
}
