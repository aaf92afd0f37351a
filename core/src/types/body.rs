//! A message's bytes in memory and in the log: metadata, key and value in one shared allocation.

use std::sync::Arc;

use crate::types::{DecisionFields, Envelope, IdentityKey, MessageFlags, Metadata, ProduceScope, TopicName, metadata};
use crate::wire::{Malformed, join};

/// One message's metadata, key and value, shared without copying.
///
/// Decisions read the metadata and the lengths, never the payload.
#[derive(Clone)]
pub struct Body {
    bytes: Arc<[u8]>,
    metadata_len: u32,
    key_len: u32,
    /// Derived from the metadata.
    pub(crate) flags: MessageFlags,
    /// What decisions need of the metadata, if that is known already.
    fields: Option<Arc<DecisionFields>>,
}

impl Body {
    /// Packs a message.
    ///
    /// # Panics
    /// If a part is longer than 4 GiB.
    #[must_use]
    pub fn pack(meta: &Metadata, key: &[u8], value: &[u8]) -> Self {
        if meta.is_empty() {
            return Self::bare(key, value);
        }
        let mut packed_meta = Vec::with_capacity(256);
        metadata::encode(meta, &mut packed_meta);
        Self::join([&packed_meta, key, value], MessageFlags::of(meta))
    }

    /// Packs a message without metadata.
    ///
    /// # Panics
    /// If a part is longer than 4 GiB.
    #[must_use]
    pub fn bare(key: &[u8], value: &[u8]) -> Self {
        Self::join([&[], key, value], MessageFlags::default())
    }

    /// A result, as the payload of its record. Shares its bytes.
    #[must_use]
    pub(crate) fn of_result(result: &Arc<str>) -> Self {
        let bytes = Arc::<[u8]>::from(Arc::clone(result));
        Self { bytes, metadata_len: 0, key_len: 0, flags: MessageFlags::default(), fields: None }
    }

    fn join(parts: [&[u8]; 3], flags: MessageFlags) -> Self {
        let [metadata, key, _] = parts;
        let metadata_len = u32::try_from(metadata.len()).expect("metadata is shorter than 4 GiB");
        let key_len = u32::try_from(key.len()).expect("the key is shorter than 4 GiB");
        Self { bytes: join(&parts), metadata_len, key_len, flags, fields: None }
    }

    /// Restores a packed message from the log.
    ///
    /// # Errors
    /// [`Malformed`] if the metadata is not what [`Body::pack`] writes.
    pub fn unpack(bytes: &[u8], metadata_len: u32, key_len: u32) -> Result<Self, Malformed> {
        if u64::from(metadata_len) + u64::from(key_len) > bytes.len() as u64 {
            return Err(Malformed("message parts exceed the message"));
        }
        let flags = match metadata_len {
            0 => MessageFlags::default(),
            len => metadata::flags(&bytes[..len as usize])?,
        };
        Ok(Self { bytes: Arc::from(bytes), metadata_len, key_len, flags, fields: None })
    }

    /// The same key and value with other metadata.
    #[must_use]
    pub(crate) fn with_metadata(&self, meta: &Metadata) -> Self {
        Self::pack(meta, self.key(), self.value())
    }

    /// As [`Body::with_metadata`], with the packed identity of `meta`: of a message that is stored next, whose fields
    /// are needed then.
    #[must_use]
    pub(crate) fn to_store(&self, meta: &Metadata, identity: IdentityKey) -> Self {
        let fields = DecisionFields::with_identity(meta, Some(identity));
        Self { fields: Some(Arc::new(fields)), ..self.with_metadata(meta) }
    }

    /// As [`Body::to_store`] of this bare body, of an envelope in which nothing but tenant and idempotency key are set.
    #[must_use]
    pub(crate) fn to_store_keyed(&self, envelope: &Envelope, identity: IdentityKey) -> Self {
        let tenant = envelope.tenant_id.as_deref();
        let key = envelope.idempotency_key.as_deref().unwrap_or_default();
        let [of_tenant, of_key] = metadata::identity_heads(tenant, key);
        let (of_tenant, of_key) = (of_tenant.bytes(), of_key.bytes());
        let tenant = tenant.unwrap_or_default().as_bytes();
        let metadata_len = of_tenant.len() + tenant.len() + of_key.len() + key.len();
        let bytes = match of_tenant {
            [] => join(&[of_key, key.as_bytes(), &self.bytes]),
            _ => join(&[of_tenant, tenant, of_key, key.as_bytes(), &self.bytes]),
        };
        // Made where it stays: the fields take far more bytes than most of them are worth.
        let mut fields = Arc::<DecisionFields>::default();
        Arc::get_mut(&mut fields).expect("just made, not shared yet").identity = Some(identity);
        Self {
            bytes,
            metadata_len: u32::try_from(metadata_len).expect("metadata is shorter than 4 GiB"),
            key_len: self.key_len,
            flags: MessageFlags { has_identity: true, ..MessageFlags::default() },
            fields: Some(fields),
        }
    }

    /// The same without what is derived from the metadata, to be kept in memory.
    #[must_use]
    pub(crate) fn into_kept(mut self) -> Self {
        self.fields = None;
        self
    }

    /// What decisions need of the metadata; `None` if nothing.
    #[must_use]
    pub(crate) fn decision_fields(&self) -> Option<Arc<DecisionFields>> {
        match (&self.fields, self.metadata_len) {
            (Some(fields), _) => Some(fields.clone()),
            (None, 0) => None,
            (None, len) => metadata::decision_fields(&self.bytes[..len as usize]).map(Arc::new),
        }
    }

    /// The body of a message with these fields whose producer wrote this body.
    #[must_use]
    pub(crate) fn completed_by(&self, fields: &DecisionFields) -> Self {
        if fields.dead_letter.is_none() && fields.redrive.is_none() {
            return self.clone();
        }
        self.with_metadata(&fields.complete(self.metadata()))
    }

    /// The metadata, decoded.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        metadata::decode(&self.bytes[..self.metadata_len as usize])
            .expect("metadata is validated when a body is constructed")
    }

    /// Tenant and idempotency key, if the message has a key.
    #[must_use]
    pub fn identity(&self) -> Option<(&str, &str)> {
        let (tenant, key) = self.identity_bytes()?;
        Some((std::str::from_utf8(tenant).ok()?, std::str::from_utf8(key).ok()?))
    }

    /// Tenant and idempotency key, packed.
    #[must_use]
    pub(crate) fn identity_key(&self) -> Option<IdentityKey> {
        if let Some(fields) = &self.fields {
            return fields.identity_key().cloned();
        }
        self.identity_bytes().map(|(tenant, key)| IdentityKey::of_bytes(tenant, key))
    }

    /// As [`Body::identity_key`], if it is packed already.
    #[must_use]
    pub(crate) fn known_identity(&self) -> Option<&IdentityKey> {
        self.fields.as_ref()?.identity_key()
    }

    fn identity_bytes(&self) -> Option<(&[u8], &[u8])> {
        if self.flags.has_identity { metadata::identity(&self.bytes[..self.metadata_len as usize]) } else { None }
    }

    /// The run that the message belongs to, as bytes of UTF-8, if it has one.
    #[must_use]
    pub fn run_id(&self) -> Option<&[u8]> {
        metadata::run_id(&self.bytes[..self.metadata_len as usize])
    }

    /// What the producer asked for, given the topic in which the message is stored.
    #[must_use]
    pub fn produce_scope(&self, stored_in: &TopicName) -> ProduceScope {
        let requested = metadata::requested(&self.bytes[..self.metadata_len as usize]);
        requested.unwrap_or_else(|| ProduceScope::new(stored_in, None))
    }

    /// Whether the message has metadata.
    #[must_use]
    pub fn has_metadata(&self) -> bool {
        self.metadata_len > 0
    }

    /// The partitioning key; may be empty.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.bytes[self.metadata_len as usize..][..self.key_len as usize]
    }

    /// The payload.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.bytes[self.metadata_len as usize + self.key_len as usize..]
    }

    /// Bytes of key and value, which backpressure counts.
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        self.bytes.len() as u64 - u64::from(self.metadata_len)
    }

    /// A checksum of metadata, key and value, for the search of states.
    #[must_use]
    pub fn content_hash(&self) -> u64 {
        u64::from(crc32fast::hash(&self.bytes)) | u64::from(self.metadata_len ^ self.key_len.rotate_left(16)) << 32
    }

    /// The cached part of the metadata.
    #[must_use]
    pub fn flags(&self) -> MessageFlags {
        self.flags
    }

    /// The bytes of key, value and metadata.
    #[must_use]
    pub fn encoded_len(&self) -> u64 {
        self.parts().0.len() as u64
    }

    pub(crate) fn parts(&self) -> (&[u8], u32, u32) {
        (&self.bytes, self.metadata_len, self.key_len)
    }
}

/// Equal if the bytes are; the rest is derived from them.
impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Body {}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body")
            .field("key", &String::from_utf8_lossy(self.key()))
            .field("value_len", &self.value().len())
            .field("metadata_len", &self.metadata_len)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{
        DeadLetter, DeadLetterOrigin, DeadReason, Deadline, Envelope, GroupName, Offset, PartitionId, Priority,
        RedriveOrigin, RetryPolicy, Routing, Text, Timestamp,
    };

    fn dead_letter() -> Box<DeadLetter> {
        let origin = DeadLetterOrigin {
            original_topic: topic(),
            original_partition: PartitionId(1),
            original_offset: Offset(2),
            group: GroupName::new("g").unwrap(),
            attempts: 3,
            last_error: Text::default(),
            reason: DeadReason::MaxAttempts,
            routed_at: Timestamp(4),
        };
        Box::new(DeadLetter { origin, kept: Default::default() })
    }

    fn topic() -> TopicName {
        TopicName::new("t").unwrap()
    }

    /// Metadata with each field alone, and with all the texts of the envelope.
    fn metadata_of_every_field() -> Vec<Metadata> {
        let text = || Some(Text::from("x"));
        let deadline = Deadline { at: Timestamp(0), text: "0".into() };
        let texts = Envelope {
            run_id: text(),
            step_id: text(),
            parent_step_id: text(),
            tenant_id: text(),
            idempotency_key: text(),
            ..Envelope::default()
        };
        let envelopes = [
            Envelope { run_id: text(), ..Envelope::default() },
            Envelope { step_id: text(), ..Envelope::default() },
            Envelope { parent_step_id: text(), ..Envelope::default() },
            Envelope { tenant_id: text(), ..Envelope::default() },
            Envelope { idempotency_key: text(), ..Envelope::default() },
            Envelope { target_topic: Some(topic()), ..Envelope::default() },
            Envelope { partition_override: Some(PartitionId(0)), ..Envelope::default() },
            Envelope { deadline: Some(deadline), ..Envelope::default() },
            Envelope { retry_policy: Some(RetryPolicy::default()), ..Envelope::default() },
            Envelope { priority: Priority::new(0), ..Envelope::default() },
            Envelope { deliver_at: Some(Timestamp(0)), ..Envelope::default() },
            Envelope { delayed_until: Some(Timestamp(0)), ..Envelope::default() },
            Envelope { labels: [("a".into(), "b".into())].into(), ..Envelope::default() },
            texts,
        ];
        let redrive = RedriveOrigin { count: 0, dead_letter_offset: Offset(0), original_offset: Offset(0) };
        let others = [
            Metadata { routing: Some(Routing::default()), ..Metadata::default() },
            Metadata { trace: text(), ..Metadata::default() },
            Metadata { dead_letter: Some(dead_letter()), ..Metadata::default() },
            Metadata { redrive: Some(redrive), ..Metadata::default() },
            Metadata { requested: Some(ProduceScope::new(&topic(), None)), ..Metadata::default() },
        ];
        let of_envelope = |envelope| Metadata { envelope, ..Metadata::default() };
        envelopes.map(of_envelope).into_iter().chain(others).collect()
    }

    #[test]
    fn every_field_of_the_metadata_is_packed_also_alone() {
        for meta in metadata_of_every_field() {
            let body = Body::pack(&meta, b"k", b"v");
            assert!(body.has_metadata());
            assert_eq!((body.metadata(), body.key(), body.value()), (meta, &b"k"[..], &b"v"[..]));
        }
    }

    #[test]
    fn keyed_message_is_packed_as_any_other() {
        let bare = Body::bare(b"k", b"v");
        for tenant in [None, Some(""), Some("t"), Some(&*"t".repeat(200))] {
            for key in ["key", &*"k".repeat(127), &*"k".repeat(128), &*"k".repeat(20_000)] {
                let (tenant_id, idempotency_key) = (tenant.map(Text::from), Some(Text::from(key)));
                let envelope = Envelope { tenant_id, idempotency_key, ..Envelope::default() };
                assert!(envelope.has_only_identity());
                let identity = IdentityKey::new(envelope.tenant(), key);
                let keyed = bare.to_store_keyed(&envelope, identity.clone());
                let packed = bare.to_store(&Metadata { envelope, ..Metadata::default() }, identity);
                assert_eq!((&keyed, keyed.flags()), (&packed, packed.flags()));
                assert_eq!(keyed.decision_fields(), packed.decision_fields());
            }
        }
    }

    #[test]
    fn only_key_and_tenant_are_an_identity_alone() {
        for meta in metadata_of_every_field() {
            let of_key = Envelope { idempotency_key: Some("x".into()), ..Envelope::default() };
            assert_eq!(meta.envelope.has_only_identity(), meta.envelope == of_key);
            let is_tenant = meta.envelope.tenant_id.is_some() && meta.envelope.run_id.is_none();
            let envelope = Envelope { idempotency_key: Some("x".into()), ..meta.envelope };
            let has_nothing_else = is_tenant || envelope == of_key;
            assert_eq!(envelope.has_only_identity(), has_nothing_else);
        }
    }

    #[test]
    fn message_without_metadata_is_bare() {
        assert!(Envelope::default().is_empty());
        let bare = Body::bare(b"k", b"v");
        assert_eq!(Body::pack(&Metadata::default(), b"k", b"v"), bare);
        assert!(!bare.has_metadata());
        assert_eq!(bare.metadata(), Metadata::default());
    }
}
