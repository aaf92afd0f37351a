//! Decides what follows a failed delivery: a retry after a backoff, or the dead-letter topic.

use crate::state::{Group, Message, State, Topic};
use crate::types::{DeadReason, DeliveryState, MAX_BACKOFF_DEFAULT, MessageRef, Millis, RetryPolicy, Timestamp};

/// What follows a failed delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureVerdict {
    /// The message is redelivered, not before this time.
    Retry { not_before: Timestamp },
    /// The message is dead-lettered.
    DeadLetter(DeadReason),
}

/// How a delivery failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The consumer reported it. A requested delay overrides the retry policy.
    Nack { delay: Option<Millis> },
    /// The lease expired.
    Expiry {
        /// Whether the message can be dead-lettered for its number of attempts.
        counts: bool,
    },
}

/// Decides what follows the failure of a delivery.
pub(crate) fn after_failure(
    state: &State,
    message_ref: &MessageRef,
    delivery: &DeliveryState,
    now: Timestamp,
    failure: Failure,
) -> FailureVerdict {
    let (delay, counts) = match failure {
        Failure::Nack { delay } => (delay, true),
        Failure::Expiry { counts } => (None, counts),
    };
    let topic = state.topic(message_ref.topic).expect("a lease belongs to a topic");
    let group = topic.group(message_ref.group).expect("a lease belongs to a group");
    let message = message(topic, message_ref);
    let policy = message.retry_policy();
    if !topic.name().is_dead_letter() {
        let is_last = |policy: RetryPolicy| policy.max_attempts > 0 && delivery.attempts >= policy.max_attempts;
        if counts && policy.is_some_and(is_last) {
            return FailureVerdict::DeadLetter(DeadReason::MaxAttempts);
        }
        let wall = state.wall_clock().wall(now);
        if message.deadline().is_some_and(|deadline| deadline <= wall) {
            return FailureVerdict::DeadLetter(why_not_retried(&message));
        }
    }
    let wait = match (delay, policy) {
        (Some(delay), _) => delay,
        (None, Some(policy)) => {
            backoff(&policy, delivery.failures.saturating_add(1), jitter(topic, group, message_ref, delivery, &message))
        }
        (None, None) => Millis(0),
    };
    FailureVerdict::Retry { not_before: now.after(wait) }
}

/// Why a message is not retried whose deadline has passed.
pub(crate) fn why_not_retried(message: &Message) -> DeadReason {
    if message.lost().is_some() { DeadReason::PayloadDamaged } else { DeadReason::DeadlineExceeded }
}

/// Whether a message's deadline has passed at the time that `wall` returns. Deadlines have no effect in a dead-letter
/// topic.
#[inline]
pub(crate) fn deadline_passed(topic: &Topic, message: &Message, wall: impl FnOnce() -> Timestamp) -> bool {
    message.flags().has_deadline
        && !topic.name().is_dead_letter()
        && message.deadline().is_some_and(|deadline| deadline <= wall())
}

pub(crate) fn message(topic: &Topic, message_ref: &MessageRef) -> Message {
    let partition = topic.partition(message_ref.partition).expect("the partition of a message exists");
    partition.message(message_ref.position).expect("an unacked message is stored")
}

/// The backoff after the `failures`-th failure: doubles, capped; half of it is fixed and half varies with `jitter`.
fn backoff(policy: &RetryPolicy, failures: u32, jitter: u64) -> Millis {
    let cap = if policy.max_backoff.0 == 0 { MAX_BACKOFF_DEFAULT } else { policy.max_backoff };
    let doublings = failures.saturating_sub(1);
    // Saturates, so that a backoff of 0 stays 0.
    let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
    let whole = policy.backoff.0.saturating_mul(factor).min(cap.0);
    let fixed = whole.div_ceil(2);
    let spread = whole - fixed;
    Millis(fixed + jitter % (spread + 1))
}

/// A hash that spreads the retries of different messages and attempts, in place of a random number.
fn jitter(topic: &Topic, group: &Group, message_ref: &MessageRef, delivery: &DeliveryState, message: &Message) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |bytes: &[u8]| {
        for byte in bytes.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    mix(topic.name().as_str().as_bytes());
    mix(group.name().as_str().as_bytes());
    mix(&message_ref.partition.0.to_le_bytes());
    mix(&message.offset.0.to_le_bytes());
    mix(&delivery.attempts.to_le_bytes());
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(backoff: u64, max_backoff: u64) -> RetryPolicy {
        RetryPolicy { max_attempts: 0, backoff: Millis(backoff), max_backoff: Millis(max_backoff) }
    }

    #[test]
    fn backoff_doubles_up_to_cap_and_jitter_spreads_upper_half() {
        for (failures, whole) in [(1, 100), (2, 200), (3, 400), (4, 500), (60, 500), (u32::MAX, 500)] {
            assert_eq!(backoff(&policy(100, 500), failures, 0), Millis(whole / 2));
            let waits = (0..10_000).map(|jitter| backoff(&policy(100, 500), failures, jitter).0);
            assert_eq!(waits.clone().min(), Some(whole / 2));
            assert_eq!(waits.max(), Some(whole));
        }
    }

    #[test]
    fn backoff_without_cap_is_at_most_a_day() {
        assert_eq!(backoff(&policy(1_000, 0), 64, u64::MAX).0.div_ceil(MAX_BACKOFF_DEFAULT.0), 1);
        assert!(backoff(&policy(1_000, 0), 64, 0).0 >= MAX_BACKOFF_DEFAULT.0 / 2);
        for failures in [1, 9, 64, 65, u32::MAX] {
            assert_eq!(backoff(&policy(0, 0), failures, 7), Millis(0));
        }
    }
}
