//! Effects: who may run one, how often it is run, and what is told of its end. All of it by what workers were told and did.

use driftq_core::command::TokenClaim;
use driftq_core::idempotency::Outcome;
use driftq_core::types::{LeaseToken, Text, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::effects::{EffectModel, End, Grant};
use super::verdict::Verdict;

/// A grant that was just given, with what was known of the effect before.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) book: &'a EffectModel,
    pub(super) token: LeaseToken,
    pub(super) grant: &'a Grant,
    /// Deliveries named earlier whose message was not done then.
    pub(super) undone: &'a [LeaseToken],
}

impl Given<'_> {
    /// The grant before it, if one is known.
    fn before(&self) -> Option<(LeaseToken, &Grant)> {
        self.book.grants.range(..self.token).next_back().map(|(token, grant)| (*token, grant))
    }
}

#[doc = sentence!(rerun_is_justified)]
///
/// Of two runs the later grant counts, whoever came first to run it: it must have been given after the lease of the grant before
/// it had ended, or after that had failed, or to a newer delivery; and never while an end for good was to be remembered.
pub(super) fn rerun_is_justified(book: &EffectModel, one: LeaseToken, other: LeaseToken) -> Verdict {
    let (first, later) = (one.min(other), one.max(other));
    let between = book.grants.range(first..later);
    let Some(grant) = book.grants.get(&later) else { return Ok(()) };
    let remembered = between.clone().find(|(_, before)| before.is_remembered(grant.at));
    let excused = between.clone().next_back().is_none_or(|(token, before)| before.gives_way_to(*token, grant));
    catalog::RERUN_IS_JUSTIFIED.holds(excused && remembered.is_none(), || format!("{first} and {later} of {book:?}"))
}

#[doc = sentence!(grant_token_is_new)]
pub(super) fn grant_token_is_new(last: Option<LeaseToken>, token: LeaseToken) -> Verdict {
    catalog::GRANT_TOKEN_IS_NEW.holds(last.is_none_or(|last| last < token), || format!("{token} after {last:?}"))
}

#[doc = sentence!(one_live_grant)]
pub(super) fn one_live_grant(given: Given<'_>) -> Verdict {
    let before = given.before();
    let free = before.is_none_or(|(token, before)| before.end.is_some() || before.gives_way_to(token, given.grant));
    catalog::ONE_LIVE_GRANT.holds(free, || format!("{:?} after {before:?}", given.grant))
}

#[doc = sentence!(final_not_regranted)]
pub(super) fn final_not_regranted(given: Given<'_>) -> Verdict {
    let at = given.grant.at;
    let before = given.before();
    let undone = |grant: &Grant| grant.delivery.is_some_and(|delivery| given.undone.contains(&delivery));
    let remembered =
        before.is_some_and(|(_, grant)| grant.is_remembered(at) || grant.is_over() && !grant.unsure && undone(grant));
    let acked = given.book.acked.as_ref().is_some_and(|end| end.is_remembered(at));
    catalog::FINAL_NOT_REGRANTED.holds(!remembered && !acked, || format!("{:?} of {:?}", given.grant, given.book))
}

#[doc = sentence!(newest_grant_finishes)]
pub(super) fn newest_grant_finishes(book: &EffectModel, shown: TokenClaim) -> Verdict {
    let newest = book.grants.last_key_value().map(|(token, _)| *token);
    let good = matches!(shown, TokenClaim::Shown(token) if newest.is_none_or(|newest| newest <= token));
    catalog::NEWEST_GRANT_FINISHES.holds(good, || format!("{shown:?}, the newest is {newest:?}"))
}

#[doc = sentence!(request_hash_is_stable)]
pub(super) fn request_hash_is_stable(book: &EffectModel, asked: Option<&Text>, is_the_same_life: bool) -> Verdict {
    let differ = matches!((&book.request, asked), (Some(first), Some(now)) if first != now);
    catalog::REQUEST_HASH_IS_STABLE
        .holds(!(differ && is_the_same_life), || format!("{asked:?} after {:?}", book.request))
}

#[doc = sentence!(replay_matches_outcome)]
pub(super) fn replay_matches_outcome(end: Option<&End>, replayed: &Outcome, at: Timestamp) -> Verdict {
    let told = end.filter(|end| end.is_remembered(at)).and_then(|end| end.outcome.as_ref());
    catalog::REPLAY_MATCHES_OUTCOME
        .holds(told.is_none_or(|told| told == replayed), || format!("{replayed:?}, it was {told:?}"))
}

#[cfg(test)]
mod tests {
    use driftq_core::idempotency::EffectStatus;

    use super::*;
    use crate::invariants::tests::fixtures::*;

    fn outcome(result: Option<&str>) -> Outcome {
        let status = EffectStatus::Succeeded;
        Outcome { status, response_code: 0, result: result.map(Into::into), last_error: Text::default() }
    }

    /// Granted at 100 until 200.
    fn grant() -> Grant {
        Grant { at: Timestamp(100), until: Timestamp(200), delivery: None, end: None, failed: false, unsure: false }
    }

    fn ended() -> Grant {
        let end = End { outcome: Some(outcome(None)), expires_at: Some(Timestamp(500)), told: true };
        Grant { end: Some(end), ..grant() }
    }

    fn book(first: Grant) -> EffectModel {
        let mut book = EffectModel::default();
        book.grants.insert(token(3), first);
        book
    }

    fn at(at: u64) -> Grant {
        Grant { at: Timestamp(at), until: Timestamp(at + 100), ..grant() }
    }

    #[test]
    fn a_live_grant_gives_way_to_a_newer_delivery_alone() {
        let judge = |first: Grant, grant: Grant| {
            one_live_grant(Given { book: &book(first), token: token(5), grant: &grant, undone: &[] })
        };
        breaks(catalog::ONE_LIVE_GRANT, judge(grant(), at(199)));
        breaks(catalog::ONE_LIVE_GRANT, judge(grant(), Grant { delivery: Some(token(2)), ..at(199) }));
        fine(judge(grant(), Grant { delivery: Some(token(4)), ..at(199) }));
        fine(judge(grant(), at(200)));
        fine(judge(Grant { failed: true, ..grant() }, at(150)));
        fine(judge(Grant { unsure: true, ..grant() }, at(150)));
    }

    #[test]
    fn an_end_is_remembered_for_its_window_and_while_its_message_can_come() {
        let judge = |first: Grant, grant: Grant, undone: &[LeaseToken]| {
            final_not_regranted(Given { book: &book(first), token: token(5), grant: &grant, undone })
        };
        breaks(catalog::FINAL_NOT_REGRANTED, judge(ended(), at(499), &[]));
        fine(judge(ended(), at(500), &[]));
        let named = Grant { delivery: Some(token(2)), ..ended() };
        breaks(catalog::FINAL_NOT_REGRANTED, judge(named.clone(), at(500), &[token(2)]));
        fine(judge(named, at(500), &[token(1)]));
        let mut acked = EffectModel::default();
        acked.acked = Some(End { outcome: None, expires_at: Some(Timestamp(500)), told: false });
        let judge = |at| final_not_regranted(Given { book: &acked, token: token(5), grant: &at, undone: &[] });
        breaks(catalog::FINAL_NOT_REGRANTED, judge(at(499)));
        fine(judge(at(500)));
    }

    #[test]
    fn two_runs_need_a_reason_and_success_is_none() {
        let judge = |first: Grant, second: Grant| {
            let mut book = book(first);
            book.grants.insert(token(5), second);
            rerun_is_justified(&book, token(3), token(5))
        };
        breaks(catalog::RERUN_IS_JUSTIFIED, judge(grant(), at(199)));
        fine(judge(grant(), at(200)));
        fine(judge(Grant { failed: true, ..grant() }, at(199)));
        breaks(catalog::RERUN_IS_JUSTIFIED, judge(ended(), at(499)));
        fine(judge(ended(), at(500)));
    }

    #[test]
    fn tokens_requests_and_replays_are_compared() {
        fine(grant_token_is_new(Some(token(3)), token(4)));
        breaks(catalog::GRANT_TOKEN_IS_NEW, grant_token_is_new(Some(token(4)), token(4)));
        fine(newest_grant_finishes(&book(grant()), TokenClaim::Shown(token(3))));
        breaks(catalog::NEWEST_GRANT_FINISHES, newest_grant_finishes(&book(grant()), TokenClaim::Shown(token(2))));
        breaks(catalog::NEWEST_GRANT_FINISHES, newest_grant_finishes(&book(grant()), TokenClaim::Unreadable));
        let mut asked = EffectModel::default();
        asked.request = Some("a".into());
        breaks(catalog::REQUEST_HASH_IS_STABLE, request_hash_is_stable(&asked, Some(&"b".into()), true));
        fine(request_hash_is_stable(&asked, Some(&"b".into()), false));
        fine(request_hash_is_stable(&asked, None, true));
        let end = ended().end;
        fine(replay_matches_outcome(end.as_ref(), &outcome(None), Timestamp(499)));
        breaks(
            catalog::REPLAY_MATCHES_OUTCOME,
            replay_matches_outcome(end.as_ref(), &outcome(Some("1")), Timestamp(499)),
        );
    }
}
