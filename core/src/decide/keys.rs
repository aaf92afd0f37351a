//! Decides commands on keys and tenants, and reads them and the audit.

use super::access::Authority;
use super::{Decision, DecisionContext};
use crate::command::{ACCESS_PAGE_MAX, BindKey, CreateKey, KeyExpiry, ListAudit, ListKeys};
use crate::faults::Faults;
use crate::record::Event;
use crate::reply::{AuditPage, KeyInfo, KeyPage, Overload, Refusal, Reply, TenantInfo};
use crate::types::{Grant, Key, KeyId, TenantId, TenantName, Timestamp};

impl<F: Faults> DecisionContext<'_, F> {
    /// The tenant with this name, or a refusal.
    fn tenant(&self, name: &TenantName) -> Result<TenantId, Refusal> {
        let known = self.state.access().tenants().named(name.as_str());
        known.ok_or_else(|| Refusal::UnknownTenant(name.clone()))
    }

    /// The key with this id, if the caller manages its tenant.
    fn key(&self, authority: &Authority<'_>, id: KeyId) -> Result<&Key, Refusal> {
        let known = self.state.access().keys().get(id);
        known.filter(|key| authority.sees_all() || key.tenant == authority.tenant()).ok_or(Refusal::UnknownKey)
    }

    fn key_info(&self, key: &Key) -> KeyInfo {
        let name = self.state.access().tenants().name_of(key.tenant);
        KeyInfo::new(key, name.expect("the tenant of a key is registered"))
    }
}

/// Decides the creation of a key.
pub(crate) fn create_key<F: Faults>(
    context: &DecisionContext<'_, F>,
    authority: &Authority<'_>,
    request: &CreateKey,
) -> Result<Decision, Refusal> {
    let CreateKey { id, name, digest, tenant, grants, expiry } = request;
    if grants.is_empty() || grants.iter().any(|grant| grant.verbs.is_empty()) {
        return Err(Refusal::Invalid("a key needs at least one grant, and each grant at least one verb"));
    }
    if grants.len() > Grant::COUNT_MAX {
        return Err(Refusal::TooMany { what: "grants", len: grants.len() as u64, max: Grant::COUNT_MAX as u64 });
    }
    let tenant = tenant.as_ref().map_or(Ok(authority.tenant()), |name| context.tenant(name))?;
    let expires_at = expiry.map(|expiry| expires_at(context, expiry));
    if expires_at.is_some_and(|expires_at| expires_at <= context.now) {
        return Err(Refusal::Invalid("expires_at has passed"));
    }
    let keys = context.state.access().keys();
    if keys.get(*id).is_some() {
        return Err(Refusal::KeyExists);
    }
    if keys.len() >= context.limits.keys_max {
        return Err(context.overloaded(Overload::Objects));
    }
    let key = Key {
        id: *id,
        name: name.clone(),
        tenant,
        digest: *digest,
        grants: grants.iter().cloned().collect(),
        created_at: context.now,
        expires_at,
        certificate_san: None,
    };
    let reply = Reply::KeyCreated(Box::new(context.key_info(&key)));
    Ok(Decision::new(Event::KeyCreated(Box::new(key)), reply))
}

fn expires_at<F: Faults>(context: &DecisionContext<'_, F>, expiry: KeyExpiry) -> Timestamp {
    match expiry {
        KeyExpiry::At(wall) => context.broker_time(wall),
        KeyExpiry::After(span) => context.now.after(span),
    }
}

/// Decides the revocation of a key.
pub(crate) fn revoke_key<F: Faults>(
    context: &DecisionContext<'_, F>,
    authority: &Authority<'_>,
    id: KeyId,
) -> Result<Decision, Refusal> {
    let key = context.key(authority, id)?.id;
    Ok(Decision::new(Event::KeyRevoked { key }, Reply::Success))
}

/// Decides the binding of a key to a certificate. Succeeds without a record if it is bound so already.
pub(crate) fn bind_key<F: Faults>(
    context: &DecisionContext<'_, F>,
    authority: &Authority<'_>,
    request: &BindKey,
) -> Result<Decision, Refusal> {
    let key = context.key(authority, request.id)?;
    if key.certificate_san == request.certificate_san {
        return Ok(Decision::reply_only(Reply::Success));
    }
    if let Some(san) = &request.certificate_san
        && context.state.access().keys().bound_to(san).is_some()
    {
        return Err(Refusal::CertificateBound);
    }
    let event = Event::KeyBound { key: key.id, certificate_san: request.certificate_san.clone() };
    Ok(Decision::new(event, Reply::Success))
}

/// A page of the keys that the caller manages.
pub(crate) fn list_keys<F: Faults>(
    context: &DecisionContext<'_, F>,
    authority: &Authority<'_>,
    request: &ListKeys,
) -> Result<Reply, Refusal> {
    let named = request.tenant.as_ref().map(|name| context.tenant(name)).transpose()?;
    let tenant = named.or((!authority.sees_all()).then_some(authority.tenant()));
    let limit = request.limit.clamp(1, ACCESS_PAGE_MAX);
    let mut found = context.state.access().keys().after(tenant, request.after);
    let keys: Vec<_> = found.by_ref().take(limit).map(|key| context.key_info(key)).collect();
    let next = found.next().and(keys.last()).map(|last| last.id);
    Ok(Reply::Keys(Box::new(KeyPage { keys, next })))
}

/// Decides the registration of a tenant. Succeeds without a record if it is registered.
pub(crate) fn create_tenant<F: Faults>(
    context: &DecisionContext<'_, F>,
    name: &TenantName,
) -> Result<Decision, Refusal> {
    let tenants = context.state.access().tenants();
    if let Some(tenant) = tenants.named(name.as_str()) {
        return Ok(Decision::reply_only(Reply::TenantCreated { tenant }));
    }
    if context.state.store().len_of(name.as_str()) > 0 {
        return Err(Refusal::TenantInUse("idempotency records of the default tenant name it"));
    }
    if tenants.len() >= context.limits.tenants_max {
        return Err(context.overloaded(Overload::Objects));
    }
    let tenant = TenantId(tenants.last().0 + 1);
    let event = Event::TenantCreated { tenant, name: name.clone() };
    Ok(Decision::new(event, Reply::TenantCreated { tenant }))
}

/// Decides the deletion of a tenant.
pub(crate) fn delete_tenant<F: Faults>(
    context: &DecisionContext<'_, F>,
    name: &TenantName,
) -> Result<Decision, Refusal> {
    let tenant = context.tenant(name)?;
    if tenant.is_default() {
        return Err(Refusal::Invalid("the default tenant cannot be deleted"));
    }
    match context.state.belonging_to(tenant) {
        Some(what) => Err(Refusal::TenantInUse(what)),
        None => Ok(Decision::new(Event::TenantDeleted { tenant }, Reply::Success)),
    }
}

/// The tenants that the caller sees.
pub(crate) fn list_tenants<F: Faults>(context: &DecisionContext<'_, F>, authority: &Authority<'_>) -> Reply {
    let is_seen = |tenant| authority.sees_all() || tenant == authority.tenant();
    let seen = context.state.access().tenants().iter().filter(|(tenant, _)| is_seen(*tenant));
    Reply::Tenants(seen.map(|(tenant, name)| TenantInfo { tenant, name }).collect())
}

/// A page of what was audited of the caller's tenant, or of all.
pub(crate) fn list_audit<F: Faults>(
    context: &DecisionContext<'_, F>,
    authority: &Authority<'_>,
    request: &ListAudit,
) -> Reply {
    let is_seen = |tenant| authority.sees_all() || tenant == authority.tenant();
    let entries = context.state.access().audit().before(request.before);
    let mut seen = entries.filter(|entry| is_seen(entry.audit.tenant)).cloned();
    let entries: Vec<_> = seen.by_ref().take(request.limit.clamp(1, ACCESS_PAGE_MAX)).collect();
    let next = seen.next().and(entries.last()).map(|last| last.number);
    Reply::Audit(Box::new(AuditPage { entries, next }))
}
