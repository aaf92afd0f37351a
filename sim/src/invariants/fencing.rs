//! Tokens and leases: who holds a message, and whose word counts.

use driftq_core::Command;
use driftq_core::command::{Claim, TokenClaim};
use driftq_core::reply::Delivery;
use driftq_core::types::{LeaseToken, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{GroupModel, Seen};
use super::verdict::Verdict;

#[doc = sentence!(stale_changes_nothing)]
///
/// By the digest of the whole state.
pub(super) fn stale_changes_nothing(command: &Command, before: u64, after: u64) -> Verdict {
    catalog::STALE_CHANGES_NOTHING.holds(before == after, || format!("{command:?}"))
}

#[doc = sentence!(ended_is_ended)]
pub(super) fn ended_is_ended(claim: &Claim, at: Timestamp, seen: &Seen) -> Verdict {
    // Without a token it may be a newer delivery that nobody has seen.
    let unseen = seen.crashed && claim.token == TokenClaim::Absent;
    let good = seen.unsure || unseen || seen.open && seen.lease_until > at;
    catalog::ENDED_IS_ENDED.holds(good, || format!("extended at {at}: {seen:?}"))
}

#[doc = sentence!(tokens_rise)]
pub(super) fn tokens_rise(last: Option<LeaseToken>, token: LeaseToken) -> Verdict {
    catalog::TOKENS_RISE.holds(last.is_none_or(|last| last < token), || format!("{token} after {last:?}"))
}

#[doc = sentence!(one_holder)]
pub(super) fn one_holder(book: &GroupModel, delivery: &Delivery, at: Timestamp) -> Verdict {
    let before = book.seen.get(&delivery.offset);
    let free = before.is_none_or(|seen| seen.unsure || !seen.open || seen.lease_until <= at);
    catalog::ONE_HOLDER.holds(free, || format!("at {at} {delivery:?}, before {before:?}"))
}

#[cfg(test)]
mod tests {
    use driftq_core::types::Offset;

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn one_holder_is_enough() {
        let mut book = book();
        book.seen.insert(Offset(3), seen());
        breaks(catalog::ONE_HOLDER, one_holder(&book, &delivery(), Timestamp(199)));
        fine(one_holder(&book, &delivery(), Timestamp(200)));
    }
}
