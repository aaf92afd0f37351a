//! The order of unanswered deliveries on each stream.

use driftq_core::types::ConsumerId;

use super::lease::Runs;
use super::model::{MessageIndex, Model};
use super::order::{Entry, GroupMessage, Order};
use super::topic::{Attempted, Phase, Progress};

impl Model {
    pub(super) fn group_message(&self, (t, g, m): MessageIndex) -> GroupMessage {
        let topic = &self.topics[t];
        (topic.id, topic.groups[g].id, topic.messages[m].offset)
    }

    pub(super) fn index_of(&self, (topic, group, offset): GroupMessage) -> Option<MessageIndex> {
        let t = self.topics.iter().position(|known| known.id == topic)?;
        let g = self.topics[t].groups.iter().position(|known| known.id == group)?;
        Some((t, g, self.topics[t].message(offset)?))
    }

    fn entries(&mut self, stream: ConsumerId) -> &mut Vec<Entry> {
        let at = self.orders.iter().position(|order| order.stream == stream).unwrap_or_else(|| {
            self.orders.push(Order { stream, entries: Vec::new() });
            self.orders.len() - 1
        });
        &mut self.orders[at].entries
    }

    pub(super) fn unanswered_by(&self, stream: ConsumerId) -> Vec<GroupMessage> {
        let order = self.orders.iter().find(|order| order.stream == stream);
        let entries = order.into_iter().flat_map(|order| &order.entries);
        entries.filter(|entry| !entry.expired).map(|entry| entry.message).collect()
    }

    /// A delivery comes last, except that of the message whose expiry made the stream's order wait.
    pub(super) fn note_delivery(&mut self, stream: ConsumerId, message: GroupMessage) {
        let entries = self.entries(stream);
        match entries.first_mut() {
            Some(first) if first.expired && first.message == message => first.expired = false,
            _ => entries.push(Entry { message, expired: false }),
        }
    }

    pub(super) fn is_oldest_unanswered(&self, stream: ConsumerId, message: GroupMessage) -> bool {
        let order = self.orders.iter().find(|order| order.stream == stream);
        order.and_then(|order| order.entries.first()).is_some_and(|first| first.message == message)
    }

    /// The stream answered a delivery. `ended` is the message whose lease ends by it.
    pub(super) fn note_answer(&mut self, stream: ConsumerId, ended: Option<GroupMessage>) {
        self.entries(stream).retain(|entry| !entry.expired && Some(entry.message) != ended);
        self.drop_idle_orders();
    }

    pub(super) fn note_expiry(&mut self, stream: ConsumerId, message: GroupMessage) {
        let entries = self.entries(stream);
        match entries.iter().position(|entry| entry.message == message) {
            Some(0) => entries[0].expired = true,
            Some(at) => drop(entries.remove(at)),
            None => {}
        }
        self.drop_idle_orders();
    }

    /// Leases have ended otherwise: they leave no entry.
    pub(super) fn drop_ended_entries(&mut self) {
        for at in 0..self.orders.len() {
            let stream = self.orders[at].stream;
            let mut entries = std::mem::take(&mut self.orders[at].entries);
            entries.retain(|entry| entry.expired || self.is_held(entry.message, stream));
            self.orders[at].entries = entries;
        }
        self.drop_idle_orders();
    }

    fn is_held(&self, message: GroupMessage, stream: ConsumerId) -> bool {
        self.index_of(message).is_some_and(|(t, g, m)| match &self.topics[t].groups[g].progress[m] {
            Progress::Attempted(Attempted { phase: Phase::Leased { holder, .. }, .. }) => *holder == stream,
            _ => false,
        })
    }

    /// The order of a stream that is gone ends with its last lease.
    pub(super) fn drop_idle_orders(&mut self) {
        let streams = &self.streams;
        self.orders.retain(|order| {
            streams.iter().any(|stream| stream.id == order.stream) || order.entries.iter().any(|entry| !entry.expired)
        });
    }

    /// After a start, the leases of one owner in one group are a stream, in the order of their tokens.
    pub(super) fn order_leases_of_earlier_boots(&mut self) {
        let mut leases = Vec::new();
        for (t, topic) in self.topics.iter().enumerate() {
            for (g, group) in topic.groups.iter().enumerate() {
                for (m, progress) in group.progress.iter().enumerate() {
                    if let Progress::Attempted(attempted) = progress
                        && let Phase::Leased { until, .. } = attempted.phase
                    {
                        leases.push((attempted.token, (t, g, m), (t, g, attempted.owner.clone()), until));
                    }
                }
            }
        }
        leases.sort_by_key(|(token, ..)| *token);
        let mut owners = Vec::new();
        for (_, index, owner, until) in leases {
            let number = owners.iter().position(|known| *known == owner).unwrap_or_else(|| {
                owners.push(owner);
                owners.len() - 1
            });
            let stream = ConsumerId(u64::MAX - number as u64);
            self.attempted_mut(index).phase = Phase::Leased { until, holder: stream, runs: Runs::Until(until) };
            let message = self.group_message(index);
            self.note_delivery(stream, message);
        }
    }
}
