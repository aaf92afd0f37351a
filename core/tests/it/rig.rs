//! A broker on a disk in memory, with a clock that only moves when told.

use std::collections::BTreeMap;

use driftq_core::command::{
    Begin, Claim, Complete, DeliveryClaim, OnDisconnect, Produce, SeekTo, StoreCommand, Subscribe, TokenClaim,
};
use driftq_core::faults::{Faults, NoFaults};
use driftq_core::idempotency::{Effect, EffectStatus, Identity, Outcome, Scope};
use driftq_core::log::{LogId, MemoryStorage, Recovered};
use driftq_core::record::{GroupStart, Retention};
use driftq_core::reply::{
    CloseCause, Delivery, Overload, PartitionInfo, Peeked, Produced, ProgressInfo, StepOutput, StoreReply, TopicInfo,
};
use driftq_core::types::*;
use driftq_core::{Command, Output, Pipeline, PipelineConfig, Refusal, Reply};

/// A broker, its disk and its clock.
pub struct Rig<F: Faults = NoFaults> {
    pub storage: MemoryStorage,
    pub pipeline: Pipeline<F>,
    pub recovered: Recovered,
    pub now: Timestamp,
    pub config: PipelineConfig,
    pub deliveries: Vec<(ConsumerId, Delivery)>,
    pub closed: Vec<(ConsumerId, CloseCause)>,
    replies: BTreeMap<Ticket, Result<Reply, Refusal>>,
    faults: F,
}

pub const START: Timestamp = Timestamp(1_000_000);

/// The ways in which a broker's memory is lost and rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The power goes; everything comes from the log.
    Crash,
    /// The power goes just after a snapshot; everything comes from that.
    Snapshot,
}

pub const RESTARTS: [Restart; 2] = [Restart::Crash, Restart::Snapshot];

pub fn small_config() -> PipelineConfig {
    PipelineConfig {
        segment_bytes: 64 << 10,
        reserve_bytes: 8 << 10,
        snapshot_every_bytes: u64::MAX,
        slice_bytes: 1 << 10,
        ..PipelineConfig::default()
    }
}

impl Rig {
    pub fn new() -> Self {
        Self::with(small_config(), NoFaults)
    }

    /// With a topic `t`.
    pub fn with_topic(partitions: u32) -> Self {
        let mut rig = Self::new();
        rig.topic("t", partitions);
        rig
    }

    pub fn with_limits(change: impl FnOnce(&mut Limits)) -> Self {
        let mut config = small_config();
        change(&mut config.limits);
        Self::with(config, NoFaults)
    }
}

impl<F: Faults> Rig<F> {
    pub fn with(config: PipelineConfig, faults: F) -> Self {
        Self::open(MemoryStorage::new(), config, START, faults)
    }

    pub fn open(mut storage: MemoryStorage, config: PipelineConfig, now: Timestamp, faults: F) -> Self {
        let new_log = Some(LogId([7; 16]));
        let (pipeline, recovered) =
            Pipeline::open(&mut storage, config.clone(), new_log, now, faults).expect("the log opens");
        let (deliveries, closed, replies) = Default::default();
        let mut rig = Self { storage, pipeline, recovered, now, config, deliveries, closed, replies, faults };
        rig.settle();
        rig
    }

    /// Lets the disk finish everything and collects what comes out.
    pub fn settle(&mut self) {
        loop {
            self.pipeline.drive(self.now, &mut self.storage);
            self.collect();
            if self.pipeline.poll_timeout().is_none_or(|at| at > self.now) {
                return;
            }
            self.pipeline.handle_timeout(self.now);
        }
    }

    pub fn collect(&mut self) {
        while let Some(output) = self.pipeline.poll_output() {
            match output {
                Output::Reply { ticket, result } => drop(self.replies.insert(ticket, result)),
                Output::Deliver { consumer, delivery } => self.deliveries.push((consumer, *delivery)),
                Output::Closed { consumer, cause } => self.closed.push((consumer, cause)),
            }
        }
    }

    /// Moves the clock, stopping wherever the broker wants to be called.
    pub fn pass(&mut self, span: u64) {
        let end = self.now.after(Millis(span));
        while let Some(at) = self.pipeline.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.pipeline.handle_timeout(self.now);
            self.settle();
        }
        self.now = end;
        self.pipeline.handle_timeout(self.now);
        self.settle();
    }

    /// The power goes; only what was synced is left.
    pub fn crash(&mut self) {
        let storage = self.storage.crash();
        *self = Self::open(storage, self.config.clone(), self.now, self.faults);
    }

    /// Has a snapshot of this very state written and named.
    pub fn snapshot(&mut self) {
        let before = self.pipeline.snapshots().last().copied();
        self.pipeline.request_snapshot();
        self.settle();
        assert_ne!(self.pipeline.snapshots().last().copied(), before, "a snapshot was taken");
    }

    /// Loses the memory one way or the other, having checked that the disk gives back the very same state.
    pub fn restart(&mut self, way: Restart) {
        self.restart_after(way, 0);
    }

    /// [`Rig::restart`] with so many milliseconds between the end and the new beginning.
    pub fn restart_after(&mut self, way: Restart, downtime: u64) {
        if way == Restart::Snapshot {
            self.snapshot();
        }
        assert_eq!(self.recovered_digest(), self.digest(), "the disk holds the state as it is ({way:?})");
        self.now = self.now.after(Millis(downtime));
        self.crash();
    }

    /// When the broker itself wants to be called next; the log's own errands are left out.
    pub fn next_moment(&self) -> Option<Timestamp> {
        self.pipeline.broker().poll_timeout()
    }

    /// Hands a command in without letting the disk do anything.
    pub fn submit(&mut self, command: Command) -> Ticket {
        let ticket = self.pipeline.handle(self.now, command);
        self.collect();
        ticket
    }

    pub fn send(&mut self, command: Command) -> Result<Reply, Refusal> {
        let ticket = self.pipeline.handle(self.now, command);
        self.settle();
        self.replies.remove(&ticket).expect("every command is answered")
    }

    pub fn reply(&mut self, ticket: Ticket) -> Option<Result<Reply, Refusal>> {
        self.replies.remove(&ticket)
    }

    pub fn topic(&mut self, name: &str, partitions: u32) {
        let reply = self.send(Command::CreateTopic {
            name: topic(name),
            partitions: Some(partitions),
            retention: Retention::default(),
        });
        assert_eq!(reply, Ok(Reply::TopicCreated { partitions }));
    }

    pub fn topic_retaining(&mut self, name: &str, age: Option<u64>, bytes: Option<u64>) {
        let retention = Retention { age: age.map(Millis), bytes };
        let reply = self.send(Command::CreateTopic { name: topic(name), partitions: None, retention });
        assert_eq!(reply, Ok(Reply::TopicCreated { partitions: 1 }));
    }

    pub fn produce(&mut self, to: &str, value: &str) -> Offset {
        self.try_produce(Produce::new(topic(to), "", value)).expect("accepted").offset
    }

    pub fn produce_with(&mut self, to: &str, value: &str, change: impl FnOnce(&mut Produce)) -> Offset {
        let mut asked = Produce::new(topic(to), "", value);
        change(&mut asked);
        self.try_produce(asked).expect("accepted").offset
    }

    pub fn produce_to(&mut self, to: &str, partition: u32, value: &str) -> Offset {
        self.try_produce(to_partition(to, partition, "", value)).expect("accepted").offset
    }

    pub fn try_produce(&mut self, asked: Produce) -> Result<Produced, Refusal> {
        match self.send(Command::Produce(Box::new(asked)))? {
            Reply::Produced(produced) => Ok(produced),
            other => panic!("a produce is answered with {other:?}"),
        }
    }

    pub fn group(&mut self, of: &str, name: &str) {
        let start = GroupStart::Earliest;
        let reply = self.send(Command::CreateGroup { topic: topic(of), group: group(name), start });
        assert_eq!(reply, Ok(Reply::Done));
    }

    pub fn subscribe(&mut self, to: &str, name: &str, who: &str) -> ConsumerId {
        self.subscribe_with(to, name, who, |_| {})
    }

    pub fn subscribe_with(
        &mut self,
        to: &str,
        name: &str,
        who: &str,
        change: impl FnOnce(&mut Subscribe),
    ) -> ConsumerId {
        let mut asked = subscribe(to, name, who);
        change(&mut asked);
        match self.send(Command::Subscribe(asked)) {
            Ok(Reply::Subscribed { consumer }) => consumer,
            other => panic!("a subscribe is answered with {other:?}"),
        }
    }

    /// What was delivered since last asked.
    pub fn delivered(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries).into_iter().map(|(_, delivery)| delivery).collect()
    }

    /// The values delivered since last asked.
    pub fn values(&mut self) -> Vec<String> {
        self.delivered().iter().map(value).collect()
    }

    /// The one delivery since last asked.
    pub fn one(&mut self) -> Delivery {
        let mut delivered = self.delivered();
        assert_eq!(delivered.len(), 1, "exactly one delivery");
        delivered.remove(0)
    }

    pub fn ack(&mut self, claim: Claim) -> Result<(), Refusal> {
        self.send(Command::Ack(claim)).map(|reply| assert_eq!(reply, Reply::Done))
    }

    pub fn nack(&mut self, claim: Claim, reason: &str) -> Result<(), Refusal> {
        self.send(Command::Nack { claim, reason: reason.into(), delay: None })
            .map(|reply| assert_eq!(reply, Reply::Done))
    }

    pub fn nack_with_delay(&mut self, claim: Claim, delay: u64) -> Result<(), Refusal> {
        self.send(Command::Nack { claim, reason: "".into(), delay: Some(Millis(delay)) })
            .map(|reply| assert_eq!(reply, Reply::Done))
    }

    pub fn extend(&mut self, claim: Claim, lease: Option<u64>) -> Result<Timestamp, Refusal> {
        match self.send(Command::Extend { claim, lease: lease.map(Millis) })? {
            Reply::Extended { lease_until } => Ok(lease_until),
            other => panic!("an extension is answered with {other:?}"),
        }
    }

    pub fn release(&mut self, claim: Claim) -> Result<(), Refusal> {
        self.send(Command::Release(claim)).map(|reply| assert_eq!(reply, Reply::Done))
    }

    pub fn unsubscribe(&mut self, consumer: ConsumerId) {
        assert_eq!(self.send(Command::Unsubscribe { consumer }), Ok(Reply::Done));
    }

    pub fn set_prefetch(&mut self, consumer: ConsumerId, prefetch: u32) {
        assert_eq!(self.send(Command::SetPrefetch { consumer, prefetch }), Ok(Reply::Done));
    }

    pub fn group_from_latest(&mut self, of: &str, name: &str) {
        let start = GroupStart::Latest;
        let reply = self.send(Command::CreateGroup { topic: topic(of), group: group(name), start });
        assert_eq!(reply, Ok(Reply::Done));
    }

    pub fn delete_group(&mut self, of: &str, name: &str) {
        let reply = self.send(Command::DeleteGroup { topic: topic(of), group: group(name) });
        assert_eq!(reply, Ok(Reply::Done));
    }

    pub fn delete_topic(&mut self, name: &str) {
        assert_eq!(self.send(Command::DeleteTopic { name: topic(name) }), Ok(Reply::Done));
    }

    pub fn pause(&mut self, of: &str, name: &str) {
        assert_eq!(self.send(Command::Pause { topic: topic(of), group: group(name) }), Ok(Reply::Done));
    }

    pub fn resume(&mut self, of: &str, name: &str) {
        assert_eq!(self.send(Command::Resume { topic: topic(of), group: group(name) }), Ok(Reply::Done));
    }

    pub fn topics(&mut self) -> Vec<String> {
        match self.send(Command::ListTopics) {
            Ok(Reply::Topics(names)) => names.iter().map(|name| name.as_str().to_owned()).collect(),
            other => panic!("a listing is answered with {other:?}"),
        }
    }

    pub fn groups(&mut self, of: &str) -> Vec<String> {
        match self.send(Command::ListGroups { topic: topic(of) }) {
            Ok(Reply::Groups(names)) => names.iter().map(|name| name.as_str().to_owned()).collect(),
            other => panic!("a listing is answered with {other:?}"),
        }
    }

    /// Everything kept in a partition, done or not.
    pub fn kept_in(&mut self, of: &str, partition: u32) -> Vec<Peeked> {
        let (partition, offset, limit) = (PartitionId(partition), Offset(0), usize::MAX);
        match self.send(Command::Peek { topic: topic(of), partition, offset, limit }) {
            Ok(Reply::Peeked(messages)) => messages,
            other => panic!("a peek is answered with {other:?}"),
        }
    }

    /// The values of everything kept in the first partition.
    pub fn kept(&mut self, of: &str) -> Vec<String> {
        self.kept_in(of, 0).iter().map(|peeked| String::from_utf8_lossy(peeked.body.value()).into_owned()).collect()
    }

    /// The dead letters of a topic's first partition, oldest first.
    pub fn dead_letters(&mut self, source: &str) -> Vec<DeadLetter> {
        let dead = format!("dlq.{source}");
        let letters = self.kept_in(&dead, 0).into_iter().map(|item| item.body.metadata().dead_letter);
        letters.map(|letter| *letter.expect("a dead letter says where it comes from")).collect()
    }

    /// How a group stands in the first partition.
    pub fn progress(&mut self, of: &str, name: &str) -> ProgressInfo {
        let groups = self.describe(of).groups;
        groups.into_iter().find(|info| info.group == group(name)).expect("the group is there").partitions[0]
    }

    /// What the first partition holds.
    pub fn load(&mut self, of: &str) -> PartitionInfo {
        self.describe(of).partitions[0]
    }

    /// The consumers served since last asked, with what they were given.
    pub fn served(&mut self) -> Vec<(ConsumerId, String)> {
        let deliveries = std::mem::take(&mut self.deliveries);
        deliveries.into_iter().map(|(consumer, delivery)| (consumer, value(&delivery))).collect()
    }

    pub fn seek(&mut self, of: &str, name: &str, to: SeekTo) -> Result<(), Refusal> {
        self.send(Command::Seek { topic: topic(of), group: group(name), to })
            .map(|reply| assert_eq!(reply, Reply::Done))
    }

    pub fn describe(&mut self, name: &str) -> TopicInfo {
        match self.send(Command::DescribeTopic { name: topic(name) }) {
            Ok(Reply::Topic(info)) => *info,
            other => panic!("a describe is answered with {other:?}"),
        }
    }

    /// Asks the idempotency store for something that has an answer of its own.
    pub fn ask(&mut self, asked: StoreCommand) -> Result<StoreReply, Refusal> {
        match self.send(Command::Store(Box::new(asked)))? {
            Reply::Store(reply) => Ok(reply),
            other => panic!("the store answers with {other:?}"),
        }
    }

    pub fn begin(&mut self, identity: &Identity) -> Result<StoreReply, Refusal> {
        self.begin_with(identity, |_| {})
    }

    pub fn begin_with(&mut self, identity: &Identity, change: impl FnOnce(&mut Begin)) -> Result<StoreReply, Refusal> {
        let mut asked = Begin::new(identity.clone(), owner("w"));
        change(&mut asked);
        self.ask(StoreCommand::Begin(asked))
    }

    /// Begins on behalf of a delivery.
    pub fn begin_for(&mut self, identity: &Identity, delivery: &Delivery) -> Result<StoreReply, Refusal> {
        let token = TokenClaim::Shown(delivery.token);
        let claim = DeliveryClaim { partition: delivery.partition, offset: delivery.offset, token };
        self.begin_with(identity, |asked| asked.delivery = Some(claim))
    }

    pub fn finish(&mut self, identity: &Identity, token: LeaseToken, outcome: Outcome) -> Result<(), Refusal> {
        self.finish_by(identity, TokenClaim::Shown(token), outcome)
    }

    pub fn finish_by(&mut self, identity: &Identity, token: TokenClaim, outcome: Outcome) -> Result<(), Refusal> {
        let asked = StoreCommand::Finish { identity: identity.clone(), token, outcome };
        self.send(Command::Store(Box::new(asked))).map(|reply| assert_eq!(reply, Reply::Done))
    }

    pub fn reacquire(&mut self, identity: &Identity) -> Result<StoreReply, Refusal> {
        self.ask(StoreCommand::Reacquire { identity: identity.clone(), owner: owner("other"), lease: None })
    }

    pub fn renew(&mut self, identity: &Identity, token: LeaseToken, lease: u64) -> Result<StoreReply, Refusal> {
        let (identity, token, lease) = (identity.clone(), TokenClaim::Shown(token), Some(Millis(lease)));
        self.ask(StoreCommand::Renew { identity, token, lease })
    }

    pub fn forget(&mut self, identity: &Identity) -> Result<(), Refusal> {
        let asked = StoreCommand::Forget { identity: identity.clone() };
        self.send(Command::Store(Box::new(asked))).map(|reply| assert_eq!(reply, Reply::Done))
    }

    /// What the store tells about an effect, if it knows of it.
    pub fn effect(&mut self, identity: &Identity) -> Option<Effect> {
        match self.ask(StoreCommand::Get { identity: identity.clone() }) {
            Ok(StoreReply::Effect(effect)) => Some(*effect),
            Err(Refusal::UnknownEffect) => None,
            other => panic!("a get is answered with {other:?}"),
        }
    }

    pub fn status(&mut self, identity: &Identity) -> Option<EffectStatus> {
        self.effect(identity).map(|effect| effect.status)
    }

    pub fn complete(
        &mut self,
        claim: Claim,
        result: Option<&str>,
        produce: Vec<Produce>,
    ) -> Result<Vec<StepOutput>, Refusal> {
        let asked = Complete { claim, result: result.map(Into::into), produce };
        match self.send(Command::Complete(Box::new(asked)))? {
            Reply::Completed(outputs) => Ok(outputs.to_vec()),
            other => panic!("a complete is answered with {other:?}"),
        }
    }

    /// Does something that is refused, and sees that nothing has changed by it.
    pub fn refused<T: std::fmt::Debug>(&mut self, asked: impl FnOnce(&mut Self) -> Result<T, Refusal>) -> Refusal {
        let digest = self.digest();
        let refusal = asked(self).expect_err("it is refused");
        assert_eq!(self.digest(), digest, "{refusal} changes nothing");
        refusal
    }

    /// How many effects a tenant has, having seen that all counts are what counting gives.
    pub fn effects_of(&self, tenant: &str) -> u64 {
        let store = self.pipeline.state().store();
        let mut counted = BTreeMap::<String, u64>::new();
        for (realm, table) in store.tables() {
            assert!(!table.is_empty(), "an empty table is let go of");
            for (key, _) in table.effects() {
                *counted.entry(realm.identity(key).tenant().to_owned()).or_default() += 1;
            }
        }
        assert_eq!(store.len() as u64, counted.values().sum::<u64>());
        counted.iter().for_each(|(tenant, count)| assert_eq!(store.len_of(tenant), *count, "of {tenant}"));
        assert_eq!(store.len_of(tenant), counted.get(tenant).copied().unwrap_or(0));
        store.len_of(tenant)
    }

    pub fn digest(&self) -> u64 {
        self.pipeline.state().digest()
    }

    /// The state that the disk would give back after a power loss now.
    pub fn recovered_digest(&self) -> u64 {
        let mut storage = self.storage.crash();
        let (state, _) = driftq_core::pipeline::inspect(&mut storage, None, &self.faults).expect("recovers");
        state.digest()
    }
}

pub fn topic(name: &str) -> TopicName {
    TopicName::new(name).expect("a topic name")
}

pub fn group(name: &str) -> GroupName {
    GroupName::new(name).expect("a group name")
}

pub fn owner(name: &str) -> OwnerName {
    OwnerName::new(name).expect("an owner name")
}

pub fn subscribe(to: &str, name: &str, who: &str) -> Subscribe {
    Subscribe {
        topic: topic(to),
        group: group(name),
        owner: owner(who),
        lease: Some(Millis(2_000)),
        prefetch: 100,
        deliveries_max: None,
        start: GroupStart::Earliest,
        on_disconnect: OnDisconnect::Keep,
    }
}

pub fn value(delivery: &Delivery) -> String {
    String::from_utf8_lossy(delivery.body.value()).into_owned()
}

/// A worker's claim on what it was delivered, with its token.
pub fn claim(of: &str, name: &str, who: &str, delivery: &Delivery) -> Claim {
    Claim {
        topic: topic(of),
        group: group(name),
        partition: delivery.partition,
        offset: delivery.offset,
        owner: owner(who),
        token: TokenClaim::Shown(delivery.token),
    }
}

/// A claim on the first message of the first partition, by name alone.
pub fn first_message(of: &str, name: &str, who: &str) -> Claim {
    Claim {
        topic: topic(of),
        group: group(name),
        partition: PartitionId(0),
        offset: Offset(0),
        owner: owner(who),
        token: TokenClaim::Absent,
    }
}

/// A produce of `value` into this partition.
pub fn to_partition(to: &str, partition: u32, key: &str, value: &str) -> Produce {
    let mut asked = Produce::new(topic(to), key, value);
    asked.envelope.partition_override = Some(PartitionId(partition));
    asked
}

pub fn policy(max_attempts: u32, backoff: u64, max_backoff: u64) -> RetryPolicy {
    RetryPolicy { max_attempts, backoff: Millis(backoff), max_backoff: Millis(max_backoff) }
}

/// The refusal of a produce for want of room.
pub fn overloaded(reason: Overload) -> Refusal {
    Refusal::Overloaded { reason, retry_after: Limits::production().retry_after }
}

/// A deadline at this moment.
pub fn deadline(at: Timestamp) -> Option<Deadline> {
    Some(Deadline { at, text: at.to_string().into() })
}

/// A produce of `value` under an idempotency key.
pub fn identified(to: &str, value: &str, key: &str) -> Produce {
    let mut asked = Produce::new(topic(to), "", value);
    asked.envelope.idempotency_key = Some(key.into());
    asked
}

/// The effect of a key of the default tenant's.
pub fn effect(key: &str) -> Identity {
    Identity::new("", Scope::Tenant, key)
}

/// The effect of a call.
pub fn call(key: &str) -> Identity {
    Identity::new("", Scope::Rpc { principal: "p".into(), method: "m".into() }, key)
}

/// The effect of the work of group `name` on the messages of topic `of` with this key.
pub fn work(of: &str, name: &str, key: &str) -> Identity {
    Identity::new("", Scope::Consume { topic: topic(of), group: group(name) }, key)
}

pub fn outcome(status: EffectStatus, result: Option<&str>, last_error: &str) -> Outcome {
    Outcome { status, response_code: 0, result: result.map(Into::into), last_error: last_error.into() }
}

pub fn success(result: &str) -> Outcome {
    outcome(EffectStatus::Succeeded, Some(result), "")
}

pub fn final_failure(error: &str) -> Outcome {
    outcome(EffectStatus::FailedFinal, None, error)
}

pub fn retryable_failure(error: &str) -> Outcome {
    outcome(EffectStatus::FailedRetryable, None, error)
}

/// The token of a grant, which this must be.
#[track_caller]
pub fn granted(reply: Result<StoreReply, Refusal>) -> LeaseToken {
    match reply {
        Ok(StoreReply::Execute { token, idempotent: true, .. }) => token,
        other => panic!("not granted but {other:?}"),
    }
}
