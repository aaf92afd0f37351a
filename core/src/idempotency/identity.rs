//! Who an effect is: tenant, scope and key.

use crate::state::IdentityKey;
use crate::types::message::DEFAULT_TENANT;
use crate::types::{GroupName, Text, TopicName};

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
        // The table of a consume scope need not say in its keys which it is.
        let packed = match &scope {
            Scope::Consume { .. } => IdentityKey::new(tenant, key),
            scope => {
                let [one, two] = scope.parts();
                IdentityKey::of([tenant, scope.kind(), one, two, key])
            }
        };
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
        let [tenant, kind, one, two, key] = key.texts();
        let scope = match kind {
            "tenant" => Scope::Tenant,
            "job" => Scope::Job { id: one.into() },
            "task" => Scope::Task { id: one.into() },
            "rpc" => Scope::Rpc { principal: one.into(), method: two.into() },
            other => unreachable!("packed by `new`: {other}"),
        };
        Self::new(tenant, scope, key)
    }
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
