//! Completed steps and their repeatable replies.

use std::sync::Arc;

use super::ids::{MessageRef, Offset, PartitionId};
use super::time::Timestamp;
use super::topic_name::TopicName;

/// A message produced by a completed step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOutput {
    /// The requested topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
    /// Whether this is a duplicate: partition and offset are those of the first message, and nothing was stored.
    pub duplicate: bool,
    /// Whether it is acked in every group, since each has acked a message of its identity before.
    pub already_done: bool,
}

/// The reply of a completed step, kept to be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The message that the step acked.
    pub message_ref: MessageRef,
    /// The message's offset.
    pub offset: Offset,
    /// The messages that the step produced.
    pub produced: Arc<[StepOutput]>,
    /// Until when the reply is repeated.
    pub until: Timestamp,
}
