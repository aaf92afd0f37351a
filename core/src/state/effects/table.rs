//! Effects, found by their identity and by the moment they may be forgotten.

use std::collections::BTreeMap;

use crate::collections::cow::CowMap;
use crate::types::{Effect, IdentityKey, Text, Timestamp};

/// Some effects.
///
/// An effect has a number, so that its key stands in one message_ref and a moment's entry stays small.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectTable {
    known: CowMap<IdentityKey, u64>,
    effects: CowMap<u64, (IdentityKey, Effect)>,
    /// When to look at which.
    looks: CowMap<(Timestamp, u64), ()>,
    tenants: BTreeMap<Text, u64>,
    next: u64,
}

impl EffectTable {
    /// The effect of `key`, whether or not it is past its window.
    #[must_use]
    pub fn get(&self, key: &IdentityKey) -> Option<&Effect> {
        let number = self.known.get(key)?;
        self.effects.get(number).map(|(_, effect)| effect)
    }

    /// How many effects there are, those past their window but not yet forgotten included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// When the first effect is to be looked at.
    #[must_use]
    pub fn next_look(&self) -> Option<Timestamp> {
        self.looks.first().map(|((at, _), ())| *at)
    }

    /// How many are to be looked at by `now`, counting at most `limit`.
    #[must_use]
    pub fn due(&self, now: Timestamp, limit: u64) -> u64 {
        self.looks.iter().take_while(|((at, _), ())| *at <= now).take(limit as usize).count() as u64
    }

    /// The effects in the order they were first granted, with their keys.
    pub fn effects(&self) -> impl Iterator<Item = (&IdentityKey, &Effect)> {
        self.effects.iter().map(|(_, (key, effect))| (key, effect))
    }

    /// The effects that are looked at first, in that order.
    pub(crate) fn first_looks(&self, count: u64) -> impl Iterator<Item = (Timestamp, &IdentityKey, &Effect)> {
        self.looks.iter().take(count as usize).map(|((at, number), ())| {
            let (key, effect) = self.effects.get(number).expect("what is looked at is there");
            (*at, key, effect)
        })
    }

    /// How many effects each tenant has.
    pub(super) fn tenants(&self) -> impl Iterator<Item = (&Text, u64)> {
        self.tenants.iter().map(|(tenant, count)| (tenant, *count))
    }

    /// Adds an effect that is not there.
    pub(super) fn insert(&mut self, key: IdentityKey, tenant: &str, effect: Effect) {
        let number = self.next;
        self.next += 1;
        self.looks.insert((effect.expiry_check_at(), number), ());
        let before = self.known.insert(key.clone(), number);
        assert!(before.is_none(), "an effect is inserted once");
        self.effects.insert(number, (key, effect));
        count_up(&mut self.tenants, tenant);
    }

    /// Changes an effect. Gives `None`, and does nothing, if it is not there.
    pub(super) fn change<T>(&mut self, key: &IdentityKey, change: impl FnOnce(&mut Effect) -> T) -> Option<T> {
        let number = *self.known.get(key)?;
        let (_, effect) = self.effects.get_mut(&number).expect("every number has its effect");
        let before = effect.expiry_check_at();
        let changed = change(effect);
        let after = effect.expiry_check_at();
        if before != after {
            self.looks.remove(&(before, number));
            self.looks.insert((after, number), ());
        }
        Some(changed)
    }

    /// Forgets an effect.
    pub(super) fn remove(&mut self, key: &IdentityKey, tenant: &str) -> Option<Effect> {
        let number = self.known.remove(key)?;
        let (_, effect) = self.effects.remove(&number).expect("every number has its effect");
        self.looks.remove(&(effect.expiry_check_at(), number));
        count_down(&mut self.tenants, tenant, 1);
        Some(effect)
    }

    /// The effects in the order they were first granted. Memory is let go of piece by piece as they are read, that of the other
    /// maps included.
    pub(crate) fn into_effects(self) -> impl Iterator<Item = (IdentityKey, Effect)> + Clone + Send {
        let (mut known, mut looks) = (self.known.into_chunks(), self.looks.into_chunks());
        self.effects.into_chunks().flat_map(move |chunk| {
            // Sparse as their chunks may be, there are at most four times as many.
            known.by_ref().take(4).for_each(drop);
            looks.by_ref().take(4).for_each(drop);
            chunk.iter().map(|(_, entry)| entry.clone()).collect::<Vec<_>>()
        })
    }
}

pub(super) fn count_up(counts: &mut BTreeMap<Text, u64>, tenant: &str) {
    match counts.get_mut(tenant) {
        Some(count) => *count += 1,
        None => drop(counts.insert(tenant.into(), 1)),
    }
}

pub(super) fn count_down(counts: &mut BTreeMap<Text, u64>, tenant: &str, by: u64) {
    let Some(count) = counts.get_mut(tenant) else { return };
    *count = count.saturating_sub(by);
    if *count == 0 {
        counts.remove(tenant);
    }
}
