//! Replies about keys, tenants and the audit.

use std::sync::Arc;

use crate::types::{AuditEntry, CertificateSan, Grant, Key, KeyId, KeyName, TenantId, TenantName, Timestamp};

/// A key, without its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its id.
    pub id: KeyId,
    /// What people call it.
    pub name: KeyName,
    /// The tenant in which it acts.
    pub tenant: TenantName,
    /// What it may do.
    pub grants: Arc<[Grant]>,
    /// When it was created.
    pub created_at: Timestamp,
    /// From when on it is refused, if it expires.
    pub expires_at: Option<Timestamp>,
    /// The name in the client certificate that stands for it.
    pub certificate_san: Option<CertificateSan>,
}

impl KeyInfo {
    /// What is said of `key`, whose tenant has this name.
    pub(crate) fn new(key: &Key, tenant: TenantName) -> Self {
        let Key { id, name, tenant: _, digest: _, grants, created_at, expires_at, certificate_san } = key;
        Self {
            id: *id,
            name: name.clone(),
            tenant,
            grants: grants.clone(),
            created_at: *created_at,
            expires_at: *expires_at,
            certificate_san: certificate_san.clone(),
        }
    }
}

/// A page of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys.
    pub keys: Vec<KeyInfo>,
    /// Where the next page begins: after this key. `None` if this is the last page.
    pub next: Option<KeyId>,
}

/// A registered tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantInfo {
    /// Its number.
    pub tenant: TenantId,
    /// Its name.
    pub name: TenantName,
}

/// A page of the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPage {
    /// The entries, the newest first.
    pub entries: Vec<Arc<AuditEntry>>,
    /// Where the next page begins: before this number. `None` if this is the last page.
    pub next: Option<u64>,
}
