//! Not too early, not too late, and never back.

use driftq_core::types::{Millis, RetryPolicy, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::deliveries::Handed;
use super::tracker::model::GroupModel;
use super::verdict::Verdict;

#[doc = sentence!(time_is_monotonic)]
pub(crate) fn time_is_monotonic(latest: Timestamp, inside: Timestamp) -> Verdict {
    catalog::TIME_IS_MONOTONIC.holds(latest <= inside, || format!("{inside} after {latest}"))
}

#[doc = sentence!(not_before_due)]
pub(super) fn not_before_due(book: &GroupModel, handed: &Handed<'_>) -> Verdict {
    let (delivery, at) = (handed.delivery, handed.at);
    let scheduled = handed.envelope.deliver_at.unwrap_or_default();
    let before = book.seen.get(&delivery.offset).filter(|seen| !seen.unsure);
    let retried = before.map_or(Timestamp(0), |seen| match seen.open {
        // The lease ended in silence.
        true => seen.lease_until.after(least_backoff(handed.envelope.retry_policy, delivery.failures)),
        false => seen.not_before,
    });
    let earliest = scheduled.max(retried);
    catalog::NOT_BEFORE_DUE
        .holds(earliest <= at, || format!("at {at}, not before {earliest}: {delivery:?}, before {before:?}"))
}

#[doc = sentence!(not_after_deadline)]
pub(super) fn not_after_deadline(handed: &Handed<'_>) -> Verdict {
    let late = handed.envelope.deadline.as_ref().is_some_and(|deadline| deadline.at <= handed.at);
    // A dead letter is past its time, and delivered to whoever looks after those.
    catalog::NOT_AFTER_DEADLINE
        .holds(!late || handed.is_dead_letter, || format!("at {}: {:?}", handed.at, handed.envelope))
}

/// The least a retry must wait after the `failures`-th failure.
pub(super) fn least_backoff(policy: Option<RetryPolicy>, failures: u32) -> Millis {
    let Some(policy) = policy else { return Millis(0) };
    let longest = if policy.max_backoff.0 == 0 { 24 * 3_600_000 } else { policy.max_backoff.0 };
    let doubled = (0..failures.saturating_sub(1)).fold(policy.backoff.0, |wait, _| wait.saturating_mul(2));
    Millis(doubled.min(longest).div_ceil(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn time_does_not_run_backwards() {
        fine(time_is_monotonic(Timestamp(5), Timestamp(5)));
        breaks(catalog::TIME_IS_MONOTONIC, time_is_monotonic(Timestamp(5), Timestamp(4)));
    }
}
