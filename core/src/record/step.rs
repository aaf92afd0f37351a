//! Completed steps.

use std::sync::Arc;

use super::{DeadLetterSlot, DedupeWindow};
use crate::types::{
    Body, GroupId, IdentityKey, LeaseToken, MessageRef, Millis, Offset, PartitionId, StepOutput, Timestamp, TopicId,
    TopicName,
};

/// A completed step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The message that the step acks.
    pub message_ref: MessageRef,
    /// The lease token under which the step was completed.
    pub token: LeaseToken,
    /// Until when the reply is repeated.
    pub until: Timestamp,
    /// Whether other deliveries of the message can exist: the token is then remembered as the winner's, as long as the
    /// reply is.
    pub is_contested: bool,
    /// The end of the message's effect; `None` if the message has no idempotency key.
    pub effect: Option<EffectConclusion>,
    /// The messages that the step produces, in order.
    pub outputs: Vec<Produced>,
    /// The dead letter of a step that failed for good: its message is dead-lettered instead of acked.
    pub dead_letter: Option<DeadLetterSlot>,
}

impl Completed {
    /// The reply to the worker.
    #[must_use]
    pub(crate) fn reply(&self) -> Arc<[StepOutput]> {
        let reply = self.outputs.iter().map(|output| StepOutput {
            topic: output.requested_topic.clone(),
            partition: output.partition,
            offset: output.offset,
            duplicate: output.stored.is_none(),
            already_done: output.stored.as_ref().is_some_and(|stored| !stored.skipped.is_empty()),
        });
        reply.collect()
    }

    /// The outputs that the step stores, each with the number of its body among the payloads of the record: the result
    /// comes first.
    pub(crate) fn stored_outputs(&self) -> impl Iterator<Item = (u32, (&Produced, &Stored))> {
        let has_result = self.effect.as_ref().is_some_and(|effect| effect.result.is_some());
        let stored = self.outputs.iter().filter_map(|output| Some((output, output.stored.as_ref()?)));
        (u32::from(has_result)..).zip(stored)
    }

    /// The number of messages that the step stores.
    #[must_use]
    pub fn stored(&self) -> usize {
        self.outputs.iter().filter(|output| output.stored.is_some()).count()
    }

    /// The number of skips of its messages, one per message and group.
    #[must_use]
    pub fn skips(&self) -> u64 {
        self.outputs.iter().filter_map(|output| output.stored.as_ref()).map(|stored| stored.skipped.len() as u64).sum()
    }
}

/// How a completed step ends its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectConclusion {
    /// The result; ignored if the effect has a final outcome.
    pub result: Option<StepResult>,
    /// How long the effect is remembered if it is new.
    pub window: Millis,
}

impl EffectConclusion {
    /// The result as JSON text.
    #[must_use]
    pub fn json(&self) -> Option<Arc<str>> {
        self.result.as_ref().map(|result| result.json.clone())
    }
}

/// The result of a completed step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepResult {
    /// Tenant and idempotency key of the step's message: who reads the record finds the effect by it, also when the
    /// message is removed.
    pub key: IdentityKey,
    /// The result as JSON text.
    pub json: Arc<str>,
}

/// A message that a completed step produces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Produced {
    /// The requested topic.
    pub requested_topic: TopicName,
    /// The partition it is stored in.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// What is stored; `None` for a duplicate.
    pub stored: Option<Stored>,
}

/// A message that a completed step stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The topic it is stored in.
    pub topic: TopicId,
    /// Its dedupe window, if it has an idempotency key.
    pub dedupe: Option<DedupeWindow>,
    /// As in [`Event::Produced`](super::Event::Produced).
    pub skipped: Vec<GroupId>,
    /// Its bytes.
    pub body: Body,
}
