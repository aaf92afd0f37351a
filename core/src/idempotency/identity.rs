//! Who an effect is: tenant, scope and key.

use crate::codec::{Malformed, Reader};
use crate::state::IdentityKey;
use crate::types::message::DEFAULT_TENANT;
use crate::types::{GroupName, Text, TopicName};

/// The number of each kind of scope.
pub(crate) mod tag {
    pub(crate) const CONSUME: u8 = 0;
    pub(crate) const TENANT: u8 = 1;
    pub(crate) const JOB: u8 = 2;
    pub(crate) const TASK: u8 = 3;
    pub(crate) const RPC: u8 = 4;
}

/// What a key is unique within. An enum, never a joined string: no text in one scope can be mistaken for another's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A group's work on a topic's messages. Two groups each run their own effect.
    Consume {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: GroupName,
    },
    /// Anything of the tenant's.
    Tenant,
    /// A job of a registry.
    Job {
        /// Which.
        id: Text,
    },
    /// A task whose attempts are fenced.
    Task {
        /// Which.
        id: Text,
    },
    /// A call of a service's method.
    Rpc {
        /// Who calls.
        principal: Text,
        /// What.
        method: Text,
    },
}

impl Scope {
    /// Its word in APIs.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Consume { .. } => "consume",
            Self::Tenant => "tenant",
            Self::Job { .. } => "job",
            Self::Task { .. } => "task",
            Self::Rpc { .. } => "rpc",
        }
    }

    /// Its number in the log, and in keys.
    pub(crate) const fn tag(&self) -> u8 {
        match self {
            Self::Consume { .. } => tag::CONSUME,
            Self::Tenant => tag::TENANT,
            Self::Job { .. } => tag::JOB,
            Self::Task { .. } => tag::TASK,
            Self::Rpc { .. } => tag::RPC,
        }
    }

    /// The texts that tell scopes of one kind apart.
    pub(crate) fn parts(&self) -> [&str; 2] {
        match self {
            Self::Consume { topic, group } => [topic.as_str(), group.as_str()],
            Self::Tenant => ["", ""],
            Self::Job { id } | Self::Task { id } => [id, ""],
            Self::Rpc { principal, method } => [principal, method],
        }
    }
}

/// The name of one effect: tenant, scope and key, packed once into what the store looks it up by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// What the key is unique within.
    pub scope: Scope,
    packed: IdentityKey,
    /// Where the tenant's name stands in it, and how long that is.
    tenant: (u32, u32),
    /// From where on the key stands in it.
    key_from: u32,
}

impl Identity {
    /// The effect `key` of `tenant` within `scope`. An empty tenant is `"default"`; an empty key is no idempotency at all.
    #[must_use]
    pub fn new(tenant: &str, scope: Scope, key: &str) -> Self {
        let tenant = if tenant.is_empty() { DEFAULT_TENANT } else { tenant };
        let packed = pack(tenant, &scope, key);
        let at = |length: usize| u32::try_from(length).expect("names are bounded at the edge");
        let tenant_from = at(crate::codec::varint(tenant.len() as u64).1);
        let key_from = at(packed.bytes().len() - key.len());
        Self { scope, packed, tenant: (tenant_from, at(tenant.len())), key_from }
    }

    /// Whose effect it is; never empty.
    #[must_use]
    pub fn tenant(&self) -> &str {
        std::str::from_utf8(self.bytes().0).expect("packed by `new`")
    }

    /// The key; empty for no idempotency at all.
    #[must_use]
    pub fn key(&self) -> &str {
        std::str::from_utf8(self.bytes().1).expect("packed by `new`")
    }

    /// Tenant and key, as bytes: where only their length or their spelling matters.
    pub(crate) fn bytes(&self) -> (&[u8], &[u8]) {
        let (bytes, (from, len)) = (self.packed.bytes(), self.tenant);
        (&bytes[from as usize..][..len as usize], &bytes[self.key_from as usize..])
    }

    /// The key within its table, see [`Store`](super::Store).
    pub(super) fn packed(&self) -> &IdentityKey {
        &self.packed
    }

    /// The identity behind a key of the table that is for everything but consume scopes.
    pub(super) fn of_shared(key: &IdentityKey) -> Self {
        let (tenant, scope, key) = unpack(key.bytes()).expect("packed by `new`");
        Self::new(tenant, scope, key)
    }
}

/// What an effect is looked up by in its table. That of a consume scope need not say in its keys which scope it is.
fn pack(tenant: &str, scope: &Scope, key: &str) -> IdentityKey {
    let length = |text: &str| crate::codec::varint(text.len() as u64);
    let (tenant_len, len) = length(tenant);
    let (tenant_len, tenant, key) = (&tenant_len[..len], tenant.as_bytes(), key.as_bytes());
    match scope {
        Scope::Consume { .. } => IdentityKey::joined(&[tenant_len, tenant, key]),
        Scope::Tenant => IdentityKey::joined(&[tenant_len, tenant, &[scope.tag()], key]),
        Scope::Job { id } | Scope::Task { id } => {
            let (id_len, len) = length(id);
            IdentityKey::joined(&[tenant_len, tenant, &[scope.tag()], &id_len[..len], id.as_bytes(), key])
        }
        Scope::Rpc { principal, method } => {
            let ((one_len, one), (two_len, two)) = (length(principal), length(method));
            let principal = [&one_len[..one], principal.as_bytes()];
            let method = [&two_len[..two], method.as_bytes()];
            IdentityKey::joined(&[
                tenant_len,
                tenant,
                &[scope.tag()],
                principal[0],
                principal[1],
                method[0],
                method[1],
                key,
            ])
        }
    }
}

/// Takes apart what [`pack`] wrote for any scope but a consume scope.
fn unpack(packed: &[u8]) -> Result<(&str, Scope, &str), Malformed> {
    let mut from = Reader::new(packed);
    let tenant = from.text()?;
    let scope = match from.byte()? {
        tag::TENANT => Scope::Tenant,
        tag::JOB => Scope::Job { id: from.text()?.into() },
        tag::TASK => Scope::Task { id: from.text()?.into() },
        tag::RPC => Scope::Rpc { principal: from.text()?.into(), method: from.text()?.into() },
        _ => return Err(Malformed("unknown scope")),
    };
    let key = std::str::from_utf8(from.rest()).map_err(|_| Malformed("text is not UTF-8"))?;
    Ok((tenant, scope, key))
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("tenant", &self.tenant())
            .field("scope", &self.scope)
            .field("key", &self.key())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_come_back_from_their_keys_and_no_two_share_one() {
        let text = Text::from;
        let scopes = [
            Scope::Tenant,
            Scope::Job { id: text("a") },
            Scope::Task { id: text("a") },
            Scope::Rpc { principal: text("a"), method: text("b") },
            Scope::Rpc { principal: text("ab"), method: text("") },
            Scope::Rpc { principal: text(""), method: text("ab") },
        ];
        let identities: Vec<_> = scopes
            .iter()
            .flat_map(|scope| [("t", "k"), ("tk", ""), ("", "tk")].map(|(t, k)| Identity::new(t, scope.clone(), k)))
            .collect();
        for identity in &identities {
            assert_eq!(Identity::of_shared(identity.packed()), *identity);
        }
        let long = Identity::new(&"t".repeat(200), Scope::Tenant, &"k".repeat(200));
        assert_eq!((long.tenant(), long.key()), (&*"t".repeat(200), &*"k".repeat(200)));
        assert_eq!((identities[1].tenant(), identities[1].key()), ("tk", ""));
        let mut keys: Vec<_> = identities.iter().map(Identity::packed).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), identities.len());
    }

    #[test]
    fn no_tenant_is_the_default_tenant() {
        assert_eq!(Identity::new("", Scope::Tenant, "k"), Identity::new("default", Scope::Tenant, "k"));
    }
}
