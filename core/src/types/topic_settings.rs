//! Settings of topics and groups.

use super::time::Millis;

/// Where a new group starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupStart {
    /// At the earliest message that is kept.
    #[default]
    Earliest,
    /// After the newest message.
    Latest,
}

/// How a group came into being, which decides whether the broker may delete it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupOrigin {
    /// By request. The broker never deletes it.
    #[default]
    Requested,
    /// By consuming. The broker deletes it if it never acks and no consumer returns.
    Consumed,
    /// By consuming, for as long as a consumer is connected.
    Ephemeral,
}

/// How long messages are retained after they are acked in every group. Of a topic, a limit that is not set does not
/// limit; of a request, it is left to the server's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The greatest age of a retained message.
    pub age: Option<Millis>,
    /// The most key and value bytes of the retained messages of a partition.
    pub bytes: Option<u64>,
}

impl Retention {
    /// Acked messages are removed at once.
    pub const NOTHING: Self = Self { age: Some(Millis(0)), bytes: None };
    /// Acked messages are never removed.
    pub const EVERYTHING: Self = Self { age: None, bytes: Some(u64::MAX) };

    /// Whether acked messages are retained.
    #[must_use]
    pub fn keeps_acked(self) -> bool {
        self != Self::default() && self.age != Some(Millis(0)) && self.bytes != Some(0)
    }

    /// The retention of a topic that was requested with these settings: `defaults` replace those that are not set.
    #[must_use]
    pub fn resolved(self, defaults: Self) -> Self {
        match (self.age.or(defaults.age), self.bytes.or(defaults.bytes)) {
            (None, None) => Self::EVERYTHING,
            (age, bytes) => Self { age, bytes },
        }
    }

    /// The limit of retained bytes; `None` if there is none.
    #[must_use]
    pub fn bytes_max(self) -> Option<u64> {
        self.bytes.filter(|bytes| *bytes < u64::MAX)
    }

    /// The retention of a topic as recorded. Records without any limit were written when that meant to retain nothing.
    pub(crate) fn recorded(self) -> Self {
        if self == Self::default() { Self::NOTHING } else { self }
    }
}

/// A change of one setting of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Setting<T> {
    /// It stays.
    #[default]
    Unchanged,
    /// It becomes the server's default.
    ServerDefault,
    /// It becomes this.
    Value(T),
}

impl<T> Setting<T> {
    /// The new value of a setting that is `current` and by default `default`.
    pub(crate) fn applied_to(self, current: Option<T>, default: Option<T>) -> Option<T> {
        match self {
            Self::Unchanged => current,
            Self::ServerDefault => default,
            Self::Value(value) => Some(value),
        }
    }
}
