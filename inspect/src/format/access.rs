//! Keys, tenants and the audit: as named values and as sentences. The digest of a key is not shown.

use driftq_core::record::Event;
use driftq_core::state::State;
use driftq_core::types::{Audit, AuditTarget, CertificateSan, Escaped, Key, KeyId, Principal, TenantId};
use serde_json::{Value, json};

use crate::format::text::timestamp;

/// The content of a record about keys, tenants or the audit as named values; `None` for any other.
pub(super) fn fields(event: &Event) -> Option<Value> {
    Some(match event {
        Event::KeyCreated(key) => key_fields(key),
        Event::KeyRevoked { key } => json!({ "key": key.as_str() }),
        Event::KeyBound { key, certificate_san } => {
            let san = certificate_san.as_ref().map(CertificateSan::as_str);
            json!({ "key": key.as_str(), "certificate_san": san })
        }
        Event::TenantCreated { tenant, name } => json!({ "tenant": tenant.0, "name": name.as_str() }),
        Event::TenantDeleted { tenant } => json!({ "tenant": tenant.0 }),
        Event::Audited(audit) => audit_fields(audit),
        _ => return None,
    })
}

fn key_fields(key: &Key) -> Value {
    json!({
        "key": key.id.as_str(),
        "name": key.name.as_str(),
        "tenant": key.tenant.0,
        "grants": key.grants.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "expires_at_ms": key.expires_at.map(|at| at.0),
    })
}

fn audit_fields(audit: &Audit) -> Value {
    json!({
        "who": who(audit.who),
        "tenant": audit.tenant.0,
        "from": audit.from.map(|address| address.to_string()),
        "action": audit.action.as_str(),
        "target": target(&audit.target),
        "result": audit.result.as_str(),
    })
}

fn who(principal: Principal) -> String {
    match principal {
        Principal::Trusted => "driftqd".to_owned(),
        Principal::Anonymous => "anonymous".to_owned(),
        Principal::Key(id) => id.to_string(),
    }
}

fn target(target: &AuditTarget) -> Option<String> {
    match target {
        AuditTarget::Nothing => None,
        AuditTarget::Topic(topic) => Some(format!("topic {topic}")),
        AuditTarget::Group(topic, group) => Some(format!("group {group} of topic {topic}")),
        AuditTarget::Key(id) => Some(format!("key {id}")),
        AuditTarget::Tenant(name) => Some(format!("tenant {name}")),
    }
}

/// A record about keys, tenants or the audit as a sentence; `None` for any other.
pub(super) fn sentence(state: &State, event: &Event) -> Option<String> {
    Some(match event {
        Event::KeyCreated(key) => {
            let grants: Vec<_> = key.grants.iter().map(|grant| Escaped(&grant.to_string()).to_string()).collect();
            let until = key.expires_at.map(|at| format!(", until {}", timestamp(at))).unwrap_or_default();
            let tenant = tenant(state, key.tenant);
            format!("key {} created as {} for tenant {tenant}{until}: {}", key.id, key.name, grants.join(" "))
        }
        Event::KeyRevoked { key: id } => format!("{} revoked", key(state, *id)),
        Event::KeyBound { key: id, certificate_san: Some(san) } => {
            format!("{} bound to certificates of {san}", key(state, *id))
        }
        Event::KeyBound { key: id, certificate_san: None } => {
            format!("{} bound to certificates no more", key(state, *id))
        }
        Event::TenantCreated { tenant, name } => format!("tenant {name} registered with number {tenant}"),
        Event::TenantDeleted { tenant: id } => format!("tenant {} deleted", tenant(state, *id)),
        Event::Audited(audit) => {
            let from = audit.from.map(|address| format!(" from {address}")).unwrap_or_default();
            let of = target(&audit.target).map(|target| format!(" of {target}")).unwrap_or_default();
            format!("audit: {}{of} by {}{from}: {}", audit.action.as_str(), who(audit.who), audit.result.as_str())
        }
        _ => return None,
    })
}

fn key(state: &State, id: KeyId) -> String {
    let name = state.access().keys().get(id).map(|key| format!(" ({})", key.name)).unwrap_or_default();
    format!("key {id}{name}")
}

fn tenant(state: &State, id: TenantId) -> String {
    state.access().tenants().name_of(id).map_or_else(|| id.to_string(), |name| name.to_string())
}
