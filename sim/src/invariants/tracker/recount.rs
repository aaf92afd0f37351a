//! Recounts: what the broker keeps in counters, counted message by message. No counter is read here.

use driftq_core::reply::{PartitionInfo, TopicInfo};
use driftq_core::state::{Message, Partition, Progress, Topic};
use driftq_core::types::{Offset, PartitionId, Position, Timestamp};

/// A recount of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Next offset, open messages, their bytes, and how many are delayed.
    partitions: Vec<(Offset, u64, u64, u64)>,
    groups: Vec<CountedGroup>,
}

/// A recount of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CountedGroup {
    name: String,
    /// Unacked, leased, waiting.
    partitions: Vec<(u64, u32, u64)>,
}

impl Counted {
    /// A recount at broker time `now` and wall time `wall`.
    pub(crate) fn of(topic: &Topic, now: Timestamp, wall: Timestamp) -> Self {
        let is_delayed = |message: &Message| {
            message.deliver_at().is_some_and(|at| at > wall) || message.delayed_until().is_some_and(|until| until > now)
        };
        let partitions = topic.partitions().map(|(id, partition)| {
            let (messages, bytes) = open(topic, id);
            let delayed = open_messages(topic, id).filter(|message| is_delayed(message)).count() as u64;
            (partition.last_offset().map_or(Offset(0), Offset::next), messages, bytes, delayed)
        });
        let count = |(id, progress): (PartitionId, &Progress)| {
            let unacked = topic.partition(id).map_or(0, |partition| unacked(progress, partition));
            let waiting = progress.deliveries().filter(|(_, entry)| entry.leased_until().is_none()).count() as u64;
            (unacked, leased(progress), waiting)
        };
        let groups = topic.groups().map(|group| CountedGroup {
            name: group.name().as_str().to_owned(),
            partitions: group.partitions().map(count).collect(),
        });
        Self { partitions: partitions.collect(), groups: groups.collect() }
    }

    /// The same figures as the topic describes them.
    pub(crate) fn reported(info: &TopicInfo) -> Self {
        let partition = |info: &PartitionInfo| (info.next_offset, info.messages, info.bytes, info.delayed);
        let partitions = info.partitions.iter().map(partition);
        let groups = info.groups.iter().map(|info| CountedGroup {
            name: info.group.as_str().to_owned(),
            partitions: info.partitions.iter().map(|info| (info.lag, info.in_flight, info.waiting)).collect(),
        });
        Self { partitions: partitions.collect(), groups: groups.collect() }
    }
}

/// Open messages and bytes of a partition.
pub(crate) fn open(topic: &Topic, partition: PartitionId) -> (u64, u64) {
    open_messages(topic, partition).fold((0, 0), |(count, bytes), message| (count + 1, bytes + payload(&message)))
}

/// Messages of a partition that a group has not acked, or that have no group yet.
fn open_messages(topic: &Topic, partition: PartitionId) -> impl Iterator<Item = Message> {
    let groups: Vec<_> = topic.groups().filter_map(|group| group.progress(partition)).collect();
    let messages = topic.partition(partition).into_iter().flat_map(Partition::messages);
    let is_open = move |at| groups.is_empty() || groups.iter().any(|group| !group.acked().contains(at));
    messages.filter(move |(at, _)| is_open(*at)).map(|(_, message)| message)
}

/// Key and value bytes of a message.
pub(crate) fn payload(message: &Message) -> u64 {
    message.payload.payload_len()
}

/// The number of leased messages.
pub(crate) fn leased(progress: &Progress) -> u32 {
    progress.deliveries().filter(|(_, entry)| entry.leased_until().is_some()).count() as u32
}

/// The number of unacked messages.
pub(crate) fn unacked(progress: &Progress, partition: &Partition) -> u64 {
    let acked = progress.acked();
    // Below its floor the group has acked everything.
    (acked.floor().0..partition.next_position().0).filter(|at| !acked.contains(Position(*at))).count() as u64
}
