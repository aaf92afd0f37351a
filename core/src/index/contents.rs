//! The contents of an index as plain data, for a check that recounts them from the state.

use std::collections::{BTreeMap, BTreeSet};

use super::consumers::{Consumer, ConsumerTurns};
use super::cursor::Cursor;
use super::leases::LeaseEnd;
use super::priorities::PriorityQueue;
use super::unanswered::{Status, Unanswered};
use super::{Due, Index, Sweep, Timer};
use crate::command::OnDisconnect;
use crate::types::{
    ConsumerId, GroupId, LeaseToken, MessageRef, Millis, PartitionId, Position, Priority, Timestamp, TopicId,
};

/// The volatile state of a broker.
#[derive(Clone, Debug, Default)]
pub struct IndexContents {
    /// All timers, by time.
    pub timers: Vec<(Due, Timer)>,
    /// All sweeps, by time.
    pub sweeps: Vec<(Timestamp, Sweep)>,
    /// The connected consumers.
    pub consumers: BTreeMap<ConsumerId, ConsumerContents>,
    /// The unanswered deliveries of streams that ended, and of earlier boots.
    pub ended_streams: BTreeMap<ConsumerId, UnansweredContents>,
    /// The grants that run, with the end of the lease if it is known and the time of the next check.
    pub grants: Vec<(LeaseToken, Option<Timestamp>, Timestamp)>,
    /// When each grant is checked.
    pub grant_checks: Vec<(Timestamp, LeaseToken)>,
    /// The time after which a group without consumers may be deleted if it blocks a partition, and in any case.
    pub group_idle: Option<(Millis, Millis)>,
    /// Groups without consumers that are watched: since when, and when their timer is due.
    pub departed: BTreeMap<(TopicId, GroupId), (Timestamp, Timestamp)>,
    /// Groups to delete now.
    pub condemned: BTreeSet<(TopicId, GroupId)>,
    /// The memory of all retained messages.
    pub retained_memory: u64,
    /// The partitions with retained messages, by the time of the oldest.
    pub retained_oldest: Vec<(Timestamp, TopicId, PartitionId)>,
    /// The deadlines of messages, in wall time.
    pub deadlines: BTreeMap<(TopicId, PartitionId, Position), Timestamp>,
    /// Groups to which a message can possibly be dispatched.
    pub work: BTreeSet<(TopicId, GroupId)>,
    /// The topics.
    pub topics: BTreeMap<TopicId, TopicContents>,
    /// Deleted parts whose memory is not freed yet.
    pub deleted: usize,
}

/// A topic.
#[derive(Clone, Debug, Default)]
pub struct TopicContents {
    /// Its partitions: the messages with a priority or a delay.
    pub queues: Vec<QueueContents>,
    /// Its groups.
    pub groups: BTreeMap<GroupId, GroupContents>,
}

/// The messages of a partition that have a priority or a delay.
#[derive(Clone, Debug, Default)]
pub struct QueueContents {
    /// Groups that wait for the next message.
    pub waiters: Vec<GroupId>,
    /// Positions that are not plain.
    pub exceptions: BTreeSet<Position>,
    /// Positions with a priority above 0 and without a running delay.
    pub urgent: BTreeSet<(u8, Position)>,
    /// Positions with a running delay, its end and their priority.
    pub delayed: BTreeMap<Position, (Due, Priority)>,
    /// Positions whose delay has expired, by serial number.
    pub expired: BTreeMap<u64, (Position, Priority)>,
    /// The serial numbers of expired delays.
    pub serials: BTreeMap<Position, u64>,
}

/// A group.
#[derive(Clone, Debug, Default)]
pub struct GroupContents {
    /// Its connected consumers.
    pub members: BTreeSet<ConsumerId>,
    /// Those with credit.
    pub with_credit: BTreeSet<ConsumerId>,
    /// Those with credit that are asked last.
    pub last_resort: BTreeSet<ConsumerId>,
    /// Partitions from which a message can possibly be dispatched.
    pub candidates: BTreeSet<PartitionId>,
    /// One cursor per partition.
    pub cursors: Vec<CursorContents>,
}

/// The cursor of a group in a partition.
#[derive(Clone, Debug, Default)]
pub struct CursorContents {
    /// The frontier of each priority.
    pub frontiers: [Position; Priority::COUNT],
    /// Ready messages below their frontier, with their priority.
    pub returned: BTreeSet<(u8, Position)>,
    /// The newest delivery of every message that is leased, or queued after its lease expired.
    pub leases: BTreeMap<Position, LeaseContents>,
    /// The last expired delay that was taken into account.
    pub delay_serial_seen: u64,
    /// Whether the group is registered as waiting for messages of the partition.
    pub waiting: bool,
    /// Whether the in-flight limit was reached.
    pub full: bool,
}

/// The newest delivery of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseContents {
    /// Its stream.
    pub stream: ConsumerId,
    /// Its order.
    pub order: u64,
    /// Its end.
    pub end: LeaseEnd,
}

/// A connected consumer.
#[derive(Clone, Debug)]
pub struct ConsumerContents {
    /// Its topic.
    pub topic: TopicId,
    /// Its group.
    pub group: GroupId,
    /// The number of its leases.
    pub in_flight: u32,
    /// The most live leases it may hold.
    pub credit: u32,
    /// What it asked for.
    pub prefetch: u32,
    /// Whether it is asked last.
    pub is_last_resort: bool,
    /// The deliveries left until its maximum.
    pub deliveries_left: Option<u64>,
    /// Whether its leases are released when it disconnects.
    pub releases: bool,
    /// Its leases, if they are released when it disconnects.
    pub leases: BTreeSet<(PartitionId, Position)>,
    /// Its unanswered deliveries.
    pub unanswered: UnansweredContents,
}

/// The unanswered deliveries of a stream.
#[derive(Clone, Debug, Default)]
pub struct UnansweredContents {
    /// The deliveries, oldest first.
    pub entries: Vec<(u64, MessageRef, DeliveryStatus)>,
    /// The count of those that are leased.
    pub leased: usize,
    /// The count of those that have ended.
    pub ended: usize,
}

/// The status of a delivery in the order of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryStatus {
    /// It is leased.
    Leased,
    /// Its lease expired and the stream has answered nothing since.
    Expired,
    /// It has ended.
    Ended,
}

impl Index {
    /// Everything that the index holds. Reads all of it: for checks only.
    pub(crate) fn contents(&self) -> IndexContents {
        IndexContents {
            timers: self.timers.all().collect(),
            sweeps: self.timers.all_sweeps().collect(),
            consumers: self.consumers.iter().map(|(id, consumer)| (*id, consumer_contents(consumer))).collect(),
            ended_streams: self.leases.ended_streams.iter().map(|(id, order)| (*id, unanswered(order))).collect(),
            grants: self.leases.grants.all().collect(),
            grant_checks: self.leases.grants.checks.iter().map(|(check, ())| *check).collect(),
            group_idle: self.departed.idle,
            departed: self.departed.groups.iter().map(|(key, watch)| (*key, (watch.since, watch.timer))).collect(),
            condemned: self.departed.due.clone(),
            retained_memory: self.retained.memory,
            retained_oldest: self.retained.oldest.iter().copied().collect(),
            deadlines: self.deadlines.clone(),
            work: self.work.iter().collect(),
            topics: self.topics.iter().map(|(id, topic)| (*id, topic_contents(topic))).collect(),
            deleted: self.deleted.len(),
        }
    }
}

fn topic_contents(topic: &super::TopicIndex) -> TopicContents {
    let group = |(id, group): (&GroupId, &super::GroupIndex)| {
        let ConsumerTurns { members, with_credit, last_resort, .. } = &group.turns;
        let contents = GroupContents {
            members: members.clone(),
            with_credit: with_credit.iter().collect(),
            last_resort: last_resort.iter().collect(),
            candidates: group.candidates.iter().collect(),
            cursors: group.cursors.iter().map(cursor_contents).collect(),
        };
        (*id, contents)
    };
    TopicContents {
        queues: topic.queues.iter().map(queue_contents).collect(),
        groups: topic.groups.iter().map(|(id, of_id)| group((id, of_id))).collect(),
    }
}

fn queue_contents(queue: &PriorityQueue) -> QueueContents {
    let waiters = queue.waiters.clone();
    let Some(special) = queue.special.as_deref() else { return QueueContents { waiters, ..Default::default() } };
    let levels = (1..).zip(&special.urgent);
    QueueContents {
        waiters,
        exceptions: special.exceptions.iter().collect(),
        urgent: levels.flat_map(|(level, at)| at.iter().map(move |position| (level, *position))).collect(),
        delayed: special.delayed.clone(),
        expired: special.expired_delays.clone(),
        serials: special.expired_delay_serials.clone(),
    }
}

fn cursor_contents(cursor: &Cursor) -> CursorContents {
    let leases = cursor.leases.iter().map(|(position, lease)| {
        (*position, LeaseContents { stream: lease.stream, order: lease.order.0, end: lease.end })
    });
    CursorContents {
        frontiers: cursor.frontiers,
        returned: cursor.returned.iter().map(|(rank, position)| (rank.level(), *position)).collect(),
        leases: leases.collect(),
        delay_serial_seen: cursor.delay_serial_seen,
        waiting: cursor.waiting,
        full: cursor.full,
    }
}

fn consumer_contents(consumer: &Consumer) -> ConsumerContents {
    ConsumerContents {
        topic: consumer.topic,
        group: consumer.group,
        in_flight: consumer.in_flight,
        credit: consumer.credit.limit(),
        prefetch: consumer.credit.prefetch(),
        is_last_resort: consumer.credit.is_last_resort(),
        deliveries_left: consumer.deliveries_left,
        releases: consumer.on_disconnect == OnDisconnect::Release,
        leases: consumer.leases.clone(),
        unanswered: unanswered(&consumer.unanswered),
    }
}

fn unanswered(stream: &Unanswered) -> UnansweredContents {
    let status = |status| match status {
        Status::Leased => DeliveryStatus::Leased,
        Status::Expired => DeliveryStatus::Expired,
        Status::Ended => DeliveryStatus::Ended,
    };
    let entries = stream.entries.iter().map(|entry| (entry.order.0, entry.message_ref, status(entry.status)));
    UnansweredContents { entries: entries.collect(), leased: stream.leased, ended: stream.ended }
}
