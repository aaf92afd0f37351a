//! The digest chain: a digest of all outputs of a world, in order.

use std::fmt;

/// A running digest. Two runs with the same chain had the same outputs in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestChain(u64);

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

impl Default for DigestChain {
    fn default() -> Self {
        Self(BASIS)
    }
}

impl DigestChain {
    /// Adds a number.
    pub fn mix(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(PRIME);
        self.0 ^= self.0 >> 29;
    }

    /// Adds bytes.
    pub fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut block = [0; 8];
            block[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(block));
        }
    }
}

impl fmt::Display for DigestChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
