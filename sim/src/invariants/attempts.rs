//! Attempt counters and failure reasons.

use driftq_core::reply::Delivery;
use driftq_core::types::{DeliveryState, LastError};

use super::catalog::{self, sentence};
use super::tracker::model::{GroupModel, SeenDelivery};
use super::verdict::Verdict;

#[doc = sentence!(attempts_increment)]
///
/// After a crash, some deliveries may not have been observed, and the step may be larger.
pub(super) fn attempts_increment(model: &GroupModel, delivery: &Delivery) -> Verdict {
    let (attempts, failures) = (delivery.attempts, delivery.failures);
    let before = model.seen.get(&delivery.offset);
    let rising = match before {
        Some(seen) if seen.crashed => {
            attempts + u32::from(seen.may_be_withdrawn) > seen.attempts && failures >= seen.failures
        }
        Some(seen) if seen.may_be_withdrawn => (seen.attempts..=seen.attempts + 1).contains(&attempts),
        Some(seen) => attempts == seen.attempts + 1 && failures >= seen.failures,
        None => attempts == 1 || model.crashed,
    };
    catalog::ATTEMPTS_INCREMENT.holds(rising && failures < attempts, || format!("{delivery:?}, before {before:?}"))
}

#[doc = sentence!(last_error_reported)]
pub(super) fn last_error_reported(model: &GroupModel, delivery: &Delivery) -> Verdict {
    let before = model.seen.get(&delivery.offset);
    let good = match (before, &delivery.last_error) {
        (Some(seen), _) if seen.is_unknown || seen.is_uncertain || seen.crashed => true,
        (None, _) if model.crashed => true,
        (Some(seen), LastError::Reason(reason)) => seen.reasons.contains(&**reason),
        // A worker may give this very reason.
        (Some(seen), LastError::AckTimeout) => {
            delivery.failures > 0 && (seen.reasons.is_empty() || seen.reasons.contains("ack_timeout"))
        }
        (_, LastError::Nothing) => before.is_none_or(|seen| seen.reasons.is_empty()),
        (None, _) => false,
    };
    catalog::LAST_ERROR_REPORTED.holds(good, || format!("{delivery:?}, before {before:?}"))
}

#[doc = sentence!(attempts_recovered)]
pub(super) fn attempts_recovered(entry: Option<&DeliveryState>, seen: &SeenDelivery) -> Verdict {
    let taken_back = u32::from(seen.may_be_withdrawn);
    let good = entry.is_none_or(|entry| entry.attempts + taken_back >= seen.attempts && entry.token >= seen.token);
    catalog::ATTEMPTS_RECOVERED.holds(good, || format!("{entry:?}, seen {seen:?}"))
}
