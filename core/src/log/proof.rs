//! Searches behind a bad frame for a valid frame that proves the bad one was synced.
//!
//! Behind damage the start of the next frame is unknown, so every byte is tried. Payloads are chosen by clients, who
//! may fill them with bytes that look like frame heads; the cost of trying each position is therefore small and
//! independent of the length it claims.

use std::ops::RangeInclusive;

use crc32fast::Hasher;

use super::frame::{CrcSeed, FRAME_HEAD_BYTES, Head, MAX_PAYLOAD_BYTES, RawHead};
use super::header::last_nonzero;
use crate::types::FrameNumber;

/// A valid frame that records a frame as synced which the reader did not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) position: usize,
    pub(super) number: FrameNumber,
    pub(super) synced: FrameNumber,
}

/// The first valid frame at or behind `from` that records `bad`, the number of the frame expected at `from`, as synced.
pub(super) fn find_witness(bytes: &[u8], from: usize, bad: FrameNumber, seed: CrcSeed) -> Option<Witness> {
    // Each frame between the bad one and the witness takes at least a head.
    let number_max = FrameNumber(bad.0.saturating_add(((bytes.len() - from) / FRAME_HEAD_BYTES) as u64));
    let proves_synced = |head: &Head| bad <= head.synced && head.number <= number_max;
    let (position, head) = find(bytes, from, seed, proves_synced)?;
    Some(Witness { position, number: head.number, synced: head.synced })
}

/// The position of the first valid frame at or behind byte `from` with a number within `numbers`. `driftqd wal
/// salvage` uses it to continue behind damage; recovery never does.
///
/// Runs in time linear in the number of bytes searched, whatever they contain.
///
/// # Panics
/// If `from` is beyond the end of `bytes`.
#[must_use]
pub fn find_frame(bytes: &[u8], from: usize, numbers: RangeInclusive<FrameNumber>, seed: CrcSeed) -> Option<usize> {
    find(bytes, from, seed, |head| numbers.contains(&head.number)).map(|(position, _)| position)
}

/// The first valid frame at or behind `from` whose head is `wanted`.
fn find(bytes: &[u8], from: usize, seed: CrcSeed, wanted: impl Fn(&Head) -> bool) -> Option<(usize, Head)> {
    let tail = &bytes[from..];
    // A kind is never 0, so no frame starts so late that its kind byte would be among the trailing zeros; its version
    // may.
    let written = last_nonzero(tail)? + 1;
    let heads = &tail[..tail.len().min(written + 1)];
    let mut sums = RangeSums::new(tail);
    for (position, bytes) in heads.windows(FRAME_HEAD_BYTES).enumerate() {
        let Some(bytes) = bytes.first_chunk() else { continue };
        let RawHead { len, crc, head } = RawHead::read(bytes);
        let plausible = head.synced < head.number && head.kind != 0 && wanted(&head);
        let payload = position + FRAME_HEAD_BYTES;
        let fits = len as usize <= MAX_PAYLOAD_BYTES.min(tail.len() - payload);
        if plausible && fits && sums.extend(seed.sum_head(bytes), payload, len as usize) == crc {
            return Some((from + position, head));
        }
    }
    None
}

const CHECKPOINT_BYTES: usize = 4096;

/// Checksums of arbitrary ranges, each in constant time.
struct RangeSums<'a> {
    bytes: &'a [u8],
    /// The checksum of everything before each multiple of [`CHECKPOINT_BYTES`]; computed on first use.
    checkpoints: Vec<u32>,
}

impl<'a> RangeSums<'a> {
    const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, checkpoints: Vec::new() }
    }

    /// The checksum `sum`, continued over `len` bytes from `start` on.
    fn extend(&mut self, sum: u32, start: usize, len: usize) -> u32 {
        if len <= CHECKPOINT_BYTES {
            let mut hasher = Hasher::new_with_initial(sum);
            hasher.update(&self.bytes[start..start + len]);
            return hasher.finalize();
        }
        // With z(x) for x continued over `len` zeros, a checksum x continued over the range is z(x) ^ crc(range), and
        // up_to(end) is z(up_to(start)) ^ crc(range); z is linear, so crc(range) need not be known.
        let mut hasher = Hasher::new_with_initial(sum ^ self.up_to(start));
        hasher.combine(&Hasher::new_with_initial_len(self.up_to(start + len), len as u64));
        hasher.finalize()
    }

    fn up_to(&mut self, end: usize) -> u32 {
        if self.checkpoints.is_empty() {
            let mut hasher = Hasher::new();
            self.checkpoints.push(0);
            for chunk in self.bytes.chunks_exact(CHECKPOINT_BYTES) {
                hasher.update(chunk);
                self.checkpoints.push(hasher.clone().finalize());
            }
        }
        let mut hasher = Hasher::new_with_initial(self.checkpoints[end / CHECKPOINT_BYTES]);
        hasher.update(&self.bytes[end / CHECKPOINT_BYTES * CHECKPOINT_BYTES..end]);
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::frame::encode_with;
    use crate::log::{FileId, LogId};

    fn seed() -> CrcSeed {
        CrcSeed::new(LogId([3; 16]), FileId::Segment(1))
    }

    #[test]
    fn range_crc_by_checkpoints_equals_crc_by_bytes() {
        let bytes: Vec<u8> = (0..40_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut sums = RangeSums::new(&bytes);
        for (start, len) in [(0, 0), (1, 4096), (0, 4097), (17, 8192), (4096, 8192), (4095, 35_000), (1, 39_999)] {
            let mut hasher = Hasher::new_with_initial(77);
            hasher.update(&bytes[start..start + len]);
            assert_eq!(sums.extend(77, start, len), hasher.finalize(), "{start} {len}");
        }
    }

    #[test]
    fn witness_at_any_byte_and_length_is_found() {
        for len in [0, 1, 100, 5_000, 100_000] {
            for gap in [0, 1, 29, 511] {
                let mut bytes = vec![0xAA; gap];
                let head = Head { number: FrameNumber(12), prev_crc: 9, synced: FrameNumber(10), kind: 1, version: 0 };
                encode_with(&mut bytes, seed(), &head, |out| out.resize(out.len() + len, 0)).unwrap();
                bytes.resize(bytes.len() + 100, 0);
                let witness = Witness { position: gap, number: FrameNumber(12), synced: FrameNumber(10) };
                assert_eq!(find_witness(&bytes, 0, FrameNumber(10), seed()), Some(witness));
                assert_eq!(
                    find_witness(&bytes, 0, FrameNumber(11), seed()),
                    None,
                    "it does not record frame 11 as synced"
                );
                let other = CrcSeed::new(LogId([3; 16]), FileId::Segment(2));
                assert_eq!(find_witness(&bytes, 0, FrameNumber(10), other), None, "it belongs to another file");
            }
        }
    }

    #[test]
    fn witness_at_end_of_file_without_zeros_is_found() {
        let mut bytes = vec![0xAA; 7];
        let number = FrameNumber(u64::MAX / 2);
        let head = Head { number, prev_crc: u32::MAX, synced: FrameNumber(number.0 - 2), kind: 1, version: 1 };
        encode_with(&mut bytes, seed(), &head, |out| out.extend([0xFF; 100])).unwrap();
        let witness = Witness { position: 7, number, synced: head.synced };
        assert_eq!(find_witness(&bytes, 0, head.synced, seed()), Some(witness));
    }

    #[test]
    fn frame_with_implausibly_high_number_proves_nothing() {
        let (from, bad) = (6_000, FrameNumber(10));
        let witness = |number: u64| {
            let mut bytes = vec![0xAA; from];
            let head = Head { number: FrameNumber(number), prev_crc: 9, synced: bad, kind: 1, version: 1 };
            encode_with(&mut bytes, seed(), &head, |out| out.extend([7; 5 * FRAME_HEAD_BYTES])).unwrap();
            find_witness(&bytes, from, bad, seed()).map(|witness| witness.number)
        };
        // The frame itself is as long as six heads.
        assert_eq!(witness(16), Some(FrameNumber(16)));
        assert_eq!(witness(17), None);
    }

    #[test]
    fn frame_behind_garbage_is_found_by_number() {
        let mut bytes = Vec::new();
        let mut starts = Vec::new();
        for (number, gap) in [(5, 7), (6, 0), (9, 100)] {
            bytes.resize(bytes.len() + gap, 0xAA);
            starts.push(bytes.len());
            let head = Head { number: FrameNumber(number), prev_crc: 0, synced: FrameNumber(0), kind: 1, version: 1 };
            encode_with(&mut bytes, seed(), &head, |out| out.extend_from_slice(b"payload")).unwrap();
        }
        bytes.resize(bytes.len() + 100, 0);
        let find = |from, first, last| find_frame(&bytes, from, FrameNumber(first)..=FrameNumber(last), seed());
        assert_eq!(find(0, 1, 10), Some(starts[0]));
        assert_eq!(find(starts[0] + 1, 1, 10), Some(starts[1]));
        assert_eq!(find(0, 7, 10), Some(starts[2]));
        assert_eq!(find(0, 7, 8), None);
        assert_eq!(find(bytes.len(), 1, 10), None);
    }

    #[test]
    fn tail_full_of_forged_heads_is_searched_quickly() {
        // 20,000 plausible heads, each claiming 10 MB: a naive search would checksum 200 GB.
        let mut one = Vec::new();
        let head = Head { number: FrameNumber(3), prev_crc: 0, synced: FrameNumber(2), kind: 1, version: 1 };
        encode_with(&mut one, seed(), &head, |_| {}).unwrap();
        one[..4].copy_from_slice(&10_000_000_u32.to_le_bytes());
        let mut bytes = one.repeat(20_000);
        bytes.resize(11_000_000, 1);
        assert_eq!(find_witness(&bytes, 0, FrameNumber(1), seed()), None);
    }
}
