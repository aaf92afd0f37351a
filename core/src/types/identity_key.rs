//! Tenant and key packed into one sort key.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::types::DEFAULT_TENANT;
use crate::wire::{Reader, join, varint};

/// Tenant and key, ordered by a hash and then by the bytes.
///
/// The hash makes most comparisons one integer comparison; the bytes keep the order total if hashes collide, by
/// accident or on purpose.
#[derive(Clone, Debug, Eq)]
pub struct IdentityKey {
    hash: u64,
    bytes: Arc<[u8]>,
}

impl Ord for IdentityKey {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.hash.cmp(&other.hash).then_with(|| match Arc::ptr_eq(&self.bytes, &other.bytes) {
            // A message and the tables share its key.
            true => Ordering::Equal,
            false => self.bytes.cmp(&other.bytes),
        })
    }
}

impl PartialOrd for IdentityKey {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for IdentityKey {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl IdentityKey {
    /// The key `key` of `tenant`.
    #[must_use]
    pub fn new(tenant: &str, key: &str) -> Self {
        Self::of_bytes(tenant.as_bytes(), key.as_bytes())
    }

    /// As [`IdentityKey::new`], of texts that are known to be UTF-8.
    pub(crate) fn of_bytes(tenant: &[u8], key: &[u8]) -> Self {
        let (tenant_len, len) = varint(tenant.len() as u64);
        Self::joined(&[&tenant_len[..len], tenant, key])
    }

    /// A key of concatenated `parts`: the tenant's length, the tenant, then an unambiguous encoding of the rest.
    pub(crate) fn joined(parts: &[&[u8]]) -> Self {
        const SHORT: usize = 128;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > SHORT {
            return Self::hashed(join(parts));
        }
        // Behind the bytes stand zeros, as the hash needs them.
        let (mut bytes, mut at) = ([0; SHORT + 8], 0);
        for part in parts {
            match part {
                // Lengths and tags: not worth a call.
                [byte] => bytes[at] = *byte,
                part => bytes[at..at + part.len()].copy_from_slice(part),
            }
            at += part.len();
        }
        let (blocks, _) = bytes[..(len / 8 + 1) * 8].as_chunks();
        Self { hash: hash(len, blocks.iter()), bytes: Arc::from(&bytes[..len]) }
    }

    fn hashed(bytes: Arc<[u8]>) -> Self {
        let (blocks, rest) = bytes.as_chunks();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        Self { hash: hash(bytes.len(), blocks.iter().chain([&last])), bytes }
    }

    /// A key whose hash is what a test needs.
    #[cfg(test)]
    pub(crate) fn with_hash(hash: u64, bytes: &[u8]) -> Self {
        Self { hash, bytes: Arc::from(bytes) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The hash by which keys are ordered first.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Whether there is anything beside the tenant.
    pub(super) fn has_key(&self) -> bool {
        let (from, len) = self.tenant_range();
        from + len < self.bytes.len()
    }

    /// Start and length of the tenant in the packed bytes.
    pub(super) fn tenant_range(&self) -> (usize, usize) {
        match self.bytes[0] {
            len @ ..=0x7f => (1, usize::from(len)),
            _ => {
                let mut reader = Reader::new(&self.bytes);
                let len = reader.varint().expect("the length of the tenant is the first field") as usize;
                (self.bytes.len() - reader.rest().len(), len)
            }
        }
    }

    /// The tenant.
    #[must_use]
    pub(crate) fn tenant(&self) -> &str {
        let (from, len) = self.tenant_range();
        tenant_text(&self.bytes[from..][..len])
    }

    /// Tenant and key, of a key made by [`IdentityKey::new`].
    #[must_use]
    pub(crate) fn parts(&self) -> (&str, &str) {
        let mut reader = Reader::new(&self.bytes);
        let tenant = reader.text().expect("the tenant is the first field");
        (tenant, std::str::from_utf8(reader.rest()).expect("the key is UTF-8"))
    }
}

/// The hash of `len` bytes, the last block filled up with zeros. Eight bytes at a time: every produce and delivery with
/// a key computes this.
#[inline]
fn hash<'a>(len: usize, blocks: impl Iterator<Item = &'a [u8; 8]>) -> u64 {
    let hash = blocks.fold(len as u64, |hash, block| {
        let mixed = (hash ^ u64::from_le_bytes(*block)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 32)
    });
    // The order depends on the high bits first.
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The text of a packed tenant.
pub(super) fn tenant_text(tenant: &[u8]) -> &str {
    // Most effects have no tenant; their default need not be validated again.
    if tenant == DEFAULT_TENANT.as_bytes() {
        return DEFAULT_TENANT;
    }
    std::str::from_utf8(tenant).expect("the tenant is UTF-8")
}
