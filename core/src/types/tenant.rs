//! Tenants: who owns topics, keys and effects.

use std::fmt;

/// The number of a tenant, given when it is registered and never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

impl TenantId {
    /// The tenant of all who use no keys. It is always registered.
    pub const DEFAULT: Self = Self(0);

    /// Whether this is the default tenant.
    #[must_use]
    pub const fn is_default(self) -> bool {
        self.0 == Self::DEFAULT.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
