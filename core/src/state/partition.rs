//! A partition: stored and trimmed messages, backlog and retention.

use std::collections::BTreeMap;

use crate::collections::ack_set::AckSet;
use crate::collections::cow::CowMap;
use crate::types::{Body, GroupId, Offset, Position, Retention, Timestamp};

/// A stored message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its offset in the topic.
    pub offset: Offset,
    /// When it was stored.
    pub produced_at: Timestamp,
    /// Its bytes.
    pub body: Body,
    /// The number of groups that have acked it.
    pub acked_in: u32,
}

/// A number of messages and their key and value bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The number of messages.
    pub messages: u64,
    /// Their key and value bytes.
    pub bytes: u64,
}

impl Load {
    fn add(&mut self, message: &Message) {
        self.messages += 1;
        self.bytes += message.body.payload_len();
    }

    fn subtract(&mut self, message: &Message) {
        debug_assert!(self.messages > 0, "the message was added before");
        self.messages -= 1;
        self.bytes -= message.body.payload_len();
    }
}

/// The messages of one partition, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    pub(crate) messages: CowMap<Position, Message>,
    pub(super) next_position: Position,
    pub(super) last_offset: Option<Offset>,
    /// Positions whose messages are removed. Acked in every group, including those created later.
    pub(super) trimmed: AckSet,
    /// Messages not yet acked in every group.
    pub(super) backlog: Load,
    /// Messages acked in every group and kept for replay.
    pub(super) retained: CowMap<Position, ()>,
    pub(super) retained_load: Load,
    /// Redriven messages and the only group to which each is visible.
    pub(super) exclusive: BTreeMap<Position, GroupId>,
}

impl Partition {
    /// The message at `position`, if it is stored.
    #[must_use]
    pub fn message(&self, position: Position) -> Option<&Message> {
        self.messages.get(&position)
    }

    /// The message with `offset`, if it is stored in this partition.
    #[must_use]
    pub fn find(&self, offset: Offset) -> Option<(Position, &Message)> {
        self.messages.find_by(|_, message| message.offset.cmp(&offset)).map(|(position, message)| (*position, message))
    }

    /// The first stored message at or after `offset`.
    #[must_use]
    pub(crate) fn first_from_offset(&self, offset: Offset) -> Option<(Position, &Message)> {
        self.messages.first_where(|_, message| message.offset >= offset).map(|(position, message)| (*position, message))
    }

    /// The first stored message that was produced at or after `time`.
    #[must_use]
    pub(crate) fn first_from_time(&self, time: Timestamp) -> Option<(Position, &Message)> {
        self.messages
            .first_where(|_, message| message.produced_at >= time)
            .map(|(position, message)| (*position, message))
    }

    /// All stored messages, in order.
    pub fn messages(&self) -> impl Iterator<Item = (Position, &Message)> {
        self.messages.iter().map(|(position, message)| (*position, message))
    }

    /// The last stored message.
    #[must_use]
    pub fn last_message(&self) -> Option<(Position, &Message)> {
        self.messages.last().map(|(position, message)| (*position, message))
    }

    /// The stored messages from `position` on, in order.
    pub(crate) fn messages_from(&self, position: Position) -> impl Iterator<Item = (Position, &Message)> {
        self.messages.range_from(&position).map(|(position, message)| (*position, message))
    }

    /// The position of the next message.
    #[must_use]
    pub fn next_position(&self) -> Position {
        self.next_position
    }

    /// The offset of the newest message, stored or trimmed; `None` if there never was one.
    #[must_use]
    pub fn last_offset(&self) -> Option<Offset> {
        self.last_offset
    }

    /// The positions whose messages are removed.
    #[must_use]
    pub fn trimmed(&self) -> &AckSet {
        &self.trimmed
    }

    /// The messages not yet acked in every group, which backpressure counts.
    #[must_use]
    pub fn backlog(&self) -> Load {
        self.backlog
    }

    /// All stored messages: the backlog and the retained ones.
    #[must_use]
    pub fn kept(&self) -> Load {
        Load {
            messages: self.backlog.messages + self.retained_load.messages,
            bytes: self.backlog.bytes + self.retained_load.bytes,
        }
    }

    /// The oldest retained message.
    #[must_use]
    pub fn oldest_retained(&self) -> Option<(Position, &Message)> {
        let (position, ()) = self.retained.first()?;
        Some((*position, self.messages.get(position).expect("a retained message is stored")))
    }

    /// The positions of retained messages, in order.
    pub fn retained(&self) -> impl Iterator<Item = Position> {
        self.retained.iter().map(|(position, ())| *position)
    }

    /// Whether the message at `position` is stored and not yet acked in every group.
    #[must_use]
    pub fn in_backlog(&self, position: Position) -> bool {
        self.messages.contains_key(&position) && (self.retained.is_empty() || !self.retained.contains_key(&position))
    }

    /// The only group to which the message at `position` is visible, if it is a redriven one.
    #[must_use]
    pub fn visible_to(&self, position: Position) -> Option<GroupId> {
        if self.exclusive.is_empty() { None } else { self.exclusive.get(&position).copied() }
    }

    pub(super) fn push(&mut self, offset: Offset, produced_at: Timestamp, body: Body) -> Position {
        let position = self.next_position;
        let message = Message { offset, produced_at, body, acked_in: 0 };
        self.backlog.add(&message);
        self.messages.insert(position, message);
        self.next_position = position.next();
        self.last_offset = Some(offset);
        position
    }

    /// Counts an ack of one of the topic's `groups`. The last one removes or retains the message, depending on
    /// `retention`. Returns the message's offset; `None` if it is not stored.
    pub(super) fn count_ack(&mut self, position: Position, groups: u32, retention: Retention) -> Option<Offset> {
        if groups == 1 && !retention.keeps_acked() {
            return self.remove_from_backlog(position);
        }
        let message = self.messages.get_mut(&position)?;
        let offset = message.offset;
        message.acked_in += 1;
        assert!(message.acked_in <= groups, "each group acks a message at most once");
        if message.acked_in < groups {
            return Some(offset);
        }
        if retention.keeps_acked() {
            self.retain(position);
            self.enforce_retained_bytes(retention);
        } else {
            self.remove_from_backlog(position);
        }
        Some(offset)
    }

    /// Removes retained messages up to `through`.
    pub(super) fn expire_retained(&mut self, through: Position) {
        while let Some((position, ())) = self.retained.first() {
            if *position > through {
                break;
            }
            self.remove_oldest_retained();
        }
    }

    /// Recomputes backlog and retained messages from `acked_in`, after the set of groups or a group's progress changed.
    pub(super) fn recount(&mut self, groups: u32, retention: Retention) {
        self.backlog = Load::default();
        self.retained = CowMap::new();
        self.retained_load = Load::default();
        let mut acked = Vec::new();
        for (position, message) in self.messages.iter() {
            if groups > 0 && message.acked_in == groups {
                acked.push(*position);
            } else {
                self.backlog.add(message);
            }
        }
        for position in acked {
            let message = self.messages.get(&position).expect("collected above");
            self.backlog.add(message);
            if retention.keeps_acked() {
                self.retain(position);
            } else {
                self.remove_from_backlog(position);
            }
        }
        self.enforce_retained_bytes(retention);
    }

    /// Removes a message, if it is stored, from the backlog or the retained ones.
    pub(crate) fn remove(&mut self, position: Position) {
        if self.retained.remove(&position).is_some() {
            let message = self.messages.remove(&position).expect("a retained message is stored");
            self.retained_load.subtract(&message);
            self.trim(position, message.offset);
        } else if self.messages.contains_key(&position) {
            self.remove_from_backlog(position);
        }
    }

    pub(super) fn set_acked_in(&mut self, position: Position, groups: u32) {
        self.messages.get_mut(&position).expect("the message is stored").acked_in = groups;
    }

    pub(super) fn add_acked_in(&mut self, position: Position, groups: u32) {
        self.messages.get_mut(&position).expect("the message is stored").acked_in += groups;
    }

    /// Adds `change(position)` to the ack count of every message. A [`Partition::recount`] must follow.
    pub(super) fn change_acked_in(&mut self, change: impl Fn(Position) -> i64) {
        let changes: Vec<_> = self
            .messages
            .iter()
            .map(|(position, _)| (*position, change(*position)))
            .filter(|(_, by)| *by != 0)
            .collect();
        for (position, by) in changes {
            let message = self.messages.get_mut(&position).expect("collected above");
            let acked_in = i64::from(message.acked_in) + by;
            message.acked_in = u32::try_from(acked_in).expect("each group acks a message at most once");
        }
    }

    /// Removes a message of the backlog and returns its offset; `None` if it is not stored.
    fn remove_from_backlog(&mut self, position: Position) -> Option<Offset> {
        let message = self.messages.remove(&position)?;
        self.backlog.subtract(&message);
        self.trim(position, message.offset);
        Some(message.offset)
    }

    fn retain(&mut self, position: Position) {
        let message = self.messages.get(&position).expect("the message is stored");
        self.backlog.subtract(message);
        self.retained_load.add(message);
        self.retained.insert(position, ());
    }

    fn enforce_retained_bytes(&mut self, retention: Retention) {
        let Some(bytes_max) = retention.bytes else { return };
        while self.retained_load.bytes > bytes_max {
            self.remove_oldest_retained();
        }
    }

    fn remove_oldest_retained(&mut self) {
        let (position, ()) = self.retained.first().expect("a message is retained");
        self.remove(*position);
    }

    fn trim(&mut self, position: Position, offset: Offset) {
        let is_new = self.trimmed.insert(position, offset);
        assert!(is_new, "a message is trimmed once");
        if !self.exclusive.is_empty() {
            self.exclusive.remove(&position);
        }
    }
}
