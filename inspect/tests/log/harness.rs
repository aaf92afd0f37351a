//! A broker over any storage, with a clock that is set, whose log is then read.

use driftq_core::command::{
    Claim, Complete, DeliveryClaim, OnDisconnect, Produce, RedriveSelection, SeekTo, StoreCommand, Subscribe,
    TokenClaim,
};
use driftq_core::faults::NoFaults;
use driftq_core::log::{LogId, MemoryStorage, Storage};
use driftq_core::record::{GroupStart, Retention};
use driftq_core::reply::{Delivery, StoreReply};
use driftq_core::types::{GroupName, Millis, OwnerName, RetryPolicy, Timestamp, TopicName};
use driftq_core::{Command, Output, Pipeline, PipelineConfig, Refusal, Reply};
use driftq_inspect::{At, Life, Overview, Wal, WalError};

/// 2025-12-21T12:00:00Z.
pub(crate) const START: u64 = 1_766_318_400_000;

pub(crate) struct Rig<S> {
    pub(crate) disk: S,
    pub(crate) broker: Pipeline,
    pub(crate) now: u64,
    pub(crate) incoming: Vec<Delivery>,
    /// What the broker's own state hashes to, by LSN.
    pub(crate) digests: Vec<(u64, String)>,
    config: PipelineConfig,
}

pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

pub(crate) fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

pub(crate) fn owner(name: &str) -> OwnerName {
    OwnerName::new(name).unwrap()
}

pub(crate) fn config() -> PipelineConfig {
    PipelineConfig {
        segment_bytes: 16 << 10,
        reserve_bytes: 2 << 10,
        snapshot_every_bytes: u64::MAX,
        slice_bytes: 4 << 10,
        ..PipelineConfig::default()
    }
}

impl Rig<MemoryStorage> {
    pub(crate) fn new() -> Self {
        Self::on(MemoryStorage::new())
    }

    pub(crate) fn wal(&self) -> Wal<MemoryStorage> {
        Wal::over(self.disk.clone())
    }

    pub(crate) fn life(&self, message: &str) -> Life {
        self.life_of(message, None)
    }

    pub(crate) fn life_of(&self, message: &str, only: Option<&str>) -> Life {
        let only = only.map(group);
        self.wal().life(&message.parse().unwrap(), only.as_ref(), None).expect("it has a life")
    }

    pub(crate) fn overview(&self, at: Option<At>) -> Result<Overview, WalError> {
        self.wal().overview(at)
    }

    /// The power goes, and the broker is started again.
    pub(crate) fn crash(&mut self) {
        self.disk = self.disk.crash();
        let opened = Pipeline::open(&mut self.disk, self.config.clone(), None, Timestamp(self.now), NoFaults);
        self.broker = opened.expect("opens").0;
        self.incoming.clear();
        self.work();
    }
}

impl<S: Storage> Rig<S> {
    pub(crate) fn on(mut disk: S) -> Self {
        let opened = Pipeline::open(&mut disk, config(), Some(LogId([7; 16])), Timestamp(START), NoFaults);
        let broker = opened.expect("opens").0;
        let (incoming, digests) = (Vec::new(), Vec::new());
        Self { disk, broker, now: START, incoming, digests, config: config() }
    }

    pub(crate) fn ask(&mut self, command: Command) -> Result<Reply, Refusal> {
        let ticket = self.broker.handle(Timestamp(self.now), command);
        let mut reply = None;
        self.drive(|told, result| {
            if told == ticket {
                reply = Some(result);
            }
        });
        reply.expect("everything is answered")
    }

    fn drive(&mut self, mut told: impl FnMut(driftq_core::types::Ticket, Result<Reply, Refusal>)) {
        self.broker.handle_timeout(Timestamp(self.now));
        self.broker.drive(Timestamp(self.now), &mut self.disk);
        while let Some(output) = self.broker.poll_output() {
            match output {
                Output::Reply { ticket, result } => told(ticket, result),
                Output::Deliver { delivery, .. } => self.incoming.push(*delivery),
                Output::Closed { .. } => {}
            }
        }
        self.digests.push((self.broker.synced().0, format!("{:016x}", self.broker.state().digest())));
    }

    pub(crate) fn work(&mut self) {
        self.drive(|_, _| {});
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now += ms;
        self.work();
    }

    pub(crate) fn snapshot(&mut self) {
        self.broker.request_snapshot();
        self.work();
    }

    pub(crate) fn create(&mut self, name: &str, partitions: u32, retention: Retention) {
        self.ask(Command::CreateTopic { name: topic(name), partitions: Some(partitions), retention }).unwrap();
    }

    pub(crate) fn create_group(&mut self, of: &str, name: &str) {
        let (topic, group) = (topic(of), group(name));
        self.ask(Command::CreateGroup { topic, group, start: GroupStart::Earliest }).unwrap();
    }

    pub(crate) fn produce(&mut self, name: &str) -> u64 {
        self.produce_as(Produce::new(topic(name), "key", "value"))
    }

    pub(crate) fn produce_as(&mut self, produce: Produce) -> u64 {
        match self.ask(Command::Produce(Box::new(produce))) {
            Ok(Reply::Produced(produced)) => produced.offset.0,
            other => panic!("{other:?}"),
        }
    }

    /// Connects a worker that takes one message at a time, on a lease of two seconds.
    pub(crate) fn subscribe(&mut self, of: &str, name: &str, who: &str) {
        let subscribe = Subscribe {
            topic: topic(of),
            group: group(name),
            owner: owner(who),
            lease: Some(Millis(2_000)),
            prefetch: 1,
            deliveries_max: Some(1),
            start: GroupStart::Earliest,
            on_disconnect: OnDisconnect::Keep,
        };
        self.ask(Command::Subscribe(subscribe)).unwrap();
    }

    /// Has a worker connect and be handed one message.
    pub(crate) fn take(&mut self, of: &str, name: &str, who: &str) -> Delivery {
        self.incoming.clear();
        self.subscribe(of, name, who);
        self.work();
        assert_eq!(self.incoming.len(), 1, "one message is handed out");
        self.incoming.remove(0)
    }

    pub(crate) fn claim(&self, of: &str, name: &str, who: &str, delivery: &Delivery) -> Claim {
        Claim {
            topic: topic(of),
            group: group(name),
            partition: delivery.partition,
            offset: delivery.offset,
            owner: owner(who),
            token: TokenClaim::Shown(delivery.token),
        }
    }

    pub(crate) fn ack(&mut self, of: &str, name: &str, who: &str, delivery: &Delivery) {
        let claim = self.claim(of, name, who, delivery);
        self.ask(Command::Ack(claim)).unwrap();
    }

    pub(crate) fn nack(&mut self, of: &str, name: &str, who: &str, delivery: &Delivery, reason: &str) {
        let claim = self.claim(of, name, who, delivery);
        self.ask(Command::Nack { claim, reason: reason.into(), delay: None }).unwrap();
    }

    pub(crate) fn complete(&mut self, claim: Claim, produce: Vec<Produce>) {
        self.ask(Command::Complete(Box::new(Complete { claim, result: None, produce }))).unwrap();
    }

    pub(crate) fn seek(&mut self, of: &str, name: &str, to: SeekTo) {
        self.ask(Command::Seek { topic: topic(of), group: group(name), to }).unwrap();
    }

    pub(crate) fn redrive(&mut self, of: &str) {
        self.ask(Command::Redrive { topic: topic(of), which: RedriveSelection::All, limit: 10 }).unwrap();
    }

    pub(crate) fn store(&mut self, command: StoreCommand) -> StoreReply {
        match self.ask(Command::Store(Box::new(command))) {
            Ok(Reply::Store(reply)) => reply,
            Ok(Reply::Done) => StoreReply::Renewed { lease_until: Timestamp(0) },
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn delivery_claim(&self, delivery: &Delivery) -> DeliveryClaim {
        let token = TokenClaim::Shown(delivery.token);
        DeliveryClaim { partition: delivery.partition, offset: delivery.offset, token }
    }
}

/// A message with an idempotency key.
pub(crate) fn keyed(name: &str, key: &str) -> Produce {
    let mut produce = Produce::new(topic(name), "key", "value");
    produce.envelope.idempotency_key = Some(key.into());
    produce
}

/// A message that is tried so often, with a backoff of a second.
pub(crate) fn tried(name: &str, max_attempts: u32) -> Produce {
    let mut produce = Produce::new(topic(name), "key", "value");
    produce.envelope.retry_policy =
        Some(RetryPolicy { max_attempts, backoff: Millis(1_000), max_backoff: Millis(10_000) });
    produce
}

/// The kinds of what happened, in order.
pub(crate) fn kinds(life: &Life) -> Vec<&'static str> {
    life.events.iter().map(|event| event.kind).collect()
}

/// Group, attempt, owner and outcome of every delivery.
pub(crate) fn deliveries(life: &Life) -> Vec<(&str, u32, &str, Option<&str>)> {
    life.deliveries.iter().map(|d| (d.group.as_str(), d.attempt, d.owner.as_str(), d.outcome.as_deref())).collect()
}

/// Whether a line of that kind says all of this.
pub(crate) fn says(life: &Life, kind: &str, words: &[&str]) {
    let found =
        life.events.iter().any(|event| event.kind == kind && words.iter().all(|word| event.text.contains(word)));
    assert!(found, "no {kind} says {words:?}:\n{life}");
}
