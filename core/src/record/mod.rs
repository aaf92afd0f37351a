//! Records: the content of the log.
//!
//! A record states a decision with every choice made: offsets, tokens, times. Applying it needs no clock, no
//! configuration and no randomness, and yields the same state on every machine.

mod image;
mod mentions;
mod relocation;
mod step;

use std::sync::Arc;

pub use self::image::{Image, RunImage};
pub use self::mentions::Mention;
pub use self::relocation::{MessageAt, PayloadLost, Referrer, Relocated};
pub use self::step::{Completed, EffectConclusion, Produced, StepResult, Stored};
use crate::types::{
    Audit, Body, Boot, CertificateSan, DeadReason, EffectNamespace, GroupId, GroupName, GroupOrigin, GroupStart,
    Identity, Key, KeyId, LeaseToken, Lifetime, MessageRef, Millis, Offset, Outcome, OwnerName, PartitionId, Position,
    ProduceScope, Retention, TenantId, TenantName, Text, Timestamp, TopicId, TopicName, WallAdjustment,
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

/// Where a dead letter of reason [`DeadReason::NonRetryable`] is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterSlot {
    /// The dead-letter topic. If it does not exist, the record creates it with the source's partition count.
    pub topic: TopicId,
    /// The partition in the dead-letter topic.
    pub partition: PartitionId,
    /// The offset in the dead-letter topic.
    pub offset: Offset,
    /// The last recorded failure.
    pub last_error: Text,
}

/// An effect that failed for good, and the message that is dead-lettered with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectDeadLettered {
    /// The effect, of the message's topic and group.
    pub identity: Identity,
    /// Its outcome.
    pub outcome: Outcome,
    /// The message in its group.
    pub message_ref: MessageRef,
    /// Its dead letter.
    pub dead_letter: DeadLetterSlot,
    /// Until when it is remembered that no delivery has acked it.
    pub winner_until: Timestamp,
}

/// One ack of a cumulative ack; as in [`Event::Acked`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CumulativeAck {
    /// The message's position.
    pub position: Position,
    /// How long the committed effect is remembered, if the message has an idempotency key.
    pub commits: Option<Millis>,
    /// Until when the token of the newest delivery is remembered as the winner's, if others can exist.
    pub winner_until: Option<Timestamp>,
}

/// What was decided.
// The tag is a number of its own: every record is matched on a dozen times, and a tag hidden in a field takes several
// steps to read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
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
    /// The retention of a topic was changed. Messages that it retains no longer are removed by later records.
    RetentionChanged {
        /// The topic.
        topic: TopicId,
        /// The new retention.
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
        /// How it came into being.
        origin: GroupOrigin,
    },
    /// A group was requested that had been created by consuming, or an ephemeral group is to stay.
    GroupOriginChanged {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
        /// The new origin.
        origin: GroupOrigin,
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
    /// The messages of a topic were removed: each is acked in every group and trimmed.
    Purged {
        /// The topic.
        topic: TopicId,
        /// The first position that stays, per partition: the next one when it was decided.
        ends: Arc<[Position]>,
        /// How long it is remembered that no worker has acked a message that was leased.
        winner_until: Timestamp,
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
    /// Messages of one partition were acked together.
    CumulativelyAcked {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
        /// The partition.
        partition: PartitionId,
        /// The messages, in ascending order; never empty.
        acks: Vec<CumulativeAck>,
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
    /// Retained messages exceeded the retention of their topic, or the memory for those of all topics.
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
    /// An effect failed for good: atomically it is finished and its message dead-lettered.
    EffectDeadLettered(Box<EffectDeadLettered>),
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
    /// A payload was written again, so that the segment in which it stood can be removed: everything that referred to
    /// it refers to this record from now on.
    Relocated(Box<Relocated>),
    /// A payload was damaged on disk. The messages that referred to it stay without it.
    PayloadLost(Box<PayloadLost>),
    /// The offset between broker time and wall time was changed.
    WallClockAdjusted(WallAdjustment),
    /// A key was created.
    KeyCreated(Box<Key>),
    /// A key was revoked.
    KeyRevoked {
        /// The key.
        key: KeyId,
    },
    /// A key was bound to a certificate, or its binding removed.
    KeyBound {
        /// The key.
        key: KeyId,
        /// The name in the certificate.
        certificate_san: Option<CertificateSan>,
    },
    /// A tenant was registered.
    TenantCreated {
        /// Its number.
        tenant: TenantId,
        /// Its name.
        name: TenantName,
    },
    /// A tenant was deleted.
    TenantDeleted {
        /// Its number.
        tenant: TenantId,
    },
    /// A command of an administrator or operator was audited.
    Audited(Box<Audit>),
    /// A part of a snapshot; never in the log.
    Restored(Image),
}

impl Event {
    /// The payloads that the event carries, each with its number: the result of an effect, then the messages.
    pub fn bodies(&self) -> impl Iterator<Item = (u32, Body)> {
        let result = self.shared_result().map(Body::of_result);
        let (produced, step) = match self {
            Self::Produced { body, .. } => (Some(body.clone()), None),
            Self::Relocated(relocated) => (Some(relocated.body.clone()), None),
            Self::Completed(step) => (None, Some(step.stored_outputs())),
            _ => (None, None),
        };
        let step = step.into_iter().flatten().map(|(part, (_, stored))| (part, stored.body.clone()));
        result.or(produced).map(|body| (0, body)).into_iter().chain(step)
    }

    /// Whether the event can carry payloads.
    pub(crate) fn has_bodies(&self) -> bool {
        matches!(
            self,
            Self::Produced { .. }
                | Self::Relocated(_)
                | Self::Completed(_)
                | Self::EffectFinished { .. }
                | Self::EffectDeadLettered(_)
        )
    }

    /// The result that the event carries as payload 0, as JSON text.
    #[must_use]
    pub fn result(&self) -> Option<&str> {
        self.shared_result().map(|result| &**result)
    }

    fn shared_result(&self) -> Option<&Arc<str>> {
        match self {
            Self::EffectFinished { outcome, .. } => outcome.result.as_ref(),
            Self::EffectDeadLettered(failed) => failed.outcome.result.as_ref(),
            Self::Completed(step) => step.effect.as_ref()?.result.as_ref().map(|result| &result.json),
            _ => None,
        }
    }

    /// Where the message is stored whose body has this number among the payloads of the record.
    #[must_use]
    pub fn stored_by(&self, part: u32) -> Option<(TopicId, PartitionId, Offset)> {
        match self {
            Self::Produced { topic, partition, offset, .. } if part == 0 => Some((*topic, *partition, *offset)),
            Self::Completed(step) => {
                let (_, (output, stored)) = step.stored_outputs().find(|(number, _)| *number == part)?;
                Some((stored.topic, output.partition, output.offset))
            }
            _ => None,
        }
    }

    /// The events that this event combines, each about one message or one effect; none if it is about one itself. A
    /// reader of a log can treat them as if they were recorded one after the other.
    #[must_use]
    pub fn parts(&self) -> Vec<Self> {
        let dead_lettered = |message_ref: MessageRef, slot: &DeadLetterSlot, winner_until| Self::DeadLettered {
            message_ref,
            dead_topic: slot.topic,
            dead_partition: slot.partition,
            dead_offset: slot.offset,
            reason: DeadReason::NonRetryable,
            last_error: slot.last_error.clone(),
            winner_until,
        };
        match self {
            Self::CumulativelyAcked { topic, group, partition, acks } => {
                let acked = |ack: &CumulativeAck| {
                    let (topic, group, partition, position) = (*topic, *group, *partition, ack.position);
                    let message_ref = MessageRef { topic, group, partition, position };
                    Self::Acked { message_ref, commits: ack.commits, winner_until: ack.winner_until }
                };
                acks.iter().map(acked).collect()
            }
            Self::EffectDeadLettered(failed) => {
                let (identity, outcome) = (failed.identity.clone(), failed.outcome.clone());
                let dead = dead_lettered(failed.message_ref, &failed.dead_letter, failed.winner_until);
                vec![Self::EffectFinished { identity, outcome }, dead]
            }
            Self::Completed(step) => match &step.dead_letter {
                None => Vec::new(),
                Some(slot) => {
                    let completed = Completed { dead_letter: None, ..(**step).clone() };
                    vec![dead_lettered(step.message_ref, slot, step.until), Self::Completed(Box::new(completed))]
                }
            },
            _ => Vec::new(),
        }
    }
}
