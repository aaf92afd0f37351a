//! Strategies for keys, tenants and the audit.

use std::net::IpAddr;
use std::sync::Arc;

use driftq_core::record::{Event, Image};
use driftq_core::types::*;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::{group_name, name, number, number32, time, topic_name};

fn key_id() -> BoxedStrategy<KeyId> {
    "[0-9a-z]{12}".prop_map(|text| text.parse().expect("an id")).boxed()
}

fn tenant() -> BoxedStrategy<TenantId> {
    number32().prop_map(TenantId).boxed()
}

fn tenant_name() -> BoxedStrategy<TenantName> {
    name().prop_map(|name| TenantName::new(&name).expect("a name")).boxed()
}

fn san() -> BoxedStrategy<Option<CertificateSan>> {
    of(name().prop_map(|name| CertificateSan::new(&name).expect("a name"))).boxed()
}

fn grant() -> BoxedStrategy<Grant> {
    let verbs = proptest::sample::subsequence(Verb::ALL.to_vec(), 1..=Verb::ALL.len());
    let pattern = prop_oneof![
        Just("*".to_owned()),
        name(),
        name().prop_map(|name| format!("{name}*")),
        name().prop_map(|name| format!("dlq.{name}")),
    ];
    (verbs, pattern)
        .prop_map(|(verbs, pattern)| Grant {
            verbs: verbs.into_iter().collect(),
            topics: TopicPattern::new(&pattern).expect("a pattern"),
        })
        .boxed()
}

fn key() -> BoxedStrategy<Key> {
    let fixed = (key_id(), name(), tenant(), any::<[u8; 32]>());
    (fixed, vec(grant(), 1..5), time(), of(time()), san())
        .prop_map(|((id, name, tenant, digest), grants, created_at, expires_at, certificate_san)| Key {
            id,
            name: KeyName::new(&name).expect("a name"),
            tenant,
            digest: KeyDigest(digest),
            grants: grants.into(),
            created_at,
            expires_at,
            certificate_san,
        })
        .boxed()
}

fn audit() -> BoxedStrategy<Audit> {
    let who = prop_oneof![Just(Principal::Trusted), Just(Principal::Anonymous), key_id().prop_map(Principal::Key)];
    let target = prop_oneof![
        Just(AuditTarget::Nothing),
        topic_name().prop_map(AuditTarget::Topic),
        (topic_name(), group_name()).prop_map(|(topic, group)| AuditTarget::Group(topic, group)),
        key_id().prop_map(AuditTarget::Key),
        tenant_name().prop_map(AuditTarget::Tenant),
    ];
    let action = proptest::sample::select(AuditAction::ALL);
    let result = proptest::sample::select(AuditResult::ALL);
    (who, tenant(), of(any::<IpAddr>()), action, target, result)
        .prop_map(|(who, tenant, from, action, target, result)| Audit { who, tenant, from, action, target, result })
        .boxed()
}

/// Records about keys, tenants and the audit.
pub(super) fn of_access() -> BoxedStrategy<Event> {
    prop_oneof![
        key().prop_map(|key| Event::KeyCreated(Box::new(key))),
        key_id().prop_map(|key| Event::KeyRevoked { key }),
        (key_id(), san()).prop_map(|(key, certificate_san)| Event::KeyBound { key, certificate_san }),
        (tenant(), tenant_name()).prop_map(|(tenant, name)| Event::TenantCreated { tenant, name }),
        tenant().prop_map(|tenant| Event::TenantDeleted { tenant }),
        audit().prop_map(|audit| Event::Audited(Box::new(audit))),
    ]
    .boxed()
}

/// Images of keys, tenants and the audit.
pub(super) fn image_of_access() -> BoxedStrategy<Image> {
    prop_oneof![
        (tenant(), number()).prop_map(|(last_tenant, next_audit)| Image::Access { last_tenant, next_audit }),
        (tenant(), tenant_name()).prop_map(|(tenant, name)| Image::Tenant { tenant, name }),
        key().prop_map(|key| Image::Key(Arc::new(key))),
        (number(), time(), audit()).prop_map(|(number, at, audit)| Image::Audit(Arc::new(AuditEntry {
            number,
            at,
            audit
        }))),
    ]
    .boxed()
}
