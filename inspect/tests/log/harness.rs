//! A broker on any storage with a clock that tests set; its log is what the reader is tested on.

use driftq_core::OpenOptions;

use driftq_core::command::{
    Ack, Claim, Complete, CreateGroup, CreateTopic, DeliveryClaim, GroupLifetime, Nack, OnDisconnect, Produce, Redrive,
    RedriveSelection, Retry, Seek, SeekTo, StoreCommand, Subscribe, TokenClaim,
};
use driftq_core::log::{LogId, MemoryStorage, Storage};
use driftq_core::reply::{Delivery, StoreReply};
use driftq_core::types::{GroupName, GroupStart, Millis, OwnerName, Retention, RetryPolicy, Timestamp, TopicName};
use driftq_core::{Command, Output, Pipeline, PipelineConfig, Refusal, Reply};
use driftq_inspect::{InspectError, LogPoint, LogReader, MessageHistory, Overview};

/// 2025-12-21T12:00:00Z.
pub(crate) const START: u64 = 1_766_318_400_000;

pub(crate) struct TestBroker<S> {
    pub(crate) disk: S,
    pub(crate) pipeline: Pipeline,
    pub(crate) now: u64,
    pub(crate) incoming: Vec<Delivery>,
    /// The digest of the broker's own state, by LSN.
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
        snapshot_every_segments: usize::MAX,
        rest_after: None,
        ..PipelineConfig::default()
    }
}

impl TestBroker<MemoryStorage> {
    pub(crate) fn new() -> Self {
        Self::on(MemoryStorage::new())
    }

    pub(crate) fn reader(&self) -> LogReader<MemoryStorage> {
        LogReader::new(self.disk.clone())
    }

    pub(crate) fn history(&self, message: &str) -> MessageHistory {
        self.history_in(message, None)
    }

    pub(crate) fn history_in(&self, message: &str, only: Option<&str>) -> MessageHistory {
        let only = only.map(group);
        self.reader().trace_message(&message.parse().unwrap(), only.as_ref(), None).expect("the log has the message")
    }

    pub(crate) fn overview(&self, at: Option<LogPoint>) -> Result<Overview, InspectError> {
        self.reader().overview(at)
    }

    /// Loses power and starts the broker again.
    pub(crate) fn crash(&mut self) {
        self.disk = self.disk.crash();
        let opened = OpenOptions::new().config(self.config.clone()).open(&mut self.disk, Timestamp(self.now));
        self.pipeline = opened.expect("opens").0;
        self.incoming.clear();
        self.settle();
    }
}

impl<S: Storage> TestBroker<S> {
    pub(crate) fn on(mut disk: S) -> Self {
        let opened = OpenOptions::new().config(config()).create(LogId([7; 16])).open(&mut disk, Timestamp(START));
        let pipeline = opened.expect("opens").0;
        let (incoming, digests) = (Vec::new(), Vec::new());
        Self { disk, pipeline, now: START, incoming, digests, config: config() }
    }

    pub(crate) fn send(&mut self, command: Command) -> Result<Reply, Refusal> {
        let ticket = self.pipeline.handle(Timestamp(self.now), command);
        let mut reply = None;
        self.drive(|answered, result| {
            if answered == ticket {
                reply = Some(result);
            }
        });
        reply.expect("every command is answered")
    }

    fn drive(&mut self, mut on_reply: impl FnMut(driftq_core::types::Ticket, Result<Reply, Refusal>)) {
        self.pipeline.handle_timeout(Timestamp(self.now));
        self.pipeline.drive(Timestamp(self.now), &mut self.disk);
        while let Some(output) = self.pipeline.poll_output() {
            match output {
                Output::Reply { ticket, result } => on_reply(ticket, result),
                Output::Deliver { delivery, .. } => self.incoming.push(*delivery),
                Output::Closed { .. } => {}
            }
        }
        self.digests.push((self.pipeline.synced().lsn.0, format!("{:016x}", self.pipeline.state().digest())));
    }

    pub(crate) fn settle(&mut self) {
        self.drive(|_, _| {});
    }

    pub(crate) fn advance(&mut self, ms: u64) {
        self.now += ms;
        self.settle();
    }

    pub(crate) fn snapshot(&mut self) {
        self.pipeline.request_snapshot();
        self.settle();
    }

    pub(crate) fn create_topic(&mut self, name: &str, partitions: u32, retention: Retention) {
        self.send(Command::CreateTopic(CreateTopic { name: topic(name), partitions: Some(partitions), retention }))
            .unwrap();
    }

    pub(crate) fn create_group(&mut self, of: &str, name: &str) {
        let (topic, group) = (topic(of), group(name));
        self.send(Command::CreateGroup(CreateGroup { topic, group, start: GroupStart::Earliest })).unwrap();
    }

    pub(crate) fn produce(&mut self, name: &str) -> u64 {
        self.produce_with(Produce::new(topic(name), "key", "value"))
    }

    pub(crate) fn produce_with(&mut self, produce: Produce) -> u64 {
        match self.send(Command::Produce(Box::new(produce))) {
            Ok(Reply::Produced(produced)) => produced.offset.0,
            other => panic!("{other:?}"),
        }
    }

    /// Subscribes a consumer that receives one message, with a lease of two seconds.
    pub(crate) fn subscribe(&mut self, of: &str, name: &str, consumer: &str) {
        let subscribe = Subscribe {
            topic: topic(of),
            group: group(name),
            owner: owner(consumer),
            lease: Some(Millis(2_000)),
            prefetch: 1,
            deliveries_max: Some(1),
            start: GroupStart::Earliest,
            on_disconnect: OnDisconnect::Keep,
            group_lifetime: GroupLifetime::Durable,
        };
        self.send(Command::Subscribe(subscribe)).unwrap();
    }

    /// Subscribes a consumer and returns the one message it receives.
    pub(crate) fn receive(&mut self, of: &str, name: &str, consumer: &str) -> Delivery {
        self.incoming.clear();
        self.subscribe(of, name, consumer);
        self.settle();
        assert_eq!(self.incoming.len(), 1, "one message is delivered");
        self.incoming.remove(0)
    }

    pub(crate) fn claim(&self, of: &str, name: &str, consumer: &str, delivery: &Delivery) -> Claim {
        Claim {
            topic: topic(of),
            group: group(name),
            partition: delivery.partition,
            offset: delivery.offset,
            owner: owner(consumer),
            token: TokenClaim::Shown(delivery.token),
        }
    }

    pub(crate) fn ack(&mut self, of: &str, name: &str, consumer: &str, delivery: &Delivery) {
        let claim = self.claim(of, name, consumer, delivery);
        self.send(Command::Ack(Ack(claim))).unwrap();
    }

    pub(crate) fn nack(&mut self, of: &str, name: &str, consumer: &str, delivery: &Delivery, reason: &str) {
        let claim = self.claim(of, name, consumer, delivery);
        self.send(Command::Nack(Nack { claim, reason: reason.into(), retry: Retry::ByPolicy })).unwrap();
    }

    pub(crate) fn complete(&mut self, claim: Claim, produce: Vec<Produce>) {
        self.send(Command::Complete(Box::new(Complete { claim, result: None, produce, failed: None }))).unwrap();
    }

    pub(crate) fn seek(&mut self, of: &str, name: &str, to: SeekTo) {
        self.send(Command::Seek(Seek { topic: topic(of), group: group(name), to })).unwrap();
    }

    pub(crate) fn redrive(&mut self, of: &str) {
        self.send(Command::Redrive(Redrive { topic: topic(of), which: RedriveSelection::All, limit: 10 })).unwrap();
    }

    pub(crate) fn store(&mut self, command: StoreCommand) -> StoreReply {
        match self.send(Command::Store(Box::new(command))) {
            Ok(Reply::Store(reply)) => reply,
            Ok(Reply::Success) => StoreReply::Renewed { lease_until: Timestamp(0) },
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

/// A message with a limit of attempts and a backoff of one second.
pub(crate) fn limited(name: &str, max_attempts: u32) -> Produce {
    let mut produce = Produce::new(topic(name), "key", "value");
    produce.envelope.retry_policy =
        Some(RetryPolicy { max_attempts, backoff: Millis(1_000), max_backoff: Millis(10_000) });
    produce
}

/// The kinds of the events, in order.
pub(crate) fn kinds(history: &MessageHistory) -> Vec<&'static str> {
    history.events.iter().map(|event| event.kind).collect()
}

/// Group, attempt, owner and end of every delivery.
pub(crate) fn deliveries(history: &MessageHistory) -> Vec<(&str, u32, &str, Option<&str>)> {
    history.deliveries.iter().map(|d| (d.group.as_str(), d.attempt, d.owner.as_str(), d.end.as_deref())).collect()
}

/// Asserts that one event of the kind has all of these texts.
pub(crate) fn assert_event(history: &MessageHistory, kind: &str, texts: &[&str]) {
    let is_it = |text: &str| texts.iter().all(|part| text.contains(part));
    let found = history.events.iter().any(|event| event.kind == kind && is_it(&event.text));
    assert!(found, "no {kind} event has {texts:?}:\n{history}");
}
