//! Keys, by id, by tenant and by the certificate they are bound to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use super::super::Contradiction;
use crate::collections::cow::{CowMap, entries_of};
use crate::types::{CertificateSan, Grant, Key, KeyId, TenantId};

/// What a key takes in the maps beside itself.
const ENTRY: u64 = 256;

/// The least id.
const FIRST: &str = "000000000000";

/// The keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    by_id: CowMap<KeyId, Arc<Key>>,
    by_tenant: BTreeSet<(TenantId, KeyId)>,
    by_san: BTreeMap<CertificateSan, KeyId>,
    /// The memory of all keys.
    bytes: u64,
}

impl Keys {
    /// The number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is no key.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The key with this id.
    #[must_use]
    pub fn get(&self, id: KeyId) -> Option<&Key> {
        self.by_id.get(&id).map(|key| &**key)
    }

    /// The key that is bound to this name.
    #[must_use]
    pub fn bound_to(&self, san: &CertificateSan) -> Option<&Key> {
        self.get(*self.by_san.get(san)?)
    }

    /// All keys, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        self.by_id.iter().map(|(_, key)| &**key)
    }

    /// The keys of a tenant after `after`, or of all tenants, in the order of their ids.
    pub(crate) fn after(&self, tenant: Option<TenantId>, after: Option<KeyId>) -> Box<dyn Iterator<Item = &Key> + '_> {
        let first: KeyId = FIRST.parse().expect("an id");
        let Some(tenant) = tenant else {
            let from = self.by_id.range_from(after.as_ref().unwrap_or(&first));
            return Box::new(from.map(|(_, key)| &**key).filter(move |key| Some(key.id) != after));
        };
        let from = after.map_or(Included((tenant, first)), |after| Excluded((tenant, after)));
        let of_tenant = self.by_tenant.range((from, Unbounded)).take_while(move |(of, _)| *of == tenant);
        Box::new(of_tenant.filter_map(|(_, id)| self.get(*id)))
    }

    /// The number of keys of a tenant.
    #[must_use]
    pub fn count_of(&self, tenant: TenantId) -> usize {
        self.after(Some(tenant), None).count()
    }

    pub(super) fn insert(&mut self, key: Arc<Key>) -> Result<(), Contradiction> {
        let is_valid = (1..=Grant::COUNT_MAX).contains(&key.grants.len())
            && key.grants.iter().all(|grant| !grant.verbs.is_empty())
            && key.expires_at.is_none_or(|expires_at| expires_at > key.created_at);
        if !is_valid || self.by_id.contains_key(&key.id) {
            return Err(Contradiction("key exists, or has no grants, or was never valid"));
        }
        if let Some(san) = &key.certificate_san
            && self.by_san.insert(san.clone(), key.id).is_some()
        {
            return Err(Contradiction("two keys bound to one certificate"));
        }
        self.by_tenant.insert((key.tenant, key.id));
        self.bytes += memory_of(&key);
        self.by_id.insert(key.id, key);
        Ok(())
    }

    pub(super) fn remove(&mut self, id: KeyId) -> Result<(), Contradiction> {
        let key = self.by_id.remove(&id).ok_or(Contradiction("no such key"))?;
        self.by_tenant.remove(&(key.tenant, id));
        if let Some(san) = &key.certificate_san {
            self.by_san.remove(san);
        }
        self.bytes -= memory_of(&key);
        Ok(())
    }

    pub(super) fn bind(&mut self, id: KeyId, san: Option<&CertificateSan>) -> Result<(), Contradiction> {
        let mut key = self.get(id).ok_or(Contradiction("no such key"))?.clone();
        if san.is_some_and(|san| self.by_san.contains_key(san)) {
            return Err(Contradiction("two keys bound to one certificate"));
        }
        self.remove(id)?;
        key.certificate_san = san.cloned();
        self.insert(Arc::new(key))
    }

    /// All keys, shared.
    pub(super) fn entries(&self) -> impl Iterator<Item = (KeyId, Arc<Key>)> + Clone + Send + 'static {
        entries_of(self.by_id.clone())
    }

    pub(super) fn memory(&self) -> u64 {
        self.bytes
    }
}

fn memory_of(key: &Key) -> u64 {
    let pattern = |grant: &Grant| size_of::<Grant>() as u64 + grant.topics.to_string().len() as u64;
    let texts = key.name.as_str().len() + 2 * key.certificate_san.as_ref().map_or(0, |san| san.as_str().len());
    size_of::<Key>() as u64 + ENTRY + texts as u64 + key.grants.iter().map(pattern).sum::<u64>()
}
