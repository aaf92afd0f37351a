//! The state of the naive broker: lists of topics, identities, effects and streams, without derived data.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use driftq_core::pipeline::RefusedAppend;
use driftq_core::reply::StepOutput;
use driftq_core::types::{
    Boot, ConsumerId, EffectNamespace, GroupId, GroupName, LeaseToken, Limits, Metadata, Millis, Now, Offset,
    PartitionId, Timestamp, TopicId, TopicName,
};
use driftq_core::{Command, LogRefusal, Refusal, SpaceClass};

use super::effect::Effect;
use super::lease::Runs;
use super::losses::Damaged;
use super::order::Order;
use super::room::Room;
use super::stream::Stream;
use super::topic::{Attempted, Message, Phase, Progress, Topic};
use super::waiting::{PayloadOf, Pending};
use super::wall_clock::WallClock;

/// The state. Everything after `records_left` is lost in a crash, and so are lease holders and dispatch turns.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) limits: Arc<Limits>,
    pub(super) records: u64,
    pub(super) clock: Timestamp,
    pub(super) wall_clock: WallClock,
    pub(super) boot: Boot,
    pub(super) next_topic: TopicId,
    /// By id.
    pub(super) topics: Vec<Topic>,
    pub(super) scopes: Vec<DedupeScope>,
    pub(super) effects: Vec<Effect>,
    /// In completion order.
    pub(super) steps: Vec<CompletedStep>,
    /// In the order of their acks and dead letters.
    pub(super) winners: Vec<Winner>,
    /// How many more records the log takes: unlimited, except while a crash is replayed.
    pub(super) records_left: u64,
    pub(super) now: Timestamp,
    /// The monotonic clock and broker time at the start.
    pub(super) started: (u64, u64),
    pub(super) closed: bool,
    pub(super) next_consumer: ConsumerId,
    pub(super) next_token: u64,
    /// In subscription order.
    pub(super) streams: Vec<Stream>,
    pub(super) orders: Vec<Order>,
    /// Groups to delete.
    pub(super) due_groups: Vec<(TopicId, GroupId)>,
    pub(super) sweeps: Vec<Sweep>,
    /// Nothing is due before this time.
    pub(super) quiet_until: Timestamp,
    /// No stored message has an earlier deadline.
    pub(super) first_deadline: Timestamp,
    /// The group with which the next dispatch continues, if the last one was cut short.
    pub(super) next_turn: (TopicId, GroupId),
    pub(super) outputs: VecDeque<Pending>,
    /// The records that were last reported as durable.
    pub(super) durable: u64,
    /// What the log refuses in the current call, and how far the call is.
    pub(super) room: Room,
    /// Timers and dispatch pause until then, since the log refused a record of theirs.
    pub(super) stalled_until: Option<Timestamp>,
    /// The last call that removed retained messages on a full disk left some.
    pub(super) has_more_to_reclaim: bool,
    /// The log has failed: everything is refused.
    pub(super) failed: bool,
    /// How many messages the newest record has stored.
    pub(super) stored_by_record: u32,
    /// Damaged records whose payloads are not recorded as lost yet, since the log had no space.
    pub(super) damaged: VecDeque<Damaged>,
    /// Deliveries that were dropped since their payload is lost; the messages are not dead-lettered yet.
    pub(super) dropped: VecDeque<LeaseToken>,
}

/// The produce identities of one requested topic and destination, in order of acceptance.
#[derive(Clone, Debug)]
pub(super) struct DedupeScope {
    pub(super) asked: Asked,
    pub(super) identities: Vec<DedupeEntry>,
}

/// What a producer asked for: the topic it named, and the one it meant.
pub(super) type Asked = (TopicName, TopicName);

#[derive(Clone, Debug)]
pub(super) struct DedupeEntry {
    pub(super) tenant: Arc<str>,
    pub(super) key: Arc<str>,
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
    pub(super) expires_at: Timestamp,
}

/// The kept reply of a completed step.
#[derive(Clone, Debug)]
pub(super) struct CompletedStep {
    pub(super) token: LeaseToken,
    pub(super) message: (TopicId, GroupId, PartitionId, Offset),
    pub(super) produced: Arc<[StepOutput]>,
    pub(super) until: Timestamp,
}

/// Who acked a message of which there were several deliveries; a dead letter has no such delivery.
#[derive(Clone, Debug)]
pub(super) struct Winner {
    pub(super) message: (TopicId, GroupId, PartitionId, Offset),
    pub(super) token: Option<LeaseToken>,
    pub(super) until: Timestamp,
}

/// A planned sweep.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sweep {
    pub(super) at: Timestamp,
    pub(super) what: SweepKind,
}

/// What a sweep expires, in the order of sweeps at the same time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SweepKind {
    /// Produce identities of a scope.
    Identities(Asked),
    Effects(EffectNamespace),
    /// Replies of completed steps.
    Steps,
    Winners,
}

/// The indices of a topic, group and message.
pub(super) type MessageIndex = (usize, usize, usize);

/// An input of the model, with the records that the log refuses.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// With these limits.
    Boot(Now, Arc<Limits>),
    Command(Now, Command, Vec<RefusedAppend>),
    /// With the outputs that wait for bytes, if payloads are to be recorded as lost.
    Timeout(Now, Vec<RefusedAppend>, Reclaim, Vec<Pending>),
    /// A command that did no more than a timeout.
    Query(Now),
    /// So many records are durable; the deliveries with these tokens wait for bytes.
    Release(Now, u64, Vec<LeaseToken>),
    /// The deliveries with these tokens leave after they waited for bytes; when a read has brought them, unless they
    /// leave because others were dropped.
    Leave(Option<Now>, Vec<LeaseToken>),
    /// Deliveries to these streams were dropped.
    NotDelivered(Vec<ConsumerId>),
    Rebase(Now, Vec<RefusedAppend>),
    /// Cleaning has written payloads again; what refers to each, if that is known.
    Relocated(Now, Vec<Option<PayloadOf>>),
    /// Records were found damaged; these outputs wait for bytes.
    Damaged(Now, Vec<RefusedAppend>, Vec<Damaged>, Vec<Pending>),
}

/// Whether a call removes retained messages, since the disk has no space for another segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reclaim {
    Yes,
    No,
}

/// Why a record is not in the log.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unwritten {
    /// The log ends here: later records were never written.
    EndOfLog,
    /// The log had no space for it.
    NoRoom(LogRefusal),
}

/// Why a command stops.
#[derive(Debug)]
pub(super) enum Stop {
    Refused(Refusal),
    Unwritten(Unwritten),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Unwritten> for Stop {
    fn from(unwritten: Unwritten) -> Self {
        Self::Unwritten(unwritten)
    }
}

impl Model {
    pub(super) fn new(limits: Arc<Limits>) -> Self {
        Self {
            limits,
            records: 0,
            clock: Timestamp(0),
            wall_clock: WallClock::default(),
            boot: Boot(0),
            next_topic: TopicId(0),
            topics: Vec::new(),
            scopes: Vec::new(),
            effects: Vec::new(),
            steps: Vec::new(),
            winners: Vec::new(),
            records_left: u64::MAX,
            now: Timestamp(0),
            started: (0, 0),
            closed: false,
            next_consumer: ConsumerId(1),
            next_token: 0,
            streams: Vec::new(),
            orders: Vec::new(),
            due_groups: Vec::new(),
            sweeps: Vec::new(),
            quiet_until: Timestamp(0),
            first_deadline: Timestamp(0),
            next_turn: Default::default(),
            outputs: VecDeque::new(),
            durable: 0,
            room: Room::default(),
            stalled_until: None,
            has_more_to_reclaim: false,
            failed: false,
            stored_by_record: 0,
            damaged: VecDeque::new(),
            dropped: VecDeque::new(),
        }
    }

    /// Drops everything that is not in the log.
    pub(super) fn forget_volatile(&mut self) {
        for group in self.topics.iter_mut().flat_map(|topic| &mut topic.groups) {
            (group.last_served, group.last_partition) = Default::default();
            group.idle = None;
            for progress in &mut group.progress {
                if let Progress::Attempted(Attempted { phase: Phase::Queued { expired_on, .. }, .. }) = progress {
                    *expired_on = None;
                }
            }
        }
        for effect in &mut self.effects {
            effect.runs = Runs::Until(effect.lease_until);
        }
        self.records_left = u64::MAX;
        self.now = self.clock;
        self.started = (0, 0);
        self.closed = false;
        self.next_consumer = ConsumerId(1);
        self.next_token = 0;
        self.streams.clear();
        self.orders.clear();
        self.due_groups.clear();
        self.sweeps.clear();
        self.quiet_until = Timestamp(0);
        self.first_deadline = Timestamp(0);
        self.next_turn = Default::default();
        self.outputs.clear();
        self.durable = self.records;
        self.room = Room::default();
        self.stalled_until = None;
        self.has_more_to_reclaim = false;
        self.failed = false;
        self.damaged.clear();
        self.dropped.clear();
    }

    /// Writes everything but the limits, the record count, what belongs to one call and `quiet_until`: that saves scans
    /// and changes no result.
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self {
            limits: _,
            records: _,
            clock,
            wall_clock,
            boot,
            next_topic,
            topics,
            scopes,
            effects,
            steps,
            winners,
            records_left: _,
            now,
            started,
            closed,
            next_consumer,
            next_token,
            streams,
            orders,
            due_groups,
            sweeps,
            quiet_until: _,
            first_deadline,
            next_turn,
            outputs,
            durable: _,
            room: _,
            stalled_until,
            has_more_to_reclaim,
            failed,
            stored_by_record: _,
            damaged,
            dropped,
        } = self;
        write!(out, "{wall_clock:?} {started:?} {first_deadline:?} ")?;
        write!(out, "{clock:?} {boot:?} {next_topic:?} {topics:?} {scopes:?} {effects:?} {steps:?} {winners:?} ")?;
        write!(out, "{now:?} {closed} {next_consumer:?} {next_token} {streams:?} {orders:?} {sweeps:?} ")?;
        write!(
            out,
            "{next_turn:?} {due_groups:?} {outputs:?} {stalled_until:?} {has_more_to_reclaim} {failed} {damaged:?} {dropped:?} "
        )
    }

    /// Writes a record, which may use this part of the reserve. Every durable change follows one of these.
    pub(super) fn record(&mut self, class: SpaceClass) -> Result<(), Unwritten> {
        self.room.attempt(class).map_err(Unwritten::NoRoom)?;
        self.records_left = self.records_left.checked_sub(1).ok_or(Unwritten::EndOfLog)?;
        self.records += 1;
        self.stored_by_record = 0;
        self.clock = self.now;
        Ok(())
    }

    /// A new token.
    pub(super) fn new_token(&mut self) -> LeaseToken {
        self.next_token += 1;
        LeaseToken { boot: self.boot, counter: self.next_token }
    }

    pub(super) fn find(&self, name: &TopicName) -> Option<usize> {
        self.topics.iter().position(|topic| topic.name == *name)
    }

    pub(super) fn topic(&self, name: &TopicName) -> Result<usize, Refusal> {
        self.find(name).ok_or_else(|| Refusal::UnknownTopic(name.clone()))
    }

    pub(super) fn group(&self, topic: &TopicName, group: &GroupName) -> Result<(usize, usize), Refusal> {
        let topic = self.topic(topic)?;
        let found = self.topics[topic].group_named(group);
        Ok((topic, found.ok_or_else(|| Refusal::UnknownGroup(group.clone()))?))
    }

    pub(super) fn lease(&self, requested: Option<Millis>) -> Millis {
        let lease = match requested {
            None | Some(Millis(0)) => self.limits.lease_default,
            Some(lease) => lease,
        };
        if lease < self.limits.lease_min {
            self.limits.lease_min
        } else if lease > self.limits.lease_max {
            self.limits.lease_max
        } else {
            lease
        }
    }

    pub(super) fn check_delay(&self, delay: Millis) -> Result<(), Refusal> {
        let max = self.limits.delay_max;
        if delay > max { Err(Refusal::DelayTooLong { delay, max }) } else { Ok(()) }
    }

    /// A message with this metadata is stored.
    pub(super) fn expect_deadline(&mut self, metadata: &Metadata) {
        let deadline = metadata.envelope.deadline.as_ref().map_or(Timestamp::MAX, |deadline| deadline.at);
        self.first_deadline = self.first_deadline.min(deadline);
    }

    /// Whether the delay of a message has passed.
    pub(super) fn is_due(&self, message: &Message) -> bool {
        message.delayed_until <= self.now && message.deliver_at <= self.wall()
    }

    /// Something may be due at `time`.
    pub(super) fn expect_at(&mut self, time: Timestamp) {
        self.quiet_until = self.quiet_until.min(time);
    }
}
