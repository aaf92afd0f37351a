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

#[doc = sentence!(runs_for_a_reason)]
///
/// Of two runs the later grant counts, whoever came first to run it: it must have been given after the lease of the grant before
/// it had ended, or after that had failed, or to a newer delivery; and never while an end for good was to be remembered.
pub(super) fn runs_for_a_reason(book: &EffectModel, one: LeaseToken, other: LeaseToken) -> Verdict {
    let (first, later) = (one.min(other), one.max(other));
    let between = book.grants.range(first..later);
    let Some(grant) = book.grants.get(&later) else { return Ok(()) };
    let remembered = between.clone().find(|(_, before)| before.is_remembered(grant.at));
    let excused = between.clone().next_back().is_none_or(|(token, before)| before.gives_way_to(*token, grant));
    catalog::RUNS_FOR_A_REASON.holds(excused && remembered.is_none(), || format!("{first} and {later} of {book:?}"))
}

#[doc = sentence!(grant_is_new)]
pub(super) fn grant_is_new(last: Option<LeaseToken>, token: LeaseToken) -> Verdict {
    catalog::GRANT_IS_NEW.holds(last.is_none_or(|last| last < token), || format!("{token} after {last:?}"))
}

#[doc = sentence!(one_grant)]
pub(super) fn one_grant(given: Given<'_>) -> Verdict {
    let before = given.before();
    let free = before.is_none_or(|(token, before)| before.end.is_some() || before.gives_way_to(token, given.grant));
    catalog::ONE_GRANT.holds(free, || format!("{:?} after {before:?}", given.grant))
}

#[doc = sentence!(ended_stays)]
pub(super) fn ended_stays(given: Given<'_>) -> Verdict {
    let at = given.grant.at;
    let before = given.before();
    let undone = |grant: &Grant| grant.delivery.is_some_and(|delivery| given.undone.contains(&delivery));
    let remembered =
        before.is_some_and(|(_, grant)| grant.is_remembered(at) || grant.is_over() && !grant.unsure && undone(grant));
    let acked = given.book.acked.as_ref().is_some_and(|end| end.is_remembered(at));
    catalog::ENDED_STAYS.holds(!remembered && !acked, || format!("{:?} of {:?}", given.grant, given.book))
}

#[doc = sentence!(newest_ends)]
pub(super) fn newest_ends(book: &EffectModel, shown: TokenClaim) -> Verdict {
    let newest = book.grants.last_key_value().map(|(token, _)| *token);
    let good = matches!(shown, TokenClaim::Shown(token) if newest.is_none_or(|newest| newest <= token));
    catalog::NEWEST_ENDS.holds(good, || format!("{shown:?}, the newest is {newest:?}"))
}

#[doc = sentence!(same_request)]
pub(super) fn same_request(book: &EffectModel, asked: Option<&Text>, is_the_same_life: bool) -> Verdict {
    let differ = matches!((&book.request, asked), (Some(first), Some(now)) if first != now);
    catalog::SAME_REQUEST.holds(!(differ && is_the_same_life), || format!("{asked:?} after {:?}", book.request))
}

#[doc = sentence!(replay_is_true)]
pub(super) fn replay_is_true(end: Option<&End>, replayed: &Outcome, at: Timestamp) -> Verdict {
    let told = end.filter(|end| end.is_remembered(at)).and_then(|end| end.outcome.as_ref());
    catalog::REPLAY_IS_TRUE.holds(told.is_none_or(|told| told == replayed), || format!("{replayed:?}, it was {told:?}"))
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
            one_grant(Given { book: &book(first), token: token(5), grant: &grant, undone: &[] })
        };
        breaks(catalog::ONE_GRANT, judge(grant(), at(199)));
        breaks(catalog::ONE_GRANT, judge(grant(), Grant { delivery: Some(token(2)), ..at(199) }));
        fine(judge(grant(), Grant { delivery: Some(token(4)), ..at(199) }));
        fine(judge(grant(), at(200)));
        fine(judge(Grant { failed: true, ..grant() }, at(150)));
        fine(judge(Grant { unsure: true, ..grant() }, at(150)));
    }

    #[test]
    fn an_end_is_remembered_for_its_window_and_while_its_message_can_come() {
        let judge = |first: Grant, grant: Grant, undone: &[LeaseToken]| {
            ended_stays(Given { book: &book(first), token: token(5), grant: &grant, undone })
        };
        breaks(catalog::ENDED_STAYS, judge(ended(), at(499), &[]));
        fine(judge(ended(), at(500), &[]));
        let named = Grant { delivery: Some(token(2)), ..ended() };
        breaks(catalog::ENDED_STAYS, judge(named.clone(), at(500), &[token(2)]));
        fine(judge(named, at(500), &[token(1)]));
        let mut acked = EffectModel::default();
        acked.acked = Some(End { outcome: None, expires_at: Some(Timestamp(500)), told: false });
        let judge = |at| ended_stays(Given { book: &acked, token: token(5), grant: &at, undone: &[] });
        breaks(catalog::ENDED_STAYS, judge(at(499)));
        fine(judge(at(500)));
    }

    #[test]
    fn two_runs_need_a_reason_and_success_is_none() {
        let judge = |first: Grant, second: Grant| {
            let mut book = book(first);
            book.grants.insert(token(5), second);
            runs_for_a_reason(&book, token(3), token(5))
        };
        breaks(catalog::RUNS_FOR_A_REASON, judge(grant(), at(199)));
        fine(judge(grant(), at(200)));
        fine(judge(Grant { failed: true, ..grant() }, at(199)));
        breaks(catalog::RUNS_FOR_A_REASON, judge(ended(), at(499)));
        fine(judge(ended(), at(500)));
    }

    #[test]
    fn tokens_requests_and_replays_are_compared() {
        fine(grant_is_new(Some(token(3)), token(4)));
        breaks(catalog::GRANT_IS_NEW, grant_is_new(Some(token(4)), token(4)));
        fine(newest_ends(&book(grant()), TokenClaim::Shown(token(3))));
        breaks(catalog::NEWEST_ENDS, newest_ends(&book(grant()), TokenClaim::Shown(token(2))));
        breaks(catalog::NEWEST_ENDS, newest_ends(&book(grant()), TokenClaim::Unreadable));
        let mut asked = EffectModel::default();
        asked.request = Some("a".into());
        breaks(catalog::SAME_REQUEST, same_request(&asked, Some(&"b".into()), true));
        fine(same_request(&asked, Some(&"b".into()), false));
        fine(same_request(&asked, None, true));
        let end = ended().end;
        fine(replay_is_true(end.as_ref(), &outcome(None), Timestamp(499)));
        breaks(catalog::REPLAY_IS_TRUE, replay_is_true(end.as_ref(), &outcome(Some("1")), Timestamp(499)));
    }
}
