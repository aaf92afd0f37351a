//! A table of effects, indexed by key and by the time of the next expiry check.

use crate::collections::cow::CowMap;
use crate::collections::key_index::KeyIndex;
use crate::types::{Effect, EffectStatus, IdentityKey, Timestamp};

use super::tenants::TenantCounts;

/// Keys and effects by serial number.
type Effects = CowMap<u64, (IdentityKey, Effect)>;

/// The effects of one namespace.
///
/// Each effect has a serial number, so that the expiry queue stores a number instead of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectTable {
    known: KeyIndex<u64>,
    effects: Effects,
    /// When each effect that has ended is next checked for expiry.
    ended: ExpiryQueue,
    /// The same of effects in progress. Most expire long after those that have ended: in one queue with them, neither
    /// would be added behind the end.
    in_progress: ExpiryQueue,
    /// The number of effects of each tenant, in a table that can be dropped as a whole.
    tenants: Option<TenantCounts>,
    next: u64,
}

/// Times of expiry checks, each with the number of its effect.
type ExpiryQueue = CowMap<(Timestamp, u64), ()>;

impl EffectTable {
    /// The table of a group, which is dropped with the group.
    pub(super) fn of_group() -> Self {
        Self { tenants: Some(TenantCounts::default()), ..Self::default() }
    }

    /// The effect of `key`, expired or not.
    #[must_use]
    pub(crate) fn get(&self, key: &IdentityKey) -> Option<&Effect> {
        self.known.get(key, |number| entry_at(&self.effects, number)).map(|(_, (_, effect))| effect)
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
        self.next_due().map(|(at, _)| at)
    }

    /// The number of effects whose expiry check is due at `now`, at most `limit`.
    #[must_use]
    pub(crate) fn due(&self, now: Timestamp, limit: u64) -> u64 {
        let of = |queue: &ExpiryQueue| {
            queue.iter().take_while(|((at, _), ())| *at <= now).take(limit as usize).count() as u64
        };
        match of(&self.ended) {
            ended if ended >= limit => limit,
            ended => limit.min(ended + of(&self.in_progress)),
        }
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
        let first = after.is_none().then(|| self.known.iter());
        let above = after.map(|key| self.known.above(key, |number| entry_at(&self.effects, number)));
        let known = first.into_iter().flatten().chain(above.into_iter().flatten());
        known.map(|number| {
            let (key, effect) = entry_at(&self.effects, number);
            (key, effect)
        })
    }

    /// The first expiry check, and the number of its effect.
    #[inline]
    fn next_due(&self) -> Option<(Timestamp, u64)> {
        match (self.ended.first(), self.in_progress.first()) {
            (Some((ended, ())), Some((in_progress, ()))) => Some(*ended.min(in_progress)),
            (Some((due, ())), None) | (None, Some((due, ()))) => Some(*due),
            (None, None) => None,
        }
    }

    #[inline]
    fn queue_mut(&mut self, status: EffectStatus) -> &mut ExpiryQueue {
        if status == EffectStatus::InProgress { &mut self.in_progress } else { &mut self.ended }
    }

    /// The effect that is checked for expiry first.
    pub(super) fn first_due(&self) -> Option<(&IdentityKey, &Effect)> {
        let (_, number) = self.next_due()?;
        let (key, effect) = entry_at(&self.effects, number);
        Some((key, effect))
    }

    /// The number of effects of each tenant of a group.
    pub(super) fn tenants(&self) -> impl Iterator<Item = (&str, u64)> {
        self.tenants.iter().flat_map(TenantCounts::iter)
    }

    /// Adds an effect. Returns it and changes nothing if its key is known.
    #[inline]
    pub(super) fn insert(&mut self, key: IdentityKey, tenant: &str, effect: Effect) -> Result<(), Effect> {
        let (number, effects) = (self.next, &self.effects);
        if self.known.insert(&key, number, |number| entry_at(effects, number)).is_some() {
            return Err(effect);
        }
        self.next += 1;
        self.queue_mut(effect.status).insert((effect.expiry_check_at(), number), ());
        self.effects.insert(number, (key, effect));
        if let Some(tenants) = &mut self.tenants {
            tenants.add(tenant);
        }
        Ok(())
    }

    /// Changes an effect; `None` if it does not exist.
    pub(super) fn change<T>(&mut self, key: &IdentityKey, change: impl FnOnce(&mut Effect) -> T) -> Option<T> {
        let (number, _) = self.known.get(key, |number| entry_at(&self.effects, number))?;
        let (_, effect) = self.effects.get_near_mut(&number).expect("every known number has an effect");
        let before = (effect.status, effect.expiry_check_at());
        let changed = change(effect);
        let after = (effect.status, effect.expiry_check_at());
        if before != after {
            self.queue_mut(before.0).remove_near(&(before.1, number));
            self.queue_mut(after.0).insert((after.1, number), ());
        }
        Some(changed)
    }

    /// Removes an effect.
    pub(super) fn remove(&mut self, key: &IdentityKey, tenant: &str) -> Option<Effect> {
        let effects = &self.effects;
        let number = self.known.remove(key, |number| entry_at(effects, number))?;
        let (_, effect) = self.effects.remove_near(&number).expect("every known number has an effect");
        self.queue_mut(effect.status).remove_near(&(effect.expiry_check_at(), number));
        if let Some(tenants) = &mut self.tenants {
            tenants.subtract(tenant, 1);
        }
        Some(effect)
    }

    /// Removes the effect that is checked for expiry first, and returns its key.
    pub(super) fn remove_first_due(&mut self) -> Option<IdentityKey> {
        let (_, number) = self.next_due()?;
        let (key, effect) = self.effects.remove_near(&number).expect("every queued number has an effect");
        self.queue_mut(effect.status).pop_first();
        self.known.remove_from(&key, number);
        if let Some(tenants) = &mut self.tenants {
            tenants.subtract(key.tenant(), 1);
        }
        Some(key)
    }

    /// The effects in the order they were first granted. Frees the memory of all maps piece by piece as they are read.
    pub(crate) fn into_effects(self) -> impl Iterator<Item = (IdentityKey, Effect)> + Clone + Send {
        let mut queues = self.ended.into_chunks().chain(self.in_progress.into_chunks());
        let mut known = self.known.into_parts();
        self.effects.into_chunks().flat_map(move |chunk| {
            // Even if their chunks are sparse, each of the other maps has at most four times as many.
            known.by_ref().take(4).for_each(drop);
            queues.by_ref().take(8).for_each(drop);
            chunk.iter().map(|(_, entry)| entry.clone()).collect::<Vec<_>>()
        })
    }
}

/// The key and the effect of a number.
fn entry_at(effects: &Effects, number: u64) -> &(IdentityKey, Effect) {
    effects.get_near(&number).expect("every known number has an effect")
}
