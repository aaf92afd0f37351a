//! All tables together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::effect::Effect;
use super::identity::{Identity, Scope};
use super::table::{Table, count_down, count_up};
use crate::state::IdentityKey;
use crate::state::shared::unshared;
use crate::types::{GroupName, OwnerName, Text, TopicName};

/// Which table an effect stands in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Realm {
    /// The one for every scope but `consume`.
    Shared,
    /// The one of a group: it goes with the group, and with the topic.
    Group(TopicName, GroupName),
}

impl Realm {
    /// Where the effects of `scope` stand.
    #[must_use]
    pub fn of(scope: &Scope) -> Self {
        match scope {
            Scope::Consume { topic, group } => Self::Group(topic.clone(), group.clone()),
            _ => Self::Shared,
        }
    }

    /// The identity that `key` stands for in this realm.
    #[must_use]
    pub fn identity(&self, key: &IdentityKey) -> Identity {
        match self {
            Self::Shared => Identity::of_shared(key),
            Self::Group(topic, group) => {
                let (tenant, key) = key.parts();
                Identity::new(tenant, Scope::Consume { topic: topic.clone(), group: group.clone() }, key)
            }
        }
    }
}

/// Every effect that is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    shared: Arc<Table>,
    groups: BTreeMap<TopicName, BTreeMap<GroupName, Arc<Table>>>,
    tenants: BTreeMap<Text, u64>,
    /// Names of owners seen lately: many effects are of few workers, and need not have a name each.
    owners: BTreeSet<OwnerName>,
    len: usize,
}

/// How many names of owners are kept to be shared.
const OWNERS_MAX: usize = 1_024;

impl Store {
    /// The effect of `identity`, whether or not it is past its window.
    #[must_use]
    pub fn get(&self, identity: &Identity) -> Option<&Effect> {
        let table = match &identity.scope {
            Scope::Consume { topic, group } => self.of_group(topic, group)?,
            _ => &self.shared,
        };
        if table.is_empty() { None } else { table.get(identity.packed()) }
    }

    /// The effect of a group's work on a message of `tenant` and `key`.
    #[must_use]
    pub fn consumed(&self, topic: &TopicName, group: &GroupName, (tenant, key): (&str, &str)) -> Option<&Effect> {
        self.of_group(topic, group)?.get(&IdentityKey::new(tenant, key))
    }

    /// The table of a realm, if anything stands in it.
    #[must_use]
    pub fn table(&self, realm: &Realm) -> Option<&Table> {
        match realm {
            Realm::Shared => Some(&self.shared).filter(|table| !table.is_empty()).map(|table| &**table),
            Realm::Group(topic, group) => self.of_group(topic, group),
        }
    }

    fn of_group(&self, topic: &TopicName, group: &GroupName) -> Option<&Table> {
        self.groups.get(topic)?.get(group).map(|table| &**table)
    }

    /// All tables in which something stands.
    pub fn tables(&self) -> impl Iterator<Item = (Realm, &Arc<Table>)> {
        let shared = Some((Realm::Shared, &self.shared)).filter(|(_, table)| !table.is_empty());
        let groups = self.groups.iter().flat_map(|(topic, groups)| {
            groups.iter().map(|(group, table)| (Realm::Group(topic.clone(), group.clone()), table))
        });
        shared.into_iter().chain(groups)
    }

    /// The tables of a topic's groups.
    pub(crate) fn tables_of(&self, topic: &TopicName) -> impl Iterator<Item = (Realm, &Arc<Table>)> {
        self.groups.get_key_value(topic).into_iter().flat_map(|(topic, groups)| {
            groups.iter().map(|(group, table)| (Realm::Group(topic.clone(), group.clone()), table))
        })
    }

    /// How many effects a tenant has, those past their window but not yet forgotten included.
    #[must_use]
    pub fn len_of(&self, tenant: &str) -> u64 {
        self.tenants.get(tenant).copied().unwrap_or(0)
    }

    /// How many effects there are in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same name, in memory that effects share where they can.
    pub(crate) fn share_owner(&mut self, owner: &OwnerName) -> OwnerName {
        if let Some(known) = self.owners.get(owner) {
            return known.clone();
        }
        if self.owners.len() >= OWNERS_MAX {
            self.owners.clear();
        }
        self.owners.insert(owner.clone());
        owner.clone()
    }

    /// Adds an effect that is not there.
    pub(crate) fn insert(&mut self, identity: &Identity, effect: Effect) {
        let tenant = identity.tenant();
        self.table_mut(&Realm::of(&identity.scope)).insert(identity.packed().clone(), tenant, effect);
        count_up(&mut self.tenants, tenant);
        self.len += 1;
    }

    /// Changes an effect; `None` if it is not there.
    pub(crate) fn change<T>(&mut self, identity: &Identity, change: impl FnOnce(&mut Effect) -> T) -> Option<T> {
        self.change_key(&Realm::of(&identity.scope), identity.packed(), change)
    }

    /// Forgets an effect.
    pub(crate) fn remove(&mut self, identity: &Identity) -> Option<Effect> {
        self.remove_key(&Realm::of(&identity.scope), identity.packed())
    }

    /// Changes the effect of `key` in `realm`.
    pub(crate) fn change_key<T>(
        &mut self,
        realm: &Realm,
        key: &IdentityKey,
        change: impl FnOnce(&mut Effect) -> T,
    ) -> Option<T> {
        self.table(realm)?;
        self.table_mut(realm).change(key, change)
    }

    /// Forgets the effect of `key` in `realm`.
    pub(crate) fn remove_key(&mut self, realm: &Realm, key: &IdentityKey) -> Option<Effect> {
        self.table(realm)?.get(key)?;
        let tenant = key.tenant();
        let removed = self.table_mut(realm).remove(key, tenant)?;
        count_down(&mut self.tenants, tenant, 1);
        self.len -= 1;
        if let Realm::Group(topic, group) = realm
            && self.of_group(topic, group).is_some_and(Table::is_empty)
        {
            self.drop_table(topic, group);
        }
        Some(removed)
    }

    /// Forgets everything of a topic.
    pub(crate) fn drop_topic(&mut self, topic: &TopicName) {
        let groups: Vec<_> = self.groups.get(topic).into_iter().flat_map(BTreeMap::keys).cloned().collect();
        groups.iter().for_each(|group| self.drop_table(topic, group));
    }

    /// Forgets everything of a group.
    pub(crate) fn drop_table(&mut self, topic: &TopicName, group: &GroupName) {
        let Some(groups) = self.groups.get_mut(topic) else { return };
        let Some(table) = groups.remove(group) else { return };
        if groups.is_empty() {
            self.groups.remove(topic);
        }
        self.len -= table.len();
        for (tenant, count) in table.tenants() {
            count_down(&mut self.tenants, tenant, count);
        }
    }

    fn table_mut(&mut self, realm: &Realm) -> &mut Table {
        unshared(match realm {
            Realm::Shared => &mut self.shared,
            Realm::Group(topic, group) => {
                if !self.groups.contains_key(topic) {
                    self.groups.insert(topic.clone(), BTreeMap::new());
                }
                let groups = self.groups.get_mut(topic).expect("just made");
                groups.entry(group.clone()).or_default()
            }
        })
    }
}
