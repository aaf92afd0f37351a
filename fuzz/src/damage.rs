//! Damage to bytes, as a disk causes it: checksums are not corrected.

use arbitrary::Unstructured;

use crate::input::{below, take_bytes};

/// The most changes made by one call of [`damage`].
const CHANGES_MAX: usize = 4;
/// The most bytes that one change zeroes, copies or removes.
const RANGE_BYTES_MAX: usize = 64;
/// The most bytes of the input that one change writes.
const WRITTEN_BYTES_MAX: usize = 40;

/// Applies a few changes to `bytes`: flipped bits, truncation, zeroed, overwritten, copied, removed or inserted ranges.
pub fn damage(input: &mut Unstructured<'_>, bytes: &mut Vec<u8>) {
    for _ in 0..below(input, CHANGES_MAX + 1) {
        let start = below(input, bytes.len() + 1);
        let end = (start + 1 + below(input, RANGE_BYTES_MAX)).min(bytes.len());
        match below(input, 8) {
            0 => bytes.truncate(start),
            1 => bytes[start..end].fill(0),
            2 => {
                let written = take_bytes(input, WRITTEN_BYTES_MAX);
                let len = written.len().min(bytes.len() - start);
                bytes[start..start + len].copy_from_slice(&written[..len]);
            }
            3 => {
                let (copy, to) = (bytes[start..end].to_vec(), below(input, bytes.len() + 1));
                bytes.splice(to..to, copy);
            }
            4 => drop(bytes.drain(start..end)),
            5 => drop(bytes.splice(start..start, take_bytes(input, WRITTEN_BYTES_MAX).iter().copied())),
            _ => {
                let bit = below(input, 8);
                bytes.get_mut(start).into_iter().for_each(|byte| *byte ^= 1 << bit);
            }
        }
    }
}
