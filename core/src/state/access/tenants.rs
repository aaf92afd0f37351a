//! Registered tenants.

use std::collections::BTreeMap;

use super::super::Contradiction;
use super::super::apply::check_counter32;
use crate::types::{DEFAULT_TENANT, TenantId, TenantName};

/// What a tenant takes in the maps.
const ENTRY: u64 = 256;

/// The registered tenants. The default tenant is always one, and is not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenants {
    by_id: BTreeMap<TenantId, TenantName>,
    by_name: BTreeMap<TenantName, TenantId>,
    /// The last number that was given. None is given twice.
    last: TenantId,
    /// The memory of all names.
    bytes: u64,
}

impl Tenants {
    /// The number of registered tenants, without the default tenant.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether only the default tenant exists.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The name of a tenant that is not the default tenant.
    #[must_use]
    pub fn name(&self, tenant: TenantId) -> Option<&TenantName> {
        self.by_id.get(&tenant)
    }

    /// The name of a tenant.
    #[must_use]
    pub fn name_of(&self, tenant: TenantId) -> Option<TenantName> {
        match tenant.is_default() {
            true => Some(default_name()),
            false => self.name(tenant).cloned(),
        }
    }

    /// The tenant with this name; the default tenant has one, too.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<TenantId> {
        if name == DEFAULT_TENANT { Some(TenantId::DEFAULT) } else { self.by_name.get(name).copied() }
    }

    /// Whether `name` is that of a registered tenant other than the default tenant.
    #[must_use]
    pub fn is_registered(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// All tenants in the order of their numbers, the default tenant first.
    pub fn iter(&self) -> impl Iterator<Item = (TenantId, TenantName)> {
        let default = std::iter::once((TenantId::DEFAULT, default_name()));
        default.chain(self.by_id.iter().map(|(tenant, name)| (*tenant, name.clone())))
    }

    /// The last number that was given.
    pub(crate) fn last(&self) -> TenantId {
        self.last
    }

    pub(super) fn create(&mut self, tenant: TenantId, name: &TenantName) -> Result<(), Contradiction> {
        // Not necessarily the next: the record before can have been damaged.
        if tenant <= self.last {
            return Err(Contradiction("number of a tenant was given before"));
        }
        check_counter32(tenant.0)?;
        self.last = tenant;
        self.restore(tenant, name)
    }

    pub(super) fn restore(&mut self, tenant: TenantId, name: &TenantName) -> Result<(), Contradiction> {
        let is_new = !self.by_id.contains_key(&tenant) && self.named(name.as_str()).is_none();
        if tenant.is_default() || tenant > self.last || !is_new {
            return Err(Contradiction("tenant exists, or its number is not given yet"));
        }
        self.by_id.insert(tenant, name.clone());
        self.by_name.insert(name.clone(), tenant);
        self.bytes += ENTRY + name.as_str().len() as u64;
        Ok(())
    }

    pub(super) fn restore_last(&mut self, last: TenantId) -> Result<(), Contradiction> {
        if self.last != TenantId::DEFAULT || !self.by_id.is_empty() {
            return Err(Contradiction("two images of the numbers of tenants"));
        }
        check_counter32(last.0)?;
        self.last = last;
        Ok(())
    }

    pub(super) fn remove(&mut self, tenant: TenantId) -> Result<(), Contradiction> {
        let name = self.by_id.remove(&tenant).ok_or(Contradiction("no such tenant"))?;
        self.by_name.remove(&name);
        self.bytes -= ENTRY + name.as_str().len() as u64;
        Ok(())
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (TenantId, TenantName)> + Clone + Send + 'static {
        // Few and short, so that they are copied.
        let entries: Vec<_> = self.by_id.iter().map(|(tenant, name)| (*tenant, name.clone())).collect();
        entries.into_iter()
    }

    pub(super) fn memory(&self) -> u64 {
        self.bytes
    }
}

fn default_name() -> TenantName {
    TenantName::new(DEFAULT_TENANT).expect("a name")
}
