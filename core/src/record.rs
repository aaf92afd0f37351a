//! What is remembered: the vocabulary of the log.
//!
//! A record states what was decided, with every choice already made: offsets, tokens, moments. Applying one therefore
//! needs no clock, no configuration and no luck, and gives the same state on every machine.

use std::sync::Arc;

use crate::body::Body;
use crate::idempotency::{Completion, Effect, Identity, Lifetime, Outcome, Realm};
use crate::reply::StepOutput;
use crate::state::entry::Entry;
use crate::types::{
    Boot, DeadReason, GroupId, GroupName, LeaseToken, Millis, Offset, OwnerName, PartitionId, Position, Text,
    Timestamp, TopicId, TopicName,
};

/// One decided fact and the moment it was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When; never before the record in front of it.
    pub at: Timestamp,
    /// What.
    pub event: Event,
}

/// A message as one group sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageRef {
    /// The topic.
    pub topic: TopicId,
    /// The group.
    pub group: GroupId,
    /// The partition.
    pub partition: PartitionId,
    /// The message's position in the partition.
    pub position: Position,
}

/// Where a new group starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupStart {
    /// At the earliest message that is logically kept.
    #[default]
    Earliest,
    /// After the newest message.
    Latest,
}

/// How long messages stay once they are done in every group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Until they are this old.
    pub age: Option<Millis>,
    /// While the done messages of their partition have no more key and value bytes than this.
    pub bytes: Option<u64>,
}

impl Retention {
    /// Whether done messages are kept at all.
    #[must_use]
    pub fn keeps_done(self) -> bool {
        self.age.is_some() || self.bytes.is_some()
    }
}

/// The produce dedupe's part of a message record: the identity is in the body's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupeWindow {
    /// The topic the producer meant, before any router.
    pub scope: TopicName,
    /// Until when a second produce of the identity is answered with this message.
    pub expires_at: Timestamp,
}

/// The grant of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectBegun {
    /// Which effect.
    pub identity: Identity,
    /// Proof of the grant.
    pub token: LeaseToken,
    /// Whose it is.
    pub owner: OwnerName,
    /// When its lease ends.
    pub until: Timestamp,
    /// How long the effect is remembered; `None` for as before.
    pub lifetime: Option<Lifetime>,
    /// What the request hashes to; counts for an effect that is new.
    pub request_hash: Option<Text>,
    /// The message behind it, where one was named.
    pub message: Option<(PartitionId, Position)>,
}

/// A completed step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The message, for which group.
    pub message_ref: MessageRef,
    /// The token that won.
    pub token: LeaseToken,
    /// How long its answer is repeated.
    pub until: Timestamp,
    /// The end of the message's effect, where it has an identity.
    pub effect: Option<EffectConclusion>,
    /// What the step produced, in order.
    pub outputs: Vec<Produced>,
}

impl Completed {
    /// What its worker is told.
    #[must_use]
    pub fn answer(&self) -> Arc<[StepOutput]> {
        let answer = self.outputs.iter().map(|output| StepOutput {
            topic: output.asked.clone(),
            partition: output.partition,
            offset: output.offset,
            duplicate: output.stored.is_none(),
        });
        answer.collect()
    }

    /// How many messages it stores.
    #[must_use]
    pub fn stored(&self) -> usize {
        self.outputs.iter().filter(|output| output.stored.is_some()).count()
    }
}

/// How a completed step leaves its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectConclusion {
    /// The result, where the effect has none.
    pub result: Option<Arc<str>>,
    /// How long it is remembered, where it is new.
    pub window: Millis,
}

/// One message of a completed step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Produced {
    /// The topic that was asked for.
    pub asked: TopicName,
    /// The partition it is stored in.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// What is stored; `None` where the identity had been accepted before.
    pub stored: Option<Stored>,
}

/// A message that a completed step stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The topic it is stored in.
    pub topic: TopicId,
    /// Its identity's window, where it has one.
    pub dedupe: Option<DedupeWindow>,
    /// Its bytes.
    pub body: Body,
}

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The broker started; tokens of this boot follow.
    Booted {
        /// Counts the starts.
        boot: Boot,
    },
    /// A topic exists.
    TopicCreated {
        /// Its number.
        topic: TopicId,
        /// Its name.
        name: TopicName,
        /// How many partitions it has, for ever.
        partitions: u32,
        /// How long done messages stay.
        retention: Retention,
    },
    /// A topic, its groups and its produce identities are gone.
    TopicDeleted {
        /// Its number.
        topic: TopicId,
    },
    /// A group exists.
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
    /// A group, its progress and its leases are gone.
    GroupDeleted {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
    },
    /// A group is handed nothing until it is resumed.
    GroupPaused {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
    },
    /// A paused group goes on.
    GroupResumed {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
    },
    /// A group's progress was set: everything kept from the targets on is to be delivered again.
    GroupSought {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
        /// The first position to deliver, one for each partition.
        targets: Arc<[Position]>,
    },
    /// A message was accepted.
    Produced {
        /// The topic it is stored in.
        topic: TopicId,
        /// The partition it is stored in.
        partition: PartitionId,
        /// Its offset.
        offset: Offset,
        /// Its bytes.
        body: Body,
        /// Its identity's window, where it has one.
        dedupe: Option<DedupeWindow>,
    },
    /// A message was handed to a worker.
    Delivered {
        /// Which, for which group.
        message_ref: MessageRef,
        /// Proof of this delivery.
        token: LeaseToken,
        /// The worker.
        owner: OwnerName,
        /// When the lease ends.
        until: Timestamp,
    },
    /// A message is done for a group.
    Acked {
        /// Which, for which group.
        message_ref: MessageRef,
        /// Where the message has an identity: how long the effect is remembered as done, if nobody says more about it.
        commits: Option<Millis>,
    },
    /// A message of an identity that the group is done with already is done as well, undelivered.
    Skipped {
        /// Which, for which group.
        message_ref: MessageRef,
    },
    /// A worker failed a message it held.
    Nacked {
        /// Which, for which group.
        message_ref: MessageRef,
        /// What the worker said, if anything.
        reason: Option<Arc<str>>,
        /// When it may be delivered again.
        not_before: Timestamp,
    },
    /// A worker gave a reason for a failure that had already been counted.
    ReasonNoted {
        /// Which message, for which group.
        message_ref: MessageRef,
        /// What the worker said.
        reason: Arc<str>,
    },
    /// A lease ended without word from its worker.
    Expired {
        /// Which, for which group.
        message_ref: MessageRef,
        /// When it may be delivered again.
        not_before: Timestamp,
    },
    /// A lease was made longer (or shorter).
    Extended {
        /// Which, for which group.
        message_ref: MessageRef,
        /// When it ends now.
        until: Timestamp,
    },
    /// A worker gave a message back unharmed.
    Released {
        /// Which, for which group.
        message_ref: MessageRef,
    },
    /// A message became a dead letter: done for the group and stored in the dead-letter topic, at once.
    DeadLettered {
        /// Which, for which group.
        message_ref: MessageRef,
        /// The dead-letter topic. Where it is not there, it is from now on, with as many partitions as the message's own.
        dead_topic: TopicId,
        /// The partition there.
        dead_partition: PartitionId,
        /// The offset there.
        dead_offset: Offset,
        /// Why.
        reason: DeadReason,
        /// What was last said to be wrong.
        last_error: Text,
    },
    /// A dead letter became a live message of its old group again, at once.
    Redriven {
        /// The dead-letter topic.
        dead_topic: TopicId,
        /// The partition there.
        dead_partition: PartitionId,
        /// The position there.
        dead_position: Position,
        /// The topic it returns to.
        topic: TopicId,
        /// The group that alone sees it.
        group: GroupId,
        /// The partition it returns to.
        partition: PartitionId,
        /// Its new offset.
        offset: Offset,
    },
    /// Done messages grew too old to keep.
    RetainedOut {
        /// The topic.
        topic: TopicId,
        /// The partition.
        partition: PartitionId,
        /// The last position that goes; done messages at or below it go.
        through: Position,
    },
    /// Produce identities left their window.
    IdentitiesExpired {
        /// The topic their producers meant.
        scope: TopicName,
        /// How many of the oldest go.
        count: u64,
    },
    /// An effect was granted.
    EffectBegun(Box<EffectBegun>),
    /// A granted effect has ended.
    EffectFinished {
        /// Which.
        identity: Identity,
        /// How.
        outcome: Outcome,
    },
    /// A granted effect takes longer.
    EffectRenewed {
        /// Which.
        identity: Identity,
        /// When its lease ends now.
        until: Timestamp,
    },
    /// An effect was forgotten because somebody said so.
    EffectForgotten {
        /// Which.
        identity: Identity,
    },
    /// Effects were looked at because their time had come: they are forgotten, but for those whose message can still come again.
    EffectsExpired {
        /// The table they stand in.
        realm: Realm,
        /// How many of those that were to be looked at first.
        count: u64,
    },
    /// A step was completed: its message is done, its effect has ended, its messages are stored, at once.
    Completed(Box<Completed>),
    /// Answers of completed steps need not be repeated any more.
    CompletionsExpired {
        /// How many of the oldest go.
        count: u64,
    },
    /// Part of a snapshot; never in the log itself.
    Restored(Image),
}

/// A piece of state as a snapshot holds it. In this order a topic's pieces rebuild it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// What belongs to no topic.
    Origin {
        /// The last recorded moment.
        clock: Timestamp,
        /// The boot in force.
        boot: Boot,
        /// The next topic's number.
        next_topic: TopicId,
    },
    /// A topic.
    Topic {
        /// Its number.
        topic: TopicId,
        /// Its name.
        name: TopicName,
        /// Its partition count.
        partitions: u32,
        /// How long done messages stay.
        retention: Retention,
        /// The next message's offset.
        next_offset: Offset,
        /// The next group's number.
        next_group: GroupId,
    },
    /// A partition that has held something.
    Partition {
        /// The topic.
        topic: TopicId,
        /// The partition.
        partition: PartitionId,
        /// The next message's position.
        next_position: Position,
        /// The newest message's offset.
        last_offset: Option<Offset>,
        /// Everything below is trimmed.
        trimmed_floor: Position,
        /// The offset just below the trimmed floor.
        trimmed_floor_offset: Option<Offset>,
    },
    /// Positions trimmed above the trimmed floor.
    TrimmedRun {
        /// The topic.
        topic: TopicId,
        /// The partition.
        partition: PartitionId,
        /// The run.
        run: RunImage,
    },
    /// A message.
    Message {
        /// The topic.
        topic: TopicId,
        /// The partition.
        partition: PartitionId,
        /// Its position.
        position: Position,
        /// Its offset.
        offset: Offset,
        /// When it was accepted.
        produced_at: Timestamp,
        /// In how many groups it is done.
        done_in: u32,
        /// Whether it is done in every group and merely kept.
        retained: bool,
        /// The one group that sees it, for a redriven message.
        visible_to: Option<GroupId>,
        /// Its bytes.
        body: Body,
    },
    /// A group.
    Group {
        /// The topic.
        topic: TopicId,
        /// The group's number.
        group: GroupId,
        /// Its name.
        name: GroupName,
        /// Whether it is paused.
        paused: bool,
    },
    /// A group's floor in a partition.
    Floor {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
        /// The partition.
        partition: PartitionId,
        /// The first position that is not done.
        floor: Position,
        /// The offset just below the floor.
        floor_offset: Option<Offset>,
    },
    /// Positions done above a group's floor.
    DoneRun {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
        /// The partition.
        partition: PartitionId,
        /// The run.
        run: RunImage,
    },
    /// A message that was delivered and is not done.
    Entry {
        /// Which, for which group.
        message_ref: MessageRef,
        /// Its history and its lease.
        entry: Entry,
    },
    /// A produce identity in its window.
    Identity {
        /// The topic the producer meant.
        scope: TopicName,
        /// Tenant and key.
        tenant: Text,
        /// The key.
        key: Text,
        /// The first message's partition.
        partition: PartitionId,
        /// The first message's offset.
        offset: Offset,
        /// The end of the window.
        expires_at: Timestamp,
    },
    /// What a seek replays for a group in a partition.
    Replayed {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
        /// The partition.
        partition: PartitionId,
        /// Messages below are delivered even where their identity is done.
        below: Position,
    },
    /// An effect.
    Effect {
        /// Which.
        identity: Identity,
        /// What is known about it.
        effect: Effect,
    },
    /// The answer of a completed step.
    Completion {
        /// The token that won it.
        token: LeaseToken,
        /// The answer.
        completion: Completion,
    },
}

/// A run of finished positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunImage {
    /// The first.
    pub start: Position,
    /// The one after the last.
    pub end: Position,
    /// The offset of the last.
    pub last_offset: Offset,
}
