//! Every count is that of what is there. Nothing here trusts a counter: it counts again, one by one.

use driftq_core::reply::{PartitionInfo, TopicInfo};
use driftq_core::state::group::{Group, Progress};
use driftq_core::state::partition::{Message, Partition};
use driftq_core::state::topic::Topic;
use driftq_core::types::{Offset, PartitionId, Position, Timestamp};

use super::catalog::{self, sentence};
use super::tracker::model::PartitionView;
use super::verdict::Verdict;

#[doc = sentence!(group_counts_match)]
pub(super) fn group_counts_match(partition_view: &PartitionView<'_>, group: &Group, progress: &Progress) -> Verdict {
    let sums = Sums {
        entries: progress.entries().count() as u64,
        leased: leased(progress),
        undone: undone(progress, partition_view.partition),
        in_flight: progress.in_flight(),
        waiting: progress.waiting(),
        lag: progress.done().undone_before(partition_view.partition.next_position()),
    };
    catalog::GROUP_COUNTS_MATCH
        .holds(sums.add_up(), || format!("{partition_view} {}: {sums:?} in {progress:?}", group.name()))
}

/// What a group holds, counted one by one and as it says itself.
#[derive(Clone, Copy, Debug)]
struct Sums {
    entries: u64,
    leased: u32,
    undone: u64,
    in_flight: u32,
    waiting: u64,
    lag: u64,
}

impl Sums {
    fn add_up(self) -> bool {
        (self.in_flight, self.lag) == (self.leased, self.undone)
            && u64::from(self.leased) + self.waiting == self.entries
            // The rest of what is undone was never begun.
            && self.entries <= self.undone
    }
}

#[doc = sentence!(ack_count_matches)]
pub(super) fn ack_count_matches(
    partition_view: &PartitionView<'_>,
    position: Position,
    message: &Message,
    done_in: usize,
) -> Verdict {
    let is_open = partition_view.partition.is_open(position);
    let good = message.done_in as usize == done_in && is_open != partition_view.is_done_everywhere(done_in);
    catalog::ACK_COUNT_MATCHES
        .holds(good, || format!("{partition_view}: {message:?} is done in {done_in}, open: {is_open}"))
}

#[doc = sentence!(load_matches)]
pub(super) fn load_matches(partition_view: &PartitionView<'_>, messages: u64, bytes: u64) -> Verdict {
    let load = partition_view.partition.open();
    let good = (load.messages, load.bytes) == (messages, bytes);
    catalog::LOAD_MATCHES.holds(good, || format!("{partition_view}: {load:?}, counted {messages} and {bytes} bytes"))
}

#[doc = sentence!(description_matches)]
pub(super) fn description_matches(info: &TopicInfo, counted: &Counted) -> Verdict {
    let said = Counted::said(info);
    catalog::DESCRIPTION_MATCHES.holds(said == *counted, || format!("{said:?}, counted {counted:?}"))
}

/// A topic counted message by message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Next offset, open messages, their bytes, and how many of them are not to be delivered yet.
    partitions: Vec<(Offset, u64, u64, u64)>,
    groups: Vec<CountedGroup>,
}

/// A group counted message by message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CountedGroup {
    name: String,
    /// Not done, leased, waiting.
    partitions: Vec<(u64, u32, u64)>,
}

impl Counted {
    /// What is in the topic at `now`.
    pub(super) fn of(topic: &Topic, now: Timestamp) -> Self {
        let is_delayed = |message: &Message| message.body.metadata().envelope.deliver_at.is_some_and(|at| at > now);
        let partitions = topic.partitions().map(|(id, partition)| {
            let (messages, bytes) = open(topic, id);
            let delayed = open_messages(topic, id).filter(|message| is_delayed(message)).count() as u64;
            (partition.last_offset().map_or(Offset(0), Offset::next), messages, bytes, delayed)
        });
        let count = |(id, progress): (PartitionId, &Progress)| {
            let undone = topic.partition(id).map_or(0, |partition| undone(progress, partition));
            let waiting = progress.entries().filter(|(_, entry)| entry.leased_until().is_none()).count() as u64;
            (undone, leased(progress), waiting)
        };
        let groups = topic.groups().map(|group| CountedGroup {
            name: group.name().to_string(),
            partitions: group.partitions().map(count).collect(),
        });
        Self { partitions: partitions.collect(), groups: groups.collect() }
    }

    /// What the topic says is in it.
    fn said(info: &TopicInfo) -> Self {
        let partition = |info: &PartitionInfo| (info.next_offset, info.messages, info.bytes, info.delayed);
        let partitions = info.partitions.iter().map(partition);
        let groups = info.groups.iter().map(|info| CountedGroup {
            name: info.group.to_string(),
            partitions: info.partitions.iter().map(|info| (info.lag, info.in_flight, info.waiting)).collect(),
        });
        Self { partitions: partitions.collect(), groups: groups.collect() }
    }
}

/// Open messages and bytes of a partition.
pub(super) fn open(topic: &Topic, partition: PartitionId) -> (u64, u64) {
    open_messages(topic, partition).fold((0, 0), |(count, bytes), message| (count + 1, bytes + payload(message)))
}

/// Messages of a partition that some group, or nobody yet, has to do.
fn open_messages(topic: &Topic, partition: PartitionId) -> impl Iterator<Item = &Message> {
    let groups: Vec<_> = topic.groups().filter_map(|group| group.progress(partition)).collect();
    let messages = topic.partition(partition).into_iter().flat_map(Partition::messages);
    let is_open = move |at| groups.is_empty() || groups.iter().any(|group| !group.done().contains(at));
    messages.filter(move |(at, _)| is_open(*at)).map(|(_, message)| message)
}

/// Key and value bytes of a message.
pub(super) fn payload(message: &Message) -> u64 {
    (message.body.key().len() + message.body.value().len()) as u64
}

/// How many messages a group's workers hold.
pub(super) fn leased(progress: &Progress) -> u32 {
    progress.entries().filter(|(_, entry)| entry.leased_until().is_some()).count() as u32
}

/// How many messages a group is not done with.
fn undone(progress: &Progress, partition: &Partition) -> u64 {
    let done = progress.done();
    // Below its floor the group is done with everything.
    (done.floor().0..partition.next_position().0).filter(|at| !done.contains(Position(*at))).count() as u64
}

#[cfg(test)]
mod tests {
    use driftq_core::faults::NoFaults;

    use super::*;
    use crate::invariants::tests::fixtures::*;
    use crate::world::World;

    #[test]
    fn a_group_that_counts_one_too_many_does_not_add_up() {
        let right = Sums { entries: 3, leased: 2, undone: 5, in_flight: 2, waiting: 1, lag: 5 };
        assert!(right.add_up());
        assert!(!Sums { in_flight: 3, ..right }.add_up());
        assert!(!Sums { waiting: 2, ..right }.add_up());
        assert!(!Sums { lag: 6, ..right }.add_up());
        assert!(!Sums { undone: 2, lag: 2, ..right }.add_up(), "more begun than there is to do");
    }

    #[test]
    fn a_topic_that_says_less_than_is_in_it_is_wrong() {
        let mut world = world(r#"{"ask":{"create":{"topic":"t0"}}}"#);
        let name = topic("t0");
        let of = |world: &World<NoFaults>| {
            let topic = world.broker().expect("it runs").state().topic_named(&name).expect("made");
            Counted::of(topic, Timestamp(0))
        };
        let info = TopicInfo {
            name: name.clone(),
            partitions: world.broker().expect("it runs").state().topic_named(&name).map_or(Vec::new(), |topic| {
                let empty = |(partition, _)| PartitionInfo {
                    partition,
                    next_offset: Offset(0),
                    messages: 0,
                    bytes: 0,
                    delayed: 0,
                };
                topic.partitions().map(empty).collect()
            }),
            groups: Vec::new(),
        };
        fine(description_matches(&info, &of(&world)));
        let action = serde_json::from_str(r#"{"ask":{"produce":{"message":"m0","topic":"t0"}}}"#).expect("a step");
        world.apply(&action).expect("a good step");
        breaks(catalog::DESCRIPTION_MATCHES, description_matches(&info, &of(&world)));
    }
}
