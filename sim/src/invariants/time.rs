//! Time: no delivery is early or past its deadline, and the clock is monotonic.

use driftq_core::types::{Millis, RetryPolicy, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{DeliveryContext, GroupModel};
use super::verdict::Verdict;

#[doc = sentence!(time_is_monotonic)]
pub(crate) fn time_is_monotonic(latest: Timestamp, now: Timestamp) -> Verdict {
    catalog::TIME_IS_MONOTONIC.holds(latest <= now, || format!("{now} after {latest}"))
}

#[doc = sentence!(not_before_due)]
pub(super) fn not_before_due(model: &GroupModel, context: &DeliveryContext<'_>) -> Verdict {
    let (delivery, at) = (context.delivery, context.at);
    let scheduled = context.envelope.deliver_at.unwrap_or_default();
    let before = model.seen.get(&delivery.offset).filter(|seen| !seen.is_uncertain);
    let retried = before.map_or(Timestamp(0), |seen| match seen.may_be_held {
        // The lease expired.
        true => seen.runs_until.after(least_backoff(context.envelope.retry_policy, delivery.failures)),
        false => seen.not_before,
    });
    let earliest = scheduled.max(retried);
    catalog::NOT_BEFORE_DUE
        .holds(earliest <= at, || format!("at {at}, not before {earliest}: {delivery:?}, before {before:?}"))
}

#[doc = sentence!(not_after_deadline)]
pub(super) fn not_after_deadline(context: &DeliveryContext<'_>) -> Verdict {
    let is_late = context.envelope.deadline.as_ref().is_some_and(|deadline| deadline.at <= context.at);
    // Dead letters are delivered past their deadline.
    catalog::NOT_AFTER_DEADLINE
        .holds(!is_late || context.is_dead_letter, || format!("at {}: {:?}", context.at, context.envelope))
}

/// The shortest backoff after the `failures`-th failure.
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
    fn time_that_runs_backwards_is_a_violation() {
        holds(time_is_monotonic(Timestamp(5), Timestamp(5)));
        violates(catalog::TIME_IS_MONOTONIC, time_is_monotonic(Timestamp(5), Timestamp(4)));
    }
}
