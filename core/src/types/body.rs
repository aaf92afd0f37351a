//! A message's bytes in memory and in the log: metadata, key and value in one shared allocation.

use std::sync::Arc;

use crate::types::{IdentityKey, MessageFlags, Metadata, ProduceScope, TopicName, metadata};
use crate::wire::{Malformed, join};

/// One message's metadata, key and value, shared without copying.
///
/// Decisions read the metadata and the lengths, never the payload.
#[derive(Clone, PartialEq, Eq)]
pub struct Body {
    bytes: Arc<[u8]>,
    metadata_len: u32,
    key_len: u32,
    /// Derived from the metadata.
    pub(crate) flags: MessageFlags,
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

    fn join(parts: [&[u8]; 3], flags: MessageFlags) -> Self {
        let [metadata, key, _] = parts;
        let metadata_len = u32::try_from(metadata.len()).expect("metadata is shorter than 4 GiB");
        let key_len = u32::try_from(key.len()).expect("the key is shorter than 4 GiB");
        Self { bytes: join(&parts), metadata_len, key_len, flags }
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
        Ok(Self { bytes: Arc::from(bytes), metadata_len, key_len, flags })
    }

    /// The same key and value with other metadata.
    #[must_use]
    pub(crate) fn with_metadata(&self, meta: &Metadata) -> Self {
        Self::pack(meta, self.key(), self.value())
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
        self.identity_bytes().map(|(tenant, key)| IdentityKey::of_bytes(tenant, key))
    }

    fn identity_bytes(&self) -> Option<(&[u8], &[u8])> {
        if self.flags.has_identity { metadata::identity(&self.bytes[..self.metadata_len as usize]) } else { None }
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

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body")
            .field("key", &String::from_utf8_lossy(self.key()))
            .field("value_len", &self.value().len())
            .field("metadata_len", &self.metadata_len)
            .finish()
    }
}
