//! One partition's messages: what is kept, what is trimmed, and how much of it is still to be done.

use std::collections::BTreeMap;

use crate::collections::ack_set::AckSet;
use crate::collections::cow::CowMap;
use crate::types::{Body, GroupId, Offset, Position, Retention, Timestamp};

/// A message as the broker keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its offset in the topic.
    pub offset: Offset,
    /// When it was accepted.
    pub produced_at: Timestamp,
    /// Its bytes.
    pub body: Body,
    /// In how many of the topic's groups it is done.
    pub acked_in: u32,
}

/// A number of messages and their key and value bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// How many messages.
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
        debug_assert!(self.messages > 0, "a message leaves a load it had entered");
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
    /// Positions whose messages are gone. Done in every group, those of the future included.
    pub(super) trimmed: AckSet,
    /// Messages not yet done in every group.
    pub(super) backlog: Load,
    /// Messages done in every group and kept for replay.
    pub(super) retained: CowMap<Position, ()>,
    pub(super) retained_load: Load,
    /// Redriven messages and the one group that sees each.
    pub(super) exclusive: BTreeMap<Position, GroupId>,
}

impl Partition {
    /// The message at `position`, if it is still kept.
    #[must_use]
    pub fn message(&self, position: Position) -> Option<&Message> {
        self.messages.get(&position)
    }

    /// The message with `offset`, if it is in this partition and still kept.
    #[must_use]
    pub fn find(&self, offset: Offset) -> Option<(Position, &Message)> {
        self.messages.find_by(|_, message| message.offset.cmp(&offset)).map(|(position, message)| (*position, message))
    }

    /// The first kept message at or after `offset`.
    #[must_use]
    pub fn first_from_offset(&self, offset: Offset) -> Option<(Position, &Message)> {
        self.messages.first_where(|_, message| message.offset >= offset).map(|(position, message)| (*position, message))
    }

    /// The first kept message accepted at or after `moment`.
    #[must_use]
    pub fn first_from_time(&self, moment: Timestamp) -> Option<(Position, &Message)> {
        self.messages
            .first_where(|_, message| message.produced_at >= moment)
            .map(|(position, message)| (*position, message))
    }

    /// All kept messages, in order.
    pub fn messages(&self) -> impl Iterator<Item = (Position, &Message)> {
        self.messages.iter().map(|(position, message)| (*position, message))
    }

    /// The last message that is kept.
    #[must_use]
    pub fn last_message(&self) -> Option<(Position, &Message)> {
        self.messages.last().map(|(position, message)| (*position, message))
    }

    /// Kept messages from `position` on, in order.
    pub fn messages_from(&self, position: Position) -> impl Iterator<Item = (Position, &Message)> {
        self.messages.range_from(&position).map(|(position, message)| (*position, message))
    }

    /// The position the next message gets.
    #[must_use]
    pub fn next_position(&self) -> Position {
        self.next_position
    }

    /// The newest message's offset, if there ever was one.
    #[must_use]
    pub fn last_offset(&self) -> Option<Offset> {
        self.last_offset
    }

    /// The positions whose messages are gone.
    #[must_use]
    pub fn trimmed(&self) -> &AckSet {
        &self.trimmed
    }

    /// What backpressure counts: messages not yet done in every group.
    #[must_use]
    pub fn backlog(&self) -> Load {
        self.backlog
    }

    /// All kept messages, the done ones included.
    #[must_use]
    pub fn kept(&self) -> Load {
        Load {
            messages: self.backlog.messages + self.retained_load.messages,
            bytes: self.backlog.bytes + self.retained_load.bytes,
        }
    }

    /// The oldest message that is kept although it is done in every group.
    #[must_use]
    pub fn oldest_retained(&self) -> Option<(Position, &Message)> {
        let (position, ()) = self.retained.first()?;
        Some((*position, self.messages.get(position).expect("what is retained is kept")))
    }

    /// Positions kept although done in every group, in order.
    pub fn retained(&self) -> impl Iterator<Item = Position> {
        self.retained.iter().map(|(position, ())| *position)
    }

    /// Whether the message at `position` is kept and not yet done in every group.
    #[must_use]
    pub fn in_backlog(&self, position: Position) -> bool {
        self.messages.contains_key(&position) && (self.retained.is_empty() || !self.retained.contains_key(&position))
    }

    /// The one group that sees the message at `position`, if it is a redriven one.
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

    /// One more of the topic's `groups` is done with the message; when it was the last one, the message goes or is kept
    /// as `retention` says. Gives the message's offset, or `None`, and changes nothing, if it is not there.
    pub(super) fn count_ack(&mut self, position: Position, groups: u32, retention: Retention) -> Option<Offset> {
        if groups == 1 && !retention.keeps_acked() {
            return self.remove_from_backlog(position);
        }
        let message = self.messages.get_mut(&position)?;
        let offset = message.offset;
        message.acked_in += 1;
        assert!(message.acked_in <= groups, "a message is done at most once in each group");
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

    /// Drops done messages up to `through`.
    pub(super) fn expire_retained(&mut self, through: Position) {
        while let Some((position, ())) = self.retained.first() {
            if *position > through {
                break;
            }
            self.drop_oldest_retained();
        }
    }

    /// Sorts every kept message anew into open and done, after the set of groups or a group's progress changed.
    /// `acked_in` is right already.
    pub(super) fn recount(&mut self, groups: u32, retention: Retention) {
        self.backlog = Load::default();
        self.retained = CowMap::new();
        self.retained_load = Load::default();
        let mut done = Vec::new();
        for (position, message) in self.messages.iter() {
            if groups > 0 && message.acked_in == groups {
                done.push(*position);
            } else {
                self.backlog.add(message);
            }
        }
        for position in done {
            let message = self.messages.get(&position).expect("just seen");
            self.backlog.add(message);
            if retention.keeps_acked() {
                self.retain(position);
            } else {
                self.remove_from_backlog(position);
            }
        }
        self.enforce_retained_bytes(retention);
    }

    /// Removes one message, if it is still kept, whether or not it is done or retained.
    pub(crate) fn take(&mut self, position: Position) {
        if self.retained.remove(&position).is_some() {
            let message = self.messages.remove(&position).expect("what is retained is kept");
            self.retained_load.subtract(&message);
            self.forget(position, message.offset);
        } else if self.messages.contains_key(&position) {
            self.remove_from_backlog(position);
        }
    }

    pub(super) fn set_acked_in(&mut self, position: Position, groups: u32) {
        self.messages.get_mut(&position).expect("only kept messages are counted").acked_in = groups;
    }

    pub(super) fn add_acked_in(&mut self, position: Position, groups: u32) {
        self.messages.get_mut(&position).expect("only kept messages are counted").acked_in += groups;
    }

    /// Changes every message's count by what `change` says of its position. A [`Partition::recount`] must follow.
    pub(super) fn change_acked_in(&mut self, change: impl Fn(Position) -> i64) {
        let changes: Vec<_> = self
            .messages
            .iter()
            .map(|(position, _)| (*position, change(*position)))
            .filter(|(_, by)| *by != 0)
            .collect();
        for (position, by) in changes {
            let message = self.messages.get_mut(&position).expect("just listed");
            let acked_in = i64::from(message.acked_in) + by;
            message.acked_in = u32::try_from(acked_in).expect("a message is done at most once in each group");
        }
    }

    /// Removes an open message and gives its offset, if it is there.
    fn remove_from_backlog(&mut self, position: Position) -> Option<Offset> {
        let message = self.messages.remove(&position)?;
        self.backlog.subtract(&message);
        self.forget(position, message.offset);
        Some(message.offset)
    }

    fn retain(&mut self, position: Position) {
        let message = self.messages.get(&position).expect("only kept messages are retained");
        self.backlog.subtract(message);
        self.retained_load.add(message);
        self.retained.insert(position, ());
    }

    fn enforce_retained_bytes(&mut self, retention: Retention) {
        let Some(bytes_max) = retention.bytes else { return };
        while self.retained_load.bytes > bytes_max {
            self.drop_oldest_retained();
        }
    }

    fn drop_oldest_retained(&mut self) {
        let (position, ()) = self.retained.first().expect("called while something is retained");
        self.take(*position);
    }

    fn forget(&mut self, position: Position, offset: Offset) {
        let fresh = self.trimmed.insert(position, offset);
        assert!(fresh, "a message is trimmed once");
        if !self.exclusive.is_empty() {
            self.exclusive.remove(&position);
        }
    }
}
