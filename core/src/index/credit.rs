//! The credit of a stream: how many live leases it may hold.
//!
//! Credit follows what a consumer shows. It begins at the prefetch; an expired lease reduces it to half of the acks
//! within the last lease length, and each ack raises it by one.

use std::collections::VecDeque;

use crate::types::{Millis, Timestamp};

/// The fewest acks that are kept, so that a stream can raise its prefetch later.
const ACKS_KEPT_MIN: u64 = 256;

/// The credit of one stream.
#[derive(Clone, Debug)]
pub(crate) struct Credit {
    prefetch: u32,
    limit: u32,
    /// The newest acks, as many as can matter.
    acks: VecDeque<Timestamp>,
    reduced_at: Option<Timestamp>,
    /// Whether the credit was reduced to 1 and no ack followed.
    is_last_resort: bool,
}

impl Credit {
    pub(crate) fn new(prefetch: u32) -> Self {
        Self { prefetch, limit: prefetch, acks: VecDeque::new(), reduced_at: None, is_last_resort: false }
    }

    /// The most live leases the stream may hold.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Whether the stream gets a message only if no other stream can take it.
    pub(crate) fn is_last_resort(&self) -> bool {
        self.is_last_resort
    }

    /// The prefetch that the client asked for.
    pub(crate) fn prefetch(&self) -> u32 {
        self.prefetch
    }

    /// Changes the prefetch. A credit that was reduced stays reduced.
    pub(crate) fn set_prefetch(&mut self, prefetch: u32) {
        self.limit = if self.limit == self.prefetch { prefetch } else { self.limit.min(prefetch) };
        self.prefetch = prefetch;
    }

    /// The consumer acked a delivery at `now`. Its leases run for `lease`.
    pub(crate) fn acked(&mut self, now: Timestamp, lease: Millis) {
        self.is_last_resort = false;
        self.limit = self.limit.saturating_add(1).min(self.prefetch);
        // Older or more acks than these cannot change the result of `expired`.
        let max = (2 * u64::from(self.prefetch)).max(ACKS_KEPT_MIN);
        if self.acks.front().is_some_and(|at| at.after(lease) <= now) || self.acks.len() as u64 >= max {
            self.acks.pop_front();
        }
        self.acks.push_back(now);
    }

    /// A lease of the stream expired at `now`. Reduces the credit, at most once per lease length.
    pub(crate) fn expired(&mut self, now: Timestamp, lease: Millis) {
        if self.reduced_at.is_some_and(|at| now < at.after(lease)) {
            return;
        }
        self.reduced_at = Some(now);
        while self.acks.front().is_some_and(|at| at.after(lease) <= now) {
            self.acks.pop_front();
        }
        let shown = u32::try_from(self.acks.len() / 2).unwrap_or(u32::MAX);
        self.limit = self.limit.min(shown.max(1));
        self.is_last_resort = self.limit <= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Millis = Millis(100);

    #[test]
    fn silent_stream_is_reduced_to_one_and_grows_with_acks() {
        let mut credit = Credit::new(3);
        credit.expired(Timestamp(100), LEASE);
        assert_eq!((credit.limit(), credit.is_last_resort()), (1, true));
        credit.acked(Timestamp(110), LEASE);
        assert_eq!((credit.limit(), credit.is_last_resort()), (2, false));
        credit.acked(Timestamp(111), LEASE);
        credit.acked(Timestamp(112), LEASE);
        assert_eq!(credit.limit(), 3);
    }

    #[test]
    fn slow_stream_keeps_half_of_the_acks_within_a_lease_length() {
        let mut credit = Credit::new(100);
        for at in 1..=10 {
            credit.acked(Timestamp(at * 20), LEASE);
        }
        // The acks at 120, 140, 160, 180 and 200 are within the last 100 ms.
        credit.expired(Timestamp(210), LEASE);
        assert_eq!((credit.limit(), credit.is_last_resort()), (2, false));
    }

    #[test]
    fn credit_is_reduced_once_per_lease_length() {
        let mut credit = Credit::new(4);
        credit.expired(Timestamp(100), LEASE);
        credit.acked(Timestamp(150), LEASE);
        credit.acked(Timestamp(151), LEASE);
        credit.expired(Timestamp(199), LEASE);
        assert_eq!(credit.limit(), 3);
        credit.expired(Timestamp(200), LEASE);
        assert_eq!(credit.limit(), 1);
    }

    #[test]
    fn prefetch_bounds_the_credit_and_the_acks_kept() {
        let mut credit = Credit::new(4);
        for at in 0..1_000 {
            credit.acked(Timestamp(at), Millis(10_000));
        }
        assert_eq!((credit.limit(), credit.acks.len() as u64), (4, ACKS_KEPT_MIN));
        credit.set_prefetch(0);
        assert_eq!(credit.limit(), 0);
        credit.set_prefetch(7);
        assert_eq!(credit.limit(), 7);
    }

    #[test]
    fn reduced_credit_is_not_raised_by_a_new_prefetch() {
        let mut credit = Credit::new(4);
        credit.expired(Timestamp(100), LEASE);
        for prefetch in [2, 9] {
            credit.set_prefetch(prefetch);
            assert_eq!(credit.limit(), 1);
        }
        credit.acked(Timestamp(110), LEASE);
        assert_eq!(credit.limit(), 2);
    }

    #[test]
    fn stream_that_acks_twice_its_prefetch_per_lease_keeps_its_credit() {
        let mut credit = Credit::new(400);
        for _ in 0..800 {
            credit.acked(Timestamp(150), LEASE);
        }
        credit.expired(Timestamp(200), LEASE);
        assert_eq!(credit.limit(), 400);
    }

    #[test]
    fn ack_one_lease_length_ago_does_not_count() {
        for (expired_at, limit) in [(199, 2), (200, 1)] {
            let mut credit = Credit::new(9);
            for at in [100, 150, 160, 170] {
                credit.acked(Timestamp(at), LEASE);
            }
            credit.expired(Timestamp(expired_at), LEASE);
            assert_eq!(credit.limit(), limit);
        }
    }
}
