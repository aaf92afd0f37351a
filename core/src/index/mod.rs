//! What is not durable: who is connected, whose turn it is, what may be handed out next, who wants to be woken when.
//!
//! All of it follows from the durable state and the streams that happen to be connected, so it is rebuilt after a restart and
//! never written. [`Index::before`] and [`Index::after`] keep it in step with every record that is applied.

mod consumers;
mod cursor;
mod maintain;
mod priorities;

mod timers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

pub(crate) use self::consumers::Consumer;
use self::consumers::{ConsumerTurns, next_turn};
use self::cursor::Cursor;
use self::priorities::PriorityQueue;
use self::timers::Timers;
pub(crate) use self::timers::{Sweep, Timer};
use crate::collections::partition_set::PartitionSet;
use crate::command::OnDisconnect;
use crate::state::topic::Topic;
use crate::state::{DedupeTable, EffectTable, State, View};
use crate::types::message::Priority;
use crate::types::{ConsumerId, GroupId, MessageRef, Millis, PartitionId, Position, Timestamp, TopicId};

/// How long after the first window ends the produce identities of a scope are swept: many at once are cheaper.
const SWEEP_SLACK: Millis = Millis(1_000);

/// How many pieces of deleted topics are let go of in one call.
const RECLAIMED_PER_CALL: usize = 1_024;

/// The volatile half of a broker.
#[derive(Clone, Debug, Default)]
pub struct Index {
    pub(crate) timers: Timers,
    pub(crate) consumers: BTreeMap<ConsumerId, Consumer>,
    topics: BTreeMap<TopicId, TopicIndex>,
    /// Groups that may be able to hand something out. They are visited in the order of their numbers, so that what a call
    /// does does not depend on how it came about.
    work: BTreeSet<(TopicId, GroupId)>,
    /// Where the visit goes on if a call could not finish it.
    work_from: (TopicId, GroupId),
    matured_serial: u64,
    /// Deleted topics whose memory is still to be given back.
    deleted: VecDeque<View>,
}

#[derive(Clone, Debug, Default)]
struct TopicIndex {
    queue: Vec<PriorityQueue>,
    groups: BTreeMap<GroupId, GroupIndex>,
}

#[derive(Clone, Debug, Default)]
struct GroupIndex {
    turns: ConsumerTurns,
    cursors: Vec<Cursor>,
    /// Partitions that may have something to hand out: neither seen empty nor full since.
    candidates: PartitionSet,
    last_partition: PartitionId,
}

/// The next hand-out of a group: what, and to whom.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    pub(crate) message_ref: MessageRef,
    pub(crate) consumer: ConsumerId,
    /// The partition holds nothing else for the group.
    is_last: bool,
}

impl Index {
    /// The index of a state nobody is connected to yet.
    pub(crate) fn rebuild(state: &State, now: Timestamp) -> Self {
        let mut index = Self::default();
        for topic in state.topics() {
            index.add_topic(topic, now);
        }
        for (scope, _) in state.dedupe_tables() {
            index.set_sweep(state, &Sweep::Dedupe(scope.clone()));
        }
        for (namespace, _) in state.store().tables() {
            index.set_sweep(state, &Sweep::Effects(namespace));
        }
        index.set_sweep(state, &Sweep::Completions);
        index
    }

    /// As [`Pipeline::canonical`](crate::Pipeline::canonical).
    pub(crate) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { timers, consumers, topics, work, work_from, matured_serial, deleted } = self;
        write!(out, "{timers:?} {consumers:?} {topics:?} {work:?} {work_from:?} {matured_serial} {} ", deleted.len())
    }

    /// Connects a stream.
    pub(crate) fn join(&mut self, id: ConsumerId, consumer: Consumer) {
        let (topic, group) = (consumer.topic, consumer.group);
        let has_credit = consumer.has_credit();
        self.consumers.insert(id, consumer);
        let turns = &mut self.group_mut(topic, group).turns;
        turns.join(id);
        turns.set_credit(id, has_credit);
        self.wake(topic, group);
    }

    /// Disconnects a stream; its leases run on, held by nobody.
    pub(crate) fn leave(&mut self, id: ConsumerId) {
        let Some(consumer) = self.consumers.remove(&id) else { return };
        if let Some(group) =
            self.topics.get_mut(&consumer.topic).and_then(|topic| topic.groups.get_mut(&consumer.group))
        {
            group.turns.leave(id);
        }
    }

    pub(crate) fn set_prefetch(&mut self, id: ConsumerId, prefetch: u32) -> Option<()> {
        let consumer = self.consumers.get_mut(&id)?;
        consumer.prefetch = prefetch;
        self.refresh_credit(id);
        Some(())
    }

    /// The streams of a group.
    pub(crate) fn members(&self, topic: TopicId, group: GroupId) -> impl Iterator<Item = ConsumerId> {
        let group = self.topics.get(&topic).and_then(|topic| topic.groups.get(&group));
        group.into_iter().flat_map(|group| group.turns.members().iter().copied())
    }

    pub(crate) fn group_has_credit(&self, topic: TopicId, group: GroupId) -> bool {
        self.topics.get(&topic).and_then(|topic| topic.groups.get(&group)).is_some_and(|group| group.turns.has_credit())
    }

    /// How many messages of a partition are held back by their delay.
    pub(crate) fn delayed_len(&self, topic: TopicId, partition: PartitionId) -> u64 {
        self.queue(topic, partition).map_or(0, |queue| queue.delayed_len() as u64)
    }

    pub(crate) fn is_delayed(&self, topic: TopicId, partition: PartitionId, position: Position) -> bool {
        self.queue(topic, partition).is_some_and(|queue| queue.is_delayed(position))
    }

    /// A delayed message's moment has come.
    pub(crate) fn mature(&mut self, topic: TopicId, partition: PartitionId, position: Position) {
        self.matured_serial += 1;
        let serial = self.matured_serial;
        if let Some(queue) = self.topics.get_mut(&topic).and_then(|topic| topic.queue.get_mut(partition.0 as usize)) {
            queue.mature(position, serial);
        }
        self.wake_waiters(topic, partition);
    }

    /// A failed message's retry time has come.
    pub(crate) fn retry(&mut self, state: &State, message_ref: &MessageRef) {
        let topic = state.topic(message_ref.topic).expect("an timer goes with its topic");
        let message =
            topic.partition(message_ref.partition).and_then(|partition| partition.message(message_ref.position));
        let priority = message.expect("an timer goes with its message").body.flags().priority;
        self.cursor_mut(message_ref).give_back(priority, message_ref.position);
        self.offer(message_ref.topic, message_ref.group, message_ref.partition);
    }

    /// What the group is to be handed next, and who gets it, if anything can be handed out.
    pub(crate) fn next(&mut self, topic: &Topic, group: GroupId, in_flight_max: u32) -> Option<Next> {
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
            let messages = topic.partition(partition).expect("candidates are partitions");
            let cursor = &mut group_index.cursors[partition.0 as usize];
            let queue = &mut index.queue[partition.0 as usize];
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
            return Some(Next {
                message_ref: MessageRef { topic: topic.id(), group, partition, position },
                consumer,
                is_last,
            });
        }
    }

    /// Notes that a message was handed to a stream, as [`Index::next`] said.
    pub(crate) fn served(&mut self, Next { message_ref, consumer, is_last }: Next, priority: Priority) {
        let index = self.topic_mut(message_ref.topic);
        let group_index = index.groups.get_mut(&message_ref.group).expect("the index knows every group of the state");
        let cursor = &mut group_index.cursors[message_ref.partition.0 as usize];
        cursor.take(priority, message_ref.position);
        if is_last {
            // Nobody need look to find the partition empty.
            group_index.candidates.remove(message_ref.partition);
            cursor.wait(&mut index.queue[message_ref.partition.0 as usize], message_ref.group);
        }
        cursor.holders.insert(message_ref.position, consumer);
        group_index.turns.served(consumer);
        group_index.last_partition = message_ref.partition;
        let stream = self.consumers.get_mut(&consumer).expect("only connected streams are served");
        stream.live += 1;
        stream.deliveries_left = stream.deliveries_left.map(|left| left - 1);
        if stream.on_disconnect == OnDisconnect::Release {
            stream.held.insert((message_ref.partition, message_ref.position));
        }
        if !stream.has_credit() {
            self.refresh_credit(consumer);
        }
    }

    /// The next group that may be able to hand something out.
    pub(crate) fn next_work(&self) -> Option<(TopicId, GroupId)> {
        next_turn(&self.work, self.work_from)
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.work.is_empty() || !self.deleted.is_empty()
    }

    /// Gives back a little of the memory of deleted topics: all at once would keep everybody waiting.
    pub(crate) fn reclaim(&mut self) {
        let Some(view) = self.deleted.front_mut() else { return };
        if view.take(RECLAIMED_PER_CALL).count() < RECLAIMED_PER_CALL {
            self.deleted.pop_front();
        }
    }

    /// The group has nothing more to hand out.
    pub(crate) fn work_done(&mut self, topic: TopicId, group: GroupId) {
        self.work.remove(&(topic, group));
        if self.work.is_empty() {
            self.work_from = Default::default();
        }
    }

    /// The group has had its turn; others come before it has the next.
    pub(crate) fn turn_over(&mut self, topic: TopicId, group: GroupId) {
        self.work_from = (topic, group.next());
    }

    /// Looks at a group again: something about it has changed.
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
        for group in index.queue[partition.0 as usize].waiters() {
            let group_index = index.groups.get_mut(&group).expect("a group that goes stops waiting");
            group_index.cursors[partition.0 as usize].waiting = false;
            group_index.candidates.insert(partition);
            if group_index.turns.has_credit() {
                self.work.insert((topic, group));
            }
        }
    }

    pub(crate) fn refresh_credit(&mut self, id: ConsumerId) {
        let Some(consumer) = self.consumers.get(&id) else { return };
        let (topic, group, has_credit) = (consumer.topic, consumer.group, consumer.has_credit());
        self.group_mut(topic, group).turns.set_credit(id, has_credit);
        if has_credit {
            self.wake(topic, group);
        }
    }

    /// A lease has ended, however it ended: its partition has room in flight and its stream has credit again.
    fn lease_ended(&mut self, message_ref: &MessageRef) {
        let cursor = self.cursor_mut(message_ref);
        let holder = cursor.holders.remove(&message_ref.position);
        if std::mem::take(&mut cursor.full) {
            self.offer(message_ref.topic, message_ref.group, message_ref.partition);
        }
        let Some(id) = holder else { return };
        let Some(consumer) = self.consumers.get_mut(&id) else { return };
        let had_credit = consumer.has_credit();
        consumer.live -= 1;
        if consumer.on_disconnect == OnDisconnect::Release {
            consumer.held.remove(&(message_ref.partition, message_ref.position));
        }
        if !had_credit {
            self.refresh_credit(id);
        }
    }

    fn queue(&self, topic: TopicId, partition: PartitionId) -> Option<&PriorityQueue> {
        self.topics.get(&topic)?.queue.get(partition.0 as usize)
    }

    fn topic_mut(&mut self, topic: TopicId) -> &mut TopicIndex {
        self.topics.get_mut(&topic).expect("the index knows every topic of the state")
    }

    fn group_mut(&mut self, topic: TopicId, group: GroupId) -> &mut GroupIndex {
        self.topic_mut(topic).groups.get_mut(&group).expect("the index knows every group of the state")
    }

    fn cursor_mut(&mut self, message_ref: &MessageRef) -> &mut Cursor {
        &mut self.group_mut(message_ref.topic, message_ref.group).cursors[message_ref.partition.0 as usize]
    }

    /// Has `sweep` done when it is next worth it.
    pub(crate) fn set_sweep(&mut self, state: &State, sweep: &Sweep) {
        let at = match sweep {
            Sweep::Dedupe(scope) => {
                state.dedupe(scope).and_then(DedupeTable::next_expiry).map(|at| at.after(SWEEP_SLACK))
            }
            // A tenant's quota counts what is there, so nothing may be there that need not.
            Sweep::Effects(namespace) => state.store().table(namespace).and_then(EffectTable::next_look),
            Sweep::Completions => state.completions().next_expiry().map(|at| at.after(SWEEP_SLACK)),
        };
        if let Some(at) = at {
            self.timers.set_sweep(at, sweep);
        }
    }
}
