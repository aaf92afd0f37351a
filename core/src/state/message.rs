//! A stored message: what decisions need, and a reference to its bytes.

use std::sync::Arc;

use crate::types::{
    Body, DEFAULT_TENANT, DeadLetterOrigin, DecisionFields, IdentityKey, MessageFlags, Offset, PayloadId, PayloadRef,
    ProduceScope, RETAINED_MESSAGE_OVERHEAD, RedriveOrigin, RetryPolicy, Text, Timestamp, TopicName,
};

/// A stored message. Its bytes stand in the log; no decision reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its offset in the topic.
    pub offset: Offset,
    /// When it was stored.
    pub produced_at: Timestamp,
    /// Where its bytes stand.
    pub payload: PayloadRef,
    /// Derived from the decision fields.
    pub(crate) flags: MessageFlags,
    fields: Option<Arc<DecisionFields>>,
}

/// A message that is stored next: all but its offset and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewMessage {
    pub(crate) payload: PayloadRef,
    pub(crate) fields: Option<Arc<DecisionFields>>,
}

impl NewMessage {
    /// A message whose producer wrote `body`, which stands at `id`.
    pub(crate) fn produced(id: PayloadId, body: &Body) -> Self {
        Self { payload: PayloadRef::new(id, body), fields: body.decision_fields() }
    }
}

impl Message {
    /// A message with these fields; empty ones count as none.
    #[must_use]
    pub fn new(
        offset: Offset,
        produced_at: Timestamp,
        payload: PayloadRef,
        fields: Option<Arc<DecisionFields>>,
    ) -> Self {
        let fields = fields.filter(|fields| !fields.is_empty());
        let flags = fields.as_ref().map_or_else(MessageFlags::default, |fields| fields.flags());
        Self { offset, produced_at, payload, flags, fields }
    }

    /// What every delivery needs of its metadata.
    #[must_use]
    pub fn flags(&self) -> MessageFlags {
        self.flags
    }

    /// What decisions need of its metadata; `None` if nothing.
    #[must_use]
    pub fn fields(&self) -> Option<&Arc<DecisionFields>> {
        self.fields.as_ref()
    }

    /// Tenant and idempotency key, if it has a key.
    #[must_use]
    pub fn identity_key(&self) -> Option<&IdentityKey> {
        self.fields.as_ref()?.identity_key()
    }

    /// Tenant and idempotency key as texts, if it has a key.
    #[must_use]
    pub fn identity(&self) -> Option<(&str, &str)> {
        self.identity_key().map(IdentityKey::parts)
    }

    /// Its tenant.
    #[must_use]
    pub fn tenant(&self) -> &str {
        let identity = self.fields.as_ref().and_then(|fields| fields.identity.as_ref());
        identity.map_or(DEFAULT_TENANT, |identity| identity.parts().0)
    }

    /// What the producer asked for, given the topic in which the message is stored.
    #[must_use]
    pub fn produce_scope(&self, stored_in: &TopicName) -> ProduceScope {
        let requested = self.fields.as_ref().and_then(|fields| fields.requested.clone());
        requested.unwrap_or_else(|| ProduceScope::new(stored_in, None))
    }

    /// The time of its deadline. None of a dead letter, which only keeps it for a redrive. That of a message whose
    /// payload is lost has passed: no group may wait for it any more.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        let fields = self.fields.as_ref().filter(|_| self.flags.has_deadline)?;
        if fields.lost.is_some() { Some(Timestamp(0)) } else { fields.deadline }
    }

    /// Where and how its payload was damaged, if it is lost.
    #[must_use]
    pub fn lost(&self) -> Option<&Text> {
        self.fields.as_ref()?.lost.as_ref()
    }

    /// The message after its payload was lost. Its lengths stay as they are, so that nothing has to be counted again.
    pub(crate) fn lose(&mut self, damage: &Text) {
        let fields = match &self.fields {
            Some(fields) => fields.without_payload(damage),
            None => DecisionFields::default().without_payload(damage),
        };
        let payload = PayloadRef { id: PayloadId::LOST, ..self.payload };
        *self = Self::new(self.offset, self.produced_at, payload, Some(Arc::new(fields)));
    }

    /// The message as clients see it if its payload is lost; `None` if it is not.
    #[must_use]
    pub fn body_without_payload(&self) -> Option<Body> {
        let fields = self.fields.as_ref().filter(|fields| fields.lost.is_some())?;
        Some(Body::pack(&fields.metadata(), &[], &[]))
    }

    /// Its retry policy. None of a dead letter, which only keeps it for a redrive.
    #[must_use]
    pub fn retry_policy(&self) -> Option<RetryPolicy> {
        self.fields.as_ref().filter(|fields| fields.dead_letter.is_none())?.retry_policy
    }

    /// The earliest wall time of its first delivery.
    #[must_use]
    pub fn deliver_at(&self) -> Option<Timestamp> {
        self.fields.as_ref()?.deliver_at
    }

    /// The end of its delay, in broker time.
    #[must_use]
    pub fn delayed_until(&self) -> Option<Timestamp> {
        self.fields.as_ref()?.delayed_until
    }

    /// What dead-lettering has added, if it is a dead letter.
    #[must_use]
    pub fn dead_letter(&self) -> Option<&DeadLetterOrigin> {
        self.fields.as_ref()?.dead_letter.as_ref()
    }

    /// What the last redrive has added, if it was redriven.
    #[must_use]
    pub fn redrive(&self) -> Option<RedriveOrigin> {
        self.fields.as_ref()?.redrive
    }

    /// The message as clients see it, given the bytes that its payload refers to.
    #[must_use]
    pub fn body(&self, stored: &Body) -> Body {
        match &self.fields {
            Some(fields) => stored.completed_by(fields),
            None => stored.clone(),
        }
    }

    /// What it counts towards [`Limits::retained_bytes_max`](crate::types::Limits::retained_bytes_max).
    #[must_use]
    pub fn retained_bytes(&self) -> u64 {
        self.payload.encoded_len() + RETAINED_MESSAGE_OVERHEAD
    }
}
