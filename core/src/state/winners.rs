//! Winners: which delivery acked a message, so that a worker with another one is not told that it did.

use super::group::Progress;
use super::{Contradiction, State};
use crate::collections::expiring::{Expires, ExpiringMap};
use crate::collections::shared::unshared;
use crate::types::{GroupId, Offset, OffsetRef, PartitionId, Timestamp, TopicId, Winner};

/// The winners of messages that were delivered more than once or dead-lettered, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Winners(ExpiringMap<OffsetRef, Winner>);

impl Expires for Winner {
    fn expires_at(&self) -> Timestamp {
        self.until
    }
}

impl Winners {
    /// The winners, in the order they expire.
    pub fn entries(&self) -> impl Iterator<Item = (&OffsetRef, &Winner)> {
        self.0.entries()
    }

    /// The winner of a message, unless it is forgotten at `now`.
    #[must_use]
    pub(crate) fn get(&self, message: &OffsetRef, now: Timestamp) -> Option<&Winner> {
        self.0.get(message, now)
    }

    /// The number of remembered winners.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When the oldest is forgotten.
    #[must_use]
    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.0.next_expiry()
    }

    /// The number of oldest winners that are due to be forgotten at `now`, at most `limit`.
    #[must_use]
    pub(crate) fn expired(&self, now: Timestamp, limit: u64) -> u64 {
        self.0.expired(now, limit)
    }

    /// The winners, oldest first.
    pub(crate) fn in_order(self) -> impl Iterator<Item = (OffsetRef, Winner)> + Clone + Send {
        self.0.in_order()
    }

    /// Adds a winner and returns the one it replaces.
    pub(crate) fn insert(&mut self, message: OffsetRef, winner: Winner) -> Option<Winner> {
        self.0.insert(message, winner)
    }
}

impl State {
    /// Remembers which delivery has acked a message; none, if it was dead-lettered.
    pub(super) fn remember_winner(&mut self, message: OffsetRef, winner: Winner) -> Result<(), Contradiction> {
        match unshared(&mut self.winners).insert(message, winner) {
            None => Ok(()),
            Some(_) => Err(Contradiction("two winners of one message")),
        }
    }

    pub(super) fn winners_expired(&mut self, count: u64) -> Result<(), Contradiction> {
        let removed = unshared(&mut self.winners).0.remove_oldest(count);
        if removed { Ok(()) } else { Err(Contradiction("expiry of more winners than are remembered")) }
    }

    /// Forgets the winners of a group, which has been deleted or has sought.
    pub(super) fn forget_winners_of_group(&mut self, topic: TopicId, group: GroupId) {
        if !self.winners.is_empty() {
            let first = OffsetRef { topic, group, partition: PartitionId(0), offset: Offset(0) };
            unshared(&mut self.winners).0.remove_while(&first, |at| (at.topic, at.group) == (topic, group));
        }
    }

    /// Forgets the winners of a topic, which has been deleted.
    pub(super) fn forget_winners_of_topic(&mut self, topic: TopicId) {
        if !self.winners.is_empty() {
            let first = OffsetRef { topic, group: GroupId(0), partition: PartitionId(0), offset: Offset(0) };
            unshared(&mut self.winners).0.remove_while(&first, |at| at.topic == topic);
        }
    }

    pub(super) fn restore_winner(&mut self, message: OffsetRef, winner: Winner) -> Result<(), Contradiction> {
        let topic = self.topic(message.topic).ok_or(Contradiction("no such topic"))?;
        let progress = topic.group(message.group).and_then(|group| group.progress(message.partition));
        let progress: &Progress = progress.ok_or(Contradiction("no such group or partition"))?;
        if message.offset >= topic.next_offset() {
            return Err(Contradiction("offset not assigned yet"));
        }
        let stored = topic.partition(message.partition).and_then(|partition| partition.find(message.offset));
        if stored.is_some_and(|(position, _)| !progress.acked().contains(position)) {
            return Err(Contradiction("winner of a message that is not acked"));
        }
        if winner.token.is_some_and(|token| token.boot > self.boot) {
            return Err(Contradiction("lease token of a later boot"));
        }
        self.remember_winner(message, winner)
    }
}
