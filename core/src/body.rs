//! A message's bytes as they are kept in memory and in the log: metadata, key and value in one shared block.

use std::sync::Arc;

use crate::codec::{Malformed, metadata};
use crate::types::message::{MessageFlags, Metadata};

/// One message's metadata, key and value, shared without copying.
///
/// Decisions read the metadata part and the two lengths, never the payload.
#[derive(Clone, PartialEq, Eq)]
pub struct Body {
    bytes: Arc<[u8]>,
    metadata_len: u32,
    key_len: u32,
    flags: MessageFlags,
}

impl Body {
    /// Packs a message. Lengths are bounded by the caller, far below `u32::MAX`.
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

    /// Packs a message that nothing travels with but its key.
    ///
    /// # Panics
    /// If a part is longer than 4 GiB.
    #[must_use]
    pub fn bare(key: &[u8], value: &[u8]) -> Self {
        Self::join([&[], key, value], MessageFlags::default())
    }

    fn join(parts: [&[u8]; 3], flags: MessageFlags) -> Self {
        let [metadata, key, _] = parts;
        let metadata_len = u32::try_from(metadata.len()).expect("metadata is bounded at the edge");
        let key_len = u32::try_from(key.len()).expect("keys are bounded at the edge");
        Self { bytes: join(&parts), metadata_len, key_len, flags }
    }

    /// Takes a packed message back from the log.
    ///
    /// # Errors
    /// [`Malformed`] if the metadata part is not what [`Body::pack`] writes.
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

    /// The same payload under other metadata.
    #[must_use]
    pub fn with_metadata(&self, meta: &Metadata) -> Self {
        Self::pack(meta, self.key(), self.value())
    }

    /// Everything that travels with the payload.
    ///
    /// # Panics
    /// Never for a body made by [`Body::pack`] or accepted by [`Body::unpack`].
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        metadata::decode(&self.bytes[..self.metadata_len as usize]).expect("checked when the body was made")
    }

    /// Tenant and key of the message's identity, if it has one.
    #[must_use]
    pub fn identity(&self) -> Option<(&str, &str)> {
        if self.flags.has_identity { metadata::identity(&self.bytes[..self.metadata_len as usize]) } else { None }
    }

    /// Whether anything at all travels with the payload.
    #[must_use]
    pub fn has_metadata(&self) -> bool {
        self.metadata_len > 0
    }

    /// The partitioning key; empty where none was given.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.bytes[self.metadata_len as usize..][..self.key_len as usize]
    }

    /// The payload.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.bytes[self.metadata_len as usize + self.key_len as usize..]
    }

    /// Key and value bytes: what backpressure counts.
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        self.bytes.len() as u64 - u64::from(self.metadata_len)
    }

    /// What the hot paths ask of the metadata.
    #[must_use]
    pub fn flags(&self) -> MessageFlags {
        self.flags
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

/// The parts behind one another in one block, allocated once.
pub(crate) fn join(parts: &[&[u8]]) -> Arc<[u8]> {
    let len = parts.iter().map(|part| part.len()).sum();
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
    let mut rest = Arc::get_mut(&mut bytes).expect("just made, shared with nobody");
    for part in parts {
        let (head, tail) = rest.split_at_mut(part.len());
        match part {
            // Lengths, mostly: not worth a call.
            [byte] => head[0] = *byte,
            [] => {}
            part => head.copy_from_slice(part),
        }
        rest = tail;
    }
    bytes
}
