//! Records histories of a real core: a broker, its log, and clients that record what they see, with crashes and lost
//! answers.

use driftq_core::OpenOptions;

use std::fmt::Write as _;

use driftq_core::command::{
    Ack, Begin, Claim, Complete, CreateGroup, CreateTopic, Extend, Finish, GroupLifetime, Nack, OnDisconnect, Produce,
    Release, Retry, StoreCommand, Subscribe, TokenClaim,
};
use driftq_core::faults::{Faults, NoFaults};
use driftq_core::log::{LogId, MemoryStorage};
use driftq_core::reply::{Delivery, StoreReply};
use driftq_core::types::{
    ConsumerId, EffectStatus, GroupName, GroupStart, Identity, LeaseToken, Limits, Millis, Offset, Outcome, OwnerName,
    PartitionId, Priority, Retention, RetryPolicy, Scope, Timestamp, TopicName,
};
use driftq_core::{Command, Output, Pipeline, PipelineConfig, Refusal, Reply};
use driftq_history::{Entry, Phase};
use serde_json::{Value, json};

use crate::builder::{START, timestamp};

/// The bytes of every segment.
pub(crate) const SEGMENT_BYTES: u64 = 16 << 10;
const LEASE_MS: u64 = 300;
const IN_FLIGHT_MAX: u32 = 3;
/// The groups of the setup.
const GROUPS: [(&str, &str); 3] = [("a", "g"), ("a", "h"), ("b", "g")];

/// A delivery that a worker has not settled.
#[derive(Clone)]
struct Unsettled {
    partition: u32,
    offset: u64,
    token: LeaseToken,
}

struct Worker {
    client: String,
    incarnation: u64,
    topic: &'static str,
    group: &'static str,
    consumer: Option<ConsumerId>,
    unsettled: Vec<Unsettled>,
}

/// What goes wrong with a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallFault {
    None,
    /// It takes effect, and the answer is lost.
    AnswerLost,
    /// The broker is killed before it syncs its log.
    Killed,
}

/// A broker and its clients, and the history that they recorded.
pub(crate) struct RecordedRun<F: Faults = NoFaults> {
    pub(crate) entries: Vec<Entry>,
    pub(crate) disk: MemoryStorage,
    config: PipelineConfig,
    broker: Pipeline<F>,
    faults: F,
    now: u64,
    random_state: u64,
    values: u64,
    workers: Vec<Worker>,
    incoming: Vec<(ConsumerId, Delivery)>,
    grants: Vec<(String, LeaseToken)>,
    callers: u64,
}

pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::new(name).expect("a name")
}

fn owner(name: &str) -> OwnerName {
    OwnerName::new(name).expect("a name")
}

impl RecordedRun {
    /// Runs `actions` random actions and both drain rounds. Without `snapshot_every_bytes` the whole log is kept.
    pub(crate) fn new(seed: u64, actions: u64, snapshot_every_bytes: Option<u64>) -> Self {
        Self::with(NoFaults, seed, actions, snapshot_every_bytes)
    }
}

impl<F: Faults> RecordedRun<F> {
    /// The same with a planted bug.
    pub(crate) fn with(faults: F, seed: u64, actions: u64, snapshot_every_bytes: Option<u64>) -> Self {
        let limits = Limits {
            in_flight_max: IN_FLIGHT_MAX,
            lease_default: Millis(LEASE_MS),
            lease_min: Millis(1),
            ..Limits::production()
        };
        let mut config = PipelineConfig {
            limits,
            segment_bytes: SEGMENT_BYTES,
            reserve_bytes: 2 << 10,
            ..PipelineConfig::default()
        };
        config.slice_bytes = 4 << 10;
        config.snapshot_every_bytes = snapshot_every_bytes.unwrap_or(u64::MAX);
        if snapshot_every_bytes.is_none() {
            // Neither many starts nor a rest is a reason for a snapshot.
            config.snapshot_every_segments = usize::MAX;
            config.rest_after = None;
        }
        let mut disk = MemoryStorage::new();
        let (broker, _) = OpenOptions::new()
            .config(PipelineConfig { limits: faults.limits(config.limits.clone()), ..config.clone() })
            .create(LogId([7; 16]))
            .faults(faults)
            .open(&mut disk, Timestamp(START))
            .expect("opens");
        let mut run = Self {
            entries: Vec::new(),
            disk,
            config,
            broker,
            faults,
            now: START,
            random_state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            values: 0,
            workers: Vec::new(),
            incoming: Vec::new(),
            grants: Vec::new(),
            callers: 0,
        };
        let groups: Vec<Value> = GROUPS.iter().map(|(topic, group)| json!({"topic": topic, "group": group})).collect();
        run.driver("setup", json!({"max_in_flight": IN_FLIGHT_MAX, "lease_ms": LEASE_MS, "groups": groups}));
        for (name, partitions) in [("a", 2), ("b", 1)] {
            let retention = Retention::default();
            run.send(Command::CreateTopic(CreateTopic { name: topic(name), partitions: Some(partitions), retention }));
            for (_, group) in GROUPS.iter().filter(|(of, _)| *of == name) {
                let (topic, group) = (topic(name), GroupName::new(group).expect("a name"));
                run.send(Command::CreateGroup(CreateGroup { topic, group, start: GroupStart::Earliest }));
            }
        }
        for (index, (topic, group)) in GROUPS.iter().chain(&GROUPS[..2]).enumerate() {
            let client = format!("w{index}");
            run.workers.push(Worker { client, incarnation: 0, topic, group, consumer: None, unsettled: Vec::new() });
        }
        for _ in 0..actions {
            run.act();
        }
        run.drain();
        run
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random_state ^= self.random_state << 13;
        self.random_state ^= self.random_state >> 7;
        self.random_state ^= self.random_state << 17;
        self.random_state % below
    }

    fn write(&mut self, (client, incarnation): (&str, u64), op: &str, phase: Phase, args: Value, result: Value) {
        let (seq, t) = (self.entries.len() as u64 + 1, self.now);
        let (client, op) = (client.to_owned(), op.to_owned());
        self.entries.push(Entry { seq, t, client, incarnation, op, phase, args, result });
    }

    fn driver(&mut self, op: &str, args: Value) {
        self.write(("driver", 0), op, Phase::Ok, args, json!({}));
    }

    /// Sends a command and performs all I/O; deliveries are kept for later.
    fn send(&mut self, command: Command) -> Option<Result<Reply, Refusal>> {
        let ticket = self.broker.handle(Timestamp(self.now), command);
        self.settle_io(Some(ticket))
    }

    fn settle_io(&mut self, ticket: Option<driftq_core::types::Ticket>) -> Option<Result<Reply, Refusal>> {
        self.broker.handle_timeout(Timestamp(self.now));
        self.broker.drive(Timestamp(self.now), &mut self.disk);
        self.outputs(ticket)
    }

    /// Reads the outputs of the broker; deliveries are kept for later.
    fn outputs(&mut self, asked: Option<driftq_core::types::Ticket>) -> Option<Result<Reply, Refusal>> {
        let mut reply = None;
        while let Some(output) = self.broker.poll_output() {
            match output {
                Output::Reply { ticket, result } if Some(ticket) == asked => reply = Some(result),
                Output::Deliver { consumer, delivery } => self.incoming.push((consumer, *delivery)),
                Output::Reply { .. } | Output::Closed { .. } => {}
            }
        }
        reply
    }

    /// A call by a new client; returns the answer, if it arrives.
    fn call(&mut self, op: &str, args: Value, command: Command) -> Option<Result<Reply, Refusal>> {
        let fault = match self.draw(20) {
            0 => CallFault::Killed,
            1 | 2 => CallFault::AnswerLost,
            _ => CallFault::None,
        };
        self.callers += 1;
        let client = format!("caller-{}", self.callers);
        self.write((&client, 0), op, Phase::Invoke, args.clone(), Value::Null);
        if fault == CallFault::Killed {
            let ticket = self.broker.handle(Timestamp(self.now), command);
            // Nothing is synced yet, so a correct broker has no output.
            let answered = self.outputs(Some(ticket));
            self.receive();
            match answered {
                Some(Ok(reply)) => self.write((&client, 0), op, Phase::Ok, args, answer(&reply)),
                _ => self.write((&client, 0), op, Phase::Info, args, json!({"error": "reset"})),
            }
            self.driver("kill", json!({}));
            self.crash();
            return None;
        }
        let reply = self.send(command).expect("every command is answered");
        if fault == CallFault::AnswerLost {
            self.write((&client, 0), op, Phase::Info, args, json!({"error": "timeout"}));
            self.receive();
            return None;
        }
        match &reply {
            Ok(reply) => self.write((&client, 0), op, Phase::Ok, args, answer(reply)),
            Err(refusal) => self.write((&client, 0), op, Phase::Fail, args, json!({"error": refusal.to_string()})),
        }
        self.receive();
        Some(reply)
    }

    /// Workers read the deliveries, or lose them.
    fn receive(&mut self) {
        for (consumer, delivery) in std::mem::take(&mut self.incoming) {
            let is_read = self.draw(10) > 0;
            let Some(worker) = self.workers.iter_mut().find(|worker| worker.consumer == Some(consumer)) else {
                continue;
            };
            if is_read {
                let (partition, offset) = (delivery.partition.0, delivery.offset.0);
                worker.unsettled.push(Unsettled { partition, offset, token: delivery.token });
                let (client, incarnation) = (worker.client.clone(), worker.incarnation);
                let args = consume_args(worker);
                self.write((&client, incarnation), "deliver", Phase::Ok, args, item(&delivery));
            }
        }
    }

    fn act(&mut self) {
        match self.draw(16) {
            0..=3 => self.produce(),
            4..=6 => self.consume(),
            7..=11 => self.settle(),
            12 => self.effect(),
            13 => {
                self.now += self.draw(LEASE_MS);
                self.settle_io(None);
                self.receive();
            }
            14 => {
                self.now += self.draw(20);
                self.settle_io(None);
                self.receive();
                let digest = format!("{:016x}", self.broker.state().digest());
                let result = json!({"lsn": self.broker.synced().lsn.0, "digest": digest});
                self.write(("driver", 0), "digest", Phase::Ok, Value::Null, result);
            }
            _ if self.draw(4) == 0 => {
                self.driver("kill", json!({}));
                self.crash();
            }
            _ => {}
        }
    }

    fn crash(&mut self) {
        self.disk = self.disk.crash();
        self.incoming.clear();
        for index in 0..self.workers.len() {
            self.disconnect(index, Phase::Info);
        }
        self.driver("start", json!({}));
        let (broker, _) = OpenOptions::new()
            .config(PipelineConfig { limits: self.faults.limits(self.config.limits.clone()), ..self.config.clone() })
            .faults(self.faults)
            .open(&mut self.disk, Timestamp(self.now))
            .expect("opens");
        self.broker = broker;
    }

    fn disconnect(&mut self, index: usize, phase: Phase) {
        let worker = &mut self.workers[index];
        if worker.consumer.take().is_some() {
            let (client, incarnation) = (worker.client.clone(), worker.incarnation);
            worker.incarnation += 1;
            let args = consume_args(worker);
            self.write((&client, incarnation), "consume", phase, args, json!({}));
        }
    }

    /// A message as a producer sends it and as the core accepts it.
    fn message(&mut self) -> (Value, Produce) {
        self.values += 1;
        let (name, value) = (["a", "b"][self.draw(2) as usize], format!("value-{}", self.values));
        let key = ["", "k1", "k2", "k3"][self.draw(4) as usize];
        let mut produce = Produce::new(topic(name), key, value.clone());
        let mut args = json!({"topic": name, "key": key, "value": value});
        match self.draw(8) {
            0 => {
                let key = format!("id-{}", self.draw(6));
                args["envelope"] = json!({"idempotency_key": key});
                produce.envelope.idempotency_key = Some(key.into());
            }
            1 => {
                args["envelope"] = json!({"retry_policy": {"max_attempts": 2, "backoff_ms": 10}});
                let max_backoff = Millis(0);
                produce.envelope.retry_policy = Some(RetryPolicy { max_attempts: 2, backoff: Millis(10), max_backoff });
            }
            2 => {
                args["envelope"] = json!({"priority": 3});
                produce.envelope.priority = Priority::new(3);
            }
            _ => {}
        }
        (args, produce)
    }

    fn produce(&mut self) {
        let (args, produce) = self.message();
        self.call("produce", args, Command::Produce(Box::new(produce)));
    }

    fn consume(&mut self) {
        let index = self.draw(self.workers.len() as u64) as usize;
        if self.workers[index].consumer.is_none() {
            self.subscribe(index);
            self.receive();
        }
    }

    fn subscribe(&mut self, index: usize) {
        let worker = &self.workers[index];
        let subscribe = Subscribe {
            topic: topic(worker.topic),
            group: GroupName::new(worker.group).expect("a name"),
            owner: owner(&worker.client),
            lease: Some(Millis(LEASE_MS)),
            prefetch: 10,
            deliveries_max: None,
            start: GroupStart::Earliest,
            on_disconnect: OnDisconnect::Keep,
            group_lifetime: GroupLifetime::Durable,
        };
        let (client, incarnation, args) = (worker.client.clone(), worker.incarnation, consume_args(worker));
        self.write((&client, incarnation), "consume", Phase::Invoke, args.clone(), Value::Null);
        match self.send(Command::Subscribe(subscribe)).expect("every command is answered") {
            Ok(Reply::Subscribed { consumer }) => self.workers[index].consumer = Some(consumer),
            other => {
                let result = json!({"error": format!("{other:?}")});
                self.write((&client, incarnation), "consume", Phase::Fail, args, result);
            }
        }
    }

    fn settle(&mut self) {
        let index = self.draw(self.workers.len() as u64) as usize;
        if self.workers[index].unsettled.is_empty() {
            return;
        }
        let chosen = self.draw(self.workers[index].unsettled.len() as u64) as usize;
        let worker = &self.workers[index];
        let delivery = worker.unsettled[chosen].clone();
        let (mut args, mut claim) = claim(worker, &delivery);
        if self.draw(8) == 0 {
            args.as_object_mut().expect("an object").remove("lease_token");
            claim.token = TokenClaim::Absent;
        }
        let answered = match self.draw(8) {
            0 => {
                args["reason"] = json!("no");
                self.call("nack", args, Command::Nack(Nack { claim, reason: "no".into(), retry: Retry::ByPolicy }))
            }
            1 => {
                let lease_ms = 10 + self.draw(LEASE_MS * 2);
                args["lease_ms"] = json!(lease_ms);
                self.call("extend", args, Command::Extend(Extend { claim, lease: Some(Millis(lease_ms)) }));
                return;
            }
            2 => self.call("release", args, Command::Release(Release(claim))),
            3 if claim.token != TokenClaim::Absent => {
                let mut produce = Vec::new();
                let mut requested = Vec::new();
                for _ in 0..self.draw(3) {
                    let (args, message) = self.message();
                    requested.push(args);
                    produce.push(message);
                }
                args["produce"] = Value::Array(requested);
                self.call(
                    "complete",
                    args,
                    Command::Complete(Box::new(Complete { claim, result: None, produce, failed: None })),
                )
            }
            _ => self.call("ack", args, Command::Ack(Ack(claim))),
        };
        // Some deliveries are settled again later.
        if answered.is_some() && self.draw(4) > 0 && chosen < self.workers[index].unsettled.len() {
            self.workers[index].unsettled.remove(chosen);
        }
    }

    fn effect(&mut self) {
        let key = format!("effect-{}", self.draw(5));
        let identity = Identity::new("", Scope::Job { id: "j".into() }, &key);
        let mut args = json!({"scope": {"kind": "job", "id": "j"}, "key": key});
        if self.draw(2) == 0 || self.grants.is_empty() {
            args["owner"] = json!("e");
            args["lease_ms"] = json!(LEASE_MS);
            let begin = Begin { lease: Some(Millis(LEASE_MS)), ..Begin::new(identity, owner("e")) };
            let answered = self.call("begin", args, Command::Store(Box::new(StoreCommand::Begin(begin))));
            if let Some(Ok(Reply::Store(StoreReply::Execute { token, .. }))) = answered {
                self.grants.push((key, token));
            }
        } else {
            let chosen = self.draw(self.grants.len() as u64) as usize;
            let (key, token) = self.grants[chosen].clone();
            let identity = Identity::new("", Scope::Job { id: "j".into() }, &key);
            let status = [EffectStatus::Succeeded, EffectStatus::FailedRetryable][self.draw(2) as usize];
            args["key"] = json!(key);
            args["lease_token"] = json!(token.to_string());
            args["status"] = json!(status.as_str());
            let outcome = Outcome { status, response_code: 0, result: None, last_error: "".into() };
            let token = TokenClaim::Shown(token);
            self.call(
                "finish",
                args,
                Command::Store(Box::new(StoreCommand::Finish(Finish { identity, token, outcome, dead_letter: None }))),
            );
        }
    }

    fn drain(&mut self) {
        for index in 0..self.workers.len() {
            self.disconnect(index, Phase::Ok);
        }
        for round in 1..=2 {
            self.crash();
            self.write(("driver", 0), "drain", Phase::Invoke, json!({"round": round}), Value::Null);
            self.workers.clear();
            for (topic, group) in GROUPS.into_iter().chain([("dlq.a", "d"), ("dlq.b", "d")]) {
                let client = format!("drain-{round}-{topic}-{group}");
                self.workers.push(Worker {
                    client,
                    incarnation: 0,
                    topic,
                    group,
                    consumer: None,
                    unsettled: Vec::new(),
                });
            }
            for _ in 0..20 {
                for index in
                    (0..self.workers.len()).filter(|index| self.workers[*index].consumer.is_none()).collect::<Vec<_>>()
                {
                    self.subscribe(index);
                }
                self.ack_all();
                self.now += LEASE_MS;
                self.settle_io(None);
            }
            for index in 0..self.workers.len() {
                self.disconnect(index, Phase::Ok);
            }
            self.write(("driver", 0), "drain", Phase::Ok, json!({"round": round}), json!({}));
        }
    }

    /// Acks every delivery until there are none.
    fn ack_all(&mut self) {
        while !self.incoming.is_empty() {
            for (consumer, delivery) in std::mem::take(&mut self.incoming) {
                let worker = self.workers.iter().find(|worker| worker.consumer == Some(consumer)).expect("a consumer");
                let unsettled =
                    Unsettled { partition: delivery.partition.0, offset: delivery.offset.0, token: delivery.token };
                let ((args, claim), consume) = (claim(worker, &unsettled), consume_args(worker));
                let client = worker.client.clone();
                self.write((&client, 0), "deliver", Phase::Ok, consume, item(&delivery));
                self.write((&client, 0), "ack", Phase::Invoke, args.clone(), Value::Null);
                let answered = self.send(Command::Ack(Ack(claim))).expect("every command is answered");
                match answered {
                    Ok(_) => self.write((&client, 0), "ack", Phase::Ok, args, json!({})),
                    Err(refusal) => {
                        let result = json!({"error": refusal.to_string()});
                        self.write((&client, 0), "ack", Phase::Fail, args, result);
                    }
                }
            }
        }
    }

    pub(crate) fn text(&self) -> String {
        self.entries.iter().fold(String::new(), |mut text, entry| {
            writeln!(text, "{}", serde_json::to_string(entry).expect("an entry is JSON")).expect("writing to a string");
            text
        })
    }
}

fn consume_args(worker: &Worker) -> Value {
    json!({"topic": worker.topic, "group": worker.group, "owner": worker.client, "lease_ms": LEASE_MS})
}

fn claim(worker: &Worker, delivery: &Unsettled) -> (Value, Claim) {
    let args = json!({
        "topic": worker.topic, "group": worker.group, "partition": delivery.partition, "offset": delivery.offset, "owner": worker.client,
        "lease_token": delivery.token.to_string(),
    });
    let claim = Claim {
        topic: topic(worker.topic),
        group: GroupName::new(worker.group).expect("a name"),
        partition: PartitionId(delivery.partition),
        offset: Offset(delivery.offset),
        owner: owner(&worker.client),
        token: TokenClaim::Shown(delivery.token),
    };
    (args, claim)
}

/// A delivery as a stream contains it.
fn item(delivery: &Delivery) -> Value {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let mut item = json!({
        "partition": delivery.partition.0, "offset": delivery.offset.0, "attempts": delivery.attempts,
        "key": text(delivery.body.key()), "value": text(delivery.body.value()), "last_error": delivery.last_error.as_str(),
        "lease_token": delivery.token.to_string(), "lease_until": timestamp(delivery.lease_until.0),
        "failures": delivery.failures, "produced_at": timestamp(delivery.produced_at.0),
    });
    let metadata = delivery.body.metadata();
    let mut envelope = serde_json::Map::new();
    if let Some(key) = metadata.envelope.idempotency_key {
        envelope.insert("idempotency_key".to_owned(), json!(key));
    }
    if let Some(priority) = metadata.envelope.priority {
        envelope.insert("priority".to_owned(), json!(priority.level()));
    }
    if let Some(policy) = metadata.envelope.retry_policy {
        let policy = json!({"max_attempts": policy.max_attempts, "backoff_ms": policy.backoff.0});
        envelope.insert("retry_policy".to_owned(), policy);
    }
    if let Some(dead) = metadata.dead_letter {
        let origin = json!({
            "original_topic": dead.original_topic.as_str(), "original_partition": dead.original_partition.0,
            "original_offset": dead.original_offset.0, "group": dead.group.as_str(),
        });
        envelope.insert("dlq".to_owned(), origin);
    }
    if !envelope.is_empty() {
        item["envelope"] = Value::Object(envelope);
    }
    item
}

/// An answer as the broker writes it.
fn answer(reply: &Reply) -> Value {
    match reply {
        Reply::Produced(produced) => {
            let mut answer = json!({"partition": produced.partition.0, "offset": produced.offset.0});
            if produced.duplicate {
                answer["duplicate"] = json!(true);
            }
            answer
        }
        Reply::Extended { lease_until } => json!({"lease_until": timestamp(lease_until.0)}),
        Reply::Completed(outputs) => {
            let outputs = outputs.iter().map(|output| {
                let mut stored =
                    json!({"topic": output.topic.as_str(), "partition": output.partition.0, "offset": output.offset.0});
                if output.duplicate {
                    stored["duplicate"] = json!(true);
                }
                stored
            });
            json!({"produced": outputs.collect::<Vec<_>>()})
        }
        Reply::Store(StoreReply::Execute { attempt, token, lease_until, .. }) => json!({
            "decision": "EXECUTE", "attempt": attempt, "lease_token": token.to_string(), "lease_until": timestamp(lease_until.0),
        }),
        Reply::Store(StoreReply::Replay { outcome, .. }) => {
            json!({"decision": "REPLAY", "status": outcome.status.as_str(), "result": null})
        }
        _ => json!({}),
    }
}
