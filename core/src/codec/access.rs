//! Encoding of keys, tenants and the audit.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::fields::{optional, put_optional};
use crate::types::names::{certificate_san, group_name, key_name, tenant_name};
use crate::types::{
    Audit, AuditAction, AuditEntry, AuditResult, AuditTarget, CertificateSan, Grant, Key, KeyDigest, KeyId, Principal,
    TenantId, Timestamp, TopicName, TopicPattern, Verbs,
};
use crate::wire::{Malformed, Reader, put_bytes, put_varint};

pub(super) fn put_key_id(out: &mut Vec<u8>, id: KeyId) {
    out.extend_from_slice(id.as_str().as_bytes());
}

pub(super) fn key_id(from: &mut Reader<'_>) -> Result<KeyId, Malformed> {
    let text = std::str::from_utf8(from.take(KeyId::LEN as u64)?).ok();
    text.and_then(|text| text.parse().ok()).ok_or(Malformed("not the id of a key"))
}

pub(super) fn put_key(out: &mut Vec<u8>, key: &Key) {
    let Key { id, name, tenant, digest, grants, created_at, expires_at, certificate_san } = key;
    put_key_id(out, *id);
    put_bytes(out, name.as_str().as_bytes());
    put_varint(out, u64::from(tenant.0));
    out.extend_from_slice(&digest.0);
    put_varint(out, created_at.0);
    put_optional(out, expires_at.map(|expires_at| expires_at.0));
    put_san(out, certificate_san.as_ref());
    for grant in grants.iter() {
        out.push(grant.verbs.bits());
        put_bytes(out, grant.topics.to_string().as_bytes());
    }
}

pub(super) fn key(from: &mut Reader<'_>) -> Result<Key, Malformed> {
    let (id, name) = (key_id(from)?, key_name(from.text()?)?);
    let tenant = TenantId(from.varint32()?);
    let digest = from.take(32)?.try_into().map_err(|_| Malformed("not the digest of a key"))?;
    let (created_at, expires_at) = (Timestamp(from.varint()?), optional(from)?.map(Timestamp));
    let certificate_san = san(from)?;
    let mut grants = Vec::new();
    while !from.is_empty() {
        grants.push(grant(from)?);
    }
    if grants.is_empty() || grants.len() > Grant::COUNT_MAX {
        return Err(Malformed("a key without grants, or with too many"));
    }
    let (digest, grants) = (KeyDigest(digest), Arc::from(grants));
    Ok(Key { id, name, tenant, digest, grants, created_at, expires_at, certificate_san })
}

fn grant(from: &mut Reader<'_>) -> Result<Grant, Malformed> {
    let verbs = Verbs::from_bits(from.byte()?).filter(|verbs| !verbs.is_empty()).ok_or(Malformed("unknown verbs"))?;
    let text = from.text()?;
    let topics = TopicPattern::new(text).ok().filter(|topics| topics.to_string() == text);
    Ok(Grant { verbs, topics: topics.ok_or(Malformed("not a pattern of topics"))? })
}

/// An optional SAN: none is empty.
pub(super) fn put_san(out: &mut Vec<u8>, san: Option<&CertificateSan>) {
    put_bytes(out, san.map_or("", CertificateSan::as_str).as_bytes());
}

pub(super) fn san(from: &mut Reader<'_>) -> Result<Option<CertificateSan>, Malformed> {
    match from.text()? {
        "" => Ok(None),
        text => certificate_san(text).map(Some),
    }
}

pub(super) fn put_audit(out: &mut Vec<u8>, audit: &Audit) {
    let Audit { who, tenant, from, action, target, result } = audit;
    match who {
        Principal::Trusted => out.push(0),
        Principal::Anonymous => out.push(1),
        Principal::Key(id) => {
            out.push(2);
            put_key_id(out, *id);
        }
    }
    put_varint(out, u64::from(tenant.0));
    match from {
        None => out.push(0),
        Some(IpAddr::V4(address)) => {
            out.push(4);
            out.extend_from_slice(&address.octets());
        }
        Some(IpAddr::V6(address)) => {
            out.push(6);
            out.extend_from_slice(&address.octets());
        }
    }
    out.extend([action.code(), result.code()]);
    match target {
        AuditTarget::Nothing => out.push(0),
        AuditTarget::Topic(topic) => {
            out.push(1);
            put_topic(out, topic);
        }
        AuditTarget::Group(topic, group) => {
            out.push(2);
            put_topic(out, topic);
            put_bytes(out, group.as_str().as_bytes());
        }
        AuditTarget::Key(id) => {
            out.push(3);
            put_key_id(out, *id);
        }
        AuditTarget::Tenant(name) => {
            out.push(4);
            put_bytes(out, name.as_str().as_bytes());
        }
    }
}

pub(super) fn audit(from: &mut Reader<'_>) -> Result<Audit, Malformed> {
    let who = match from.byte()? {
        0 => Principal::Trusted,
        1 => Principal::Anonymous,
        2 => Principal::Key(key_id(from)?),
        _ => return Err(Malformed("unknown principal")),
    };
    let tenant = TenantId(from.varint32()?);
    let address = match from.byte()? {
        0 => None,
        4 => Some(IpAddr::V4(Ipv4Addr::from(octets::<4>(from)?))),
        6 => Some(IpAddr::V6(Ipv6Addr::from(octets::<16>(from)?))),
        _ => return Err(Malformed("unknown kind of address")),
    };
    let action = AuditAction::of_code(from.byte()?).ok_or(Malformed("unknown action"))?;
    let result = AuditResult::of_code(from.byte()?).ok_or(Malformed("unknown result"))?;
    let target = match from.byte()? {
        0 => AuditTarget::Nothing,
        1 => AuditTarget::Topic(TopicName::decode(from.text()?)?),
        2 => AuditTarget::Group(TopicName::decode(from.text()?)?, group_name(from.text()?)?),
        3 => AuditTarget::Key(key_id(from)?),
        4 => AuditTarget::Tenant(tenant_name(from.text()?)?),
        _ => return Err(Malformed("unknown audit target")),
    };
    Ok(Audit { who, tenant, from: address, action, target, result })
}

pub(super) fn put_audit_entry(out: &mut Vec<u8>, entry: &AuditEntry) {
    put_varint(out, entry.number);
    put_varint(out, entry.at.0);
    put_audit(out, &entry.audit);
}

pub(super) fn audit_entry(from: &mut Reader<'_>) -> Result<AuditEntry, Malformed> {
    Ok(AuditEntry { number: from.varint()?, at: Timestamp(from.varint()?), audit: audit(from)? })
}

fn put_topic(out: &mut Vec<u8>, topic: &TopicName) {
    put_bytes(out, topic.encoded().as_bytes());
}

fn octets<const N: usize>(from: &mut Reader<'_>) -> Result<[u8; N], Malformed> {
    from.take(N as u64)?.try_into().map_err(|_| Malformed("not an address"))
}
