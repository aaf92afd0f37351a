//! What is counted and told of a message's failures.

use driftq_core::reply::Delivery;
use driftq_core::state::entry::{Entry, LastError};

use super::catalog::{self, sentence};
use super::tracker::model::{GroupModel, Seen};
use super::verdict::Verdict;

#[doc = sentence!(attempts_increment)]
///
/// Where a crash has passed, deliveries may have gone unseen, and it may be by more.
pub(super) fn attempts_increment(book: &GroupModel, delivery: &Delivery) -> Verdict {
    let (attempts, failures) = (delivery.attempts, delivery.failures);
    let before = book.seen.get(&delivery.offset);
    let rising = match before {
        Some(seen) if seen.crashed => attempts > seen.attempts && failures >= seen.failures,
        Some(seen) => attempts == seen.attempts + 1 && failures >= seen.failures,
        None => attempts == 1 || book.crashed,
    };
    catalog::ATTEMPTS_INCREMENT.holds(rising && failures < attempts, || format!("{delivery:?}, before {before:?}"))
}

#[doc = sentence!(last_error_reported)]
pub(super) fn last_error_reported(book: &GroupModel, delivery: &Delivery) -> Verdict {
    let before = book.seen.get(&delivery.offset);
    let good = match (before, &delivery.last_error) {
        (Some(seen), _) if seen.vague || seen.unsure || seen.crashed => true,
        (None, _) if book.crashed => true,
        (Some(seen), LastError::Reason(reason)) => seen.reasons.contains(&**reason),
        // A worker may say the very words.
        (Some(seen), LastError::AckTimeout) => {
            delivery.failures > 0 && (seen.reasons.is_empty() || seen.reasons.contains("ack_timeout"))
        }
        (_, LastError::Nothing) => before.is_none_or(|seen| seen.reasons.is_empty()),
        (None, _) => false,
    };
    catalog::LAST_ERROR_REPORTED.holds(good, || format!("{delivery:?}, before {before:?}"))
}

#[doc = sentence!(attempts_recovered)]
pub(super) fn attempts_recovered(entry: Option<&Entry>, seen: &Seen) -> Verdict {
    let good = entry.is_none_or(|entry| entry.attempts >= seen.attempts && entry.token >= seen.token);
    catalog::ATTEMPTS_RECOVERED.holds(good, || format!("{entry:?}, seen {seen:?}"))
}
