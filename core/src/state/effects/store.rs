//! The idempotency store: all effect tables.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;

use super::table::EffectTable;
use super::tenants::TenantCounts;
use crate::collections::shared::unshared;
use crate::types::{Effect, EffectNamespace, GroupName, Identity, IdentityKey, OwnerName, Scope, ScopeKind, TopicName};

/// The idempotency store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectStore {
    shared: Arc<EffectTable>,
    groups: BTreeMap<TopicName, BTreeMap<GroupName, Arc<EffectTable>>>,
    tenants: TenantCounts,
    /// Interned owner names: many effects belong to few workers.
    owners: BTreeSet<OwnerName>,
    len: usize,
}

/// An [`EffectNamespace`], borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NamespaceRef<'a> {
    Shared,
    Group(&'a TopicName, &'a GroupName),
}

impl<'a> NamespaceRef<'a> {
    /// The namespace of the effects in `scope`.
    pub(crate) fn of(scope: &'a Scope) -> Self {
        match scope {
            Scope::Consume { topic, group } => Self::Group(topic, group),
            _ => Self::Shared,
        }
    }
}

impl<'a> From<&'a EffectNamespace> for NamespaceRef<'a> {
    fn from(namespace: &'a EffectNamespace) -> Self {
        match namespace {
            EffectNamespace::Shared => Self::Shared,
            EffectNamespace::Group(topic, group) => Self::Group(topic, group),
        }
    }
}

/// The most interned owner names.
const OWNERS_MAX: usize = 1_024;

impl EffectStore {
    /// The effect of `identity`, expired or not.
    #[must_use]
    pub fn get(&self, identity: &Identity) -> Option<&Effect> {
        self.table_in(NamespaceRef::of(&identity.scope))?.get(identity.packed())
    }

    /// The effect of `key` in [`EffectNamespace::Shared`], expired or not.
    pub(crate) fn shared(&self, key: &IdentityKey) -> Option<&Effect> {
        self.shared.get(key)
    }

    /// The effect of `tenant` and `key` in the consume scope of a group, expired or not.
    #[must_use]
    pub fn consumed(&self, topic: &TopicName, group: &GroupName, (tenant, key): (&str, &str)) -> Option<&Effect> {
        self.of_group(topic, group, &IdentityKey::new(tenant, key))
    }

    /// As [`EffectStore::consumed`].
    #[must_use]
    pub(crate) fn of_group(&self, topic: &TopicName, group: &GroupName, key: &IdentityKey) -> Option<&Effect> {
        self.group_table(topic, group)?.get(key)
    }

    /// The table of a namespace, unless it is empty.
    #[must_use]
    pub(crate) fn table(&self, namespace: &EffectNamespace) -> Option<&EffectTable> {
        self.table_in(NamespaceRef::from(namespace))
    }

    /// As [`EffectStore::table`].
    pub(crate) fn table_in(&self, namespace: NamespaceRef<'_>) -> Option<&EffectTable> {
        match namespace {
            NamespaceRef::Shared => Some(&self.shared).filter(|table| !table.is_empty()).map(|table| &**table),
            NamespaceRef::Group(topic, group) => self.group_table(topic, group),
        }
    }

    fn group_table(&self, topic: &TopicName, group: &GroupName) -> Option<&EffectTable> {
        self.groups.get(topic)?.get(group).map(|table| &**table)
    }

    /// All tables that are not empty.
    pub fn tables(&self) -> impl Iterator<Item = (EffectNamespace, &Arc<EffectTable>)> {
        let shared = Some((EffectNamespace::Shared, &self.shared)).filter(|(_, table)| !table.is_empty());
        let groups = self.groups.iter().flat_map(|(topic, groups)| {
            groups.iter().map(|(group, table)| (EffectNamespace::Group(topic.clone(), group.clone()), table))
        });
        shared.into_iter().chain(groups)
    }

    /// The tables of a topic's groups.
    pub(crate) fn tables_of(&self, topic: &TopicName) -> impl Iterator<Item = (EffectNamespace, &Arc<EffectTable>)> {
        self.groups.get_key_value(topic).into_iter().flat_map(|(topic, groups)| {
            groups.iter().map(|(group, table)| (EffectNamespace::Group(topic.clone(), group.clone()), table))
        })
    }

    /// The tables that can hold effects of `kind` after `after`, each with the key after which they are; `None` for the
    /// first.
    pub(crate) fn tables_after<'a>(
        &'a self,
        after: Option<&'a Identity>,
        kind: Option<ScopeKind>,
    ) -> impl Iterator<Item = (EffectNamespace, &'a EffectTable, Option<&'a IdentityKey>)> {
        let start = match after.map(|identity| &identity.scope) {
            Some(Scope::Consume { topic, group }) => Some((topic, group)),
            _ => None,
        };
        let has_shared = start.is_none() && kind != Some(ScopeKind::Consume);
        let has_groups = kind.is_none_or(|kind| kind == ScopeKind::Consume);
        let shared = (EffectNamespace::Shared, &*self.shared, after.map(Identity::packed));
        let topics = match start {
            Some((topic, _)) => self.groups.range::<TopicName, _>((Included(topic), Unbounded)),
            None => self.groups.range::<TopicName, _>(..),
        };
        let groups = topics.take_while(move |_| has_groups).flat_map(move |(topic, groups)| {
            let from = start.filter(|(first, _)| *first == topic).map_or(Unbounded, |(_, group)| Included(group));
            groups.range::<GroupName, _>((from, Unbounded)).map(move |(group, table)| {
                let key = after.filter(|_| start == Some((topic, group))).map(Identity::packed);
                (EffectNamespace::Group(topic.clone(), group.clone()), &**table, key)
            })
        });
        has_shared.then_some(shared).into_iter().chain(groups)
    }

    /// The number of effects of a tenant, including expired ones that are not removed yet.
    #[must_use]
    pub fn len_of(&self, tenant: &str) -> u64 {
        self.tenants.of(tenant)
    }

    /// The number of tenants that have effects.
    #[must_use]
    pub fn tenant_count(&self) -> usize {
        self.tenants.len()
    }

    /// The number of effects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no effect.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The interned form of `owner`.
    pub(crate) fn intern_owner(&mut self, owner: &OwnerName) -> OwnerName {
        if let Some(known) = self.owners.get(owner) {
            return known.clone();
        }
        if self.owners.len() >= OWNERS_MAX {
            self.owners.clear();
        }
        self.owners.insert(owner.clone());
        owner.clone()
    }

    /// Adds an effect. Returns it and changes nothing if its identity is known.
    #[inline]
    pub(crate) fn insert(&mut self, identity: &Identity, effect: Effect) -> Result<(), Effect> {
        self.insert_key(NamespaceRef::of(&identity.scope), identity.packed(), effect)
    }

    /// As [`EffectStore::insert`], of `key` in `namespace`.
    #[inline]
    pub(crate) fn insert_key(
        &mut self,
        namespace: NamespaceRef<'_>,
        key: &IdentityKey,
        effect: Effect,
    ) -> Result<(), Effect> {
        let tenant = key.tenant();
        self.table_mut(namespace).insert(key.clone(), tenant, effect)?;
        self.tenants.add(tenant);
        self.len += 1;
        Ok(())
    }

    /// Changes an effect; `None` if it does not exist.
    pub(crate) fn change<T>(&mut self, identity: &Identity, change: impl FnOnce(&mut Effect) -> T) -> Option<T> {
        self.change_key(NamespaceRef::of(&identity.scope), identity.packed(), change)
    }

    /// Removes an effect.
    pub(crate) fn remove(&mut self, identity: &Identity) -> Option<Effect> {
        self.remove_key(NamespaceRef::of(&identity.scope), identity.packed())
    }

    /// Changes the effect of `key` in `namespace`.
    pub(crate) fn change_key<T>(
        &mut self,
        namespace: NamespaceRef<'_>,
        key: &IdentityKey,
        change: impl FnOnce(&mut Effect) -> T,
    ) -> Option<T> {
        self.known_table_mut(namespace)?.change(key, change)
    }

    /// The table of a namespace, if there is one. Copies it if it is shared.
    fn known_table_mut(&mut self, namespace: NamespaceRef<'_>) -> Option<&mut EffectTable> {
        Some(unshared(match namespace {
            NamespaceRef::Shared => &mut self.shared,
            NamespaceRef::Group(topic, group) => self.groups.get_mut(topic)?.get_mut(group)?,
        }))
    }

    /// Removes the effect of `key` in `namespace`. Copies a table that is shared, even if it has no such effect.
    pub(crate) fn remove_key(&mut self, namespace: NamespaceRef<'_>, key: &IdentityKey) -> Option<Effect> {
        let tenant = key.tenant();
        let table = self.known_table_mut(namespace)?;
        let (removed, is_empty) = (table.remove(key, tenant)?, table.is_empty());
        self.removed(namespace, tenant, is_empty);
        Some(removed)
    }

    /// Removes the effect of `namespace` that is checked for expiry first.
    pub(super) fn remove_first_due(&mut self, namespace: NamespaceRef<'_>) {
        let Some(table) = self.known_table_mut(namespace) else { return };
        let (removed, is_empty) = (table.remove_first_due(), table.is_empty());
        if let Some(key) = removed {
            self.removed(namespace, key.tenant(), is_empty);
        }
    }

    /// An effect of `tenant` was removed from its table, which is dropped if it is that of a group and empty.
    fn removed(&mut self, namespace: NamespaceRef<'_>, tenant: &str, is_empty: bool) {
        self.tenants.subtract(tenant, 1);
        self.len -= 1;
        if let NamespaceRef::Group(topic, group) = namespace
            && is_empty
        {
            self.drop_table(topic, group);
        }
    }

    /// Removes the tables of all groups of a topic.
    pub(crate) fn drop_topic(&mut self, topic: &TopicName) {
        let groups: Vec<_> = self.groups.get(topic).into_iter().flat_map(BTreeMap::keys).cloned().collect();
        groups.iter().for_each(|group| self.drop_table(topic, group));
    }

    /// Removes the table of a group.
    pub(crate) fn drop_table(&mut self, topic: &TopicName, group: &GroupName) {
        let Some(groups) = self.groups.get_mut(topic) else { return };
        let Some(table) = groups.remove(group) else { return };
        if groups.is_empty() {
            self.groups.remove(topic);
        }
        self.len -= table.len();
        for (tenant, count) in table.tenants() {
            self.tenants.subtract(tenant, count);
        }
    }

    fn table_mut(&mut self, namespace: NamespaceRef<'_>) -> &mut EffectTable {
        unshared(match namespace {
            NamespaceRef::Shared => &mut self.shared,
            NamespaceRef::Group(topic, group) => {
                let groups = self.groups.entry(topic.clone()).or_default();
                groups.entry(group.clone()).or_insert_with(|| Arc::new(EffectTable::of_group()))
            }
        })
    }
}
