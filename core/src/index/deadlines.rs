//! Deadlines of the messages in a backlog: one timer per message, in wall time.
//!
//! A deadline that passes ends the waiting of its message in every group. The timer is set again whenever the message
//! can begin to wait once more: after a lease, in a new group, by a seek.

use super::{Due, Index, Timer};
use crate::state::{Message, Topic};
use crate::types::{PartitionId, Position, TopicId};

type Key = (TopicId, PartitionId, Position);

impl Index {
    /// Sets the timer of a message's deadline, if it has one. Deadlines have no effect in a dead-letter topic.
    pub(super) fn watch_deadline(
        &mut self,
        topic: &Topic,
        partition: PartitionId,
        position: Position,
        message: &Message,
    ) {
        if topic.name().is_dead_letter() {
            return;
        }
        if let Some(deadline) = message.deadline() {
            self.deadlines.insert((topic.id(), partition, position), deadline);
            self.rearm_deadline(topic.id(), partition, position);
        }
    }

    /// A message waits again: its deadline acts, even if it has passed before.
    pub(super) fn rearm_deadline(&mut self, topic: TopicId, partition: PartitionId, position: Position) {
        if let Some(at) = self.deadlines.get(&(topic, partition, position)) {
            self.timers.set(Due::Wall(*at), Timer::Deadline(topic, partition, position));
        }
    }

    /// A message has left the backlog.
    pub(crate) fn forget_deadline(&mut self, key: Key) {
        let (topic, partition, position) = key;
        if let Some(at) = self.deadlines.remove(&key) {
            self.timers.cancel(Due::Wall(at), Timer::Deadline(topic, partition, position));
        }
    }

    /// After the groups of a topic or the progress of one changed: messages can have left the backlog, and those in it
    /// can wait in another group.
    pub(super) fn reconcile_deadlines(&mut self, topic: &Topic) {
        for (id, partition, position) in self.deadlines_of(topic.id()) {
            let in_backlog = topic.partition(partition).is_some_and(|messages| messages.in_backlog(position));
            match in_backlog {
                true => self.rearm_deadline(id, partition, position),
                false => self.forget_deadline((id, partition, position)),
            }
        }
    }

    /// The messages of a topic that have a deadline.
    pub(super) fn deadlines_of(&self, topic: TopicId) -> Vec<Key> {
        let from = (topic, PartitionId(0), Position(0));
        let of_topic = self.deadlines.range(from..).take_while(|((of, ..), _)| *of == topic);
        of_topic.map(|(key, _)| *key).collect()
    }
}
