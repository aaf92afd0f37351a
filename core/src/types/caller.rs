//! Who sends a command.

use std::net::IpAddr;

use super::key::KeyId;

/// Who sends a command, as far as permissions are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal {
    /// The program itself: its driver, an offline tool. May do everything; nothing of it is audited.
    Trusted,
    /// A client without a key. May do everything while there is no key, and nothing as soon as there is one.
    Anonymous,
    /// A client with this key, whose secret the edge has compared.
    Key(KeyId),
}

impl Principal {
    /// Its key, if it has one.
    #[must_use]
    pub const fn key(&self) -> Option<KeyId> {
        match self {
            Self::Key(id) => Some(*id),
            Self::Trusted | Self::Anonymous => None,
        }
    }
}

/// Who sends a command, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who.
    pub principal: Principal,
    /// The address of its connection, if it has one.
    pub from: Option<IpAddr>,
}

impl Caller {
    /// The program itself.
    pub const TRUSTED: Self = Self { principal: Principal::Trusted, from: None };

    /// A client without a key.
    #[must_use]
    pub const fn anonymous(from: Option<IpAddr>) -> Self {
        Self { principal: Principal::Anonymous, from }
    }

    /// A client with a key.
    #[must_use]
    pub const fn key(key: KeyId, from: Option<IpAddr>) -> Self {
        Self { principal: Principal::Key(key), from }
    }
}
