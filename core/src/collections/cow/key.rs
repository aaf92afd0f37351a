//! Keys of a [`CowMap`](super::CowMap).

use crate::types::{ConsumerId, GroupId, IdentityKey, LeaseToken, OffsetRef, Position, Timestamp, TopicId};

/// A key of a map. Numbers that are given one after the other are found without a search as long as none is missing.
pub(crate) trait Key: Ord {
    /// The index of this key in a list of consecutive keys that begins with `first`. A lookup tries it before it
    /// searches, so that it may be wrong.
    fn index_from(&self, first: &Self) -> usize {
        let _ = first;
        0
    }
}

impl Key for u64 {
    fn index_from(&self, first: &Self) -> usize {
        self.wrapping_sub(*first) as usize
    }
}

impl Key for Position {
    fn index_from(&self, first: &Self) -> usize {
        self.0.index_from(&first.0)
    }
}

impl Key for ConsumerId {
    fn index_from(&self, first: &Self) -> usize {
        self.0.index_from(&first.0)
    }
}

impl Key for LeaseToken {
    fn index_from(&self, first: &Self) -> usize {
        self.counter.index_from(&first.counter)
    }
}

impl Key for IdentityKey {}
impl Key for OffsetRef {}
impl Key for (Timestamp, u64) {}
impl Key for (Timestamp, LeaseToken) {}
impl Key for (TopicId, GroupId) {}

#[cfg(test)]
mod for_tests {
    use std::sync::Arc;

    use super::Key;

    impl Key for u32 {
        fn index_from(&self, first: &Self) -> usize {
            self.wrapping_sub(*first) as usize
        }
    }
    impl Key for u8 {}
    impl Key for str {}
    impl Key for Arc<str> {}
}
