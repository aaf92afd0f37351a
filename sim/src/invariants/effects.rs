//! Effects: grants, runs and outcomes, as workers saw them.

use driftq_core::command::TokenClaim;
use driftq_core::types::{LeaseToken, Outcome, Text, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::effect_model::{EffectEnd, EffectModel, GrantModel};
use super::verdict::Verdict;

/// A new grant, with what was known of the effect before.
#[derive(Clone, Copy)]
pub(super) struct NewGrant<'a> {
    pub(super) model: &'a EffectModel,
    pub(super) token: LeaseToken,
    pub(super) grant: &'a GrantModel,
    /// Earlier deliveries of the effect whose message was unacked.
    pub(super) unacked_deliveries: &'a [LeaseToken],
}

impl NewGrant<'_> {
    /// The previous grant, if known.
    fn before(&self) -> Option<(LeaseToken, &GrantModel)> {
        self.model.grants.range(..self.token).next_back().map(|(token, grant)| (*token, grant))
    }
}

#[doc = sentence!(rerun_is_justified)]
///
/// Of two runs the later grant counts: it must have been issued after the lease of the previous grant expired, after
/// that grant failed, or to a newer delivery; and never while a final outcome had to be kept.
pub(super) fn rerun_is_justified(model: &EffectModel, one: LeaseToken, other: LeaseToken) -> Verdict {
    let (first, later) = (one.min(other), one.max(other));
    let between = model.grants.range(first..later);
    let Some(grant) = model.grants.get(&later) else { return Ok(()) };
    let remembered = between.clone().find(|(_, before)| before.is_remembered(grant.at));
    let is_justified = between.clone().next_back().is_none_or(|(token, before)| before.yields_to(*token, grant));
    catalog::RERUN_IS_JUSTIFIED
        .holds(is_justified && remembered.is_none(), || format!("{first} and {later} of {model:?}"))
}

#[doc = sentence!(grant_token_is_new)]
pub(super) fn grant_token_is_new(last: Option<LeaseToken>, token: LeaseToken) -> Verdict {
    catalog::GRANT_TOKEN_IS_NEW.holds(last.is_none_or(|last| last < token), || format!("{token} after {last:?}"))
}

#[doc = sentence!(one_live_grant)]
pub(super) fn one_live_grant(new_grant: NewGrant<'_>) -> Verdict {
    let before = new_grant.before();
    let is_free = before.is_none_or(|(token, before)| before.end.is_some() || before.yields_to(token, new_grant.grant));
    catalog::ONE_LIVE_GRANT.holds(is_free, || format!("{:?} after {before:?}", new_grant.grant))
}

#[doc = sentence!(final_not_regranted)]
pub(super) fn final_not_regranted(new_grant: NewGrant<'_>) -> Verdict {
    let at = new_grant.grant.at;
    let before = new_grant.before();
    let unacked =
        |grant: &GrantModel| grant.delivery.is_some_and(|delivery| new_grant.unacked_deliveries.contains(&delivery));
    let remembered = before
        .is_some_and(|(_, grant)| grant.is_remembered(at) || grant.is_final() && !grant.is_uncertain && unacked(grant));
    let acked = new_grant.model.acked.as_ref().is_some_and(|end| end.is_remembered(at));
    catalog::FINAL_NOT_REGRANTED
        .holds(!remembered && !acked, || format!("{:?} of {:?}", new_grant.grant, new_grant.model))
}

#[doc = sentence!(newest_grant_finishes)]
pub(super) fn newest_grant_finishes(model: &EffectModel, shown: TokenClaim) -> Verdict {
    let newest = model.grants.last_key_value().map(|(token, _)| *token);
    let good = matches!(shown, TokenClaim::Shown(token) if newest.is_none_or(|newest| newest <= token));
    catalog::NEWEST_GRANT_FINISHES.holds(good, || format!("{shown:?}, the newest is {newest:?}"))
}

#[doc = sentence!(request_hash_is_stable)]
pub(super) fn request_hash_is_stable(model: &EffectModel, hash: Option<&Text>, is_same_record: bool) -> Verdict {
    let differ = matches!((&model.request, hash), (Some(first), Some(now)) if first != now);
    catalog::REQUEST_HASH_IS_STABLE.holds(!(differ && is_same_record), || format!("{hash:?} after {:?}", model.request))
}

#[doc = sentence!(replay_matches_outcome)]
///
/// Without its result, if that is `lost`.
pub(super) fn replay_matches_outcome(
    end: Option<&EffectEnd>,
    replayed: &Outcome,
    lost: bool,
    at: Timestamp,
) -> Verdict {
    let recorded = end.filter(|end| end.is_remembered(at)).and_then(|end| end.outcome.clone());
    let recorded = recorded.map(|recorded| if lost { Outcome { result: None, ..recorded } } else { recorded });
    catalog::REPLAY_MATCHES_OUTCOME.holds(recorded.as_ref().is_none_or(|recorded| recorded == replayed), || {
        format!("{replayed:?}, it was {recorded:?}")
    })
}

#[cfg(test)]
mod tests {
    use driftq_core::types::EffectStatus;

    use super::*;
    use crate::invariants::tests::fixtures::*;

    fn outcome(result: Option<&str>) -> Outcome {
        let status = EffectStatus::Succeeded;
        Outcome { status, response_code: 0, result: result.map(Into::into), last_error: Text::default() }
    }

    /// Issued at 100, until 200.
    fn grant() -> GrantModel {
        GrantModel {
            decided: driftq_core::types::Lsn(1),
            at: Timestamp(100),
            until: Timestamp(200),
            runs_until: Timestamp(200),
            delivery: None,
            end: None,
            failed: false,
            is_uncertain: false,
        }
    }

    fn ended() -> GrantModel {
        let end = EffectEnd { outcome: Some(outcome(None)), expires_at: Some(Timestamp(500)), is_recorded: true };
        GrantModel { end: Some(end), ..grant() }
    }

    fn model(first: GrantModel) -> EffectModel {
        let mut model = EffectModel::default();
        model.grants.insert(token(3), first);
        model
    }

    fn at(at: u64) -> GrantModel {
        GrantModel { at: Timestamp(at), until: Timestamp(at + 100), runs_until: Timestamp(at + 100), ..grant() }
    }

    #[test]
    fn live_grant_yields_only_to_a_newer_delivery() {
        let check = |first: GrantModel, grant: GrantModel| {
            one_live_grant(NewGrant { model: &model(first), token: token(5), grant: &grant, unacked_deliveries: &[] })
        };
        violates(catalog::ONE_LIVE_GRANT, check(grant(), at(199)));
        violates(catalog::ONE_LIVE_GRANT, check(grant(), GrantModel { delivery: Some(token(2)), ..at(199) }));
        holds(check(grant(), GrantModel { delivery: Some(token(4)), ..at(199) }));
        holds(check(grant(), at(200)));
        holds(check(GrantModel { failed: true, ..grant() }, at(150)));
        holds(check(GrantModel { is_uncertain: true, ..grant() }, at(150)));
    }

    #[test]
    fn final_outcome_is_kept_for_its_window_and_while_its_message_is_unacked() {
        let check = |first: GrantModel, grant: GrantModel, unacked: &[LeaseToken]| {
            final_not_regranted(NewGrant {
                model: &model(first),
                token: token(5),
                grant: &grant,
                unacked_deliveries: unacked,
            })
        };
        violates(catalog::FINAL_NOT_REGRANTED, check(ended(), at(499), &[]));
        holds(check(ended(), at(500), &[]));
        let ended_for_delivery = GrantModel { delivery: Some(token(2)), ..ended() };
        violates(catalog::FINAL_NOT_REGRANTED, check(ended_for_delivery.clone(), at(500), &[token(2)]));
        holds(check(ended_for_delivery, at(500), &[token(1)]));
        let mut acked = EffectModel::default();
        acked.acked = Some(EffectEnd { outcome: None, expires_at: Some(Timestamp(500)), is_recorded: false });
        let check =
            |at| final_not_regranted(NewGrant { model: &acked, token: token(5), grant: &at, unacked_deliveries: &[] });
        violates(catalog::FINAL_NOT_REGRANTED, check(at(499)));
        holds(check(at(500)));
    }

    #[test]
    fn rerun_without_reason_or_after_success_is_a_violation() {
        let check = |first: GrantModel, second: GrantModel| {
            let mut model = model(first);
            model.grants.insert(token(5), second);
            rerun_is_justified(&model, token(3), token(5))
        };
        violates(catalog::RERUN_IS_JUSTIFIED, check(grant(), at(199)));
        holds(check(grant(), at(200)));
        holds(check(GrantModel { failed: true, ..grant() }, at(199)));
        violates(catalog::RERUN_IS_JUSTIFIED, check(ended(), at(499)));
        holds(check(ended(), at(500)));
    }

    #[test]
    fn repeated_token_changed_hash_or_other_outcome_is_a_violation() {
        holds(grant_token_is_new(Some(token(3)), token(4)));
        violates(catalog::GRANT_TOKEN_IS_NEW, grant_token_is_new(Some(token(4)), token(4)));
        holds(newest_grant_finishes(&model(grant()), TokenClaim::Shown(token(3))));
        violates(catalog::NEWEST_GRANT_FINISHES, newest_grant_finishes(&model(grant()), TokenClaim::Shown(token(2))));
        violates(catalog::NEWEST_GRANT_FINISHES, newest_grant_finishes(&model(grant()), TokenClaim::Unreadable));
        let mut with_hash = EffectModel::default();
        with_hash.request = Some("a".into());
        violates(catalog::REQUEST_HASH_IS_STABLE, request_hash_is_stable(&with_hash, Some(&"b".into()), true));
        holds(request_hash_is_stable(&with_hash, Some(&"b".into()), false));
        holds(request_hash_is_stable(&with_hash, None, true));
        let end = ended().end;
        holds(replay_matches_outcome(end.as_ref(), &outcome(None), false, Timestamp(499)));
        violates(
            catalog::REPLAY_MATCHES_OUTCOME,
            replay_matches_outcome(end.as_ref(), &outcome(Some("1")), false, Timestamp(499)),
        );
    }
}
