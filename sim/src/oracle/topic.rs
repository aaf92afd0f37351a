//! A topic: its stored messages, its groups, and the progress of each group.

use std::fmt;
use std::sync::{Arc, OnceLock};

use driftq_core::types::{
    ConsumerId, DeadReason, GroupId, GroupName, GroupOrigin, LeaseToken, Metadata, Millis, Offset, OwnerName,
    PartitionId, PayloadId, RETAINED_MESSAGE_OVERHEAD, Retention, Text, Timestamp, TopicId, TopicName,
};
use driftq_core::{Body, Refusal};

use super::lease::Runs;

/// A topic, with messages by offset and groups by id.
#[derive(Clone, Debug)]
pub(super) struct Topic {
    pub(super) id: TopicId,
    pub(super) name: TopicName,
    pub(super) dlq_name: Option<TopicName>,
    pub(super) retention: Retention,
    pub(super) next_offset: Offset,
    pub(super) next_group: GroupId,
    /// The newest offset of each partition, trimmed or not.
    pub(super) newest: Vec<Option<Offset>>,
    pub(super) messages: Vec<Message>,
    pub(super) groups: Vec<Group>,
}

/// A stored message.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) offset: Offset,
    pub(super) partition: PartitionId,
    /// The previous offset in its partition, trimmed or not.
    pub(super) before: Option<Offset>,
    pub(super) produced_at: Timestamp,
    pub(super) priority: u8,
    /// The earliest delivery time, in wall time; 0 for none.
    pub(super) deliver_at: Timestamp,
    /// The end of the delay, in broker time; 0 for none.
    pub(super) delayed_until: Timestamp,
    /// The only group it is visible to, for a redriven message.
    pub(super) only_for: Option<GroupId>,
    /// Acked by every group, and kept.
    pub(super) is_retained: bool,
    /// Delayed, by a timer that has not fired.
    pub(super) is_delayed: bool,
    /// The timer of its deadline is set: it has not fired since the message last began to wait in a group.
    pub(super) has_deadline_timer: bool,
    pub(super) content: Arc<Content>,
}

/// The content of a message.
#[derive(Clone)]
pub(super) struct Content {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) metadata: Metadata,
    /// The bytes of key and value, also of a payload that is lost.
    pub(super) payload_len: u64,
    /// The bytes of the record's key, value and metadata.
    pub(super) stored_len: u64,
    /// Where the record stands that has its bytes.
    pub(super) payload: PayloadId,
    /// A body found to be equal, so that it need not be decoded again.
    pub(super) equal_body: OnceLock<Body>,
}

/// A group and its progress on each message.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) id: GroupId,
    pub(super) name: GroupName,
    pub(super) paused: bool,
    /// How many messages it acked without a delivery.
    pub(super) skipped: u64,
    pub(super) origin: GroupOrigin,
    /// Whether a consumer acked a message in it.
    pub(super) has_acked: bool,
    /// If it came into being by consuming and has no stream: since when, and when it is examined.
    pub(super) idle: Option<(Timestamp, Timestamp)>,
    /// One per message of the topic, in the same order.
    pub(super) progress: Vec<Progress>,
    pub(super) last_served: ConsumerId,
    pub(super) last_partition: PartitionId,
    /// Messages below this offset may have been delivered before a seek.
    pub(super) replayed_below: Offset,
}

/// The progress of a group on a message.
#[derive(Clone, Debug)]
pub(super) enum Progress {
    /// Never delivered.
    Ready,
    /// Delivered and unacked.
    Attempted(Attempted),
    Acked,
}

/// The newest delivery of an unacked message.
#[derive(Clone, Debug)]
pub(super) struct Attempted {
    pub(super) attempts: u32,
    pub(super) failures: u32,
    pub(super) token: LeaseToken,
    pub(super) owner: OwnerName,
    pub(super) error: LastErrorText,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Held by a stream; after a restart, by one that stands for its owner in the group.
    Leased {
        /// As recorded.
        until: Timestamp,
        holder: ConsumerId,
        runs: Runs,
    },
    Queued {
        not_before: Timestamp,
        /// The timer of the retry has not fired.
        is_waiting: bool,
        /// The stream on which the newest lease expired.
        expired_on: Option<ConsumerId>,
    },
}

/// The last failure reason of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum LastErrorText {
    #[default]
    None,
    Timeout,
    Reason(Arc<str>),
}

impl Topic {
    pub(super) fn new(id: TopicId, name: TopicName, partitions: u32, retention: Retention) -> Self {
        Self {
            id,
            dlq_name: name.dead_letter(),
            name,
            retention,
            next_offset: Offset(0),
            next_group: GroupId(0),
            newest: vec![None; partitions as usize],
            messages: Vec::new(),
            groups: Vec::new(),
        }
    }

    pub(super) fn partitions(&self) -> u32 {
        self.newest.len() as u32
    }

    pub(super) fn has_partition(&self, partition: PartitionId) -> Result<(), Refusal> {
        let partitions = self.partitions();
        if partition.0 < partitions { Ok(()) } else { Err(Refusal::PartitionOutOfRange { partition, partitions }) }
    }

    pub(super) fn is_dlq(&self) -> bool {
        self.dlq_name.is_none()
    }

    pub(super) fn group_named(&self, name: &GroupName) -> Option<usize> {
        self.groups.iter().position(|group| group.name == *name)
    }

    pub(super) fn message(&self, offset: Offset) -> Option<usize> {
        self.messages.iter().position(|message| message.offset == offset)
    }

    /// Whether the message is acked by every group.
    pub(super) fn is_acked_by_all(&self, message: usize) -> bool {
        !self.groups.is_empty() && self.groups.iter().all(|group| matches!(group.progress[message], Progress::Acked))
    }

    /// The number and bytes of open messages in a partition, which backpressure counts.
    pub(super) fn open(&self, partition: PartitionId) -> (u64, u64) {
        let (mut count, mut bytes) = (0, 0);
        for (at, message) in self.messages.iter().enumerate() {
            if message.partition == partition && !self.is_acked_by_all(at) {
                count += 1;
                bytes += message.bytes();
            }
        }
        (count, bytes)
    }

    /// Stores a message that is visible to all groups, or to one.
    pub(super) fn store(&mut self, at: Timestamp, partition: PartitionId, only_for: Option<GroupId>, content: Content) {
        let offset = self.next_offset;
        self.next_offset = offset.next();
        let before = self.newest[partition.0 as usize].replace(offset);
        let envelope = &content.metadata.envelope;
        let priority = envelope.priority.unwrap_or_default().level();
        let deliver_at = envelope.deliver_at.unwrap_or_default();
        let delayed_until = envelope.delayed_until.unwrap_or_default();
        let has_deadline_timer = (envelope.deadline.is_some() || content.metadata.lost.is_some()) && !self.is_dlq();
        let content = Arc::new(content);
        self.messages.push(Message {
            offset,
            partition,
            before,
            produced_at: at,
            priority,
            deliver_at,
            delayed_until,
            only_for,
            is_retained: false,
            is_delayed: false,
            has_deadline_timer,
            content,
        });
        for group in &mut self.groups {
            let is_visible = only_for.is_none_or(|only| only == group.id);
            group.progress.push(if is_visible { Progress::Ready } else { Progress::Acked });
        }
    }

    pub(super) fn remove(&mut self, message: usize) {
        self.messages.remove(message);
        for group in &mut self.groups {
            group.progress.remove(message);
        }
    }

    /// Whether acked messages are kept at all.
    pub(super) fn keeps_acked(&self) -> bool {
        self.retention.age != Some(Millis(0)) && self.retention.bytes != Some(0)
    }

    /// The retained messages of a partition whose time is over or that exceed its bytes, oldest first.
    pub(super) fn over(&self, partition: PartitionId, now: Timestamp) -> Vec<usize> {
        let retained: Vec<_> = (0..self.messages.len())
            .filter(|at| self.messages[*at].partition == partition && self.messages[*at].is_retained)
            .collect();
        let is_over = |nth: usize| {
            let bytes: u64 = retained[nth..].iter().map(|at| self.messages[*at].bytes()).sum();
            let is_old = |age| self.messages[retained[nth]].produced_at.after(age) <= now;
            self.retention.age.is_some_and(is_old) || self.retention.bytes.is_some_and(|max| bytes > max)
        };
        let count = (0..retained.len()).take_while(|nth| is_over(*nth)).count();
        retained[..count].to_vec()
    }

    /// When the oldest retained message of the partition exceeds the retention, if there is one.
    pub(super) fn retention_ends(&self, partition: PartitionId) -> Option<Timestamp> {
        let retained = self.messages.iter().filter(|it| it.partition == partition && it.is_retained);
        let oldest = retained.clone().next()?;
        let bytes: u64 = retained.map(Message::bytes).sum();
        match (self.retention.bytes, self.retention.age) {
            (Some(max), _) if bytes > max => Some(Timestamp(0)),
            (_, age) => age.map(|age| oldest.produced_at.after(age)),
        }
    }

    /// Before the groups or the progress of one change: what is over does not come back.
    pub(super) fn remove_over(&mut self, now: Timestamp) {
        for partition in (0..self.partitions()).map(PartitionId) {
            self.over(partition, now).into_iter().rev().for_each(|at| self.remove(at));
        }
    }

    /// Removes messages acked by every group, unless retention keeps them. Bytes are counted in these partitions.
    pub(super) fn reclaim(&mut self, partitions: impl Iterator<Item = PartitionId>) {
        let keeps = self.keeps_acked();
        for at in (0..self.messages.len()).rev() {
            let is_acked = self.is_acked_by_all(at);
            if is_acked {
                let message = &mut self.messages[at];
                (message.is_delayed, message.has_deadline_timer) = (false, false);
            }
            if !is_acked {
                self.messages[at].is_retained = false;
            } else if keeps {
                self.messages[at].is_retained = true;
            } else if !self.messages[at].is_retained {
                self.remove(at);
            }
        }
        if let Some(bytes_max) = self.retention.bytes.filter(|_| keeps) {
            for partition in partitions {
                // From the newest back: the first that exceeds the limit is removed, with all older ones.
                let mut bytes = 0;
                for at in (0..self.messages.len()).rev() {
                    if self.messages[at].partition == partition && self.is_acked_by_all(at) {
                        bytes += self.messages[at].bytes();
                        if bytes > bytes_max {
                            self.remove(at);
                        }
                    }
                }
            }
        }
    }
}

impl Progress {
    pub(super) fn is_leased(&self) -> bool {
        matches!(self, Self::Attempted(Attempted { phase: Phase::Leased { .. }, .. }))
    }
}

impl Message {
    /// What it counts in memory while it is retained.
    pub(super) fn memory(&self) -> u64 {
        self.content.stored_len + RETAINED_MESSAGE_OVERHEAD
    }

    pub(super) fn bytes(&self) -> u64 {
        self.content.payload_len
    }

    /// The time of its deadline: for a message whose payload is lost it has passed.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let metadata = &self.content.metadata;
        let deadline = metadata.envelope.deadline.as_ref().map(|deadline| deadline.at);
        if metadata.lost.is_some() { Some(Timestamp(0)) } else { deadline }
    }

    /// Why it is dead-lettered when its deadline has passed, and what is said of it if its last error was `error`.
    pub(super) fn reason_past_deadline(&self, error: &LastErrorText) -> (DeadReason, Text) {
        match &self.content.metadata.lost {
            Some(damage) => (DeadReason::PayloadDamaged, damage.clone()),
            None => (DeadReason::DeadlineExceeded, error.as_str().into()),
        }
    }
}

impl Content {
    pub(super) fn new(key: &[u8], value: &[u8], metadata: Metadata, payload: PayloadId) -> Self {
        let stored_len = Body::pack(&metadata, key, value).encoded_len();
        let payload_len = (key.len() + value.len()) as u64;
        let (key, value, equal_body) = (key.to_vec(), value.to_vec(), OnceLock::new());
        Self { key, value, metadata, payload_len, stored_len, payload, equal_body }
    }

    /// The same payload with other metadata.
    pub(super) fn with_metadata(&self, metadata: Metadata) -> Self {
        Self { metadata, equal_body: OnceLock::new(), ..self.clone() }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value) = (String::from_utf8_lossy(&self.key), String::from_utf8_lossy(&self.value));
        write!(f, "{value:?} under {key:?} with {:?}", self.metadata)
    }
}

impl LastErrorText {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::None => "",
            Self::Timeout => "ack_timeout",
            Self::Reason(text) => text,
        }
    }

    /// The reason after an expired lease: a worker's own reason is kept.
    pub(super) fn after_expiry(&self) -> Self {
        if *self == Self::None { Self::Timeout } else { self.clone() }
    }
}
