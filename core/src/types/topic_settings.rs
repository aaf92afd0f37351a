//! Settings of topics and groups.

use super::time::Millis;

/// Where a new group starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupStart {
    /// At the earliest stored message.
    #[default]
    Earliest,
    /// After the newest message.
    Latest,
}

/// How long messages are retained after they are acked in every group. Without a limit they are not retained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The greatest age of a retained message.
    pub age: Option<Millis>,
    /// The most key and value bytes of the retained messages of a partition.
    pub bytes: Option<u64>,
}

impl Retention {
    /// Whether acked messages are retained.
    #[must_use]
    pub fn keeps_acked(self) -> bool {
        self.age.is_some() || self.bytes.is_some()
    }
}
