//! A cheap hasher for ids of consumers.

use std::hash::Hasher;

/// Consumer ids are sequential numbers of our own, so a multiplication spreads them well enough.
#[derive(Debug, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        unreachable!("a consumer id hashes as one u64, not as {bytes:?}");
    }

    fn write_u64(&mut self, id: u64) {
        // The map uses the highest bits too.
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
