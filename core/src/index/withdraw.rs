//! Takes messages out of the index that a record is about to change.

use super::leases::EndedBy;
use super::{Index, Timer};
use crate::state::{State, Topic};
use crate::types::{DeliveryState, GroupId, MessageRef, Phase, Timestamp, TopicId};

impl Index {
    /// Removes a message from the ready ones of its group, or ends its lease.
    pub(super) fn withdraw(&mut self, state: &State, message_ref: &MessageRef, by: EndedBy, now: Timestamp) {
        if self.end_lease(message_ref, by, now) {
            return;
        }
        let Some(topic) = state.topic(message_ref.topic) else { return };
        match delivery_of(topic, message_ref).map(|delivery| delivery.phase) {
            Some(Phase::Queued { not_before }) => self.timers.cancel(not_before, Timer::Retry(*message_ref)),
            Some(Phase::Leased { .. }) => unreachable!("every lease is in the index"),
            None => {}
        }
        let flags =
            topic.partition(message_ref.partition).and_then(|partition| partition.flags_at(message_ref.position));
        let Some(flags) = flags else { return };
        self.cursor_mut(message_ref).take(flags.priority, message_ref.position);
    }

    pub(super) fn withdraw_group(&mut self, state: &State, topic: TopicId, group: GroupId, now: Timestamp) {
        let durable = state.topic(topic).and_then(|topic| topic.group(group)).expect("the record is not applied yet");
        for (partition, progress) in durable.partitions() {
            for (position, delivery) in progress.deliveries() {
                let message_ref = MessageRef { topic, group, partition, position };
                match delivery.phase {
                    Phase::Leased { .. } => {
                        let ended = self.end_lease(&message_ref, EndedBy::Other, now);
                        assert!(ended, "every lease is in the index");
                    }
                    Phase::Queued { not_before } => self.timers.cancel(not_before, Timer::Retry(message_ref)),
                }
            }
        }
    }
}

pub(super) fn delivery<'a>(state: &'a State, message_ref: &MessageRef) -> Option<&'a DeliveryState> {
    delivery_of(state.topic(message_ref.topic)?, message_ref)
}

fn delivery_of<'a>(topic: &'a Topic, message_ref: &MessageRef) -> Option<&'a DeliveryState> {
    topic.group(message_ref.group)?.progress(message_ref.partition)?.delivery(message_ref.position)
}
