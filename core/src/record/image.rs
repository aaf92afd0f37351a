//! Images: the content of a snapshot.

use std::sync::Arc;

use crate::state::MessageChunk;
use crate::types::{
    AuditEntry, Boot, Completion, DecisionFields, DeliveryState, Effect, GroupId, GroupName, GroupOrigin, Identity,
    Key, LeaseToken, Lsn, MessageRef, Offset, OffsetRef, PartitionId, PayloadRef, Position, ProduceScope, Retention,
    TenantId, TenantName, Text, Timestamp, TopicId, TopicName, WallClock, Winner,
};

/// A part of the state as a snapshot stores it. Applied in the order of the snapshot, the images rebuild the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// The first image.
    Origin {
        /// The LSN of the last record.
        last_lsn: Lsn,
        /// The time of the last record.
        clock: Timestamp,
        /// The mapping of broker time to wall time.
        wall_clock: WallClock,
        /// The current boot.
        boot: Boot,
        /// The next topic's number.
        next_topic: TopicId,
    },
    /// The numbers that tenants and audited commands were given; none if no number was given.
    Access {
        /// The last tenant's number.
        last_tenant: TenantId,
        /// The next audited command's number.
        next_audit: u64,
    },
    /// A registered tenant.
    Tenant {
        /// Its number.
        tenant: TenantId,
        /// Its name.
        name: TenantName,
    },
    /// A key.
    Key(Arc<Key>),
    /// An audited command.
    Audit(Arc<AuditEntry>),
    /// A topic.
    Topic {
        /// Its number.
        topic: TopicId,
        /// Its name.
        name: TopicName,
        /// Its partition count.
        partitions: u32,
        /// How long acked messages are retained.
        retention: Retention,
        /// The next message's offset.
        next_offset: Offset,
        /// The next group's number.
        next_group: GroupId,
    },
    /// A partition that has stored a message.
    Partition {
        /// The topic.
        topic: TopicId,
        /// The partition.
        partition: PartitionId,
        /// The next message's position.
        next_position: Position,
        /// The newest message's offset.
        last_offset: Option<Offset>,
        /// All positions below are trimmed.
        trimmed_floor: Position,
        /// The offset just below the trimmed floor.
        trimmed_floor_offset: Option<Offset>,
    },
    /// Trimmed positions above the trimmed floor.
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
        /// When it was stored.
        produced_at: Timestamp,
        /// The number of groups that have acked it.
        acked_in: u32,
        /// Whether it is acked in every group and retained.
        retained: bool,
        /// The only group to which a redriven message is visible.
        visible_to: Option<GroupId>,
        /// Where its bytes stand.
        payload: PayloadRef,
        /// What decisions need of its metadata; `None` if nothing.
        fields: Option<Arc<DecisionFields>>,
    },
    /// Many messages, packed as they are in memory.
    Chunk {
        /// The topic.
        topic: TopicId,
        /// The partition.
        partition: PartitionId,
        /// The messages.
        chunk: MessageChunk,
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
        /// The number of messages it has skipped.
        skipped: u64,
        /// How it came into being.
        origin: GroupOrigin,
        /// Whether a consumer has acked a message in it.
        has_acked: bool,
    },
    /// A group's floor in a partition.
    Floor {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
        /// The partition.
        partition: PartitionId,
        /// The first unacked position.
        floor: Position,
        /// The offset just below the floor.
        floor_offset: Option<Offset>,
    },
    /// Acked positions above a group's floor.
    AckedRun {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
        /// The partition.
        partition: PartitionId,
        /// The run.
        run: RunImage,
    },
    /// A delivered, unacked message.
    DeliveryState {
        /// The message in its group.
        message_ref: MessageRef,
        /// Its delivery state.
        delivery: DeliveryState,
    },
    /// A dedupe key.
    DedupeEntry {
        /// What the producer asked for.
        scope: ProduceScope,
        /// The tenant.
        tenant: Text,
        /// The idempotency key.
        key: Text,
        /// The first message's partition.
        partition: PartitionId,
        /// The first message's offset.
        offset: Offset,
        /// The end of the window.
        expires_at: Timestamp,
    },
    /// The messages that a group's last seek replays in a partition.
    Replayed {
        /// The topic.
        topic: TopicId,
        /// The group.
        group: GroupId,
        /// The partition.
        partition: PartitionId,
        /// Messages below may have been delivered before the seek.
        below: Position,
    },
    /// An effect.
    Effect {
        /// Its identity.
        identity: Identity,
        /// The effect.
        effect: Effect,
    },
    /// The stored reply of a completed step.
    Completion {
        /// The lease token under which the step was completed.
        token: LeaseToken,
        /// The reply.
        completion: Completion,
    },
    /// The winner of a message.
    Winner {
        /// The message in its group.
        message: OffsetRef,
        /// Its winner.
        winner: Winner,
    },
}

impl Image {
    /// The images of the messages that a chunk holds; the image itself if it is not a chunk.
    #[must_use]
    pub fn by_message(self) -> Vec<Self> {
        match self {
            Self::Chunk { topic, partition, chunk } => chunk.images(topic, partition).collect(),
            other => vec![other],
        }
    }

    /// How much of the state is looked up one by one to encode it.
    pub(crate) fn lookups(&self) -> usize {
        match self {
            Self::Chunk { chunk, .. } => 1 + chunk.fields_len(),
            _ => 1,
        }
    }
}

/// A run of acked or trimmed positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunImage {
    /// The first position.
    pub start: Position,
    /// The first position after the run.
    pub end: Position,
    /// The offset of the last message.
    pub last_offset: Offset,
}
