//! A broker with a storage in memory, and the workloads of the benches.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

use driftq_core::OpenOptions;

use std::time::{Duration, Instant};

use driftq_core::command::{Ack, CreateGroup, CreateTopic, Finish};
use driftq_core::command::{
    Begin, Claim, Complete, GroupLifetime, OnDisconnect, Produce, StoreCommand, Subscribe, TokenClaim,
};
use driftq_core::log::{FileId, FileInfo, LogId, MemoryStorage, Storage, StorageFault, WriteAt};
use driftq_core::reply::StoreReply;
use driftq_core::types::*;
use driftq_core::types::{EffectStatus, GroupStart, Identity, Lifetime, Outcome, Retention, Scope};
use driftq_core::{Command, JobClass, Output, Pipeline, PipelineConfig, Reply};

pub const NOW: Timestamp = Timestamp(1_700_000_000_000);
pub const VALUE: [u8; 100] = [b'v'; 100];
/// Messages per sync, as under load.
pub const BATCH: usize = 64;
/// The result of the effects.
pub const RESULT: &str = "{\"charged\":123456789}";

pub struct BenchBroker {
    pub pipeline: Pipeline,
    pub storage: Box<dyn Storage>,
    pub topic: TopicName,
    pub groups: Vec<GroupName>,
    pub owner: OwnerName,
    pub keys: Vec<Vec<u8>>,
    pub produced: u64,
    pub with_identity: bool,
    pub with_run: bool,
    pub deliveries: Vec<(ConsumerId, PartitionId, Offset, LeaseToken)>,
    /// How many effects were begun, and the grants not finished yet.
    pub effects: u64,
    pub beginning: u64,
    pub grants: Vec<(u64, LeaseToken)>,
    /// Advances with every batch.
    pub now: Timestamp,
    pub group_of: std::collections::BTreeMap<ConsumerId, usize>,
}

#[derive(Clone, Copy)]
pub struct Shape {
    pub partitions: u32,
    pub groups: usize,
    /// Groups with consumers; the others only exist.
    pub active: usize,
    pub consumers: usize,
    pub with_identity: bool,
    pub with_run: bool,
    pub retention: Retention,
}

/// Acked messages are removed at once.
pub const PLAIN: Shape = Shape {
    partitions: 1,
    groups: 1,
    active: 1,
    consumers: 1,
    with_identity: false,
    with_run: false,
    retention: Retention::NOTHING,
};

impl BenchBroker {
    pub fn new(shape: Shape) -> Self {
        Self::on(Box::new(RingStorage::default()), shape)
    }

    /// With a storage that keeps everything, for recovery.
    pub fn recoverable(shape: Shape) -> Self {
        Self::on(Box::new(MemoryStorage::new()), shape)
    }

    pub fn on(mut storage: Box<dyn Storage>, shape: Shape) -> Self {
        let mut config = PipelineConfig { snapshot_every_bytes: u64::MAX, ..PipelineConfig::default() };
        config.limits.partition_messages_max = u64::MAX;
        config.limits.partition_bytes_max = u64::MAX;
        config.limits.in_flight_max = 2_000_000;
        let (pipeline, _) = OpenOptions::new().config(config).create(LogId([1; 16])).open(&mut *storage, NOW).unwrap();
        let topic = TopicName::new("bench").unwrap();
        let groups: Vec<_> = (0..shape.groups).map(|i| GroupName::new(&format!("group-{i}")).unwrap()).collect();
        let mut broker = Self {
            pipeline,
            storage,
            topic: topic.clone(),
            groups,
            owner: OwnerName::new("worker").unwrap(),
            keys: (0..shape.partitions.max(1) * 8).map(|i| format!("key-{i}").into_bytes()).collect(),
            produced: 0,
            with_identity: shape.with_identity,
            with_run: shape.with_run,
            deliveries: Vec::new(),
            effects: 0,
            beginning: 0,
            grants: Vec::new(),
            now: NOW,
            group_of: Default::default(),
        };
        broker.send(Command::CreateTopic(CreateTopic {
            name: topic.clone(),
            partitions: Some(shape.partitions),
            retention: shape.retention,
        }));
        for group in broker.groups.clone() {
            broker.send(Command::CreateGroup(CreateGroup { topic: topic.clone(), group, start: GroupStart::Earliest }));
        }
        for group in 0..shape.active {
            for _ in 0..shape.consumers {
                let consumer = broker.subscribe(group);
                broker.group_of.insert(consumer, group);
            }
        }
        broker
    }

    pub fn subscribe(&mut self, group: usize) -> ConsumerId {
        self.subscribe_with(group, u32::MAX)
    }

    pub fn subscribe_with(&mut self, group: usize, prefetch: u32) -> ConsumerId {
        let request = Subscribe {
            topic: self.topic.clone(),
            group: self.groups[group].clone(),
            owner: self.owner.clone(),
            lease: Some(Millis(3_600_000)),
            prefetch,
            deliveries_max: None,
            start: GroupStart::Earliest,
            on_disconnect: OnDisconnect::Keep,
            group_lifetime: GroupLifetime::Durable,
        };
        match self.send(Command::Subscribe(request)) {
            Some(Reply::Subscribed { consumer }) => consumer,
            other => panic!("{other:?}"),
        }
    }

    pub fn send(&mut self, command: Command) -> Option<Reply> {
        self.pipeline.handle(self.now, command);
        self.flush()
    }

    /// Writes, syncs and collects the outputs; returns the last reply.
    pub fn flush(&mut self) -> Option<Reply> {
        let mut last = None;
        loop {
            self.pipeline.drive(self.now, &mut *self.storage);
            while let Some(output) = self.pipeline.poll_output() {
                match output {
                    Output::Reply { result, .. } => {
                        let reply = result.unwrap();
                        if let Reply::Store(StoreReply::Execute { token, .. }) = &reply {
                            self.grants.push((self.effects - self.beginning, *token));
                            self.beginning -= 1;
                        }
                        last = Some(reply);
                    }
                    Output::Deliver { consumer, delivery } => {
                        self.deliveries.push((consumer, delivery.partition, delivery.offset, delivery.token));
                    }
                    Output::Closed { .. } => {}
                }
            }
            if self.pipeline.poll_timeout().is_none_or(|at| at > self.now) {
                return last;
            }
            self.pipeline.handle_timeout(self.now);
        }
    }

    pub fn produce(&mut self) {
        let key = &self.keys[self.produced as usize % self.keys.len()];
        let mut request = Box::new(Produce::new(self.topic.clone(), key.clone(), VALUE));
        if self.with_identity {
            request.envelope.idempotency_key = Some(order(self.produced));
        }
        if self.with_run {
            request.envelope.run_id = Some("run_0123456789".into());
            request.envelope.step_id = Some("step_7".into());
            request.envelope.tenant_id = Some("tenant_a".into());
        }
        self.produced += 1;
        self.pipeline.handle(self.now, Command::Produce(request));
    }

    pub fn ack_all(&mut self) -> usize {
        let deliveries = std::mem::take(&mut self.deliveries);
        for (index, delivery) in deliveries.iter().enumerate() {
            let ack = Command::Ack(Ack(self.claim(delivery)));
            self.pipeline.handle(self.now, ack);
            if index % BATCH == BATCH - 1 {
                self.flush();
            }
        }
        self.flush();
        deliveries.len()
    }

    /// Produce, deliver and ack, a batch at a time; nanoseconds per delivery, the best of several runs.
    pub fn cycle(&mut self) -> f64 {
        self.rounds(4, 60_000)
    }

    pub fn rounds(&mut self, rounds: usize, deliveries: usize) -> f64 {
        let mut best = f64::MAX;
        for _ in 0..rounds {
            let (mut acked, start) = (0, cpu_time());
            while acked < deliveries {
                acked += self.batch();
            }
            best = best.min((cpu_time() - start).as_nanos() as f64 / acked as f64);
        }
        best
    }

    /// The duration of every call in `batches` batches of produce, deliver and ack, each with one job of either class.
    pub fn calls(&mut self, batches: usize) -> Vec<Duration> {
        let mut calls = Vec::new();
        for _ in 0..batches {
            self.now = self.now.after(Millis(1));
            for _ in 0..BATCH {
                timed(&mut calls, || self.produce());
            }
            for class in [JobClass::Log, JobClass::Background] {
                if let Some(job) = timed(&mut calls, || self.pipeline.poll_job(class)) {
                    let result = job.perform(&mut *self.storage);
                    timed(&mut calls, || self.pipeline.complete(self.now, job, result));
                }
            }
            while let Some(output) = self.pipeline.poll_output() {
                if let Output::Deliver { consumer, delivery } = output {
                    let delivery = (consumer, delivery.partition, delivery.offset, delivery.token);
                    let ack = Command::Ack(Ack(self.claim(&delivery)));
                    timed(&mut calls, || self.pipeline.handle(self.now, ack));
                }
            }
        }
        calls
    }

    fn claim(&self, (consumer, partition, offset, token): &(ConsumerId, PartitionId, Offset, LeaseToken)) -> Claim {
        Claim {
            topic: self.topic.clone(),
            group: self.groups[self.group_of[consumer]].clone(),
            partition: *partition,
            offset: *offset,
            owner: self.owner.clone(),
            token: TokenClaim::Shown(*token),
        }
    }

    /// Produces one batch, delivers it to the connected consumers and acks it.
    pub fn batch(&mut self) -> usize {
        self.now = self.now.after(Millis(1));
        for _ in 0..BATCH {
            self.produce();
        }
        self.flush();
        self.ack_all()
    }

    /// Begins an effect with this window; the grant arrives with the next flush.
    pub fn begin(&mut self, window: Millis) {
        let mut request = Begin::new(charge(self.effects), OwnerName::new("worker-1").unwrap());
        (request.lease, request.lifetime) = (Some(Millis(3_600_000)), Some(Lifetime::Window(window)));
        self.effects += 1;
        self.beginning += 1;
        self.pipeline.handle(self.now, Command::Store(Box::new(StoreCommand::Begin(request))));
    }

    pub fn finish(&mut self, (number, token): (u64, LeaseToken)) {
        let (status, result, last_error) = (EffectStatus::Succeeded, Some(RESULT.into()), Default::default());
        let outcome = Outcome { status, response_code: 0, result, last_error };
        let (identity, token) = (charge(number), TokenClaim::Shown(token));
        let request = StoreCommand::Finish(Finish { identity, token, outcome, dead_letter: None });
        self.pipeline.handle(self.now, Command::Store(Box::new(request)));
    }

    /// Begins and finishes a batch of effects.
    pub fn effect_batch(&mut self, window: Millis) {
        self.now = self.now.after(Millis(1));
        for _ in 0..BATCH {
            self.begin(window);
        }
        self.flush();
        for grant in std::mem::take(&mut self.grants) {
            self.finish(grant);
        }
        self.flush();
    }

    /// Begin and finish of effects with a short window; nanoseconds for both, the best of several runs.
    pub fn effect_rounds(&mut self, rounds: usize, effects: usize) -> f64 {
        let mut best = f64::MAX;
        for _ in 0..rounds {
            let start = cpu_time();
            for _ in 0..effects / BATCH {
                self.effect_batch(Millis(10));
            }
            best = best.min((cpu_time() - start).as_nanos() as f64 / (effects / BATCH * BATCH) as f64);
        }
        best
    }

    /// Begins `count` effects without finishing them.
    pub fn begun(&mut self, count: usize) {
        for i in 0..count {
            self.begin(Millis(86_400_000));
            if i % 1_024 == 0 {
                self.flush();
            }
        }
        self.flush();
    }

    /// Finishes all begun effects.
    pub fn finish_all(&mut self) {
        for (i, grant) in std::mem::take(&mut self.grants).into_iter().enumerate() {
            self.finish(grant);
            if i % 1_024 == 0 {
                self.flush();
            }
        }
        self.flush();
    }

    /// Produces, delivers and completes a batch of messages, each with two outputs to `next`.
    pub fn step_batch(&mut self, next: &TopicName) -> usize {
        self.now = self.now.after(Millis(1));
        for _ in 0..BATCH {
            self.produce();
        }
        self.flush();
        let deliveries = std::mem::take(&mut self.deliveries);
        for delivery in &deliveries {
            let produce = vec![Produce::new(next.clone(), "key-1", VALUE); 2];
            let request = Complete { claim: self.claim(delivery), result: None, produce, failed: None };
            self.pipeline.handle(self.now, Command::Complete(Box::new(request)));
        }
        self.flush();
        deliveries.len()
    }

    /// The duration of every call in `batches` batches of begin and finish, each with one job of either class.
    pub fn effect_calls(&mut self, batches: usize) -> Vec<Duration> {
        let mut calls = Vec::new();
        for _ in 0..batches {
            self.now = self.now.after(Millis(1));
            for _ in 0..BATCH {
                timed(&mut calls, || self.begin(Millis(10)));
            }
            timed(&mut calls, || self.pipeline.handle_timeout(self.now));
            for class in [JobClass::Log, JobClass::Background] {
                if let Some(job) = timed(&mut calls, || self.pipeline.poll_job(class)) {
                    let result = job.perform(&mut *self.storage);
                    timed(&mut calls, || self.pipeline.complete(self.now, job, result));
                }
            }
            while let Some(output) = self.pipeline.poll_output() {
                if let Output::Reply { result: Ok(Reply::Store(StoreReply::Execute { token, .. })), .. } = output {
                    let number = self.effects - self.beginning;
                    self.beginning -= 1;
                    timed(&mut calls, || self.finish((number, token)));
                }
            }
        }
        calls
    }

    /// Produces `count` messages that are not delivered.
    pub fn backlog(&mut self, count: usize) {
        for i in 0..count {
            self.produce();
            if i % 1_024 == 0 {
                self.flush();
            }
        }
        self.flush();
    }
}

/// A storage that accepts every append and keeps the last few mebibytes, so that the measurement does not include the
/// allocation of fresh memory.
pub struct RingStorage {
    bytes: Vec<u8>,
    at: usize,
}

impl Default for RingStorage {
    fn default() -> Self {
        Self { bytes: vec![1; 8 << 20], at: 0 }
    }
}

impl Storage for RingStorage {
    fn create(&mut self, _: FileId, _: u64) -> Result<(), StorageFault> {
        Ok(())
    }
    fn append(&mut self, _: FileId, _: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        for chunk in bytes.chunks(1 << 20) {
            if self.at + chunk.len() > self.bytes.len() {
                self.at = 0;
            }
            self.bytes[self.at..self.at + chunk.len()].copy_from_slice(chunk);
            self.at += chunk.len();
        }
        Ok(())
    }
    fn sync(&mut self, _: FileId) -> Result<(), StorageFault> {
        Ok(())
    }
    fn read(&mut self, _: FileId, _: u64, _: &mut [u8]) -> Result<usize, StorageFault> {
        Ok(0)
    }
    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        Ok(Vec::new())
    }
    fn rename(&mut self, _: FileId, _: FileId) -> Result<(), StorageFault> {
        Ok(())
    }
    fn remove(&mut self, _: FileId) -> Result<(), StorageFault> {
        Ok(())
    }
    fn trim(&mut self, _: FileId, _: u64) -> Result<(), StorageFault> {
        Ok(())
    }
    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        Ok(())
    }
}

/// `order-` and sixteen digits. Formatted manually: `format!` would be a tenth of the measured time.
fn order(mut number: u64) -> Text {
    let mut name = *b"order-0000000000000000";
    for digit in name[6..].iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    std::str::from_utf8(&name).unwrap().into()
}

/// The identity of effect number `number`.
fn charge(number: u64) -> Identity {
    Identity::new("", Scope::Tenant, &order(number))
}

fn timed<T>(calls: &mut Vec<Duration>, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = call();
    calls.push(start.elapsed());
    result
}

/// The CPU time of this process, which does not depend on other load; wall-clock time where it is not available.
pub fn cpu_time() -> Duration {
    let from_system = std::fs::read_to_string("/proc/self/schedstat").ok();
    let nanos = from_system.and_then(|text| text.split(' ').next()?.parse().ok());
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    nanos.map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}
