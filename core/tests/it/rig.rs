//! A broker on a disk in memory, with a clock that only moves when told.

use std::collections::BTreeMap;

use driftq_core::command::{Claim, OnDisconnect, Produce, SeekTo, Subscribe, TokenClaim};
use driftq_core::faults::{Faults, NoFaults};
use driftq_core::log::{LogId, MemoryStorage, Recovered};
use driftq_core::record::{GroupStart, Retention};
use driftq_core::reply::{CloseCause, Delivery, Produced, TopicInfo};
use driftq_core::types::*;
use driftq_core::{Command, Output, Pipeline, PipelineConfig, Refusal, Reply};

/// A broker, its disk and its clock.
pub struct Rig<F: Faults + Clone = NoFaults> {
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

    pub fn with_limits(change: impl FnOnce(&mut Limits)) -> Self {
        let mut config = small_config();
        change(&mut config.limits);
        Self::with(config, NoFaults)
    }
}

impl<F: Faults + Clone> Rig<F> {
    pub fn with(config: PipelineConfig, faults: F) -> Self {
        Self::open(MemoryStorage::new(), config, START, faults)
    }

    pub fn open(mut storage: MemoryStorage, config: PipelineConfig, now: Timestamp, faults: F) -> Self {
        let new_log = Some(LogId([7; 16]));
        let (pipeline, recovered) =
            Pipeline::open(&mut storage, config.clone(), new_log, now, faults.clone()).expect("the log opens");
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
        *self = Self::open(storage, self.config.clone(), self.now, self.faults.clone());
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

pub fn policy(max_attempts: u32, backoff: u64, max_backoff: u64) -> RetryPolicy {
    RetryPolicy { max_attempts, backoff: Millis(backoff), max_backoff: Millis(max_backoff) }
}
