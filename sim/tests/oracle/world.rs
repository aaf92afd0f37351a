//! A real broker on an in-memory disk, and the oracle beside it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Debug;

use driftq_core::command::{DescribeTopic, ListTopics, Subscribe};
use driftq_core::faults::Faults;
use driftq_core::log::{
    CrashPlan, FileId, FolderChange, LogId, Malformed, MemoryStorage, RECORD_KIND_MAX, Replay, SectorFate, recover,
};
use driftq_core::reply::Delivery;
use driftq_core::types::*;
use driftq_core::{Command, Job, JobClass, OpenOptions, Output, Pipeline, PipelineConfig, Reply};
use driftq_sim::oracle::{Oracle, PayloadOf};
use driftq_sim::world::CallPayloads;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::generate::Workload;

const START: Timestamp = Timestamp(1_000_000);

/// A delivery that a worker keeps.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) topic: TopicName,
    pub(crate) group: GroupName,
    pub(crate) owner: OwnerName,
    pub(crate) delivery: Delivery,
}

/// An input of the oracle, recorded for replay.
#[derive(Clone, Debug)]
pub(crate) enum OracleInput {
    Boot(Timestamp),
    Command(Timestamp, Ticket, Command),
    Timeout(Timestamp),
    Close,
    /// The last call has ended; the payloads of its outputs that are not in memory.
    CallEnded(Vec<(PayloadOf, PayloadId)>),
    /// A sync, and the payloads that are in memory then.
    Synced(u64, BTreeSet<PayloadId>),
    Release(Timestamp, u64),
    Brought(Timestamp, Vec<PayloadId>),
    FilledUnsynced(Vec<PayloadId>),
    Relocated(Timestamp, u64),
    Gone(Vec<PayloadId>),
    Durable(u64),
    Crash(u64),
    Output(Output),
}

impl OracleInput {
    pub(crate) fn feed(&self, oracle: &mut Oracle) -> Result<(), String> {
        match self {
            Self::Boot(now) => oracle.boot(*now),
            Self::Command(now, ticket, command) => oracle.command(*now, *ticket, command),
            Self::Timeout(now) => oracle.timeout(*now),
            Self::Close => oracle.close(),
            Self::CallEnded(missing) => oracle.call_ended(|of| {
                let found = missing.iter().find(|(its, _)| its == of);
                found.map(|(_, payload)| *payload)
            }),
            Self::Synced(records, cached) => oracle.synced(*records, |payload| cached.contains(&payload)),
            Self::Release(now, records) => oracle.release((*now).into(), *records),
            Self::Brought(now, payloads) => oracle.brought((*now).into(), payloads),
            Self::FilledUnsynced(payloads) => oracle.filled_unsynced(payloads),
            Self::Relocated(now, count) => oracle.relocated((*now).into(), (0..*count).map(|_| None).collect()),
            Self::Gone(payloads) => oracle.gone(payloads),
            Self::Durable(records) => oracle.durable(*records),
            Self::Crash(survived) => oracle.crash(*survived),
            Self::Output(output) => oracle.compare(output).map_err(|mismatch| mismatch.to_string())?,
        }
        Ok(())
    }
}

/// The world.
pub(crate) struct World<F: Faults> {
    pub(crate) rng: ChaCha8Rng,
    pub(crate) workload: Workload,
    pub(crate) actions: u32,
    pub(crate) now: Timestamp,
    pub(crate) held: Vec<Held>,
    pub(crate) streams: Vec<(ConsumerId, Subscribe)>,
    pub(crate) next_number: u64,
    /// All inputs of the oracle, if recorded.
    pub(crate) inputs: Option<Vec<OracleInput>>,
    storage: MemoryStorage,
    pipeline: Pipeline<F>,
    oracle: Oracle,
    config: PipelineConfig,
    faults: F,
    subscribing: Vec<(Ticket, Subscribe)>,
    /// The last LSN after each input, and the number of records then.
    ends: Vec<(Lsn, u64)>,
    undriven_actions: u32,
}

/// Keeps a part of the unsynced data.
struct PartialLoss<'a>(&'a mut ChaCha8Rng, u32);

impl CrashPlan for PartialLoss<'_> {
    fn keep_change(&mut self, _: FolderChange) -> bool {
        self.0.random_range(0..4) < self.1
    }

    fn sector(&mut self, _: FileId, _: u64) -> SectorFate {
        match self.0.random_range(0..8) {
            0 if self.1 < 4 => SectorFate::Lost,
            1 if self.1 < 4 => SectorFate::Garbage(0x5a),
            _ => SectorFate::Kept,
        }
    }

    fn keep_bytes(&mut self, _: FileId, unsynced: u64) -> u64 {
        if self.1 == 4 { unsynced } else { self.0.random_range(0..=unsynced) }
    }
}

/// The LSNs of the records behind the snapshot, if one was used.
#[derive(Default)]
struct ReplayedLsns(Vec<Lsn>);

impl Replay for ReplayedLsns {
    fn reset(&mut self) {
        self.0.clear();
    }

    fn restore(&mut self, _: u8, _: u8, _: &[u8]) -> Result<(), Malformed> {
        Ok(())
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, _: u8, _: &[u8]) -> Result<(), Malformed> {
        assert!(kind <= RECORD_KIND_MAX, "only records are replayed");
        self.0.push(lsn);
        Ok(())
    }
}

impl<F: Faults> World<F> {
    pub(crate) fn new(seed: u64, faults: F) -> Result<Self, String> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (workload, limits, actions) = Workload::draw(&mut rng);
        Self::of(rng, workload, limits, actions, faults)
    }

    pub(crate) fn of(
        mut rng: ChaCha8Rng,
        workload: Workload,
        limits: Limits,
        actions: u32,
        faults: F,
    ) -> Result<Self, String> {
        let oracle = Oracle::new(&limits);
        let config = PipelineConfig {
            limits,
            segment_bytes: 1 << 20,
            segment_bytes_min: u64::MAX,
            reserve_bytes: 4 << 10,
            snapshot_every_bytes: if rng.random_bool(0.3) { rng.random_range(500..4_000) } else { u64::MAX },
            snapshot_every_segments: usize::MAX,
            rest_after: None,
            slice_bytes: 512,
            memory_bytes: if rng.random_bool(0.5) { 0 } else { u64::MAX },
            read_ahead_bytes: 4 << 20,
            clean_spare_segments: 8,
            scrub_interval: None,
            state_bytes_max: u64::MAX,
        };
        let mut storage = MemoryStorage::new();
        let log = LogId([7; 16]);
        let (pipeline, _) = OpenOptions::new()
            .config(PipelineConfig { limits: faults.limits(config.limits.clone()), ..config.clone() })
            .create(log)
            .faults(faults)
            .open(&mut storage, START)
            .expect("opens");
        let (held, streams, subscribing, undriven_actions, now) = (vec![], vec![], vec![], 0, START);
        let ends = vec![(Lsn(0), 0)];
        let next_number = 0;
        let mut world = Self {
            rng,
            workload,
            actions,
            now,
            held,
            streams,
            next_number,
            inputs: None,
            storage,
            pipeline,
            oracle,
            config,
            faults,
            subscribing,
            ends,
            undriven_actions,
        };
        world.feed(OracleInput::Boot(START))?;
        world.check_records()?;
        Ok(world)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// The first input of the oracle.
    pub(crate) fn first(&self) -> OracleInput {
        OracleInput::Boot(START)
    }

    /// Creates the usual topics and a stream.
    pub(crate) fn begin(&mut self) -> Result<(), String> {
        for command in self.draw_setup() {
            self.send(command)?;
        }
        Ok(())
    }

    /// One action.
    pub(crate) fn act(&mut self) -> Result<(), String> {
        let (crash, disk, time) = (self.workload.crash, self.workload.disk, self.workload.time);
        match self.rng.random_range(0..1_000) {
            at if at < crash => self.crash()?,
            at if at < crash + disk => self.drive_disk()?,
            at if at < crash + disk + time => self.advance_time()?,
            _ => {
                let command = self.draw_command();
                self.send(command)?;
            }
        }
        self.undriven_actions = self.undriven_actions.saturating_sub(1);
        if self.undriven_actions == 0 { self.run_until_idle() } else { self.collect_outputs() }
    }

    /// Ends the run.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.run_until_idle()?;
        let topics: Vec<_> = self.pipeline.state().topics().map(|topic| topic.name().clone()).collect();
        self.send(Command::ListTopics(ListTopics::default()))?;
        for name in topics {
            self.send(Command::DescribeTopic(DescribeTopic { name }))?;
        }
        self.run_until_idle()?;
        self.crash()?;
        self.run_until_idle()
    }

    fn send(&mut self, command: Command) -> Result<(), String> {
        let back = if self.rng.random_bool(0.02) { self.rng.random_range(0..300) } else { 0 };
        let now = Timestamp(self.now.0 - back);
        self.log(|| format!("{now}: {command:?}"));
        let payloads = CallPayloads::of(self.pipeline.state(), &command);
        let ticket = self.pipeline.handle(now, command.clone());
        self.feed(OracleInput::Command(now, ticket, command.clone()))?;
        self.call_ended(&payloads);
        if let Command::Subscribe(subscribe) = command {
            self.subscribing.push((ticket, subscribe));
        }
        self.check_records()
    }

    fn timeout(&mut self) -> Result<(), String> {
        let now = self.now;
        self.log(|| format!("{now}: timeout"));
        self.pipeline.handle_timeout(self.now);
        self.feed(OracleInput::Timeout(self.now))?;
        self.call_ended(&CallPayloads::default());
        self.check_records()
    }

    /// The call has ended: the oracle learns which payloads of its outputs are not in memory.
    fn call_ended(&mut self, payloads: &CallPayloads) {
        let missing = RefCell::new(Vec::new());
        self.oracle.call_ended(|of| {
            let payload = payloads.missing(&self.pipeline, of)?;
            missing.borrow_mut().push((of.clone(), payload));
            Some(payload)
        });
        if let Some(inputs) = &mut self.inputs {
            inputs.push(OracleInput::CallEnded(missing.into_inner()));
        }
    }

    /// Completes a job; the oracle learns what it has synced.
    fn complete(&mut self, job: Job) -> Result<(), String> {
        let result = job.perform(&mut self.storage);
        let is_cached = |payload: &PayloadId| self.pipeline.broker().cached_payload(*payload).is_some();
        let cached: BTreeSet<_> = self.oracle.lacking().filter(is_cached).collect();
        let before = self.pipeline.synced().lsn;
        self.pipeline.complete(self.now, job, result);
        if let Some(records) = self.durable_records()
            && self.pipeline.synced().lsn > before
        {
            self.feed(OracleInput::Synced(records, cached))?;
            self.feed(OracleInput::Release(self.now, records))?;
        }
        Ok(())
    }

    /// Performs the next read; `false` if there is none.
    fn perform_read(&mut self) -> Result<bool, String> {
        let wanted: Vec<_> = self.pipeline.broker().wanted_payloads().collect();
        let read = self.pipeline.poll_read();
        let gone = self.no_longer_wanted(wanted);
        if !gone.is_empty() {
            self.feed(OracleInput::Gone(gone))?;
        }
        let Some(read) = read else { return Ok(false) };
        let wanted: Vec<_> = self.pipeline.broker().wanted_payloads().collect();
        let mut unsynced: Vec<_> = self.pipeline.broker().unsynced_payloads().collect();
        let relocated = self.pipeline.broker().counters().relocated;
        let result = read.perform(&mut self.storage);
        self.pipeline.complete_read(self.now, &read, result);
        let brought = self.no_longer_wanted(wanted);
        if !brought.is_empty() {
            self.feed(OracleInput::Brought(self.now, brought))?;
        }
        let lacking: BTreeSet<_> = self.pipeline.broker().unsynced_payloads().collect();
        unsynced.retain(|payload| !lacking.contains(payload));
        self.feed(OracleInput::FilledUnsynced(unsynced))?;
        let relocated = self.pipeline.broker().counters().relocated - relocated;
        self.feed(OracleInput::Relocated(self.now, relocated))?;
        self.check_records()?;
        Ok(true)
    }

    fn no_longer_wanted(&self, before: Vec<PayloadId>) -> Vec<PayloadId> {
        let after: BTreeSet<_> = self.pipeline.broker().wanted_payloads().collect();
        before.into_iter().filter(|payload| !after.contains(payload)).collect()
    }

    /// Performs all jobs and reads.
    fn drive(&mut self) -> Result<(), String> {
        loop {
            let job = self.pipeline.poll_job(JobClass::Log).or_else(|| self.pipeline.poll_job(JobClass::Background));
            match job {
                Some(job) => self.complete(job)?,
                None if self.perform_read()? => {}
                None => return Ok(()),
            }
        }
    }

    /// After an input: both must have written the same number of records.
    fn check_records(&mut self) -> Result<(), String> {
        let (lsn, records) = *self.ends.last().expect("never empty");
        let (lsn_now, records_now) = (self.pipeline.broker().appended(), self.oracle.records());
        let (appended, expected) = (lsn_now.0 - lsn.0, records_now - records);
        if appended != expected {
            return Err(format!("{expected} records expected, {appended} appended"));
        }
        self.ends.push((lsn_now, records_now));
        Ok(())
    }

    fn run_until_idle(&mut self) -> Result<(), String> {
        for _ in 0..1_000 {
            self.drive()?;
            assert!(self.pipeline.failure().is_none(), "the disk is sound");
            self.collect_outputs()?;
            if self.oracle.pending() > 0 {
                return Err(format!("{} expected outputs are missing", self.oracle.pending()));
            }
            if self.pipeline.poll_timeout().is_none_or(|at| at > self.now) {
                return Ok(());
            }
            self.timeout()?;
        }
        Err("the broker does not become idle".to_owned())
    }

    /// The number of records behind the durable LSN.
    fn durable_records(&self) -> Option<u64> {
        let durable = self.pipeline.broker().durable();
        let at = self.ends.partition_point(|(lsn, _)| *lsn <= durable);
        self.ends[..at].last().map(|(_, records)| *records)
    }

    fn collect_outputs(&mut self) -> Result<(), String> {
        while self.perform_read()? {}
        while let Some(output) = self.pipeline.poll_output() {
            self.feed(OracleInput::Output(output.clone()))?;
            self.log(|| format!("    {output:?}"));
            match output {
                Output::Reply { ticket, result: Ok(Reply::Subscribed { consumer }) } => {
                    let at = self
                        .subscribing
                        .iter()
                        .position(|(pending, _)| *pending == ticket)
                        .expect("a pending subscribe");
                    self.streams.push((consumer, self.subscribing.remove(at).1));
                }
                Output::Deliver { consumer, delivery } => {
                    if let Some((_, stream)) = self.streams.iter().find(|(id, _)| *id == consumer) {
                        let Subscribe { topic, group, owner, .. } = stream.clone();
                        self.held.push(Held { topic, group, owner, delivery: *delivery });
                    }
                }
                _ => {}
            }
        }
        if let Some(records) = self.durable_records() {
            self.feed(OracleInput::Durable(records))?;
        }
        Ok(())
    }

    fn advance_time(&mut self) -> Result<(), String> {
        let longest = [60, 60, 60, 60, 60, 300, 300, 300, 300, 6_000][self.rng.random_range(0..10)];
        let span = Millis(self.rng.random_range(0..longest));
        let end = self.now.after(span);
        if self.rng.random_bool(0.7) {
            let mut calls = 0;
            while let Some(at) = self.pipeline.poll_timeout().filter(|at| *at <= end) {
                self.now = self.now.max(at);
                self.timeout()?;
                calls += 1;
                // A log that is never written runs out of space, which the oracle does not model.
                if self.undriven_actions == 0 || calls % 200 == 0 {
                    self.run_until_idle()?;
                }
            }
        }
        self.now = end;
        if self.rng.random_bool(0.5) { self.timeout() } else { Ok(()) }
    }

    fn drive_disk(&mut self) -> Result<(), String> {
        match self.rng.random_range(0..10) {
            0 => self.pipeline.request_snapshot(),
            1..=3 => {
                let class = if self.rng.random_bool(0.3) { JobClass::Background } else { JobClass::Log };
                if let Some(job) = self.pipeline.poll_job(class) {
                    self.complete(job)?;
                }
            }
            _ => self.undriven_actions = self.rng.random_range(1..30),
        }
        self.collect_outputs()
    }

    fn crash(&mut self) -> Result<(), String> {
        match self.rng.random_range(0..6) {
            // In the middle of a job.
            0 => {
                if let Some(job) = self.pipeline.poll_job(JobClass::Log) {
                    let count = self.rng.random_range(0..=job.ops().len());
                    for op in &job.ops()[..count] {
                        op.perform(&mut self.storage).expect("the disk is sound");
                    }
                }
            }
            1 => {
                self.pipeline.close();
                self.feed(OracleInput::Close)?;
                self.send(Command::ListTopics(ListTopics::default()))?;
                self.timeout()?;
                self.drive()?;
                self.collect_outputs()?;
            }
            _ => {}
        }
        let keep = self.rng.random_range(0..=4);
        let storage = if keep == 0 {
            self.storage.crash()
        } else {
            self.storage.crash_with(&mut PartialLoss(&mut self.rng, keep))
        };
        self.storage = storage;
        let mut replayed = ReplayedLsns::default();
        let recovered = recover(&mut self.storage, None, &mut replayed).expect("a crash alone damages nothing");
        let before = replayed.0.first().map_or(recovered.last.lsn, |first| Lsn(first.0 - 1));
        let at = self.ends.partition_point(|(lsn, _)| *lsn <= before);
        let survived = self.ends[at - 1].1 + replayed.0.len() as u64;
        if recovered.last.lsn != Lsn(survived) {
            return Err(format!("{survived} records survived, the last has LSN {}", recovered.last.lsn));
        }
        let total = self.oracle.records();
        self.log(|| format!("crash, {survived} records of {total} survive"));
        if survived > total {
            return Err(format!("{survived} records survived of {total}"));
        }
        self.feed(OracleInput::Crash(survived))?;
        if self.rng.random_bool(0.5) {
            self.now = self.now.after(Millis(self.rng.random_range(0..200)));
        }
        // The clock of the new process may lag behind.
        let back = if self.rng.random_bool(0.2) { self.rng.random_range(0..300) } else { 0 };
        let now = Timestamp(self.now.0 - back);
        let limits = self.faults.limits(self.config.limits.clone());
        let config = PipelineConfig { limits, ..self.config.clone() };
        let opened = OpenOptions::new().config(config).faults(self.faults).open(&mut self.storage, now);
        self.pipeline = opened.map_err(|error| error.to_string())?.0;
        self.ends.retain(|(_, records)| *records <= survived);
        self.streams.clear();
        self.subscribing.clear();
        self.undriven_actions = 0;
        self.feed(OracleInput::Boot(now))?;
        self.ends.push((self.pipeline.broker().appended(), self.oracle.records()));
        Ok(())
    }

    fn feed(&mut self, input: OracleInput) -> Result<(), String> {
        input.feed(&mut self.oracle)?;
        if let Some(inputs) = &mut self.inputs {
            inputs.push(input);
        }
        Ok(())
    }

    fn log(&self, line: impl FnOnce() -> String) {
        if std::env::var_os("VERBOSE").is_some() {
            println!("{}", line());
        }
    }
}
