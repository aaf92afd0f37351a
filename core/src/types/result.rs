//! Results of effects, as the state keeps them.

use super::payload::{PayloadId, PayloadRef};
use super::result_hash::ResultHash;

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
    fn result_is_known_by_length_and_hash() {
        let stored = StoredResult::new(PayloadId::default(), "{\"a\":1}");
        assert!(stored.is("{\"a\":1}"));
        assert!(!stored.is("{\"a\":2}") && !stored.is("{\"a\":1} ") && !stored.is(""));
    }
}
