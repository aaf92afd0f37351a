//! Fencing: lease tokens, lease holders and the claims of workers.

use driftq_core::Command;
use driftq_core::command::{Claim, TokenClaim};
use driftq_core::reply::Delivery;
use driftq_core::types::{LeaseToken, Lsn, Millis, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::{GroupModel, SeenDelivery};
use super::verdict::Verdict;

#[doc = sentence!(stale_claim_is_noop)]
///
/// Compared by the digest of the whole state.
pub(super) fn stale_claim_is_noop(command: &Command, before: u64, after: u64) -> Verdict {
    catalog::STALE_CLAIM_IS_NOOP.holds(before == after, || format!("{command:?}"))
}

#[doc = sentence!(loser_is_refused)]
///
/// `at` is when the claim was decided, after the record `before`.
pub(super) fn loser_is_refused(
    model: &GroupModel,
    claim: &Claim,
    (before, at): (Lsn, Timestamp),
    remembered_for: Millis,
) -> Verdict {
    let TokenClaim::Shown(token) = claim.token else { return Ok(()) };
    let winner = model.winners.get(&claim.offset);
    let winner = winner.map(|winner| (winner.since, winner.at, Some(winner.token)));
    // A dead letter first seen after a restart may be older than a seek.
    let dead = model.dead_lettered_at(claim.offset).filter(|_| !model.crashed);
    let dead = dead.map(|(since, at)| (since, at, None));
    let known = winner.into_iter().chain(dead);
    let lost = known
        .filter(|(since, ended, _)| *since <= before && !model.sought_since(*since) && at < ended.after(remembered_for))
        .find(|(.., winner)| *winner != Some(token));
    catalog::LOSER_IS_REFUSED.holds(lost.is_none(), || format!("confirmed at {at}: {claim:?}, but {lost:?} has won"))
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
    use driftq_core::types::{Offset, PartitionId};

    use super::*;
    use crate::invariants::tests::fixtures::*;
    use crate::invariants::tracker::model::{StartPoint, WinnerModel};

    #[test]
    fn claim_of_another_than_the_winner_is_a_violation() {
        let mut model = model();
        let claim = |counter| Claim {
            topic: topic("t0"),
            group: group(),
            partition: PartitionId(0),
            offset: Offset(3),
            owner: stream().request.owner,
            token: TokenClaim::Shown(token(counter)),
        };
        let check = |model: &GroupModel, counter, at| {
            loser_is_refused(model, &claim(counter), (Lsn(9), Timestamp(at)), Millis(10))
        };
        holds(check(&model, 1, 100));
        let won = |since| WinnerModel { token: token(2), at: Timestamp(95), since: Lsn(since) };
        model.winners.insert(Offset(3), won(8));
        violates(catalog::LOSER_IS_REFUSED, check(&model, 1, 100));
        holds(check(&model, 2, 100));
        holds(check(&model, 1, 105));
        model.winners.insert(Offset(3), won(10));
        holds(check(&model, 1, 100));
        model.winners.clear();
        model.dead.insert(Offset(3), vec![(Lsn(8), Timestamp(95))]);
        violates(catalog::LOSER_IS_REFUSED, check(&model, 2, 100));
        model.starts.push((Lsn(8), Lsn(9), StartPoint::Below(Offset(0))));
        holds(check(&model, 2, 100));
    }

    #[test]
    fn second_holder_before_expiry_is_a_violation() {
        let mut model = model();
        model.seen.insert(Offset(3), seen());
        violates(catalog::ONE_LEASE_HOLDER, one_lease_holder(&model, &delivery(), Timestamp(199)));
        holds(one_lease_holder(&model, &delivery(), Timestamp(200)));
    }
}
