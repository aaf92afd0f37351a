//! The unanswered deliveries of a stream.

use driftq_core::types::{ConsumerId, GroupId, Offset, TopicId};

/// A message in a group.
pub(super) type GroupMessage = (TopicId, GroupId, Offset);

/// The unanswered deliveries of a stream, oldest first.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) stream: ConsumerId,
    pub(super) entries: Vec<Entry>,
}

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) message: GroupMessage,
    /// Its lease expired, and the stream has answered nothing since.
    pub(super) expired: bool,
}
