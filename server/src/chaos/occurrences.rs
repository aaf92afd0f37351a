//! How often each request came.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Counts of so many different requests are kept; those that came first go first. One that comes again after so many
/// others counts as new.
const KEPT_MAX: usize = 1 << 20;

/// Counts requests by their fingerprints, within a bounded memory.
#[derive(Debug, Default)]
pub(super) struct Occurrences {
    counts: HashMap<u64, u64, BuildHasherDefault<FingerprintHasher>>,
    /// In the order in which they came first.
    order: VecDeque<u64>,
}

impl Occurrences {
    /// Counts a request. Returns how often it has come, this time included.
    pub(super) fn count(&mut self, fingerprint: u64) -> u64 {
        let count = self.counts.entry(fingerprint).or_insert_with(|| {
            self.order.push_back(fingerprint);
            0
        });
        *count += 1;
        let count = *count;
        if self.order.len() > KEPT_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.counts.remove(&first);
        }
        count
    }
}

/// A fingerprint is a hash already.
#[derive(Clone, Copy, Debug, Default)]
struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a fingerprint is a number");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_counted_by_itself() {
        let mut occurrences = Occurrences::default();
        assert_eq!([1, 2, 1, 1, 2].map(|request| occurrences.count(request)), [1, 1, 2, 3, 2]);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_go_first() {
        let mut occurrences = Occurrences::default();
        for request in 0..=KEPT_MAX as u64 {
            assert_eq!(occurrences.count(request), 1);
        }
        assert_eq!((occurrences.counts.len(), occurrences.order.len()), (KEPT_MAX, KEPT_MAX));
        assert_eq!(occurrences.count(1), 2, "kept");
        assert_eq!(occurrences.count(0), 1, "forgotten");
    }
}
