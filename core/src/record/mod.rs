//! Records: the content of the log.
//!
//! A record states a decision with every choice made: offsets, tokens, times. Applying it needs no clock, no
//! configuration and no randomness, and yields the same state on every machine.

mod image;

use std::sync::Arc;

pub use self::image::{Image, RunImage};
use crate::types::{
    Body, Boot, DeadReason, EffectNamespace, GroupId, GroupName, GroupStart, Identity, LeaseToken, Lifetime,
    MessageRef, Millis, Offset, Outcome, OwnerName, PartitionId, Position, ProduceScope, Retention, StepOutput, Text,
    Timestamp, TopicId, TopicName, WallAdjustment,
};

/// One decision and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was decided; never before the previous record.
    pub at: Timestamp,
    /// What was decided.
    pub event: Event,
}

/// The dedupe window of a stored message. Its key is in the body's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupeWindow {
    /// What the producer asked for, before routing. Keys are unique within it.
    pub scope: ProduceScope,
    /// Until when a second produce of the key is answered with this message.
    pub expires_at: Timestamp,
}

/// The grant of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectBegun {
    /// The effect.
    pub identity: Identity,
    /// The token of the grant.
    pub token: LeaseToken,
    /// The worker.
    pub owner: OwnerName,
    /// When the lease ends.
    pub until: Timestamp,
    /// How long the effect is remembered; `None` leaves it unchanged.
    pub lifetime: Option<Lifetime>,
    /// The hash of the request; ignored unless the effect is new.
    pub request_hash: Option<Text>,
    /// The message the effect belongs to, if one was named.
    pub message: Option<(PartitionId, Position)>,
}

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
    pub result: Option<Arc<str>>,
    /// How long the effect is remembered if it is new.
    pub window: Millis,
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
    /// As in [`Event::Produced`].
    pub skipped: Vec<GroupId>,
    /// Its bytes.
    pub body: Body,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The broker started.
    Booted {
        /// The boot; the lease tokens that follow contain it.
        boot: Boot,
    },
    /// A topic was created.
    TopicCreated {
        /// Its number.
        topic: TopicId,
        /// Its name.
        name: TopicName,
        /// Its partition count, which never changes.
        partitions: u32,
        /// How long acked messages are retained.
        retention: Retention,
    },
    /// A topic was deleted with its groups, messages and dedupe keys.
    TopicDeleted {
        /// Its number.
        topic: TopicId,
    },
    /// A group was created.
    GroupCreated {
        /// The topic.
        topic: TopicId,
        /// The group's number.
        group: GroupId,
        /// Its name.
        name: GroupName,
        /// Where it starts.
        start: GroupStart,
    },
    /// A group was deleted with its progress and its leases.
    GroupDeleted {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
    },
    /// A group was paused.
    GroupPaused {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
    },
    /// A paused group was resumed.
    GroupResumed {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
    },
    /// A group's progress was set: stored messages from the targets on are delivered again.
    GroupSought {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
        /// The first position to deliver, per partition.
        targets: Arc<[Position]>,
    },
    /// A message was stored.
    Produced {
        /// The topic it is stored in.
        topic: TopicId,
        /// The partition it is stored in.
        partition: PartitionId,
        /// Its offset.
        offset: Offset,
        /// Its bytes.
        body: Body,
        /// Its dedupe window, if it has an idempotency key.
        dedupe: Option<DedupeWindow>,
        /// All groups of the topic, if each has committed its identity: this record acks it there. Else none.
        skipped: Vec<GroupId>,
    },
    /// A message was leased to a worker.
    Delivered {
        /// The message in its group.
        message_ref: MessageRef,
        /// The lease token.
        token: LeaseToken,
        /// The worker.
        owner: OwnerName,
        /// When the lease ends.
        until: Timestamp,
    },
    /// A message was acked.
    Acked {
        /// The message in its group.
        message_ref: MessageRef,
        /// If the message has an idempotency key: how long the committed effect is remembered unless a worker ended
        /// it. As long as a produce of the key is a duplicate; 0 if it is none any more.
        commits: Option<Millis>,
        /// If other deliveries of the message can exist: until when the token of the newest one is remembered as the
        /// winner's.
        winner_until: Option<Timestamp>,
    },
    /// A worker reported a failure.
    Nacked {
        /// The message in its group.
        message_ref: MessageRef,
        /// The reason, if one was given.
        reason: Option<Arc<str>>,
        /// The earliest time of the redelivery.
        not_before: Timestamp,
    },
    /// A worker gave a reason after its lease had expired; the failure is counted already.
    ReasonNoted {
        /// The message in its group.
        message_ref: MessageRef,
        /// The reason.
        reason: Arc<str>,
    },
    /// A lease expired without ack, nack or extend.
    Expired {
        /// The message in its group.
        message_ref: MessageRef,
        /// The earliest time of the redelivery.
        not_before: Timestamp,
    },
    /// The end of a lease was changed.
    Extended {
        /// The message in its group.
        message_ref: MessageRef,
        /// The new end.
        until: Timestamp,
    },
    /// A worker returned a message without a failure.
    Released {
        /// The message in its group.
        message_ref: MessageRef,
    },
    /// A delivery was withdrawn: it never reached its consumer. The attempt does not count.
    Withdrawn {
        /// The message in its group.
        message_ref: MessageRef,
    },
    /// A message was dead-lettered: atomically acked in the group and stored in the dead-letter topic.
    DeadLettered {
        /// The message in its group.
        message_ref: MessageRef,
        /// The dead-letter topic. If it does not exist, this record creates it with the source's partition count.
        dead_topic: TopicId,
        /// The partition in the dead-letter topic.
        dead_partition: PartitionId,
        /// The offset in the dead-letter topic.
        dead_offset: Offset,
        /// Why it was dead-lettered.
        reason: DeadReason,
        /// The last recorded failure.
        last_error: Text,
        /// Until when it is remembered that no delivery has acked it.
        winner_until: Timestamp,
    },
    /// A dead letter was redriven: atomically removed from the dead-letter topic and stored in its source topic.
    Redriven {
        /// The dead-letter topic.
        dead_topic: TopicId,
        /// The partition in the dead-letter topic.
        dead_partition: PartitionId,
        /// The position in that partition.
        dead_position: Position,
        /// The source topic.
        topic: TopicId,
        /// The only group to which it is visible.
        group: GroupId,
        /// The partition in the source topic.
        partition: PartitionId,
        /// Its new offset.
        offset: Offset,
    },
    /// Retained messages exceeded the retention age.
    RetentionExpired {
        /// The topic.
        topic: TopicId,
        /// The partition.
        partition: PartitionId,
        /// Retained messages at or below this position are removed.
        through: Position,
    },
    /// Dedupe windows ended.
    DedupeExpired {
        /// What their producers asked for.
        scope: ProduceScope,
        /// The number of oldest entries to remove.
        count: u64,
    },
    /// An effect was granted.
    EffectBegun(Box<EffectBegun>),
    /// An effect was finished.
    EffectFinished {
        /// The effect.
        identity: Identity,
        /// Its outcome.
        outcome: Outcome,
    },
    /// The lease of an effect was extended.
    EffectRenewed {
        /// The effect.
        identity: Identity,
        /// The new end of the lease.
        until: Timestamp,
    },
    /// An effect was deleted by a client.
    EffectForgotten {
        /// The effect.
        identity: Identity,
    },
    /// Effects were checked for expiry: removed, or kept while they are pinned by an unacked message.
    EffectsExpired {
        /// The table.
        namespace: EffectNamespace,
        /// The number of effects checked, those due first.
        count: u64,
    },
    /// A step was completed: atomically its message is acked, its effect finished and its outputs stored.
    Completed(Box<Completed>),
    /// Stored replies of completed steps expired.
    CompletionsExpired {
        /// The number of oldest replies to remove.
        count: u64,
    },
    /// Winners of messages were forgotten: their time had come, or there were too many.
    WinnersExpired {
        /// The number of oldest winners to remove.
        count: u64,
    },
    /// The offset between broker time and wall time was changed.
    WallClockAdjusted(WallAdjustment),
    /// A part of a snapshot; never in the log.
    Restored(Image),
}
