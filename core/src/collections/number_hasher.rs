//! A cheap hasher for numbers of our own.

use std::hash::Hasher;

/// Spreads numbers by one multiplication: they are counted up by the broker, and no client chooses them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        unreachable!("a number hashes as one u64, not as {bytes:?}");
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // A hash map uses the highest bits too.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
