//! Counters, compared with a recount.

use driftq_core::reply::TopicInfo;
use driftq_core::state::{Group, Message, Progress};
use driftq_core::types::Position;

use super::catalog::{self, sentence};
use super::tracker::model::PartitionView;
use super::tracker::recount::{Counted, leased, unacked};
use super::verdict::Verdict;

#[doc = sentence!(group_counts_match)]
pub(super) fn group_counts_match(partition_view: &PartitionView<'_>, group: &Group, progress: &Progress) -> Verdict {
    let (end, next) = (progress.acked().end(), partition_view.partition.next_position());
    catalog::GROUP_COUNTS_MATCH.holds(end <= next, || {
        format!("{partition_view} {}: acked up to {end}, but only stored up to {next}", group.name())
    })?;
    let sums = Sums {
        entries: progress.deliveries().count() as u64,
        leased: leased(progress),
        unacked: unacked(progress, partition_view.partition),
        in_flight: progress.in_flight(),
        waiting: progress.waiting(),
        lag: progress.acked().unacked_before(next),
    };
    catalog::GROUP_COUNTS_MATCH
        .holds(sums.add_up(), || format!("{partition_view} {}: {sums:?} in {progress:?}", group.name()))
}

/// The counters of a group beside their recount.
#[derive(Clone, Copy, Debug)]
struct Sums {
    entries: u64,
    leased: u32,
    unacked: u64,
    in_flight: u32,
    waiting: u64,
    lag: u64,
}

impl Sums {
    fn add_up(self) -> bool {
        (self.in_flight, self.lag) == (self.leased, self.unacked)
            && u64::from(self.leased) + self.waiting == self.entries
            // The remaining unacked messages were never delivered.
            && self.entries <= self.unacked
    }
}

#[doc = sentence!(ack_count_matches)]
pub(super) fn ack_count_matches(
    partition_view: &PartitionView<'_>,
    position: Position,
    message: &Message,
    acked_in: usize,
) -> Verdict {
    let is_open = partition_view.partition.in_backlog(position);
    let good = partition_view.partition.acked_in(position) as usize == acked_in
        && is_open != partition_view.is_acked_by_all(acked_in);
    catalog::ACK_COUNT_MATCHES
        .holds(good, || format!("{partition_view}: {message:?} is acked in {acked_in} groups, open: {is_open}"))
}

#[doc = sentence!(load_matches)]
pub(super) fn load_matches(partition_view: &PartitionView<'_>, messages: u64, bytes: u64) -> Verdict {
    let load = partition_view.partition.backlog();
    let good = (load.messages, load.bytes) == (messages, bytes);
    catalog::LOAD_MATCHES.holds(good, || format!("{partition_view}: {load:?}, counted {messages} and {bytes} bytes"))
}

#[doc = sentence!(description_matches)]
pub(super) fn description_matches(info: &TopicInfo, counted: &Counted) -> Verdict {
    let reported = Counted::reported(info);
    catalog::DESCRIPTION_MATCHES.holds(reported == *counted, || format!("{reported:?}, counted {counted:?}"))
}

#[cfg(test)]
mod tests {
    use driftq_core::faults::NoFaults;
    use driftq_core::reply::PartitionInfo;
    use driftq_core::types::{Offset, Timestamp};

    use super::*;
    use crate::invariants::tests::fixtures::*;
    use crate::world::World;

    #[test]
    fn group_counter_off_by_one_is_a_violation() {
        let correct = Sums { entries: 3, leased: 2, unacked: 5, in_flight: 2, waiting: 1, lag: 5 };
        assert!(correct.add_up());
        assert!(!Sums { in_flight: 3, ..correct }.add_up());
        assert!(!Sums { waiting: 2, ..correct }.add_up());
        assert!(!Sums { lag: 6, ..correct }.add_up());
        assert!(!Sums { unacked: 2, lag: 2, ..correct }.add_up(), "more entries than unacked messages");
    }

    #[test]
    fn description_that_misses_a_message_is_a_violation() {
        let mut world = world(r#"{"ask":{"create":{"topic":"t0"}}}"#);
        let name = topic("t0");
        let recount = |world: &World<NoFaults>| {
            let topic = world.broker().expect("the broker runs").state().topic_named(&name).expect("the topic exists");
            Counted::of(topic, Timestamp(0), Timestamp(0))
        };
        let info = TopicInfo {
            name: name.clone(),
            retention: driftq_core::types::Retention::NOTHING,
            partitions: world.broker().expect("the broker runs").state().topic_named(&name).map_or(
                Vec::new(),
                |topic| {
                    let empty = |(partition, _)| PartitionInfo {
                        partition,
                        next_offset: Offset(0),
                        messages: 0,
                        bytes: 0,
                        delayed: 0,
                    };
                    topic.partitions().map(empty).collect()
                },
            ),
            groups: Vec::new(),
        };
        holds(description_matches(&info, &recount(&world)));
        let action =
            serde_json::from_str(r#"{"ask":{"produce":{"message":"m0","topic":"t0"}}}"#).expect("valid action");
        world.apply(&action).expect("no violation");
        violates(catalog::DESCRIPTION_MATCHES, description_matches(&info, &recount(&world)));
    }
}
