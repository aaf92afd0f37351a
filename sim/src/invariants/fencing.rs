//! Tokens and leases: who holds a message, and whose word counts.

use driftq_core::Command;
use driftq_core::command::{Claim, TokenClaim};
use driftq_core::reply::Delivery;
use driftq_core::types::{LeaseToken, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{GroupModel, Seen};
use super::verdict::Verdict;

#[doc = sentence!(stale_claim_is_noop)]
///
/// By the digest of the whole state.
pub(super) fn stale_claim_is_noop(command: &Command, before: u64, after: u64) -> Verdict {
    catalog::STALE_CLAIM_IS_NOOP.holds(before == after, || format!("{command:?}"))
}

#[doc = sentence!(expired_not_extended)]
pub(super) fn expired_not_extended(claim: &Claim, at: Timestamp, seen: &Seen) -> Verdict {
    // Without a token it may be a newer delivery that nobody has seen.
    let unseen = seen.crashed && claim.token == TokenClaim::Absent;
    let good = seen.unsure || unseen || seen.open && seen.lease_until > at;
    catalog::EXPIRED_NOT_EXTENDED.holds(good, || format!("extended at {at}: {seen:?}"))
}

#[doc = sentence!(tokens_increase)]
pub(super) fn tokens_increase(last: Option<LeaseToken>, token: LeaseToken) -> Verdict {
    catalog::TOKENS_INCREASE.holds(last.is_none_or(|last| last < token), || format!("{token} after {last:?}"))
}

#[doc = sentence!(one_lease_holder)]
pub(super) fn one_lease_holder(book: &GroupModel, delivery: &Delivery, at: Timestamp) -> Verdict {
    let before = book.seen.get(&delivery.offset);
    let free = before.is_none_or(|seen| seen.unsure || !seen.open || seen.lease_until <= at);
    catalog::ONE_LEASE_HOLDER.holds(free, || format!("at {at} {delivery:?}, before {before:?}"))
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
        breaks(catalog::ONE_LEASE_HOLDER, one_lease_holder(&book, &delivery(), Timestamp(199)));
        fine(one_lease_holder(&book, &delivery(), Timestamp(200)));
    }
}
