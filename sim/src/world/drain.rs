//! The end of every run: faults stop, somebody consumes everything, and nothing may be left lying.

use driftq_core::command::{Claim, OnDisconnect, Subscribe, TokenClaim};
use driftq_core::faults::Faults;
use driftq_core::record::GroupStart;
use driftq_core::state::group::Group;
use driftq_core::state::partition::Partition;
use driftq_core::state::topic::Topic;
use driftq_core::types::{GroupName, Millis, PartitionId, Position, TopicName};
use driftq_core::{Command, Pipeline};

use super::World;
use super::network::Asked;
use crate::actions::Loss;
use crate::invariants::Verdict;
use crate::invariants::liveness::{drains, timers_quiesce};
use crate::names::Worker;
use crate::storage::SimStorage;

/// The worker that consumes what is left.
const LAST: Worker = Worker(u8::MAX);
/// How many times the clock is moved on to the next thing the broker waits for.
const ROUNDS: usize = 1_000;
/// How long a broker without room in its log may keep still.
const STALL_MS: u64 = 100;
/// How long a full disk may keep the broker waiting before it looks again.
const PATIENCE_MS: u64 = 11_000;

impl<F: Faults, M: SimStorage> World<F, M> {
    /// Everything is delivered and acked; then a last restart.
    pub(super) fn drain(&mut self) -> Verdict {
        self.disk.model_mut().set_room(None);
        if !self.is_serving() {
            if self.broker.is_some() {
                self.crash(Loss::All);
            }
            self.boot()?;
        }
        self.rest()?;
        for consumer in self.network.streams() {
            self.say(Command::Unsubscribe { consumer })?;
        }
        // Whoever found the disk full looks again within this time.
        self.pass(PATIENCE_MS);
        self.rest()?;
        for _ in 0..ROUNDS {
            for (topic, group) in self.groups() {
                self.work_off(&topic, &group)?;
            }
            if self.left_lying().is_empty() {
                break;
            }
        }
        drains(&self.left_lying())?;
        self.settled()?;
        self.compare()?;
        self.crash(Loss::All);
        self.boot()?;
        self.rest()
    }

    /// Timers and I/O until there is nothing to do now.
    fn rest(&mut self) -> Verdict {
        for calls in 0.. {
            self.settle()?;
            if self.until_timeout().is_none_or(|wait| wait > 0) {
                break;
            }
            timers_quiesce(calls, self.clock())?;
            self.wake()?;
        }
        Ok(())
    }

    /// What can be delivered now is not left lying. For a world at rest.
    pub(super) fn settled(&mut self) -> Verdict {
        let Some(broker) = self.broker.as_ref().filter(|broker| broker.failure().is_none()) else { return Ok(()) };
        let soon = broker.broker().now().after(Millis(STALL_MS));
        match broker.poll_timeout() {
            Some(at) if at <= soon => Ok(()),
            _ => self.observer.settled(broker),
        }
    }

    fn groups(&self) -> Vec<(TopicName, GroupName)> {
        let topics = self.broker.iter().flat_map(|broker| broker.state().topics());
        topics.flat_map(|topic| topic.groups().map(|group| (topic.name().clone(), group.name().clone()))).collect()
    }

    /// The last worker consumes all that one group is to do. One group after the other: there may be room for one stream.
    fn work_off(&mut self, topic: &TopicName, group: &GroupName) -> Verdict {
        self.say(Command::Resume { topic: topic.clone(), group: group.clone() })?;
        let asked = Subscribe {
            topic: topic.clone(),
            group: group.clone(),
            owner: LAST.name(),
            lease: None,
            prefetch: 100,
            deliveries_max: None,
            start: GroupStart::Earliest,
            on_disconnect: OnDisconnect::Keep,
        };
        self.ask(Asked { command: Command::Subscribe(asked), worker: Some(LAST) })?;
        for _ in 0..ROUNDS {
            self.rest()?;
            while self.network.unread(LAST) > 0 {
                self.read(LAST, 1);
                self.ack_newest()?;
            }
            self.rest()?;
            if self.undone(topic, group) == 0 {
                break;
            }
            let wait = self.until_timeout().unwrap_or(1);
            self.pass(wait.max(1));
        }
        match self.network.stream_of(LAST) {
            Some(consumer) => self.say(Command::Unsubscribe { consumer }),
            None => Ok(()),
        }
    }

    fn ack_newest(&mut self) -> Verdict {
        let Some(held) = self.network.read_by(LAST).next().cloned() else { return Ok(()) };
        self.say(Command::Ack(Claim {
            topic: held.topic.name(),
            group: held.group.name(),
            partition: held.partition,
            offset: held.offset,
            owner: held.owner,
            token: TokenClaim::Shown(held.token),
        }))
    }

    fn say(&mut self, command: Command) -> Verdict {
        self.ask(Asked { command, worker: None })?;
        self.rest()
    }

    /// How many messages the group is not done with.
    fn undone(&self, topic: &TopicName, group: &GroupName) -> u64 {
        let topic = self.broker.as_ref().and_then(|broker| broker.state().topic_named(topic));
        let Some(topic) = topic else { return 0 };
        let partitions = topic.group_named(group).into_iter().flat_map(Group::partitions);
        partitions.map(|(id, progress)| progress.done().undone_before(end(topic, id))).sum()
    }

    /// What no group is done with yet, each with the reason.
    fn left_lying(&self) -> Vec<String> {
        let Some(broker) = &self.broker else { return vec!["the broker is not running".to_owned()] };
        let mut left = Vec::new();
        for topic in broker.state().topics() {
            for group in topic.groups() {
                for (id, progress) in group.partitions() {
                    let undone = progress.done().undone_before(end(topic, id));
                    if undone > 0 {
                        left.push(self.why(broker, topic.name(), group.name(), id, undone));
                    }
                }
            }
        }
        left
    }

    fn why(
        &self,
        broker: &Pipeline<F>,
        topic: &TopicName,
        group: &GroupName,
        partition: PartitionId,
        undone: u64,
    ) -> String {
        let wakes = broker.poll_timeout().map_or("never".to_owned(), |at| at.to_string());
        let topic_state = broker.state().topic_named(topic);
        let progress = topic_state.and_then(|topic| topic.group_named(group)?.progress(partition));
        let in_flight = progress.map_or(0, driftq_core::state::group::Progress::in_flight);
        let waiting = progress.map_or(0, driftq_core::state::group::Progress::waiting);
        format!(
            "{undone} of {topic}/{partition} for {group}: {in_flight} held, {waiting} waiting; the broker wakes at {wakes}"
        )
    }
}

fn end(topic: &Topic, partition: PartitionId) -> Position {
    topic.partition(partition).map_or_else(Default::default, Partition::next_position)
}
