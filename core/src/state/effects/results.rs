//! Which effects refer to results in the log.

use std::ops::RangeInclusive;

use super::super::State;
use crate::record::Event;
use crate::types::{Identity, Lsn, PayloadId, StoredResult};

impl State {
    /// The identity of the effect whose result an event carries; `None` if it carries none, or if the effect went with
    /// its topic or its group.
    #[must_use]
    pub fn identity_of_result(&self, event: &Event) -> Option<Identity> {
        match event {
            Event::EffectFinished { identity, outcome } => outcome.result.is_some().then(|| identity.clone()),
            Event::EffectDeadLettered(failed) => failed.outcome.result.is_some().then(|| failed.identity.clone()),
            Event::Completed(step) => {
                let result = step.effect.as_ref()?.result.as_ref()?;
                let topic = self.topic(step.message_ref.topic)?;
                let group = topic.group(step.message_ref.group)?;
                Some(Identity::consumed(topic.name().clone(), group.name().clone(), result.key.clone()))
            }
            _ => None,
        }
    }

    /// Whether the result of the effect stands at `payload`.
    #[must_use]
    pub fn has_result_at(&self, identity: &Identity, payload: PayloadId) -> bool {
        let result = self.store.get(identity).and_then(|effect| effect.result.as_ref());
        result.is_some_and(|result| result.payload == Some(payload))
    }

    /// The effects whose results stand in the records `lsns`.
    pub(in crate::state) fn results_within(
        &self,
        lsns: &RangeInclusive<Lsn>,
    ) -> impl Iterator<Item = (Identity, PayloadId)> {
        let tables = self.store.tables();
        tables.flat_map(|(namespace, table)| {
            let results = table.effects().filter_map(|(key, effect)| Some((key, effect.result.as_ref()?.payload?)));
            let found = results.filter(|(_, payload)| lsns.contains(&payload.lsn));
            found.map(|(key, payload)| (namespace.identity(key), payload)).collect::<Vec<_>>()
        })
    }

    /// The result of the effect that stands at `from` stands at `to` from now on. Changes nothing and returns false if
    /// it does not stand at `from`.
    pub(crate) fn relocate_result(&mut self, identity: &Identity, from: PayloadId, to: PayloadId) -> bool {
        self.change_result_at(identity, from, |result| result.payload = Some(to))
    }

    /// The bytes of the effect's result, which stand at `from`, are lost. Changes nothing and returns false if it does
    /// not stand there.
    pub(crate) fn lose_result(&mut self, identity: &Identity, from: PayloadId) -> bool {
        self.change_result_at(identity, from, |result| result.payload = None)
    }

    fn change_result_at(
        &mut self,
        identity: &Identity,
        payload: PayloadId,
        change: impl FnOnce(&mut StoredResult),
    ) -> bool {
        if !self.has_result_at(identity, payload) {
            return false;
        }
        self.store.change(identity, |effect| effect.result.as_deref_mut().map(change));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{EffectBegun, Record};
    use crate::types::{
        Boot, EffectStatus, LeaseToken, Lifetime, Lsn, Millis, Outcome, OwnerName, ResultHash, Scope, Timestamp,
    };

    fn identity(key: &str) -> Identity {
        Identity::new("", Scope::Tenant, key)
    }

    fn at(lsn: u64) -> PayloadId {
        PayloadId { lsn: Lsn(lsn), part: 0 }
    }

    fn outcome(result: &str) -> Outcome {
        let (status, result) = (EffectStatus::Succeeded, Some(result.into()));
        Outcome { status, response_code: 0, result, last_error: "".into() }
    }

    /// A state whose effect "k" was finished by record 3.
    fn finished() -> State {
        let begun = EffectBegun {
            identity: identity("k"),
            token: LeaseToken { boot: Boot(1), counter: 1 },
            owner: OwnerName::new("w").expect("valid"),
            until: Timestamp(10),
            lifetime: Some(Lifetime::Window(Millis(100))),
            request_hash: None,
            message: None,
        };
        let mut state = State::default();
        let finished = Event::EffectFinished { identity: identity("k"), outcome: outcome("[1]") };
        for event in [Event::Booted { boot: Boot(1) }, Event::EffectBegun(Box::new(begun)), finished] {
            state.apply(&Record { at: Timestamp(1), event }).expect("it follows");
        }
        state
    }

    #[test]
    fn effect_refers_to_the_record_of_its_result() {
        let state = finished();
        let event = Event::EffectFinished { identity: identity("k"), outcome: outcome("[1]") };
        assert_eq!(state.identity_of_result(&event), Some(identity("k")));
        assert!(state.has_result_at(&identity("k"), at(3)));
        assert!(!state.has_result_at(&identity("k"), at(2)) && !state.has_result_at(&identity("other"), at(3)));
        let effect = state.store().get(&identity("k")).expect("known");
        let result = effect.result.as_deref().expect("stored");
        assert_eq!((result.len, result.hash), (3, ResultHash::of("[1]")));
        assert!(effect.is_outcome(&outcome("[1]")));
        for other in [outcome("[2]"), outcome("[1] "), Outcome { result: None, ..outcome("") }] {
            assert!(!effect.is_outcome(&other), "{other:?}");
        }
    }

    #[test]
    fn result_is_relocated_and_lost_only_where_it_stands() {
        let mut state = finished();
        let before = state.clone();
        assert!(!state.relocate_result(&identity("k"), at(2), at(9)));
        assert!(!state.relocate_result(&identity("other"), at(3), at(9)));
        assert!(!state.lose_result(&identity("k"), at(9)));
        assert_eq!(state, before);
        assert!(state.relocate_result(&identity("k"), at(3), at(9)));
        assert!(state.has_result_at(&identity("k"), at(9)) && !state.has_result_at(&identity("k"), at(3)));
        assert!(state.lose_result(&identity("k"), at(9)));
        let effect = state.store().get(&identity("k")).expect("known");
        assert!(effect.is_result_lost() && effect.is_outcome(&outcome("[1]")), "a repeated finish is still known");
        assert!(!state.relocate_result(&identity("k"), at(9), at(10)), "what is lost is not found again");
    }
}
