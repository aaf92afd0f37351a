//! The identity of an effect: tenant, scope and key.

use crate::types::identity_key::tenant_text;
use crate::types::{DEFAULT_TENANT, GroupName, IdentityKey, Text, TopicName};
use crate::wire::{Malformed, Reader};

/// The encoded tag of each kind of scope.
pub(crate) mod tag {
    pub(crate) const CONSUME: u8 = 0;
    pub(crate) const TENANT: u8 = 1;
    pub(crate) const JOB: u8 = 2;
    pub(crate) const TASK: u8 = 3;
    pub(crate) const RPC: u8 = 4;
}

/// The scope within which a key is unique.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Processing of a topic's messages by one group. Each group executes its own effect.
    Consume {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: GroupName,
    },
    /// The whole tenant.
    Tenant,
    /// A job.
    Job {
        /// The job's id.
        id: Text,
    },
    /// A task.
    Task {
        /// The task's id.
        id: Text,
    },
    /// Calls of one method by one principal.
    Rpc {
        /// The caller.
        principal: Text,
        /// The method.
        method: Text,
    },
}

impl Scope {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> ScopeKind {
        match self {
            Self::Consume { .. } => ScopeKind::Consume,
            Self::Tenant => ScopeKind::Tenant,
            Self::Job { .. } => ScopeKind::Job,
            Self::Task { .. } => ScopeKind::Task,
            Self::Rpc { .. } => ScopeKind::Rpc,
        }
    }

    /// The tag used in the log and in packed keys.
    pub(crate) const fn tag(&self) -> u8 {
        match self {
            Self::Consume { .. } => tag::CONSUME,
            Self::Tenant => tag::TENANT,
            Self::Job { .. } => tag::JOB,
            Self::Task { .. } => tag::TASK,
            Self::Rpc { .. } => tag::RPC,
        }
    }

    /// The texts that distinguish scopes of one kind.
    pub(crate) fn parts(&self) -> [&str; 2] {
        match self {
            Self::Consume { topic, group } => [topic.encoded(), group.as_str()],
            Self::Tenant => ["", ""],
            Self::Job { id } | Self::Task { id } => [id, ""],
            Self::Rpc { principal, method } => [principal, method],
        }
    }
}

/// The kind of a [`Scope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeKind {
    /// [`Scope::Consume`].
    Consume,
    /// [`Scope::Tenant`].
    Tenant,
    /// [`Scope::Job`].
    Job,
    /// [`Scope::Task`].
    Task,
    /// [`Scope::Rpc`].
    Rpc,
}

impl ScopeKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Consume, Self::Tenant, Self::Job, Self::Task, Self::Rpc];

    /// The code used in APIs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Consume => "consume",
            Self::Tenant => "tenant",
            Self::Job => "job",
            Self::Task => "task",
            Self::Rpc => "rpc",
        }
    }
}

/// The identity of one effect. Packed once, so that lookups allocate nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The scope within which the key is unique.
    pub scope: Scope,
    packed: IdentityKey,
    /// Start and length of the tenant in the packed bytes.
    tenant: (u32, u32),
    /// Start of the key in the packed bytes.
    key_from: u32,
}

impl Identity {
    /// The effect `key` of `tenant` within `scope`. An empty tenant is [`DEFAULT_TENANT`]; an empty key disables
    /// idempotency.
    #[must_use]
    pub fn new(tenant: &str, scope: Scope, key: &str) -> Self {
        let tenant = if tenant.is_empty() { DEFAULT_TENANT } else { tenant };
        let packed = pack(tenant, &scope, key);
        let at = |length: usize| u32::try_from(length).expect("an identity is shorter than 4 GiB");
        let tenant_from = at(crate::wire::varint(tenant.len() as u64).1);
        let key_from = at(packed.bytes().len() - key.len());
        Self { scope, packed, tenant: (tenant_from, at(tenant.len())), key_from }
    }

    /// The effect of processing a message with this key, made by [`IdentityKey::new`], in a group.
    pub(crate) fn consumed(topic: TopicName, group: GroupName, packed: IdentityKey) -> Self {
        let at = |length: usize| u32::try_from(length).expect("an identity is shorter than 4 GiB");
        let (tenant_from, tenant_len) = packed.tenant_range();
        let tenant = (at(tenant_from), at(tenant_len));
        Self { scope: Scope::Consume { topic, group }, packed, tenant, key_from: at(tenant_from + tenant_len) }
    }

    /// The tenant; never empty.
    #[must_use]
    pub fn tenant(&self) -> &str {
        tenant_text(self.bytes().0)
    }

    /// The key; an empty key disables idempotency.
    #[must_use]
    pub fn key(&self) -> &str {
        std::str::from_utf8(self.bytes().1).expect("the key is UTF-8")
    }

    /// Tenant and key as bytes.
    pub(crate) fn bytes(&self) -> (&[u8], &[u8]) {
        let (bytes, (from, len)) = (self.packed.bytes(), self.tenant);
        (&bytes[from as usize..][..len as usize], &bytes[self.key_from as usize..])
    }

    /// The key within the table of its [`EffectNamespace`]; pages of effects are in this order.
    #[must_use]
    pub fn packed(&self) -> &IdentityKey {
        &self.packed
    }

    /// The identity of a key in [`EffectNamespace::Shared`].
    fn of_shared(key: &IdentityKey) -> Self {
        let (tenant, scope, rest) = unpack(key.bytes()).expect("shared keys are packed with their scope");
        let at = |length: usize| u32::try_from(length).expect("an identity is shorter than 4 GiB");
        let tenant = (at(crate::wire::varint(tenant.len() as u64).1), at(tenant.len()));
        Self { scope, packed: key.clone(), tenant, key_from: at(key.bytes().len() - rest.len()) }
    }
}

/// The key of an effect within its table. A consume scope has a table of its own, so its keys omit the scope.
fn pack(tenant: &str, scope: &Scope, key: &str) -> IdentityKey {
    let length = |text: &str| crate::wire::varint(text.len() as u64);
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

/// Reads what [`pack`] wrote for any scope except a consume scope.
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

/// The table that stores an effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EffectNamespace {
    /// The table of all scopes except `consume`.
    Shared,
    /// The table of a group's `consume` scope, deleted with the group or its topic.
    Group(TopicName, GroupName),
}

impl EffectNamespace {
    /// The namespace of the effects of `scope`.
    #[must_use]
    pub(crate) fn of(scope: &Scope) -> Self {
        match scope {
            Scope::Consume { topic, group } => Self::Group(topic.clone(), group.clone()),
            _ => Self::Shared,
        }
    }

    /// The identity of `key` in this namespace.
    #[must_use]
    pub fn identity(&self, key: &IdentityKey) -> Identity {
        match self {
            Self::Shared => Identity::of_shared(key),
            Self::Group(topic, group) => Identity::consumed(topic.clone(), group.clone(), key.clone()),
        }
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
    fn packed_keys_round_trip_and_are_unique() {
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
        let (topic, group) = (TopicName::new("t").unwrap(), GroupName::new("g").unwrap());
        for (tenant, key) in [("tenant", "key"), (&*"t".repeat(200), "k")] {
            let consumed = Identity::consumed(topic.clone(), group.clone(), IdentityKey::new(tenant, key));
            assert_eq!((consumed.tenant(), consumed.key()), (tenant, key));
        }
        let mut keys: Vec<_> = identities.iter().map(Identity::packed).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), identities.len());
    }

    #[test]
    fn identity_without_tenant_has_default_tenant() {
        assert_eq!(Identity::new("", Scope::Tenant, "k"), Identity::new("default", Scope::Tenant, "k"));
    }
}
