//! A topic: the messages it keeps, its groups, and how far each of them is with each message.

use std::fmt;
use std::sync::{Arc, OnceLock};

use driftq_core::record::Retention;
use driftq_core::types::{
    ConsumerId, GroupId, GroupName, LeaseToken, Metadata, Offset, OwnerName, PartitionId, Timestamp, TopicId, TopicName,
};
use driftq_core::{Body, Refusal};

/// A topic, its messages in the order of their offsets, its groups in the order of their numbers.
#[derive(Clone, Debug)]
pub(super) struct Topic {
    pub(super) id: TopicId,
    pub(super) name: TopicName,
    pub(super) dead_name: Option<TopicName>,
    pub(super) retention: Retention,
    pub(super) next_offset: Offset,
    pub(super) next_group: GroupId,
    /// Each partition's newest offset, gone or not.
    pub(super) newest: Vec<Option<Offset>>,
    pub(super) messages: Vec<Message>,
    pub(super) groups: Vec<Group>,
}

/// A message that is kept.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) offset: Offset,
    pub(super) partition: PartitionId,
    /// The offset of the one before it in its partition, gone or not.
    pub(super) before: Option<Offset>,
    pub(super) produced_at: Timestamp,
    pub(super) priority: u8,
    /// Not delivered before this moment; 0 for no delay.
    pub(super) deliver_at: Timestamp,
    /// The one group that sees it, for a redriven message.
    pub(super) only_for: Option<GroupId>,
    pub(super) content: Arc<Content>,
}

/// What a message says.
#[derive(Clone)]
pub(super) struct Content {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) metadata: Metadata,
    /// A body that was found to say just this, so that it need not be taken apart a second time.
    pub(super) seen: OnceLock<Body>,
}

/// A group and how far it is with each message of its topic.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) id: GroupId,
    pub(super) name: GroupName,
    pub(super) paused: bool,
    /// One for each of the topic's messages, in the same order.
    pub(super) progress: Vec<Progress>,
    pub(super) last_served: ConsumerId,
    pub(super) last_partition: PartitionId,
    /// What was there at the last seek is delivered even where its identity is done.
    pub(super) replayed_below: Offset,
}

/// How far a group is with a message.
#[derive(Clone, Debug)]
pub(super) enum Progress {
    /// Never delivered.
    Ready,
    /// Delivered, and not done.
    Begun(Begun),
    Done,
}

/// The newest delivery of a message that is not done.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    pub(super) attempts: u32,
    pub(super) failures: u32,
    pub(super) token: LeaseToken,
    pub(super) owner: OwnerName,
    pub(super) error: FailureText,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Held by a stream until a moment; by none that is still known after a restart.
    Leased {
        until: Timestamp,
        holder: ConsumerId,
    },
    Queued {
        not_before: Timestamp,
    },
}

/// What was last said to be wrong with a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum FailureText {
    #[default]
    None,
    Timeout,
    Said(Arc<str>),
}

impl Topic {
    pub(super) fn new(id: TopicId, name: TopicName, partitions: u32, retention: Retention) -> Self {
        Self {
            id,
            dead_name: name.dead_letter(),
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

    pub(super) fn is_dead_letters(&self) -> bool {
        self.dead_name.is_none()
    }

    pub(super) fn group_named(&self, name: &GroupName) -> Option<usize> {
        self.groups.iter().position(|group| group.name == *name)
    }

    pub(super) fn message(&self, offset: Offset) -> Option<usize> {
        self.messages.iter().position(|message| message.offset == offset)
    }

    /// Whether the message is done in every group there is.
    pub(super) fn is_closed(&self, message: usize) -> bool {
        !self.groups.is_empty() && self.groups.iter().all(|group| matches!(group.progress[message], Progress::Done))
    }

    /// The messages of a partition that backpressure counts, and their bytes.
    pub(super) fn open(&self, partition: PartitionId) -> (u64, u64) {
        let (mut count, mut bytes) = (0, 0);
        for (at, message) in self.messages.iter().enumerate() {
            if message.partition == partition && !self.is_closed(at) {
                count += 1;
                bytes += message.bytes();
            }
        }
        (count, bytes)
    }

    /// Stores a message that every group sees, or one alone.
    pub(super) fn store(&mut self, at: Timestamp, partition: PartitionId, only_for: Option<GroupId>, content: Content) {
        let offset = self.next_offset;
        self.next_offset = offset.next();
        let before = self.newest[partition.0 as usize].replace(offset);
        let envelope = &content.metadata.envelope;
        let priority = envelope.priority.unwrap_or_default().level();
        let deliver_at = envelope.deliver_at.unwrap_or_default();
        let content = Arc::new(content);
        self.messages.push(Message {
            offset,
            partition,
            before,
            produced_at: at,
            priority,
            deliver_at,
            only_for,
            content,
        });
        for group in &mut self.groups {
            let sees = only_for.is_none_or(|only| only == group.id);
            group.progress.push(if sees { Progress::Ready } else { Progress::Done });
        }
    }

    pub(super) fn remove(&mut self, message: usize) {
        self.messages.remove(message);
        for group in &mut self.groups {
            group.progress.remove(message);
        }
    }

    /// Lets go of what is done in every group, as far as the topic does not keep it for replay.
    pub(super) fn tidy(&mut self) {
        let keeps = self.retention.age.is_some() || self.retention.bytes.is_some();
        if !keeps {
            for at in (0..self.messages.len()).rev() {
                if self.is_closed(at) {
                    self.remove(at);
                }
            }
        } else if let Some(bytes_max) = self.retention.bytes {
            for partition in (0..self.partitions()).map(PartitionId) {
                // From the newest back: what no longer fits goes, and so does all before it.
                let mut bytes = 0;
                for at in (0..self.messages.len()).rev() {
                    if self.messages[at].partition == partition && self.is_closed(at) {
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
        matches!(self, Self::Begun(Begun { phase: Phase::Leased { .. }, .. }))
    }
}

impl Message {
    pub(super) fn bytes(&self) -> u64 {
        (self.content.key.len() + self.content.value.len()) as u64
    }
}

impl Content {
    pub(super) fn new(key: &[u8], value: &[u8], metadata: Metadata) -> Self {
        Self { key: key.to_vec(), value: value.to_vec(), metadata, seen: OnceLock::new() }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value) = (String::from_utf8_lossy(&self.key), String::from_utf8_lossy(&self.value));
        write!(f, "{value:?} under {key:?} with {:?}", self.metadata)
    }
}

impl FailureText {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::None => "",
            Self::Timeout => "ack_timeout",
            Self::Said(text) => text,
        }
    }

    /// What is said after a lease ended in silence: a worker's own words stay.
    pub(super) fn after_silence(&self) -> Self {
        if *self == Self::None { Self::Timeout } else { self.clone() }
    }
}
