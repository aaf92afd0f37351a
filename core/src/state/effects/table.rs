//! A table of effects, indexed by key and by the time of the next expiry check.

use std::collections::BTreeMap;

use crate::collections::cow::CowMap;
use crate::types::{Effect, IdentityKey, Text, Timestamp};

/// The effects of one namespace.
///
/// Each effect has a serial number, so that the expiry queue stores a number instead of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectTable {
    known: CowMap<IdentityKey, u64>,
    effects: CowMap<u64, (IdentityKey, Effect)>,
    /// When each effect is next checked for expiry.
    expiry_queue: CowMap<(Timestamp, u64), ()>,
    /// The number of effects of each tenant, in a table that can be dropped as a whole.
    tenants: Option<BTreeMap<Text, u64>>,
    next: u64,
}

impl EffectTable {
    /// The table of a group, which is dropped with the group.
    pub(super) fn of_group() -> Self {
        Self { tenants: Some(BTreeMap::new()), ..Self::default() }
    }

    /// The effect of `key`, expired or not.
    #[must_use]
    pub(crate) fn get(&self, key: &IdentityKey) -> Option<&Effect> {
        let number = self.known.get(key)?;
        self.effects.get(number).map(|(_, effect)| effect)
    }

    /// The number of effects, including expired ones that are not removed yet.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is no effect.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The time of the first expiry check.
    #[must_use]
    pub(crate) fn next_check(&self) -> Option<Timestamp> {
        self.expiry_queue.first().map(|((at, _), ())| *at)
    }

    /// The number of effects whose expiry check is due at `now`, at most `limit`.
    #[must_use]
    pub(crate) fn due(&self, now: Timestamp, limit: u64) -> u64 {
        self.expiry_queue.iter().take_while(|((at, _), ())| *at <= now).take(limit as usize).count() as u64
    }

    /// The effects in the order they were first granted, with their keys.
    pub fn effects(&self) -> impl Iterator<Item = (&IdentityKey, &Effect)> {
        self.effects.iter().map(|(_, (key, effect))| (key, effect))
    }

    /// The effects with keys above `after`, or all of them, in the order of their keys.
    pub(crate) fn effects_after<'a>(
        &'a self,
        after: Option<&'a IdentityKey>,
    ) -> impl Iterator<Item = (&'a IdentityKey, &'a Effect)> {
        let known = after.map_or_else(|| self.known.iter(), |key| self.known.range_from(key));
        known.filter(move |(key, _)| Some(*key) != after).map(|(key, number)| {
            let (_, effect) = self.effects.get(number).expect("every known number has an effect");
            (key, effect)
        })
    }

    /// The first `count` effects in the order of their expiry checks.
    pub(super) fn first_due(&self, count: u64) -> impl Iterator<Item = (Timestamp, &IdentityKey, &Effect)> {
        self.expiry_queue.iter().take(count as usize).map(|((at, number), ())| {
            let (key, effect) = self.effects.get(number).expect("every queued number has an effect");
            (*at, key, effect)
        })
    }

    /// The number of effects of each tenant of a group.
    pub(super) fn tenants(&self) -> impl Iterator<Item = (&Text, u64)> {
        self.tenants.iter().flatten().map(|(tenant, count)| (tenant, *count))
    }

    /// Adds an effect. Returns it and changes nothing if its key is known.
    pub(super) fn insert(&mut self, key: IdentityKey, tenant: &str, effect: Effect) -> Result<(), Effect> {
        let number = self.next;
        if let Some(before) = self.known.insert(key.clone(), number) {
            self.known.insert(key, before);
            return Err(effect);
        }
        self.next += 1;
        self.expiry_queue.insert((effect.expiry_check_at(), number), ());
        self.effects.insert(number, (key, effect));
        if let Some(tenants) = &mut self.tenants {
            count_up(tenants, tenant);
        }
        Ok(())
    }

    /// Changes an effect; `None` if it does not exist.
    pub(super) fn change<T>(&mut self, key: &IdentityKey, change: impl FnOnce(&mut Effect) -> T) -> Option<T> {
        let number = *self.known.get(key)?;
        let (_, effect) = self.effects.get_mut(&number).expect("every known number has an effect");
        let before = effect.expiry_check_at();
        let changed = change(effect);
        let after = effect.expiry_check_at();
        if before != after {
            self.expiry_queue.remove(&(before, number));
            self.expiry_queue.insert((after, number), ());
        }
        Some(changed)
    }

    /// Removes an effect.
    pub(super) fn remove(&mut self, key: &IdentityKey, tenant: &str) -> Option<Effect> {
        let number = self.known.remove(key)?;
        let (_, effect) = self.effects.remove(&number).expect("every known number has an effect");
        self.expiry_queue.remove(&(effect.expiry_check_at(), number));
        if let Some(tenants) = &mut self.tenants {
            count_down(tenants, tenant, 1);
        }
        Some(effect)
    }

    /// The effects in the order they were first granted. Frees the memory of all maps piece by piece as they are read.
    pub(crate) fn into_effects(self) -> impl Iterator<Item = (IdentityKey, Effect)> + Clone + Send {
        let (mut known, mut expiry_queue) = (self.known.into_chunks(), self.expiry_queue.into_chunks());
        self.effects.into_chunks().flat_map(move |chunk| {
            // Even if their chunks are sparse, the other maps have at most four times as many.
            known.by_ref().take(4).for_each(drop);
            expiry_queue.by_ref().take(4).for_each(drop);
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
