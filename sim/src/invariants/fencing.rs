//! Fencing: lease tokens, lease holders and the claims of workers.

use driftq_core::Command;
use driftq_core::command::{Claim, TokenClaim};
use driftq_core::reply::Delivery;
use driftq_core::types::{LeaseToken, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{GroupModel, SeenDelivery};
use super::verdict::Verdict;

#[doc = sentence!(stale_claim_is_noop)]
///
/// Compared by the digest of the whole state.
pub(super) fn stale_claim_is_noop(command: &Command, before: u64, after: u64) -> Verdict {
    catalog::STALE_CLAIM_IS_NOOP.holds(before == after, || format!("{command:?}"))
}

#[doc = sentence!(expired_not_extended)]
pub(super) fn expired_not_extended(claim: &Claim, at: Timestamp, seen: &SeenDelivery) -> Verdict {
    // Without a token the claim may match a newer delivery that was never seen.
    let unseen = seen.crashed && claim.token == TokenClaim::Absent;
    let good = seen.is_uncertain || unseen || seen.may_be_held && seen.runs_until > at;
    catalog::EXPIRED_NOT_EXTENDED.holds(good, || format!("extended at {at}: {seen:?}"))
}

#[doc = sentence!(tokens_increase)]
pub(super) fn tokens_increase(last: Option<LeaseToken>, token: LeaseToken) -> Verdict {
    catalog::TOKENS_INCREASE.holds(last.is_none_or(|last| last < token), || format!("{token} after {last:?}"))
}

#[doc = sentence!(one_lease_holder)]
pub(super) fn one_lease_holder(model: &GroupModel, delivery: &Delivery, at: Timestamp) -> Verdict {
    let before = model.seen.get(&delivery.offset);
    let is_free = before.is_none_or(|seen| seen.is_uncertain || !seen.may_be_held || seen.runs_until <= at);
    catalog::ONE_LEASE_HOLDER.holds(is_free, || format!("at {at} {delivery:?}, before {before:?}"))
}

#[cfg(test)]
mod tests {
    use driftq_core::types::Offset;

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn second_holder_before_expiry_is_a_violation() {
        let mut model = model();
        model.seen.insert(Offset(3), seen());
        violates(catalog::ONE_LEASE_HOLDER, one_lease_holder(&model, &delivery(), Timestamp(199)));
        holds(one_lease_holder(&model, &delivery(), Timestamp(200)));
    }
}
