//! Commands on keys, tenants and the audit.

use crate::types::{
    CertificateSan, ConsumerId, Grant, KeyDigest, KeyId, KeyName, Millis, TenantName, Timestamp, TopicName,
};

/// The most keys or audit entries in a page.
pub const ACCESS_PAGE_MAX: usize = 1_000;

/// Creates a key. Once there is a key, callers without one are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateKey {
    /// Its id, drawn at random.
    pub id: KeyId,
    /// What people call it.
    pub name: KeyName,
    /// The digest of its secret.
    pub digest: KeyDigest,
    /// The tenant in which it acts; `None` for the caller's.
    pub tenant: Option<TenantName>,
    /// What it may do: 1 to [`Grant::COUNT_MAX`] grants, none without a verb.
    pub grants: Vec<Grant>,
    /// When it expires; `None` for never.
    pub expiry: Option<KeyExpiry>,
}

/// When a key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyExpiry {
    /// At this wall time.
    At(Timestamp),
    /// After this time.
    After(Millis),
}

/// Revokes a key: it is removed, and the streams that it has opened are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevokeKey {
    /// The key.
    pub id: KeyId,
}

/// Binds a key to a name in client certificates, or removes the binding. All tenants' clients have certificates of the
/// same authority, so that only who manages all tenants may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindKey {
    /// The key.
    pub id: KeyId,
    /// The name, bound to no other key; `None` removes the binding.
    pub certificate_san: Option<CertificateSan>,
}

/// Lists keys, a page at a time, in the order of their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListKeys {
    /// Only of this tenant; `None` for all that the caller manages.
    pub tenant: Option<TenantName>,
    /// The most keys in the page, at most [`ACCESS_PAGE_MAX`].
    pub limit: usize,
    /// Continues after this key.
    pub after: Option<KeyId>,
}

/// Registers a tenant, or confirms that it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTenant {
    /// Its name. No stored effect may name it.
    pub name: TenantName,
}

/// Deletes a tenant that has no topics, keys or effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTenant {
    /// Its name.
    pub name: TenantName,
}

/// Lists the tenants that the caller may see: all of them, or its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListTenants;

/// Lists what was audited of the caller's tenant, or of all if the caller manages all, the newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListAudit {
    /// The most entries in the page, at most [`ACCESS_PAGE_MAX`].
    pub limit: usize,
    /// Continues with those older than the entry with this number.
    pub before: Option<u64>,
}

/// What a command is about, as far as permissions distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A topic. Of another tenant, it is never granted.
    Topic(&'a TopicName),
    /// Some topic: what is not granted is left out of the reply.
    SomeTopic,
    /// A stream that the caller has opened.
    Stream(ConsumerId),
    /// What belongs to the caller's tenant and to no topic.
    Tenant,
    /// What belongs to another tenant, or to all.
    OtherTenants,
}
