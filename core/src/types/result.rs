//! Results of effects, as the state keeps them.

use std::fmt;

use sha2::{Digest, Sha256};

use super::payload::{PayloadId, PayloadRef};

/// The first 16 bytes of the SHA-256 of a result.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResultHash(pub [u8; 16]);

impl ResultHash {
    /// The hash of `result`.
    #[must_use]
    pub fn of(result: &str) -> Self {
        let digest = Sha256::digest(result.as_bytes());
        Self(std::array::from_fn(|at| digest[at]))
    }
}

impl fmt::Debug for ResultHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What the state keeps of the result of an effect. Its bytes stand in the log; no decision reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResult {
    /// Where its bytes stand; `None` if they are lost.
    pub payload: Option<PayloadId>,
    /// Its length in bytes.
    pub len: u32,
    /// Its hash.
    pub hash: ResultHash,
}

impl StoredResult {
    /// `result`, whose bytes stand at `payload`.
    ///
    /// # Panics
    /// If it is longer than 4 GiB.
    #[must_use]
    pub fn new(payload: PayloadId, result: &str) -> Self {
        let len = u32::try_from(result.len()).expect("a result is shorter than a frame");
        Self { payload: Some(payload), len, hash: ResultHash::of(result) }
    }

    /// Whether it is `result`, by length and hash.
    #[must_use]
    pub fn is(&self, result: &str) -> bool {
        self.len as usize == result.len() && self.hash == ResultHash::of(result)
    }

    /// The reference to its bytes; `None` if they are lost.
    #[must_use]
    pub fn payload_ref(&self) -> Option<PayloadRef> {
        Some(PayloadRef { id: self.payload?, metadata_len: 0, key_len: 0, value_len: self.len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_the_first_half_of_sha_256() {
        assert_eq!(format!("{:?}", ResultHash::of("abc")), "ba7816bf8f01cfea414140de5dae2223");
    }

    #[test]
    fn result_is_known_by_length_and_hash() {
        let stored = StoredResult::new(PayloadId::default(), "{\"a\":1}");
        assert!(stored.is("{\"a\":1}"));
        assert!(!stored.is("{\"a\":2}") && !stored.is("{\"a\":1} ") && !stored.is(""));
    }
}
