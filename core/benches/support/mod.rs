//! A broker on a disk in memory, and the work the benches put it to.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

use std::time::{Duration, Instant};

use driftq_core::command::{Begin, Claim, Complete, OnDisconnect, Produce, StoreCommand, Subscribe, TokenClaim};
use driftq_core::faults::NoFaults;
use driftq_core::idempotency::{EffectStatus, Identity, Lifetime, Outcome, Scope};
use driftq_core::log::{FileId, FileInfo, LogId, MemoryStorage, Storage, StorageFault, WriteAt};
use driftq_core::record::{GroupStart, Retention};
use driftq_core::reply::StoreReply;
use driftq_core::types::*;
use driftq_core::{Command, JobClass, Output, Pipeline, PipelineConfig, Reply};

pub const NOW: Timestamp = Timestamp(1_700_000_000_000);
pub const VALUE: [u8; 100] = [b'v'; 100];
/// Messages handled between two syncs, as a busy broker gathers them.
pub const BATCH: usize = 64;
/// What the benches' effects come to.
pub const RESULT: &str = "{\"charged\":123456789}";

pub struct World {
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
    /// Moves with every batch, as it would.
    pub now: Timestamp,
    pub group_of: std::collections::BTreeMap<ConsumerId, usize>,
}

#[derive(Clone, Copy)]
pub struct Shape {
    pub partitions: u32,
    pub groups: usize,
    /// Groups that consume; the rest only exist.
    pub active: usize,
    pub consumers: usize,
    pub with_identity: bool,
    pub with_run: bool,
}

pub const PLAIN: Shape =
    Shape { partitions: 1, groups: 1, active: 1, consumers: 1, with_identity: false, with_run: false };

impl World {
    pub fn new(shape: Shape) -> Self {
        Self::on(Box::new(Ring::default()), shape)
    }

    /// On a disk in memory that can be recovered from.
    pub fn kept(shape: Shape) -> Self {
        Self::on(Box::new(MemoryStorage::new()), shape)
    }

    pub fn on(mut storage: Box<dyn Storage>, shape: Shape) -> Self {
        let mut config = PipelineConfig { snapshot_every_bytes: u64::MAX, ..PipelineConfig::default() };
        config.limits.partition_messages_max = u64::MAX;
        config.limits.partition_bytes_max = u64::MAX;
        config.limits.in_flight_max = 2_000_000;
        let (pipeline, _) = Pipeline::open(&mut *storage, config, Some(LogId([1; 16])), NOW, NoFaults).unwrap();
        let topic = TopicName::new("bench").unwrap();
        let groups: Vec<_> = (0..shape.groups).map(|i| GroupName::new(&format!("group-{i}")).unwrap()).collect();
        let mut world = Self {
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
        world.send(Command::CreateTopic {
            name: topic.clone(),
            partitions: Some(shape.partitions),
            retention: Retention::default(),
        });
        for group in world.groups.clone() {
            world.send(Command::CreateGroup { topic: topic.clone(), group, start: GroupStart::Earliest });
        }
        for group in 0..shape.active {
            for _ in 0..shape.consumers {
                let consumer = world.subscribe(group);
                world.group_of.insert(consumer, group);
            }
        }
        world
    }

    pub fn subscribe(&mut self, group: usize) -> ConsumerId {
        self.subscribe_with(group, u32::MAX)
    }

    pub fn subscribe_with(&mut self, group: usize, prefetch: u32) -> ConsumerId {
        let asked = Subscribe {
            topic: self.topic.clone(),
            group: self.groups[group].clone(),
            owner: self.owner.clone(),
            lease: Some(Millis(3_600_000)),
            prefetch,
            deliveries_max: None,
            start: GroupStart::Earliest,
            on_disconnect: OnDisconnect::Keep,
        };
        match self.send(Command::Subscribe(asked)) {
            Some(Reply::Subscribed { consumer }) => consumer,
            other => panic!("{other:?}"),
        }
    }

    pub fn send(&mut self, command: Command) -> Option<Reply> {
        self.pipeline.handle(self.now, command);
        self.flush()
    }

    /// Writes, syncs, and takes what comes out; the last reply is handed back.
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
        let mut asked = Box::new(Produce::new(self.topic.clone(), key.clone(), VALUE));
        if self.with_identity {
            asked.envelope.idempotency_key = Some(order(self.produced));
        }
        if self.with_run {
            asked.envelope.run_id = Some("run_0123456789".into());
            asked.envelope.step_id = Some("step_7".into());
            asked.envelope.tenant_id = Some("tenant_a".into());
        }
        self.produced += 1;
        self.pipeline.handle(self.now, Command::Produce(asked));
    }

    pub fn ack_all(&mut self) -> usize {
        let deliveries = std::mem::take(&mut self.deliveries);
        for (index, handed_out) in deliveries.iter().enumerate() {
            let ack = Command::Ack(self.claim(handed_out));
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

    /// How long every single call takes in `batches` batches of produce, deliver and ack, each with one job of either class.
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
                    let handed_out = (consumer, delivery.partition, delivery.offset, delivery.token);
                    let ack = Command::Ack(self.claim(&handed_out));
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

    /// One batch produced, delivered to whoever is connected, and acked.
    pub fn batch(&mut self) -> usize {
        self.now = self.now.after(Millis(1));
        for _ in 0..BATCH {
            self.produce();
        }
        self.flush();
        self.ack_all()
    }

    /// Begins an effect that is remembered for so long after its end; the grant comes with the next flush.
    pub fn begin(&mut self, window: Millis) {
        let mut asked = Begin::new(charge(self.effects), OwnerName::new("worker-1").unwrap());
        (asked.lease, asked.lifetime) = (Some(Millis(3_600_000)), Some(Lifetime::Window(window)));
        self.effects += 1;
        self.beginning += 1;
        self.pipeline.handle(self.now, Command::Store(Box::new(StoreCommand::Begin(asked))));
    }

    pub fn finish(&mut self, (number, token): (u64, LeaseToken)) {
        let (status, result, last_error) = (EffectStatus::Succeeded, Some(RESULT.into()), Default::default());
        let outcome = Outcome { status, response_code: 0, result, last_error };
        let (identity, token) = (charge(number), TokenClaim::Shown(token));
        let asked = StoreCommand::Finish { identity, token, outcome };
        self.pipeline.handle(self.now, Command::Store(Box::new(asked)));
    }

    /// A batch of effects begun and finished.
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

    /// Begin and finish of effects that are soon forgotten; nanoseconds for both, the best of several runs.
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

    /// Leaves `count` effects behind that were begun and not finished.
    pub fn begun(&mut self, count: usize) {
        for i in 0..count {
            self.begin(Millis(86_400_000));
            if i % 1_024 == 0 {
                self.flush();
            }
        }
        self.flush();
    }

    /// Finishes all that were begun.
    pub fn finish_all(&mut self) {
        for (i, grant) in std::mem::take(&mut self.grants).into_iter().enumerate() {
            self.finish(grant);
            if i % 1_024 == 0 {
                self.flush();
            }
        }
        self.flush();
    }

    /// A batch of messages produced, delivered and completed, each with two messages for `next`.
    pub fn step_batch(&mut self, next: &TopicName) -> usize {
        self.now = self.now.after(Millis(1));
        for _ in 0..BATCH {
            self.produce();
        }
        self.flush();
        let deliveries = std::mem::take(&mut self.deliveries);
        for handed_out in &deliveries {
            let produce = vec![Produce::new(next.clone(), "key-1", VALUE); 2];
            let asked = Complete { claim: self.claim(handed_out), result: None, produce };
            self.pipeline.handle(self.now, Command::Complete(Box::new(asked)));
        }
        self.flush();
        deliveries.len()
    }

    /// How long every single call takes in `batches` batches of begin and finish, each with one job of either class.
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

    /// Leaves `count` messages behind that nobody is handed.
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

/// A log in memory that takes every byte and keeps the last few mebibytes: what is measured is the broker, not how fast the
/// system hands out fresh memory.
pub struct Ring {
    bytes: Vec<u8>,
    at: usize,
}

impl Default for Ring {
    fn default() -> Self {
        Self { bytes: vec![1; 8 << 20], at: 0 }
    }
}

impl Storage for Ring {
    fn create(&mut self, _: FileId, _: u64) -> Result<(), StorageFault> {
        Ok(())
    }
    fn append(&mut self, _: FileId, _: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        for piece in bytes.chunks(1 << 20) {
            if self.at + piece.len() > self.bytes.len() {
                self.at = 0;
            }
            self.bytes[self.at..self.at + piece.len()].copy_from_slice(piece);
            self.at += piece.len();
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
    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        Ok(())
    }
}

/// `order-` and sixteen digits, made by hand: the formatter would take as long as a tenth of what is measured.
fn order(mut number: u64) -> Text {
    let mut name = *b"order-0000000000000000";
    for digit in name[6..].iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    std::str::from_utf8(&name).unwrap().into()
}

/// The effect of that number.
fn charge(number: u64) -> Identity {
    Identity::new("", Scope::Tenant, &order(number))
}

fn timed<T>(calls: &mut Vec<Duration>, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = call();
    calls.push(start.elapsed());
    result
}

/// Processor time of this process where the system tells it, which a busy neighbour does not change; else the clock's.
pub fn cpu_time() -> Duration {
    let from_system = std::fs::read_to_string("/proc/self/schedstat").ok();
    let nanos = from_system.and_then(|text| text.split(' ').next()?.parse().ok());
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    nanos.map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}
