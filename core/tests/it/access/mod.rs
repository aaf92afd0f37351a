//! Who may do what: keys, grants, tenants and the audit.

mod audit;
mod final_topics;
mod identities;
mod keys;
mod matrix;
mod streams;
mod tenants;

use driftq_core::command::{CreateKey, CreateTenant, KeyExpiry, RevokeKey};
use driftq_core::reply::Denied;
use driftq_core::types::*;
use driftq_core::{Refusal, Reply};

use super::test_broker::*;

/// The id of a key that is called `name` in a test.
pub fn key_id(name: &str) -> KeyId {
    format!("{name:0<12}").parse().expect("an id")
}

/// A client with the key called `name`.
pub fn by(name: &str) -> Caller {
    Caller::key(key_id(name), Some([10, 0, 0, 7].into()))
}

pub fn anonymous() -> Caller {
    Caller::anonymous(None)
}

pub fn tenant_name(name: &str) -> TenantName {
    TenantName::new(name).expect("a name")
}

/// A key called `name` with grants as they are written: `produce,consume:orders*`.
pub fn new_key(name: &str, grants: &[&str]) -> CreateKey {
    CreateKey {
        id: key_id(name),
        name: KeyName::new(name).expect("a name"),
        digest: KeyDigest([7; 32]),
        tenant: None,
        grants: grants.iter().map(|grant| grant.parse().expect("a grant")).collect(),
        expiry: None,
    }
}

pub fn denied(verb: Verb) -> Refusal {
    Refusal::PermissionDenied(Denied::Verb(verb))
}

impl TestBroker {
    /// Creates a key of the default tenant.
    pub fn key(&mut self, name: &str, grants: &[&str]) -> Caller {
        self.create(new_key(name, grants))
    }

    /// Creates a key of a tenant, which is registered if it is not.
    pub fn key_of(&mut self, tenant: &str, name: &str, grants: &[&str]) -> Caller {
        self.send(CreateTenant { name: tenant_name(tenant) }.into()).expect("registered");
        self.create(CreateKey { tenant: Some(tenant_name(tenant)), ..new_key(name, grants) })
    }

    /// Creates a key of the default tenant that expires.
    pub fn key_for(&mut self, name: &str, span: u64, grants: &[&str]) -> Caller {
        self.create(CreateKey { expiry: Some(KeyExpiry::After(Millis(span))), ..new_key(name, grants) })
    }

    fn create(&mut self, key: CreateKey) -> Caller {
        let caller = Caller::key(key.id, None);
        assert!(matches!(self.send(key.into()), Ok(Reply::KeyCreated(_))));
        caller
    }

    pub fn revoke(&mut self, name: &str) {
        assert_eq!(self.send(RevokeKey { id: key_id(name) }.into()), Ok(Reply::Success));
    }
}
