//! Volatile state derived from the durable state and the connected consumers: cursors, timers, round robin, credit.
//!
//! Never written; rebuilt at start. [`Index::before_apply`] and [`Index::after_apply`] update it with every applied
//! record.

mod consumers;
pub(crate) mod contents;
mod credit;
mod cursor;
mod deadlines;
mod departed;
mod grants;
mod key_streams;
mod leases;
mod maintain;
mod priorities;
mod retained;
mod timers;
mod turn_set;
mod unanswered;
mod withdraw;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

pub(crate) use self::consumers::Consumer;
use self::consumers::{ConsumerTurns, Turn};
pub(crate) use self::credit::Credit;
use self::cursor::Cursor;
pub(crate) use self::departed::Departed;
pub(crate) use self::grants::GrantEnd;
use self::key_streams::KeyStreams;
pub use self::leases::LeaseEnd;
use self::leases::{Lease, Leases};
use self::priorities::PriorityQueue;
pub(crate) use self::retained::Retained;
use self::retained::RetainedInPartition;
use self::timers::Timers;
pub use self::timers::{Due, Sweep, Timer};
use self::turn_set::TurnSet;
use crate::collections::id_map::IdMap;
use crate::collections::partition_set::PartitionSet;
use crate::command::OnDisconnect;
use crate::state::{DedupeTable, EffectTable, Message, Partition, State, Topic, View};
use crate::types::{
    ConsumerId, GroupId, Limits, Lsn, MessageRef, Millis, PartitionId, Position, Priority, Timestamp, TopicId,
};

/// How long after the first expiry dedupe entries, completions and winners are swept: batches need fewer records.
const SWEEP_SLACK: Millis = Millis(1_000);

/// The volatile state of a broker.
#[derive(Clone, Debug, Default)]
pub struct Index {
    pub(crate) timers: Timers,
    pub(crate) consumers: BTreeMap<ConsumerId, Consumer>,
    pub(crate) key_streams: KeyStreams,
    pub(crate) leases: Leases,
    pub(crate) departed: Departed,
    pub(crate) retained: Retained,
    topics: IdMap<TopicId, TopicIndex>,
    /// The deadlines of the messages in a backlog, in wall time.
    pub(crate) deadlines: BTreeMap<(TopicId, PartitionId, Position), Timestamp>,
    /// Groups to which a message can possibly be dispatched. Visited in the order of their ids, so that dispatch does
    /// not depend on the order in which they were added. Runs empty between any two messages.
    work: TurnSet<(TopicId, GroupId)>,
    /// Where the next call continues.
    work_from: (TopicId, GroupId),
    /// Counts expired delays.
    delay_serial: u64,
    /// What was deleted, sought past or purged, and whose memory is not freed yet.
    deleted: VecDeque<View>,
    /// The most parts of it that are freed in one call.
    parts_freed_per_call: usize,
    /// The partitions of the topic that the record being applied changes, as they were before.
    before: Vec<Arc<Partition>>,
    sweeps: KnownSweeps,
}

/// Sweeps that are known to be set at these times or earlier, so that most records about effects need not look them up.
#[derive(Clone, Debug, Default)]
struct KnownSweeps {
    shared: Option<Timestamp>,
    /// Of the group whose message had an effect last.
    of_group: Option<((TopicId, GroupId), Timestamp)>,
}

#[derive(Clone, Debug, Default)]
struct TopicIndex {
    queues: Vec<PriorityQueue>,
    retained: Vec<RetainedInPartition>,
    groups: IdMap<GroupId, Box<GroupIndex>>,
}

#[derive(Clone, Debug, Default)]
struct GroupIndex {
    turns: ConsumerTurns,
    cursors: Vec<Cursor>,
    /// Partitions from which a message can possibly be dispatched: not found empty or at the in-flight limit since.
    candidates: PartitionSet,
    last_partition: PartitionId,
}

/// Broker time and wall time at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    now: Timestamp,
    wall: Timestamp,
}

impl Clocks {
    /// At the last record.
    fn of(state: &State) -> Self {
        Self { now: state.clock(), wall: state.wall() }
    }

    /// The end of a message's delay, unless it has passed.
    fn delay_of(self, message: &Message) -> Option<Due> {
        if !message.flags().has_delay {
            return None;
        }
        let delayed_until = message.delayed_until().filter(|until| *until > self.now).map(Due::Broker);
        delayed_until.or(message.deliver_at().filter(|at| *at > self.wall).map(Due::Wall))
    }
}

/// The next dispatch of a group.
#[derive(Clone, Copy, Debug)]
pub struct NextDispatch {
    pub(crate) message_ref: MessageRef,
    pub(crate) consumer: ConsumerId,
    /// Whether the partition has no other message for the group.
    is_last: bool,
}

impl Index {
    /// The index of a state without connected consumers.
    pub(crate) fn rebuild(state: &State, limits: &Limits, now: Timestamp) -> Self {
        let leases = Leases::new(limits.adaptive_credit);
        let (departed, parts_freed_per_call) = (Departed::new(limits), limits.work.parts_freed_per_call);
        let mut index = Self { leases, departed, parts_freed_per_call, ..Self::default() };
        let clocks = Clocks { now, wall: state.wall_clock().wall(now) };
        for topic in state.topics() {
            index.add_topic(topic, clocks);
            topic.groups().for_each(|group| index.departed(topic.id(), group, now));
        }
        index.add_streams_of_earlier_boots(state);
        for (scope, _) in state.dedupe_tables() {
            index.set_sweep(state, &Sweep::Dedupe(scope.clone()));
        }
        for (namespace, _) in state.store().tables() {
            index.set_sweep(state, &Sweep::Effects(namespace));
        }
        index.set_sweep(state, &Sweep::Completions);
        index.set_sweep(state, &Sweep::Winners);
        index
    }

    /// As [`Pipeline::canonical`](crate::Pipeline::canonical).
    pub(crate) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { timers, consumers, leases, departed, retained, topics, deadlines, .. } = self;
        let Self { work, work_from, delay_serial, deleted, before: _, key_streams, .. } = self;
        write!(out, "{timers:?} {consumers:?} {leases:?} {departed:?} {retained:?} {topics:?} {deadlines:?} ")?;
        write!(out, "{work:?} {work_from:?} {delay_serial} {} {key_streams:?} ", deleted.len())
    }

    /// Connects a consumer.
    pub(crate) fn join(&mut self, id: ConsumerId, consumer: Consumer) {
        let (topic, group) = (consumer.topic, consumer.group);
        self.returned(topic, group);
        let turn = consumer.turn();
        if let Some(key) = consumer.key {
            self.key_streams.opened(key, id);
        }
        self.consumers.insert(id, consumer);
        let turns = &mut self.group_mut(topic, group).turns;
        turns.join(id);
        turns.set_turn(id, turn);
        self.wake(topic, group);
    }

    /// Disconnects a consumer at `now`; its leases keep running without a holder.
    pub(crate) fn leave(&mut self, state: &State, id: ConsumerId, now: Timestamp) {
        let Some(consumer) = self.remove_consumer(id) else { return };
        let group = state.topic(consumer.topic).and_then(|topic| topic.group(consumer.group));
        if let Some(group) = group {
            let turns = &mut self.group_mut(consumer.topic, consumer.group).turns;
            turns.leave(id);
            if turns.members().is_empty() {
                self.departed(consumer.topic, group, now);
            }
        }
        self.leases.keep_order(id, consumer.unanswered);
    }

    fn remove_consumer(&mut self, id: ConsumerId) -> Option<Consumer> {
        let consumer = self.consumers.remove(&id)?;
        if let Some(key) = consumer.key {
            self.key_streams.ended(key, id);
        }
        Some(consumer)
    }

    pub(crate) fn set_prefetch(&mut self, id: ConsumerId, prefetch: u32) -> Option<()> {
        let consumer = self.consumers.get_mut(&id)?;
        consumer.credit.set_prefetch(prefetch);
        self.refresh_credit(id);
        Some(())
    }

    /// A delivery was withdrawn before it could leave: it does not count against those that the stream may get.
    pub(crate) fn not_delivered(&mut self, id: ConsumerId) {
        if let Some(left) = self.consumers.get_mut(&id).and_then(|consumer| consumer.deliveries_left.as_mut()) {
            *left += 1;
            self.refresh_credit(id);
        }
    }

    /// The connected consumers of a group.
    pub(crate) fn members(&self, topic: TopicId, group: GroupId) -> impl Iterator<Item = ConsumerId> {
        let group = self.topics.get(&topic).and_then(|topic| topic.groups.get(&group));
        group.into_iter().flat_map(|group| group.turns.members().iter().copied())
    }

    pub(crate) fn group_has_credit(&self, topic: TopicId, group: GroupId) -> bool {
        self.topics.get(&topic).and_then(|topic| topic.groups.get(&group)).is_some_and(|group| group.turns.has_credit())
    }

    /// The number of delayed messages of a partition.
    pub(crate) fn delayed_len(&self, topic: TopicId, partition: PartitionId) -> u64 {
        self.priority_queue(topic, partition).map_or(0, |queue| queue.delayed_len() as u64)
    }

    /// The end of each delay of a partition's delayed messages, and of those whose delay is over but whose timer has
    /// not fired yet.
    pub(crate) fn delays(&self, topic: TopicId, partition: PartitionId) -> impl Iterator<Item = (Position, Due)> {
        self.priority_queue(topic, partition).into_iter().flat_map(PriorityQueue::delayed)
    }

    pub(crate) fn is_delayed(&self, topic: TopicId, partition: PartitionId, position: Position) -> bool {
        self.priority_queue(topic, partition).is_some_and(|queue| queue.is_delayed(position))
    }

    /// The delay of a message has expired: it is ready.
    pub(crate) fn expire_delay(&mut self, topic: TopicId, partition: PartitionId, position: Position) {
        self.delay_serial += 1;
        let serial = self.delay_serial;
        if let Some(queue) = self.topics.get_mut(&topic).and_then(|topic| topic.queues.get_mut(partition.0 as usize)) {
            queue.expire_delay(position, serial);
        }
        self.wake_waiters(topic, partition);
    }

    /// The retry of a failed message is due: it is ready.
    pub(crate) fn retry(&mut self, state: &State, message_ref: &MessageRef) {
        let topic = state.topic(message_ref.topic).expect("timers of a deleted topic are cancelled");
        let flags =
            topic.partition(message_ref.partition).and_then(|partition| partition.flags_at(message_ref.position));
        let priority = flags.expect("timers of an acked message are cancelled").priority;
        self.cursor_mut(message_ref).requeue(priority, message_ref.position);
        self.offer(message_ref.topic, message_ref.group, message_ref.partition);
    }

    /// The next message to dispatch to a group and its consumer, if there are any.
    pub(crate) fn next(&mut self, topic: &Topic, group: GroupId, in_flight_max: u32) -> Option<NextDispatch> {
        let index = self.topics.get_mut(&topic.id())?;
        let group_index = index.groups.get_mut(&group)?;
        if group_index.candidates.is_empty() {
            return None;
        }
        let consumer = group_index.turns.next()?;
        let durable = topic.group(group)?;
        if durable.is_paused() {
            return None;
        }
        loop {
            let partition = group_index.candidates.next_turn(group_index.last_partition.next())?;
            let progress = durable.progress(partition).expect("every group has every partition");
            let messages = topic.partition(partition).expect("a candidate is a partition of the topic");
            let cursor = &mut group_index.cursors[partition.0 as usize];
            let queue = &mut index.queues[partition.0 as usize];
            if progress.in_flight() >= in_flight_max {
                group_index.candidates.remove(partition);
                cursor.full = true;
                continue;
            }
            let end = messages.next_position();
            let Some(position) = cursor.peek(queue, progress, end) else {
                group_index.candidates.remove(partition);
                cursor.wait(queue, group);
                continue;
            };
            let is_last = queue.is_plain() && cursor.is_last(position, end);
            return Some(NextDispatch {
                message_ref: MessageRef { topic: topic.id(), group, partition, position },
                consumer,
                is_last,
            });
        }
    }

    /// Records that the message of `next` was leased to its consumer. Returns whether the group can have another
    /// message.
    pub(crate) fn dispatched(
        &mut self,
        next: NextDispatch,
        priority: Priority,
        decided_at: Lsn,
        lease: Millis,
    ) -> bool {
        let NextDispatch { message_ref, consumer: id, is_last } = next;
        let consumer = self.consumers.get_mut(&id).expect("messages are dispatched to connected consumers");
        let order = consumer.unanswered.delivered(self.leases.next_order(), message_ref);
        self.leases.hold(decided_at, message_ref, lease);
        let index = self.topics.get_mut(&message_ref.topic).expect("the index contains every topic");
        let group_index = index.groups.get_mut(&message_ref.group).expect("the index contains every group");
        let cursor = &mut group_index.cursors[message_ref.partition.0 as usize];
        cursor.take(priority, message_ref.position);
        if is_last {
            // Saves the next call from finding the partition empty.
            group_index.candidates.remove(message_ref.partition);
            cursor.wait(&mut index.queues[message_ref.partition.0 as usize], message_ref.group);
        }
        group_index.turns.served(id);
        group_index.last_partition = message_ref.partition;
        cursor.leases.insert(message_ref.position, Lease { stream: id, order, end: LeaseEnd::Unreleased(decided_at) });
        consumer.in_flight += 1;
        consumer.deliveries_left = consumer.deliveries_left.map(|left| left - 1);
        if consumer.on_disconnect == OnDisconnect::Release {
            consumer.leases.insert((message_ref.partition, message_ref.position));
        }
        let has_more = !group_index.candidates.is_empty();
        if !consumer.has_credit() {
            self.refresh_credit(id);
        }
        has_more
    }

    /// The next group to which a message can possibly be dispatched.
    pub(crate) fn next_work(&self) -> Option<(TopicId, GroupId)> {
        self.work.next_turn(self.work_from)
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// Whether memory of what was deleted is to be freed.
    pub(crate) fn has_deleted(&self) -> bool {
        !self.deleted.is_empty()
    }

    /// Frees a part of the memory of what was deleted. Freeing all at once would delay other commands.
    pub(crate) fn reclaim(&mut self) {
        let mut left = self.parts_freed_per_call;
        while let Some(view) = self.deleted.front_mut().filter(|_| left > 0) {
            let freed = view.take(left).count();
            if freed < left {
                self.deleted.pop_front();
            }
            // An empty view counts too, so that many of them do not delay a call.
            left -= freed.max(1);
        }
    }

    /// Nothing can be dispatched to the group until it is woken.
    pub(crate) fn work_done(&mut self, topic: TopicId, group: GroupId) {
        self.work.remove((topic, group));
        if self.work.is_empty() {
            self.work_from = Default::default();
        }
    }

    /// Ends the turn of a group: the next call starts with the group after it.
    pub(crate) fn end_turn(&mut self, topic: TopicId, group: GroupId) {
        self.work_from = (topic, group.next());
    }

    /// Adds a group to the work, if it has credit and a candidate partition.
    pub(crate) fn wake(&mut self, topic: TopicId, group: GroupId) {
        let Some(group_index) = self.topics.get_mut(&topic).and_then(|topic| topic.groups.get_mut(&group)) else {
            return;
        };
        if group_index.turns.has_credit() && !group_index.candidates.is_empty() {
            self.work.insert((topic, group));
        }
    }

    fn offer(&mut self, topic: TopicId, group: GroupId, partition: PartitionId) {
        self.group_mut(topic, group).candidates.insert(partition);
        self.wake(topic, group);
    }

    fn wake_waiters(&mut self, topic: TopicId, partition: PartitionId) {
        let Some(index) = self.topics.get_mut(&topic) else { return };
        for group in index.queues[partition.0 as usize].take_waiters() {
            let group_index = index.groups.get_mut(&group).expect("deleted groups are not waiting");
            group_index.cursors[partition.0 as usize].waiting = false;
            group_index.candidates.insert(partition);
            if group_index.turns.has_credit() {
                self.work.insert((topic, group));
            }
        }
    }

    pub(crate) fn refresh_credit(&mut self, id: ConsumerId) {
        let Some(consumer) = self.consumers.get(&id) else { return };
        let (topic, group, turn) = (consumer.topic, consumer.group, consumer.turn());
        self.group_mut(topic, group).turns.set_turn(id, turn);
        if turn != Turn::Never {
            self.wake(topic, group);
        }
    }

    fn priority_queue(&self, topic: TopicId, partition: PartitionId) -> Option<&PriorityQueue> {
        self.topics.get(&topic)?.queues.get(partition.0 as usize)
    }

    fn topic_mut(&mut self, topic: TopicId) -> &mut TopicIndex {
        self.topics.get_mut(&topic).expect("the index contains every topic")
    }

    fn group_mut(&mut self, topic: TopicId, group: GroupId) -> &mut GroupIndex {
        self.topic_mut(topic).groups.get_mut(&group).expect("the index contains every group")
    }

    fn cursor_mut(&mut self, message_ref: &MessageRef) -> &mut Cursor {
        &mut self.group_mut(message_ref.topic, message_ref.group).cursors[message_ref.partition.0 as usize]
    }

    /// Removes and returns the first sweep due at `now`.
    pub(crate) fn take_due_sweep(&mut self, now: Timestamp) -> Option<Sweep> {
        let due = self.timers.take_due_sweep(now);
        if due.is_some() {
            self.sweeps = KnownSweeps::default();
        }
        due
    }

    /// Schedules `sweep` for the next expiry, if there is one.
    pub(crate) fn set_sweep(&mut self, state: &State, sweep: &Sweep) {
        let at = match sweep {
            Sweep::Dedupe(scope) => {
                state.dedupe(scope).and_then(DedupeTable::next_expiry).map(|at| at.after(SWEEP_SLACK))
            }
            // Without slack: expired effects count against the tenant's quota.
            Sweep::Effects(namespace) => state.store().table(namespace).and_then(EffectTable::next_check),
            Sweep::Completions => state.completions().next_expiry().map(|at| at.after(SWEEP_SLACK)),
            Sweep::Winners => state.winners().next_expiry().map(|at| at.after(SWEEP_SLACK)),
        };
        if let Some(at) = at {
            self.timers.set_sweep(at, sweep);
        }
    }
}
