//! Who may do what: keys, tenants and the audit.

mod audit;
mod keys;
mod tenants;

use std::sync::Arc;

pub use self::audit::AuditLog;
pub use self::keys::Keys;
pub use self::tenants::Tenants;
use super::{Contradiction, State};
use crate::record::Image;
use crate::types::{Audit, CertificateSan, Key, KeyId, TenantId, TenantName, Timestamp};

/// Keys, tenants and the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    keys: Keys,
    tenants: Tenants,
    audit: AuditLog,
}

impl Access {
    /// The keys. One that has expired stays until it is revoked.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The registered tenants.
    #[must_use]
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// The newest audited commands.
    #[must_use]
    pub fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// Whether there is neither a key nor a tenant: then nothing has to be checked.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        self.keys.is_empty() && self.tenants.is_empty()
    }

    /// The images of all of it, in an order that rebuilds it.
    pub(super) fn images(&self) -> Vec<Box<dyn super::view::Images>> {
        let numbers = (self.tenants.last(), self.audit.next());
        let origin = (numbers != (TenantId::DEFAULT, 0))
            .then_some(Image::Access { last_tenant: numbers.0, next_audit: numbers.1 });
        let tenants = self.tenants.entries().map(|(tenant, name)| Image::Tenant { tenant, name });
        let keys = self.keys.entries().map(|(_, key)| Image::Key(key));
        let audit = self.audit.entries().map(|(_, entry)| Image::Audit(entry));
        vec![Box::new(origin.into_iter()), Box::new(tenants), Box::new(keys), Box::new(audit)]
    }

    /// An estimate of the memory that it takes.
    pub(super) fn memory(&self) -> u64 {
        self.keys.memory() + self.tenants.memory() + self.audit.memory()
    }
}

impl State {
    /// Keys, tenants and the audit.
    #[must_use]
    #[inline]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Whether a tenant of this number exists.
    #[must_use]
    pub fn has_tenant(&self, tenant: TenantId) -> bool {
        tenant.is_default() || self.access.tenants.name(tenant).is_some()
    }

    /// What a tenant has, if it has anything: the reason not to delete it.
    pub(crate) fn belonging_to(&self, tenant: TenantId) -> Option<&'static str> {
        let name = self.access.tenants.name(tenant)?;
        if self.topics_of(tenant).next().is_some() {
            return Some("it has topics");
        }
        if self.access.keys.count_of(tenant) > 0 {
            return Some("it has keys");
        }
        (self.store.len_of(name.as_str()) > 0).then_some("it has idempotency records")
    }

    pub(super) fn create_key(&mut self, key: &Key, at: Timestamp) -> Result<(), Contradiction> {
        if key.created_at != at || key.certificate_san.is_some() {
            return Err(Contradiction("key that is not new"));
        }
        self.insert_key(Arc::new(key.clone()))
    }

    fn insert_key(&mut self, key: Arc<Key>) -> Result<(), Contradiction> {
        if !self.has_tenant(key.tenant) {
            return Err(Contradiction("key of a tenant that is not registered"));
        }
        self.access.keys.insert(key)
    }

    pub(super) fn revoke_key(&mut self, id: KeyId) -> Result<(), Contradiction> {
        self.access.keys.remove(id)
    }

    pub(super) fn bind_key(&mut self, id: KeyId, san: Option<&CertificateSan>) -> Result<(), Contradiction> {
        self.access.keys.bind(id, san)
    }

    pub(super) fn create_tenant(&mut self, tenant: TenantId, name: &TenantName) -> Result<(), Contradiction> {
        if self.store.len_of(name.as_str()) > 0 {
            return Err(Contradiction("tenant that a stored effect names"));
        }
        self.access.tenants.create(tenant, name)
    }

    pub(super) fn delete_tenant(&mut self, tenant: TenantId) -> Result<(), Contradiction> {
        if self.belonging_to(tenant).is_some() {
            return Err(Contradiction("deletion of a tenant that is not empty"));
        }
        self.access.tenants.remove(tenant)
    }

    pub(super) fn add_audit(&mut self, audit: &Audit, at: Timestamp) {
        self.access.audit.add(audit, at);
    }

    /// Rebuilds a part of it.
    pub(super) fn restore_access(&mut self, image: &Image) -> Result<(), Contradiction> {
        match image {
            Image::Access { last_tenant, next_audit } => {
                self.access.tenants.restore_last(*last_tenant)?;
                self.access.audit.restore_next(*next_audit)
            }
            Image::Tenant { tenant, name } => self.access.tenants.restore(*tenant, name),
            Image::Key(key) => self.insert_key(key.clone()),
            Image::Audit(entry) => self.access.audit.restore(entry),
            _ => Err(Contradiction("not an image of keys, tenants or the audit")),
        }
    }
}
