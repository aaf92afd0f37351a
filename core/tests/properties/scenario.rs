//! One fixed scenario that writes every kind of log record and every kind of snapshot image.
//!
//! The golden files hold its bytes. The scenario may be extended at its end together with a new version of the golden
//! files, but not changed.

use driftq_core::OpenOptions;

use driftq_core::command::{
    Ack, AckCumulative, ChangeRetention, CreateGroup, CreateTopic, DeleteGroup, DeleteTopic, Extend, Finish, Forget,
    Nack, Pause, Purge, Redrive, Release, Renew, Resume, Retry, Seek, Withdraw,
};
use std::collections::BTreeMap;

use driftq_core::codec::record as record_codec;
use driftq_core::command::{
    Begin, Claim, Complete, DeliveryClaim, GroupLifetime, OnDisconnect, Produce, RedriveSelection, SeekTo,
    StoreCommand, Subscribe, TokenClaim,
};
use driftq_core::log::{
    FileId, HEADER_BYTES, LogId, Malformed, MemoryStorage, Replay, SegmentHeader, Storage, recover,
};
use driftq_core::record::Record;
use driftq_core::reply::{Delivery, StoreReply};
use driftq_core::state::State;
use driftq_core::types::{EffectStatus, GroupStart, Identity, Lifetime, Outcome, Retention, Scope, *};
use driftq_core::{Command, Output, Pipeline, PipelineConfig, Refusal, Reply};
use proptest::sample::Index;

use crate::codec::all_kinds;
use crate::keys_scenario::keys_log;

const LOG: LogId = LogId(*b"the golden log 1");
pub const START: Timestamp = Timestamp(1_700_000_000_000);

/// The kind of the record of a lost payload.
const PAYLOAD_LOST: u8 = 47;

/// The kind of an image of many messages.
const CHUNK: u8 = 0x8E;

pub fn config() -> PipelineConfig {
    PipelineConfig {
        memory_bytes: 0,
        state_bytes_max: u64::MAX,
        limits: Limits {
            lease_default: Millis(2_000),
            dedupe_ttl: Millis(5_000),
            effect_ttl: Millis(4_000),
            job_ttl: Millis(60_000),
            completion_ttl: Millis(3_000),
            adaptive_credit: false,
            retention_age: Some(Millis(0)),
            retention_bytes: None,
            ..Limits::production()
        },
        segment_bytes: HEADER_BYTES as u64 + 2_400,
        segment_bytes_min: u64::MAX,
        reserve_bytes: 100,
        snapshot_every_bytes: u64::MAX,
        snapshot_every_segments: usize::MAX,
        rest_after: None,
        slice_bytes: 300,
        read_ahead_bytes: 4 << 20,
        clean_spare_segments: 0,
        scrub_interval: None,
    }
}

/// A broker that performs the scenario.
pub struct ScenarioBroker {
    pub storage: MemoryStorage,
    pipeline: Pipeline,
    now: Timestamp,
    deliveries: Vec<(ConsumerId, Delivery)>,
    /// The streams, and the subscribes without a reply yet.
    streams: BTreeMap<ConsumerId, (TopicName, GroupName, OwnerName)>,
    subscribing: BTreeMap<Ticket, (TopicName, GroupName, OwnerName)>,
    /// The newest grant of each effect, and the begins without a reply yet.
    grants: BTreeMap<Identity, LeaseToken>,
    beginning: BTreeMap<Ticket, Identity>,
    refusals: Vec<Refusal>,
}

pub fn topic(name: &str) -> TopicName {
    TopicName::new(name).expect("a name")
}

pub fn group(name: &str) -> GroupName {
    GroupName::new(name).expect("a name")
}

fn policy(max_attempts: u32, backoff: u64) -> Option<RetryPolicy> {
    Some(RetryPolicy { max_attempts, backoff: Millis(backoff), max_backoff: Millis(10_000) })
}

impl ScenarioBroker {
    pub fn start() -> Self {
        let mut storage = MemoryStorage::new();
        let (pipeline, _) = OpenOptions::new().config(config()).create(LOG).open(&mut storage, START).expect("opens");
        let (deliveries, streams, subscribing, refusals) = Default::default();
        let (grants, beginning) = Default::default();
        let mut broker =
            Self { storage, pipeline, now: START, deliveries, streams, subscribing, grants, beginning, refusals };
        broker.run_until_idle();
        broker
    }

    /// Power loss, then a start 10 ms later.
    pub fn restart(self) -> Self {
        let (mut storage, now) = (self.storage.crash(), self.now.after(Millis(10)));
        let (pipeline, _) = OpenOptions::new().config(config()).open(&mut storage, now).expect("opens");
        let mut broker = Self { storage, pipeline, now, ..self };
        broker.run_until_idle();
        broker
    }

    pub fn snapshot(&mut self) {
        self.pipeline.request_snapshot();
        self.run_until_idle();
    }

    fn run_until_idle(&mut self) {
        loop {
            self.pipeline.drive(self.now, &mut self.storage);
            while let Some(output) = self.pipeline.poll_output() {
                match output {
                    Output::Deliver { consumer, delivery } => self.deliveries.push((consumer, *delivery)),
                    Output::Reply { ticket, result: Ok(Reply::Subscribed { consumer }) } => {
                        self.streams.extend(self.subscribing.remove(&ticket).map(|stream| (consumer, stream)));
                    }
                    Output::Reply { ticket, result: Ok(Reply::Store(StoreReply::Execute { token, .. })) } => {
                        self.grants.extend(self.beginning.remove(&ticket).map(|identity| (identity, token)));
                    }
                    Output::Reply { result, .. } => self.refusals.extend(result.err()),
                    Output::Closed { .. } => {}
                }
            }
            if self.pipeline.poll_timeout().is_none_or(|at| at > self.now) {
                return;
            }
            self.pipeline.handle_timeout(self.now);
        }
    }

    pub fn advance(&mut self, span: u64) {
        let end = self.now.after(Millis(span));
        while let Some(at) = self.pipeline.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.run_until_idle();
        }
        self.now = end;
        self.run_until_idle();
    }

    pub fn send(&mut self, command: Command) {
        self.pipeline.handle(self.now, command);
        self.run_until_idle();
    }

    pub fn topic(&mut self, name: &str, partitions: u32, retention: Retention) {
        self.send(Command::CreateTopic(CreateTopic { name: topic(name), partitions: Some(partitions), retention }));
    }

    pub fn produce(&mut self, to: &str, key: &str, value: &str, change: impl FnOnce(&mut Produce)) {
        let mut request = Produce::new(topic(to), key, value);
        change(&mut request);
        self.send(Command::Produce(Box::new(request)));
    }

    pub fn subscribe(&mut self, to: &str, name: &str, prefetch: u32) {
        let owner = OwnerName::new(&format!("worker-{name}")).expect("a name");
        let request = Subscribe {
            topic: topic(to),
            group: group(name),
            owner: owner.clone(),
            lease: Some(Millis(2_000)),
            prefetch,
            deliveries_max: None,
            start: GroupStart::Earliest,
            on_disconnect: OnDisconnect::Keep,
            group_lifetime: GroupLifetime::Durable,
        };
        let ticket = self.pipeline.handle(self.now, Command::Subscribe(request));
        self.subscribing.insert(ticket, (topic(to), group(name), owner));
        self.run_until_idle();
    }

    /// A claim on the newest delivery of the message with this value to a group.
    fn claim(&self, name: &str, value: &str) -> Claim {
        let mut newest = self.deliveries.iter().rev();
        let held = newest.find(|(consumer, delivery)| {
            self.streams[consumer].1.as_str() == name && delivery.body.value() == value.as_bytes()
        });
        self.claim_on(held.expect("was delivered"))
    }

    /// A claim on any delivery so far.
    pub fn any_claim(&self, which: &Index) -> Option<Claim> {
        let count = self.deliveries.len();
        (count > 0).then(|| self.claim_on(&self.deliveries[which.index(count)]))
    }

    fn claim_on(&self, (consumer, delivery): &(ConsumerId, Delivery)) -> Claim {
        let (topic, group, owner) = self.streams[consumer].clone();
        let token = TokenClaim::Shown(delivery.token);
        Claim { topic, group, partition: delivery.partition, offset: delivery.offset, owner, token }
    }

    fn ack(&mut self, name: &str, value: &str) {
        self.send(Command::Ack(Ack(self.claim(name, value))));
    }

    fn nack(&mut self, name: &str, value: &str, reason: &str) {
        self.send(Command::Nack(Nack {
            claim: self.claim(name, value),
            reason: reason.into(),
            retry: Retry::ByPolicy,
        }));
    }

    /// Begins an effect.
    pub fn begin_effect(&mut self, identity: Identity, change: impl FnOnce(&mut Begin)) {
        let mut request = Begin::new(identity.clone(), OwnerName::new("worker").expect("a name"));
        change(&mut request);
        let ticket = self.pipeline.handle(self.now, Command::Store(Box::new(StoreCommand::Begin(request))));
        self.beginning.insert(ticket, identity);
        self.run_until_idle();
    }

    /// Sends a command with the newest grant of an effect; does nothing without a grant.
    pub fn with_grant(&mut self, identity: Identity, command: impl FnOnce(Identity, TokenClaim) -> StoreCommand) {
        if let Some(token) = self.grants.get(&identity) {
            let command = command(identity, TokenClaim::Shown(*token));
            self.send(Command::Store(Box::new(command)));
        }
    }

    fn finish_effect(&mut self, identity: Identity, status: EffectStatus, result: Option<&str>, last_error: &str) {
        let (response_code, result, last_error) = (-3, result.map(Into::into), last_error.into());
        let outcome = Outcome { status, response_code, result, last_error };
        self.with_grant(identity, |identity, token| {
            StoreCommand::Finish(Finish { identity, token, outcome, dead_letter: None })
        });
    }

    /// Effects and completed steps, in a separate topic.
    fn effects_part(&mut self) {
        let keyed =
            |key: &'static str| move |request: &mut Produce| request.envelope.idempotency_key = Some(key.into());
        let of_work = |key: &str| Identity::new("", Scope::Consume { topic: topic("steps"), group: group("g") }, key);
        self.topic("steps", 2, Retention::default());
        self.subscribe("steps", "g", 100);
        self.produce("steps", "", "first", keyed("effect-1"));
        self.produce("steps", "", "second", keyed("effect-2"));
        self.produce("steps", "", "third", keyed("effect-3"));
        for (key, value) in [("effect-1", "first"), ("effect-3", "third")] {
            let Claim { partition, offset, token, .. } = self.claim("g", value);
            self.begin_effect(of_work(key), |request| {
                request.delivery = Some(DeliveryClaim { partition, offset, token });
                request.request_hash = Some("sha-of-it".into());
            });
        }
        self.ack("g", "first");
        // A message that was produced to another topic is delivered, though its identity is committed.
        self.produce("audit", "", "first again", |request| {
            request.envelope.idempotency_key = Some("effect-1".into());
            let (target_topic, partition_override) = (Some(topic("steps")), None);
            request.routing = Some(RoutingDecision { routing: Routing::default(), target_topic, partition_override });
        });
        let claim = self.claim("g", "second");
        let mut produce: Vec<_> =
            ["out", "out", "late"].iter().map(|value| Produce::new(topic("steps"), "user:1", *value)).collect();
        produce[..2].iter_mut().for_each(keyed("effect-4"));
        produce[2].delay = Some(Millis(50_000));
        self.send(Command::Complete(Box::new(Complete {
            claim,
            result: Some("{\"n\":1}".into()),
            produce,
            failed: None,
        })));
        self.ack("g", "first again");
        // Another destination is another dedupe scope, but the identity is committed: the message is skipped.
        self.produce("steps", "", "second again", |request| {
            request.envelope.idempotency_key = Some("effect-2".into());
            request.envelope.target_topic = Some(topic("audit"));
            let (target_topic, partition_override) = (Some(topic("steps")), None);
            request.routing = Some(RoutingDecision { routing: Routing::default(), target_topic, partition_override });
        });
        self.nack("g", "out", "again, please");

        let tenant = Identity::new("acme", Scope::Tenant, "t-1");
        self.begin_effect(tenant.clone(), |request| {
            request.lifetime = Some(Lifetime::Until(lifetime_end()));
        });
        self.with_grant(tenant.clone(), |identity, token| StoreCommand::Renew(Renew { identity, token, lease: None }));
        self.finish_effect(tenant, EffectStatus::Succeeded, Some("[1,2]"), "");
        let call = Identity::new("", Scope::Rpc { principal: "p".into(), method: "m".into() }, "r-1");
        self.begin_effect(call.clone(), |request| request.lifetime = Some(Lifetime::Window(Millis(1_000))));
        self.finish_effect(call, EffectStatus::FailedRetryable, None, "busy");
        let task = Identity::new("", Scope::Task { id: "task".into() }, "k");
        self.begin_effect(task.clone(), |_| {});
        self.finish_effect(task, EffectStatus::FailedFinal, None, "never");
        let job = Identity::new("", Scope::Job { id: "job".into() }, "k");
        self.begin_effect(job.clone(), |_| {});
        self.begin_effect(Identity::new("", Scope::Job { id: "job".into() }, "forgotten"), |_| {});
        let forgotten = Identity::new("", Scope::Job { id: "job".into() }, "forgotten");
        self.send(Command::Store(Box::new(StoreCommand::Forget(Forget { identity: forgotten }))));

        self.send(Command::CreateGroup(CreateGroup {
            topic: topic("steps"),
            group: group("h"),
            start: GroupStart::Earliest,
        }));
        self.send(Command::Seek(Seek { topic: topic("steps"), group: group("h"), to: SeekTo::Latest }));
    }

    fn first_part(&mut self) {
        self.topic("orders", 2, Retention::default());
        self.topic("audit", 1, Retention { age: Some(Millis(1_000)), bytes: Some(40) });
        self.topic("scrap", 3, Retention::default());
        self.send(Command::DeleteTopic(DeleteTopic { name: topic("scrap") }));
        self.send(Command::CreateGroup(CreateGroup {
            topic: topic("orders"),
            group: group("gone"),
            start: GroupStart::Latest,
        }));
        self.send(Command::DeleteGroup(DeleteGroup { topic: topic("orders"), group: group("gone") }));
        self.send(Command::CreateGroup(CreateGroup {
            topic: topic("orders"),
            group: group("h"),
            start: GroupStart::Earliest,
        }));
        self.send(Command::Pause(Pause { topic: topic("orders"), group: group("h") }));
        self.send(Command::Resume(Resume { topic: topic("orders"), group: group("h") }));

        self.produce("orders", "", "plain", |_| {});
        self.produce("orders", "user:1", "said once", |request| {
            request.envelope.idempotency_key = Some("key-1".into());
            request.envelope.tenant_id = Some("acme".into());
            request.envelope.run_id = Some("run".into());
            request.envelope.step_id = Some("step".into());
            request.envelope.parent_step_id = Some("parent".into());
            request.trace = Some("00-trace-01".into());
        });
        self.produce("orders", "", "dies", |request| {
            request.envelope.retry_policy = policy(1, 100);
            request.envelope.labels = [("a".into(), "1".into()), ("b".into(), "\u{e9}".into())].into();
        });
        self.produce("audit", "", "routed", |request| {
            request.routing = Some(RoutingDecision {
                routing: Routing { label: "vip".into(), meta: [("why".into(), "because".into())].into() },
                target_topic: Some(topic("orders")),
                partition_override: Some(PartitionId(0)),
            });
        });
        self.produce("orders", "", "later", |request| request.delay = Some(Millis(60_000)));
        self.produce("orders", "", "urgent", |request| {
            request.envelope.priority = Priority::new(9);
            let at = Timestamp(START.0 + 86_400_000);
            request.envelope.deadline = Some(Deadline { at, text: "2023-11-15T22:13:20Z".into() });
        });
        self.produce("orders", "", "retried", |request| request.envelope.retry_policy = policy(9, 100));

        self.subscribe("orders", "g", 100);
        self.subscribe("orders", "h", 100);
        self.ack("g", "urgent");
        self.ack("h", "urgent");
        self.ack("g", "retried");
        self.nack("g", "dies", "no such customer");
        self.nack("h", "retried", "try again");
        self.send(Command::Extend(Extend { claim: self.claim("g", "routed"), lease: Some(Millis(30_000)) }));
        self.send(Command::Release(Release(self.claim("g", "plain"))));
        // A paused group gets no redelivery, so the expired lease can still be nacked by its last owner.
        self.send(Command::Pause(Pause { topic: topic("orders"), group: group("h") }));
        self.advance(2_500);
        self.nack("h", "plain", "was too slow");
        self.send(Command::Resume(Resume { topic: topic("orders"), group: group("h") }));
    }

    fn second_part(&mut self) {
        let (source, which) = (topic("orders"), RedriveSelection::All);
        self.send(Command::Redrive(Redrive { topic: source, which, limit: 1 }));
        self.subscribe("audit", "g", 1);
        for value in ["kept for a while", "pushed out by the next", "not yet done"] {
            self.produce("audit", "", value, |_| {});
        }
        self.ack("g", "kept for a while");
        self.ack("g", "pushed out by the next");
        self.produce("orders", "k", "in the window", |request| request.envelope.idempotency_key = Some("key-2".into()));
    }

    /// A message that is delivered more than once, so that its winner is remembered.
    fn winners_part(&mut self) {
        self.topic("contested", 1, Retention::default());
        self.produce("contested", "", "twice", |_| {});
        self.subscribe("contested", "g", 1);
        self.send(Command::Withdraw(Withdraw(self.claim("g", "twice"))));
        self.send(Command::Release(Release(self.claim("g", "twice"))));
        self.ack("g", "twice");
    }

    /// What workers and operators can ask for beside acks, nacks and groups.
    fn verdicts_part(&mut self) {
        let keyed =
            |key: &'static str| move |request: &mut Produce| request.envelope.idempotency_key = Some(key.into());
        self.topic("verdicts", 1, Retention::default());
        self.subscribe("verdicts", "w", 100);
        self.produce("verdicts", "", "fails with its step", keyed("verdict-1"));
        self.produce("verdicts", "", "fails with its effect", keyed("verdict-2"));
        self.produce("verdicts", "", "acked with the next", keyed("verdict-3"));
        self.produce("verdicts", "", "acked with the one before", |_| {});
        let claim = self.claim("w", "fails with its step");
        let step = Complete { claim, result: None, produce: Vec::new(), failed: Some("broken".into()) };
        self.send(Command::Complete(Box::new(step)));
        let scope = Scope::Consume { topic: topic("verdicts"), group: group("w") };
        let effect = Identity::new("", scope, "verdict-2");
        self.begin_effect(effect.clone(), |_| {});
        let Claim { partition, offset, token: shown, .. } = self.claim("w", "fails with its effect");
        let outcome =
            Outcome { status: EffectStatus::FailedFinal, response_code: 0, result: None, last_error: "never".into() };
        let dead_letter = Some(DeliveryClaim { partition, offset, token: shown });
        self.with_grant(effect, |identity, token| {
            StoreCommand::Finish(Finish { identity, token, outcome, dead_letter })
        });
        let Claim { topic: name, group: by, partition, offset, owner, .. } =
            self.claim("w", "acked with the one before");
        self.send(Command::AckCumulative(AckCumulative { topic: name, group: by, partition, offset, owner }));
        let (name, bytes) = (topic("verdicts"), Setting::Value(70));
        self.send(Command::ChangeRetention(ChangeRetention { name, age: Setting::Unchanged, bytes }));
        let (name, by) = (topic("verdicts"), group("w"));
        self.send(Command::CreateGroup(CreateGroup { topic: name, group: by, start: GroupStart::Latest }));
        self.send(Command::Purge(Purge { topic: topic("dlq.verdicts") }));
    }

    fn third_part(&mut self) {
        self.advance(4_000);
        self.send(Command::Seek(Seek { topic: topic("orders"), group: group("h"), to: SeekTo::Offset(Offset(4)) }));
        self.advance(3_000);
        let (mono, wall) = (self.now, self.now.after(Millis(5_000)));
        self.pipeline.handle_timeout(Now { mono, wall });
        // From here on the wall clock agrees with the monotonic clock again.
        self.advance(4_000);
        self.pipeline.rebase_wall_clock(self.now).expect("the log has space");
        self.run_until_idle();
    }
}

/// The time until which an effect of the scenario is kept.
fn lifetime_end() -> Timestamp {
    START.after(Millis(600_000))
}

/// The storage after the whole scenario: two boots, a snapshot in the middle and a synced mark at the end.
pub fn scenario_log() -> MemoryStorage {
    let mut broker = ScenarioBroker::start();
    broker.first_part();
    broker.second_part();
    broker.effects_part();
    broker.winners_part();
    broker.verdicts_part();
    broker.snapshot();
    broker.third_part();
    broker.pipeline.close();
    broker.run_until_idle();
    let mut broker = broker.restart();
    broker.produce("orders", "", "the end", |_| {});
    broker.advance(100);
    assert_eq!(broker.refusals, [], "no command of the scenario is refused");
    without_sizes(broker.storage.crash())
}

/// The storage as an earlier version wrote it, without the sizes of segments in their headers.
pub fn without_sizes(mut storage: MemoryStorage) -> MemoryStorage {
    for info in storage.list().expect("lists") {
        let header = storage.bytes(info.file).and_then(|bytes| SegmentHeader::decode(bytes).ok());
        if let Some(header) = header {
            let encoded = SegmentHeader { capacity: 0, ..header }.encode();
            storage.bytes_mut(info.file).expect("is there").overwrite(0, &encoded);
        }
    }
    storage
}

/// The same storage without the last mark: the last batch is synced, but not proven so.
pub fn scenario_log_without_mark() -> MemoryStorage {
    let mut storage = scenario_log();
    let last = segments(&mut storage).last().copied().expect("has segments");
    let end = storage.bytes(last).expect("is there").len();
    let mark = driftq_core::log::frame::FRAME_HEAD_BYTES;
    storage.bytes_mut(last).expect("is there").truncate(end - mark);
    storage
}

/// The segments of a log, in order.
pub fn segments(storage: &mut MemoryStorage) -> Vec<FileId> {
    let files = storage.list().expect("lists").into_iter().map(|info| info.file);
    files
        .filter(|file| matches!(file, FileId::Segment(_)) && !storage.bytes(*file).unwrap_or_default().is_empty())
        .collect()
}

/// Every snapshot image and every log record after it, with the digest of the state after each log record.
#[derive(Debug, Default)]
pub struct ReadLog {
    pub state: State,
    pub restored: Vec<Record>,
    pub replayed: Vec<(Lsn, Record, u64)>,
}

impl ReadLog {
    pub fn from(storage: &MemoryStorage) -> Self {
        let mut read = Self::default();
        recover(&mut storage.clone(), None, &mut read).expect("recovers");
        read
    }

    fn take(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<Record, Malformed> {
        let record = record_codec::decode(kind, version, payload).map_err(|error| Malformed::new(error.to_string()))?;
        let applied = self.state.apply(&record);
        applied.map_err(|error| Malformed::new(error.to_string()))?;
        Ok(record)
    }
}

impl Replay for ReadLog {
    fn reset(&mut self) {
        *self = Self::default();
    }

    fn restore(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = self.take(kind, version, payload)?;
        self.restored.push(record);
        Ok(())
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = self.take(kind, version, payload)?;
        self.replayed.push((lsn, record, self.state.digest()));
        Ok(())
    }
}

/// The log without its snapshots.
pub fn without_snapshots(storage: &MemoryStorage) -> MemoryStorage {
    let mut storage = storage.clone();
    for info in storage.list().expect("lists") {
        if let FileId::Snapshot(_) = info.file {
            storage.take_file(info.file);
        }
    }
    storage
}

#[test]
fn scenario_covers_every_record_kind() {
    let storage = scenario_log();
    let kinds = |records: Vec<&Record>| {
        let mut kinds: Vec<u8> = records.into_iter().map(|record| record_codec::kind(&record.event)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    };
    let whole = ReadLog::from(&without_snapshots(&storage));
    let read = ReadLog::from(&storage);
    let keys = keys_log();
    let (whole_keys, read_keys) = (ReadLog::from(&without_snapshots(&keys)), ReadLog::from(&keys));
    // A payload is lost only by damage.
    let records: Vec<u8> = all_kinds().filter(|kind| *kind < 0x80 && *kind != PAYLOAD_LOST).collect();
    // No partition of the scenario has as many messages as make a chunk.
    let images: Vec<u8> = all_kinds().filter(|kind| *kind >= 0x80 && *kind != CHUNK).collect();
    let replayed = whole.replayed.iter().chain(&whole_keys.replayed);
    assert_eq!(kinds(replayed.map(|(_, record, _)| record).collect()), records);
    assert_eq!(kinds(read.restored.iter().chain(&read_keys.restored).collect()), images);
    assert_eq!(read.state.digest(), whole.state.digest());
    assert_eq!(read_keys.state.digest(), whole_keys.state.digest());
}
