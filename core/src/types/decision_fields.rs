//! The part of a message's metadata that decisions need.

use super::identity_key::IdentityKey;
use super::message::{
    DEFAULT_TENANT, DeadLetter, DeadLetterOrigin, Envelope, KeptForRedrive, MessageFlags, Metadata, Priority,
    RedriveOrigin, RetryPolicy, Text,
};
use super::produce_scope::ProduceScope;
use super::time::Timestamp;

/// What decisions need of a message's metadata. The rest stands in the record that carries the message and is read
/// with its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionFields {
    /// Tenant and idempotency key; the key is empty if the message has a tenant only.
    pub identity: Option<IdentityKey>,
    /// What the producer asked for, unless that is only the topic in which the message was first stored.
    pub requested: Option<ProduceScope>,
    /// The time of its deadline. A dead letter keeps it for a redrive.
    pub deadline: Option<Timestamp>,
    /// Its retry policy. A dead letter keeps it for a redrive.
    pub retry_policy: Option<RetryPolicy>,
    /// Its priority.
    pub priority: Priority,
    /// See [`Envelope::deliver_at`](super::Envelope::deliver_at).
    pub deliver_at: Option<Timestamp>,
    /// See [`Envelope::delayed_until`](super::Envelope::delayed_until).
    pub delayed_until: Option<Timestamp>,
    /// What dead-lettering has added.
    pub dead_letter: Option<DeadLetterOrigin>,
    /// What the last redrive has added.
    pub redrive: Option<RedriveOrigin>,
    /// Where and how its payload was damaged, if it is lost.
    pub lost: Option<Text>,
}

impl DecisionFields {
    /// The fields of metadata as a producer writes it: neither dead-lettered nor redriven.
    #[must_use]
    pub fn of(meta: &Metadata) -> Self {
        let envelope = &meta.envelope;
        let key = envelope.identity_key();
        let has_identity = key.is_some() || envelope.tenant() != DEFAULT_TENANT;
        Self::with_identity(meta, has_identity.then(|| IdentityKey::new(envelope.tenant(), key.unwrap_or_default())))
    }

    /// As [`DecisionFields::of`], with tenant and key as they are packed already.
    pub(crate) fn with_identity(meta: &Metadata, identity: Option<IdentityKey>) -> Self {
        let envelope = &meta.envelope;
        Self {
            identity,
            requested: meta.requested.clone(),
            deadline: envelope.deadline.as_ref().map(|deadline| deadline.at),
            retry_policy: envelope.retry_policy,
            priority: envelope.priority.unwrap_or_default(),
            deliver_at: envelope.deliver_at,
            delayed_until: envelope.delayed_until,
            dead_letter: None,
            redrive: None,
            lost: None,
        }
    }

    /// Whether no field is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { identity, requested, deadline, retry_policy, priority, .. } = self;
        let Self { deliver_at, delayed_until, dead_letter, redrive, lost, .. } = self;
        (identity.is_none() && requested.is_none() && deadline.is_none() && retry_policy.is_none())
            && (priority.level() == 0 && deliver_at.is_none() && delayed_until.is_none())
            && (dead_letter.is_none() && redrive.is_none() && lost.is_none())
    }

    /// The fields of the dead letter of such a message.
    #[must_use]
    pub(crate) fn dead_lettered(&self, origin: DeadLetterOrigin) -> Self {
        Self { dead_letter: Some(origin), deliver_at: None, delayed_until: None, ..self.clone() }
    }

    /// The fields of this dead letter, of offset `dead_letter_offset`, redriven at `wall`; `None` if it is no dead
    /// letter.
    #[must_use]
    pub(crate) fn redriven(&self, dead_letter_offset: super::Offset, wall: Timestamp) -> Option<Self> {
        let origin = self.dead_letter.as_ref()?;
        let before = self.redrive;
        let redrive = RedriveOrigin {
            count: before.map_or(0, |redrive| redrive.count).saturating_add(1),
            dead_letter_offset,
            original_offset: before.map_or(origin.original_offset, |redrive| redrive.original_offset),
        };
        // A deadline that has passed would dead-letter the message again at once.
        let deadline = self.deadline.filter(|deadline| *deadline > wall);
        Some(Self { dead_letter: None, redrive: Some(redrive), deadline, ..self.clone() })
    }

    /// The fields of such a message after its payload was lost.
    #[must_use]
    pub(crate) fn without_payload(&self, damage: &Text) -> Self {
        Self { lost: Some(damage.clone()), ..self.clone() }
    }

    /// The metadata of a message with these fields whose payload is lost: what is left of it.
    #[must_use]
    pub(crate) fn metadata(&self) -> Metadata {
        let (tenant, key) = self.identity.as_ref().map_or((DEFAULT_TENANT, ""), IdentityKey::parts);
        let envelope = Envelope {
            tenant_id: (tenant != DEFAULT_TENANT).then(|| tenant.into()),
            idempotency_key: (!key.is_empty()).then(|| key.into()),
            retry_policy: self.retry_policy,
            priority: (self.priority.level() > 0).then_some(self.priority),
            ..Envelope::default()
        };
        let meta =
            Metadata { envelope, requested: self.requested.clone(), lost: self.lost.clone(), ..Metadata::default() };
        self.complete(meta)
    }

    /// The metadata of a message with these fields whose producer wrote `meta`.
    #[must_use]
    pub(crate) fn complete(&self, mut meta: Metadata) -> Metadata {
        let envelope = &mut meta.envelope;
        if self.deadline.is_none() {
            envelope.deadline = None;
        }
        (envelope.deliver_at, envelope.delayed_until) = (self.deliver_at, self.delayed_until);
        meta.dead_letter = self.dead_letter.clone().map(|origin| {
            let kept = KeptForRedrive {
                retry_policy: envelope.retry_policy.take(),
                target_topic: envelope.target_topic.take(),
                partition_override: envelope.partition_override.take(),
                deadline: envelope.deadline.take(),
            };
            Box::new(DeadLetter { origin, kept })
        });
        meta.redrive = self.redrive;
        meta
    }

    /// The flags of a message with these fields.
    #[must_use]
    pub(crate) fn flags(&self) -> MessageFlags {
        MessageFlags {
            priority: self.priority,
            has_deadline: (self.deadline.is_some() || self.lost.is_some()) && self.dead_letter.is_none(),
            has_delay: self.deliver_at.is_some() || self.delayed_until.is_some(),
            has_identity: self.identity_key().is_some(),
        }
    }

    /// Tenant and idempotency key, if there is a key.
    #[must_use]
    pub fn identity_key(&self) -> Option<&IdentityKey> {
        self.identity.as_ref().filter(|identity| identity.has_key())
    }
}
