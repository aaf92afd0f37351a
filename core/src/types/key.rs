//! API keys: who a caller is, and what it may do.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::grant::{Grant, Verb};
use super::names::{CertificateSan, KeyName};
use super::tenant::TenantId;
use super::time::Timestamp;

/// The id of a key: 12 characters of `0-9a-z`. Not secret; unique, and drawn at random by the caller that creates the
/// key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; Self::LEN]);

impl KeyId {
    /// Its length.
    pub const LEN: usize = 12;

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("ids consist of ASCII characters")
    }
}

/// The text is not the id of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a key")]
pub struct KeyIdError;

impl FromStr for KeyId {
    type Err = KeyIdError;

    fn from_str(text: &str) -> Result<Self, KeyIdError> {
        let bytes: [u8; Self::LEN] = text.as_bytes().try_into().map_err(|_| KeyIdError)?;
        let is_id = bytes.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
        if is_id { Ok(Self(bytes)) } else { Err(KeyIdError) }
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// The SHA-256 of a key's secret. Never printed. Comparing a secret with it, in constant time, is the edge's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyDigest(pub [u8; 32]);

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest")
    }
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its id.
    pub id: KeyId,
    /// What people call it; not unique.
    pub name: KeyName,
    /// The tenant in which it acts.
    pub tenant: TenantId,
    /// The digest of its secret.
    pub digest: KeyDigest,
    /// What it may do: 1 to [`Grant::COUNT_MAX`] grants.
    pub grants: Arc<[Grant]>,
    /// When it was created.
    pub created_at: Timestamp,
    /// From when on it is refused, if it expires.
    pub expires_at: Option<Timestamp>,
    /// The name in the client certificate that stands for the key.
    pub certificate_san: Option<CertificateSan>,
}

impl Key {
    /// Whether the key is refused at broker time `now`.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    /// Whether the key has a grant of `verb` on everything.
    #[must_use]
    pub fn has_all(&self, verb: Verb) -> bool {
        self.grants.iter().any(|grant| grant.topics.is_all() && grant.verbs.contains(verb))
    }

    /// Whether the key sees and manages all tenants: one of the default tenant with `admin` on everything.
    #[must_use]
    pub fn manages_tenants(&self) -> bool {
        self.tenant.is_default() && self.has_all(Verb::Admin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_twelve_characters_of_base_36() {
        let id: KeyId = "0a1b2c3d4e5z".parse().unwrap();
        assert_eq!((id.as_str(), id.to_string().as_str()), ("0a1b2c3d4e5z", "0a1b2c3d4e5z"));
        for text in ["", "0a1b2c3d4e5", "0a1b2c3d4e5z0", "0A1b2c3d4e5z", "0a1b2c3d4e5-", "0a1b2c3d4e5é"] {
            assert_eq!(text.parse::<KeyId>(), Err(KeyIdError), "{text}");
        }
    }

    #[test]
    fn digest_is_not_printed() {
        let digest = KeyDigest([0xab; 32]);
        assert_eq!(format!("{digest:?}"), "KeyDigest");
    }
}
