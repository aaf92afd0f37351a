//! What the naive broker knows: lists of topics, identities and streams, and nothing that follows from them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use driftq_core::types::limits::{
    ERROR_TEXT_BYTES_CEILING, MESSAGE_BYTES_CEILING, PARTITIONS_CEILING, RESULT_BYTES_CEILING,
};
use driftq_core::types::{
    Boot, ConsumerId, GroupId, GroupName, LeaseToken, Limits, Millis, Offset, PartitionId, Ticket, Timestamp, TopicId,
    TopicName,
};
use driftq_core::{Command, Refusal, Reply};

use super::complete::Step;
use super::effects::Effect;
use super::expected::{Answer, Expected};
use super::rollback::Input;
use super::streams::Stream;
use super::timers::Sweep;
use super::topic::{Begun, Phase, Progress, Topic};

/// Everything. What follows `fuel` is forgotten when the process dies, and so are leases' holders and groups' turns.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) limits: Arc<Limits>,
    pub(super) records: u64,
    pub(super) clock: Timestamp,
    pub(super) boot: Boot,
    pub(super) next_topic: TopicId,
    /// In the order of their numbers.
    pub(super) topics: Vec<Topic>,
    pub(super) scopes: Vec<Scope>,
    pub(super) effects: Vec<Effect>,
    /// In the order they were completed.
    pub(super) steps: Vec<Step>,
    /// How many more records there may be: without end, but where a crash is being retold.
    pub(super) fuel: u64,
    pub(super) now: Timestamp,
    pub(super) closed: bool,
    pub(super) next_consumer: ConsumerId,
    pub(super) next_token: u64,
    /// In the order they came.
    pub(super) streams: Vec<Stream>,
    pub(super) sweeps: Vec<Sweep>,
    /// Nothing comes due before this moment.
    pub(super) quiet_until: Timestamp,
    /// The group the hand-out goes on with, where the last one was cut short.
    pub(super) turn: (TopicId, GroupId),
    pub(super) said: VecDeque<Expected>,
}

/// The produce identities of one topic as producers mean it, in the order they were accepted.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub(super) topic: TopicName,
    pub(super) identities: Vec<Identity>,
}

#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) tenant: Arc<str>,
    pub(super) key: Arc<str>,
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
    pub(super) expires_at: Timestamp,
}

/// The log ended here: what follows was never written.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndOfLog;

/// Why a command goes no further.
#[derive(Debug)]
pub(super) enum Stop {
    Refused(Refusal),
    EndOfLog,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<EndOfLog> for Stop {
    fn from(_: EndOfLog) -> Self {
        Self::EndOfLog
    }
}

impl Model {
    pub(super) fn new(limits: &Limits) -> Self {
        let limits = Limits {
            message_bytes_max: limits.message_bytes_max.min(MESSAGE_BYTES_CEILING),
            error_text_bytes_max: limits.error_text_bytes_max.min(ERROR_TEXT_BYTES_CEILING),
            result_bytes_max: limits.result_bytes_max.min(RESULT_BYTES_CEILING),
            partitions_max: limits.partitions_max.min(PARTITIONS_CEILING),
            ..limits.clone()
        };
        Self {
            limits: Arc::new(limits),
            records: 0,
            clock: Timestamp(0),
            boot: Boot(0),
            next_topic: TopicId(0),
            topics: Vec::new(),
            scopes: Vec::new(),
            effects: Vec::new(),
            steps: Vec::new(),
            fuel: u64::MAX,
            now: Timestamp(0),
            closed: false,
            next_consumer: ConsumerId(1),
            next_token: 0,
            streams: Vec::new(),
            sweeps: Vec::new(),
            quiet_until: Timestamp(0),
            turn: Default::default(),
            said: VecDeque::new(),
        }
    }

    /// Everything that is not in the log is gone.
    pub(super) fn forget_volatile(&mut self) {
        for group in self.topics.iter_mut().flat_map(|topic| &mut topic.groups) {
            (group.last_served, group.last_partition) = Default::default();
            for progress in &mut group.progress {
                if let Progress::Begun(Begun { phase: Phase::Leased { holder, .. }, .. }) = progress {
                    *holder = ConsumerId(0);
                }
            }
        }
        self.fuel = u64::MAX;
        self.now = self.clock;
        self.closed = false;
        self.next_consumer = ConsumerId(1);
        self.next_token = 0;
        self.streams.clear();
        self.sweeps.clear();
        self.quiet_until = Timestamp(0);
        self.turn = Default::default();
        self.said.clear();
    }

    /// Everything but its limits and the count of its records.
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self {
            limits: _,
            records: _,
            clock,
            boot,
            next_topic,
            topics,
            scopes,
            effects,
            steps,
            fuel: _,
            now,
            closed,
            next_consumer,
            next_token,
            streams,
            sweeps,
            quiet_until,
            turn,
            said,
        } = self;
        write!(out, "{clock:?} {boot:?} {next_topic:?} {topics:?} {scopes:?} {effects:?} {steps:?} {now:?} {closed} ")?;
        write!(out, "{next_consumer:?} {next_token} {streams:?} {sweeps:?} {quiet_until:?} {turn:?} {said:?} ")
    }

    /// One input.
    pub(super) fn run(&mut self, input: &Input) -> Result<(), EndOfLog> {
        match input {
            Input::Boot(now) => self.boot(*now),
            Input::Timeout(now) => {
                self.advance(*now)?;
                self.dispatch()
            }
            // Nobody listens to a story retold, so any ticket will do.
            Input::Command(now, command) => self.command(*now, Default::default(), command).map(drop),
        }
    }

    /// Does a command. Says whether it did more than refuse or look.
    pub(super) fn command(&mut self, now: Timestamp, ticket: Ticket, command: &Command) -> Result<bool, EndOfLog> {
        self.advance(now)?;
        let result = match self.execute(command) {
            Ok(answer) => Ok(answer),
            Err(Stop::Refused(refusal)) => Err(refusal),
            Err(Stop::EndOfLog) => return Err(EndOfLog),
        };
        let looked = matches!(
            command,
            Command::ListTopics | Command::ListGroups { .. } | Command::DescribeTopic { .. } | Command::Peek { .. }
        );
        // Whatever is asked of the store uses up a token.
        let changing = matches!(command, Command::Store(_)) || result.is_ok() && !looked;
        self.said.push_back(Expected::Reply { ticket, result });
        self.dispatch()?;
        Ok(changing)
    }

    fn execute(&mut self, command: &Command) -> Result<Answer, Stop> {
        let reply = match command {
            Command::CreateTopic { name, partitions, retention } => self.create_topic(name, *partitions, *retention)?,
            Command::DeleteTopic { name } => self.delete_topic(name)?,
            Command::ListTopics => self.list_topics(),
            Command::DescribeTopic { name } => self.describe(name)?,
            Command::Produce(asked) => self.produce(asked)?,
            Command::Peek { topic, partition, offset, limit } => {
                return self.peek(topic, *partition, *offset, *limit).map_err(Stop::from);
            }
            Command::Subscribe(asked) => self.subscribe(asked)?,
            Command::SetPrefetch { consumer, prefetch } => self.set_prefetch(*consumer, *prefetch)?,
            Command::Unsubscribe { consumer } => self.unsubscribe(*consumer)?,
            Command::Finish { consumer } => self.finish_stream(*consumer)?,
            Command::Ack(claim) => self.ack(claim)?,
            Command::Nack { claim, reason, delay } => self.nack(claim, reason, *delay)?,
            Command::Extend { claim, lease } => self.extend(claim, *lease)?,
            Command::Release(claim) => self.release(claim)?,
            Command::Complete(asked) => self.complete(asked)?,
            Command::Store(asked) => return self.ask_store(asked),
            Command::CreateGroup { topic, group, start } => {
                let at = self.topic(topic)?;
                self.create_group(at, group, *start)?;
                Reply::Done
            }
            Command::DeleteGroup { topic, group } => self.delete_group(topic, group)?,
            Command::ListGroups { topic } => self.list_groups(topic)?,
            Command::Seek { topic, group, to } => self.seek(topic, group, *to)?,
            Command::Pause { topic, group } => self.pause(topic, group, true)?,
            Command::Resume { topic, group } => self.pause(topic, group, false)?,
            Command::Redrive { topic, which, limit } => self.redrive(topic, which, *limit)?,
        };
        Ok(Answer::Plain(reply))
    }

    /// A record is written: every lasting change is made right after one of these, and by nothing else.
    pub(super) fn record(&mut self) -> Result<(), EndOfLog> {
        self.fuel = self.fuel.checked_sub(1).ok_or(EndOfLog)?;
        self.records += 1;
        self.clock = self.now;
        Ok(())
    }

    /// A proof that nobody has had before.
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

    pub(super) fn lease(&self, asked: Option<Millis>) -> Millis {
        match asked {
            None | Some(Millis(0)) => self.limits.lease_default,
            Some(lease) => lease,
        }
    }

    /// Something may come due at `moment`.
    pub(super) fn expect_at(&mut self, moment: Timestamp) {
        self.quiet_until = self.quiet_until.min(moment);
    }
}
