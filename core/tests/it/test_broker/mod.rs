//! A broker with a storage in memory and a clock that tests move.

mod builders;
mod commands;

use std::collections::BTreeMap;

use driftq_core::OpenOptions;

use driftq_core::faults::{Faults, NoFaults};
use driftq_core::log::{LogId, MemoryStorage, Recovered};
use driftq_core::reply::{CloseCause, Delivery};
use driftq_core::types::*;
use driftq_core::{Command, Output, Pipeline, PipelineConfig, Refusal, Reply};

pub use self::builders::*;

/// A broker, its storage and its clock.
pub struct TestBroker<F: Faults = NoFaults> {
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

/// How the state in memory is lost and rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Power loss; the state is rebuilt from the log.
    Crash,
    /// Power loss right after a snapshot; the state is rebuilt from the snapshot.
    Snapshot,
}

pub const RESTARTS: [Restart; 2] = [Restart::Crash, Restart::Snapshot];

/// The production limits, with leases of any length and a default of 2 s. Topics retain nothing unless they say so, and
/// idle groups stay.
pub fn limits() -> Limits {
    Limits {
        lease_default: Millis(2_000),
        lease_min: Millis(1),
        retention_age: Some(Millis(0)),
        retention_bytes: None,
        group_idle: None,
        ..Limits::production()
    }
}

pub fn small_config() -> PipelineConfig {
    PipelineConfig {
        memory_bytes: 1 << 20,
        state_bytes_max: u64::MAX,
        limits: limits(),
        segment_bytes: 64 << 10,
        segment_bytes_min: u64::MAX,
        reserve_bytes: 8 << 10,
        snapshot_every_bytes: u64::MAX,
        snapshot_every_segments: usize::MAX,
        rest_after: None,
        slice_bytes: 1 << 10,
        read_ahead_bytes: 4 << 20,
        clean_spare_segments: 8,
        scrub_interval: None,
    }
}

impl TestBroker {
    pub fn new() -> Self {
        Self::with(small_config(), NoFaults)
    }

    /// With a topic `t`.
    pub fn with_topic(partitions: u32) -> Self {
        let mut broker = Self::new();
        broker.topic("t", partitions);
        broker
    }

    pub fn with_limits(change: impl FnOnce(&mut Limits)) -> Self {
        let mut config = small_config();
        change(&mut config.limits);
        Self::with(config, NoFaults)
    }
}

impl<F: Faults> TestBroker<F> {
    pub fn with(config: PipelineConfig, faults: F) -> Self {
        Self::open(MemoryStorage::new(), config, START, faults)
    }

    pub fn open(mut storage: MemoryStorage, config: PipelineConfig, now: Timestamp, faults: F) -> Self {
        let planted = PipelineConfig { limits: faults.limits(config.limits.clone()), ..config.clone() };
        let options = OpenOptions::new().config(planted).create(LogId([7; 16])).faults(faults);
        let (pipeline, recovered) = options.open(&mut storage, now).expect("the log opens");
        let (deliveries, closed, replies) = Default::default();
        let mut broker = Self { storage, pipeline, recovered, now, config, deliveries, closed, replies, faults };
        broker.run_until_idle();
        broker
    }

    /// Performs every pending I/O job and due timer, and collects the outputs.
    pub fn run_until_idle(&mut self) {
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

    /// Moves the clock by `span` milliseconds and calls the broker at every timeout on the way.
    pub fn advance(&mut self, span: u64) {
        let end = self.now.after(Millis(span));
        while let Some(at) = self.pipeline.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.pipeline.handle_timeout(self.now);
            self.run_until_idle();
        }
        self.now = end;
        self.pipeline.handle_timeout(self.now);
        self.run_until_idle();
    }

    /// Power loss: only synced data is left.
    pub fn crash(&mut self) {
        let storage = self.storage.crash();
        *self = Self::open(storage, self.config.clone(), self.now, self.faults);
    }

    /// Takes a snapshot of the current state and waits until it has its final name.
    pub fn snapshot(&mut self) {
        let before = self.pipeline.snapshots().last().copied();
        self.pipeline.request_snapshot();
        self.run_until_idle();
        assert_ne!(self.pipeline.snapshots().last().copied(), before, "no snapshot was taken");
    }

    /// Restarts, after checking that recovery from the storage gives the current state.
    pub fn restart(&mut self, restart: Restart) {
        self.restart_after(restart, 0);
    }

    /// [`TestBroker::restart`] with `downtime` milliseconds between stop and start.
    pub fn restart_after(&mut self, restart: Restart, downtime: u64) {
        if restart == Restart::Snapshot {
            self.snapshot();
        }
        assert_eq!(
            self.recovered_digest(),
            self.digest(),
            "recovery from the storage gives the current state ({restart:?})"
        );
        self.now = self.now.after(Millis(downtime));
        self.crash();
    }

    /// The next timeout of the broker itself, without the timers of the log.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        self.pipeline.broker().poll_timeout()
    }

    /// Submits a command without performing any I/O.
    pub fn submit(&mut self, command: Command) -> Ticket {
        let ticket = self.handle(command);
        self.collect();
        ticket
    }

    fn handle(&mut self, mut command: Command) -> Ticket {
        let first = self.faults.command(self.pipeline.state(), &self.config.limits, &mut command);
        if let Some(first) = first {
            self.pipeline.handle(self.now, first);
        }
        self.pipeline.handle(self.now, command)
    }

    pub fn send(&mut self, command: Command) -> Result<Reply, Refusal> {
        let ticket = self.handle(command);
        self.run_until_idle();
        self.replies.remove(&ticket).expect("every command has a reply")
    }

    /// [`TestBroker::send`] of a command that `caller` has sent.
    pub fn send_as(&mut self, caller: &Caller, command: impl Into<Command>) -> Result<Reply, Refusal> {
        let ticket = self.pipeline.handle_as(self.now, caller, command.into());
        self.run_until_idle();
        self.replies.remove(&ticket).expect("every command has a reply")
    }

    pub fn reply(&mut self, ticket: Ticket) -> Option<Result<Reply, Refusal>> {
        self.replies.remove(&ticket)
    }

    pub fn digest(&self) -> u64 {
        self.pipeline.state().digest()
    }

    /// The digest of the state that recovery would give after a power loss now.
    pub fn recovered_digest(&self) -> u64 {
        let mut storage = self.storage.crash();
        let (state, _) = driftq_core::pipeline::inspect_with(&mut storage, None, &self.faults).expect("recovers");
        state.digest()
    }
}
