//! Messages by priority and delay.

use std::collections::BTreeSet;

use driftq_core::state::Message;
use driftq_core::types::Position;
use driftq_core::volatile::{Due, QueueContents};

use super::{IndexView, open_messages};
use crate::invariants::catalog::{self, sentence};
use crate::invariants::verdict::Verdict;

#[doc = sentence!(queues_match_state)]
pub(super) fn queues_match_state(view: &IndexView<'_>) -> Verdict {
    let ids: BTreeSet<_> = view.state.topics().map(driftq_core::state::Topic::id).collect();
    let indexed: BTreeSet<_> = view.index.topics.keys().copied().collect();
    catalog::QUEUES_MATCH_STATE.holds(ids == indexed, || format!("topics {ids:?}, indexed {indexed:?}"))?;
    for topic in view.state.topics() {
        for (id, partition) in topic.partitions() {
            let empty = QueueContents::default();
            let queue = view.index.topics.get(&topic.id()).and_then(|topic| topic.queues.get(id.0 as usize));
            let queue = queue.unwrap_or(&empty);
            let found = |what: &str, at: Position| {
                let found = format!("{} {id} {at} at {}: {what}: {queue:?}", topic.name(), view.now);
                catalog::QUEUES_MATCH_STATE.holds(false, || found)
            };
            let mut special = BTreeSet::new();
            for (position, message) in open_messages(topic, id, partition) {
                let level = message.flags().priority.level();
                if let Some((due, priority)) = queue.delayed.get(&position) {
                    special.insert(position);
                    if !is_delay_of(*due, &message) || priority.level() != level {
                        return found("the delay is another", position);
                    }
                    let is_over = match due {
                        Due::Broker(at) => *at <= view.now,
                        Due::Wall(at) => *at <= view.wall,
                    };
                    if view.is_settled && is_over {
                        return found("the delay is over", position);
                    }
                } else {
                    if message.delayed_until().is_some_and(|until| until > view.now) {
                        return found("the delay runs", position);
                    }
                    if level > 0 {
                        special.insert(position);
                        if !queue.urgent.contains(&(level, position)) {
                            return found("the priority is missing", position);
                        }
                    }
                }
            }
            if special != queue.exceptions || queue.delayed.len() + queue.urgent.len() != special.len() {
                return found("others than the open messages", partition.next_position());
            }
            let is_inverse = queue.expired.len() == queue.serials.len()
                && queue.expired.iter().all(|(serial, (at, _))| queue.serials.get(at) == Some(serial));
            if !is_inverse {
                return found("expired delays do not match", partition.next_position());
            }
            if let Some(at) = queue.serials.keys().find(|at| partition.message(**at).is_none()) {
                return found("the expired delay of a removed message", *at);
            }
        }
    }
    Ok(())
}

fn is_delay_of(due: Due, message: &Message) -> bool {
    match due {
        Due::Broker(at) => message.delayed_until() == Some(at),
        Due::Wall(at) => message.deliver_at() == Some(at),
    }
}
