//! The reference model: a complete broker on an in-memory log with an injected clock.
//!
//! A [`Model`] runs the production [`Pipeline`]; it adds only a storage that keeps what was synced and forgets the
//! rest, and a clock that moves when told. Scenario files and the test suites of other implementations drive it with
//! one enum, [`ModelCommand`]: produce, deliver, ack, nack, tick, crash and the rest.
//!
//! ```
//! use driftq_core::command::{CreateTopic, Nack, Produce, Retry, Subscribe};
//! use driftq_core::types::{GroupName, Millis, OwnerName, Retention, TopicName};
//! use driftq_core::{Limits, Model};
//!
//! let mut model = Model::new(Limits::production());
//! let (orders, worker) = (TopicName::new("orders")?, OwnerName::new("w1")?);
//! model.ask(CreateTopic { name: orders.clone(), partitions: None, retention: Retention::default() })?;
//! model.ask(Produce::new(orders.clone(), "k", "one pizza"))?;
//!
//! let stream = Subscribe::new(orders, GroupName::new("kitchen")?, worker).lease(Millis(2_000));
//! let consumer = model.ask(stream.clone())?;
//! let first = model.deliver(consumer).expect("a message is ready");
//! model.ask(Nack { claim: first.claim(&stream), reason: "oven is cold".into(), retry: Retry::After(Millis(500)) })?;
//!
//! model.tick(Millis(500));
//! let second = model.deliver(consumer).expect("the delay has passed");
//! assert_eq!((second.attempts, second.last_error.as_str()), (2, "oven is cold"));
//!
//! model.crash()?;
//! assert_eq!(model.deliver(consumer), None, "streams do not survive a crash; leases do");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, VecDeque};

use crate::command::{
    Ack, AckCumulative, Begin, BindKey, ChangeRetention, CloseStream, Command, Complete, CreateGroup, CreateKey,
    CreateTenant, CreateTopic, DeleteGroup, DeleteTenant, DeleteTopic, DescribeTopic, ExpireLease, Extend, Finish,
    Forget, ListAudit, ListEffects, ListGroups, ListKeys, ListTenants, ListTopics, Lookup, Nack, Pause, Peek, Produce,
    Purge, Reacquire, Redrive, Release, Renew, Resume, RevokeKey, Seek, SetPrefetch, Subscribe, Unsubscribe, Withdraw,
};
use crate::faults::{Faults, NoFaults};
use crate::log::{LogId, MemoryStorage, Recovered, Storage};
use crate::pipeline::{OpenError, OpenOptions, Pipeline, PipelineConfig};
use crate::reply::{CloseCause, Delivery, Output, Refusal, Reply};
use crate::request::Request;
use crate::state::State;
use crate::types::{ConsumerId, Limits, Millis, Now, Ticket, Timestamp};

/// When the clock of a new model starts: late enough to subtract from.
const START: Timestamp = Timestamp(1_000_000);

/// The id of every model's log. Nothing depends on it.
const LOG_ID: LogId = LogId(*b"driftq the model");

macro_rules! model_commands {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A command of the model: every command of the broker, and what the world does to it.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum ModelCommand {
            $($(#[$doc])* $name($name),)*
            /// Takes the oldest delivery that the consumer has not taken yet.
            Deliver {
                /// The consumer.
                consumer: ConsumerId,
            },
            /// Advances both clocks. Timers fire in order, each at its own time.
            Tick {
                /// By how much.
                by: Millis,
            },
            /// Sets the wall clock; the monotonic clock goes on.
            SetWallClock {
                /// By how many milliseconds, forward or back.
                by_ms: i64,
            },
            /// Sets wall time inside the broker to the wall clock, also back.
            RebaseWallClock,
            /// Stops the disk: commands are decided, but nothing is synced and so nothing is answered.
            Stall,
            /// Starts the disk again; what was held leaves in order.
            Sync,
            /// Makes the next sync fail. The log fails with it, and only a crash or restart continues.
            FailSync,
            /// Fills the disk: files in use keep the room they have reserved, no other room is left.
            FillDisk,
            /// Ends [`ModelCommand::FillDisk`].
            FreeDisk,
            /// Writes a snapshot of the current state.
            Snapshot,
            /// Loses everything that was not synced and recovers from the log.
            Crash,
            /// Closes the log cleanly and opens it again.
            Restart,
        }

        $(
            impl From<$name> for ModelCommand {
                fn from(command: $name) -> Self {
                    Self::$name(command)
                }
            }
        )*

        impl ModelCommand {
            /// The broker's part of it, if it is a command of the broker.
            fn into_command(self) -> Result<Command, Box<Self>> {
                Ok(match self {
                    $(Self::$name(command) => command.into(),)*
                    other => return Err(Box::new(other)),
                })
            }
        }
    };
}

model_commands! {
    /// Creates a topic.
    CreateTopic,
    /// Changes the retention of a topic.
    ChangeRetention,
    /// Deletes a topic.
    DeleteTopic,
    /// Lists topics.
    ListTopics,
    /// Describes a topic.
    DescribeTopic,
    /// Creates a group.
    CreateGroup,
    /// Deletes a group.
    DeleteGroup,
    /// Lists groups.
    ListGroups,
    /// Produces a message.
    Produce,
    /// Reads messages without consuming them.
    Peek,
    /// Connects a consumer.
    Subscribe,
    /// Changes a consumer's prefetch.
    SetPrefetch,
    /// Disconnects a consumer.
    Unsubscribe,
    /// Closes a stream that is complete.
    CloseStream,
    /// Acknowledges a message.
    Ack,
    /// Acknowledges the messages of one worker up to an offset.
    AckCumulative,
    /// Fails a message.
    Nack,
    /// Extends a lease.
    Extend,
    /// Releases a message.
    Release,
    /// Takes back a delivery that never reached its consumer.
    Withdraw,
    /// Ends a lease.
    ExpireLease,
    /// Completes a step atomically.
    Complete,
    /// Begins an effect.
    Begin,
    /// Finishes an effect.
    Finish,
    /// Reacquires an effect.
    Reacquire,
    /// Renews the lease of an effect.
    Renew,
    /// Reads an effect.
    Lookup,
    /// Deletes an effect.
    Forget,
    /// Lists effects.
    ListEffects,
    /// Sets a group's progress.
    Seek,
    /// Pauses a group.
    Pause,
    /// Resumes a group.
    Resume,
    /// Redrives dead letters.
    Redrive,
    /// Removes the messages of a topic.
    Purge,
    /// Creates a key.
    CreateKey,
    /// Revokes a key.
    RevokeKey,
    /// Binds a key to a certificate.
    BindKey,
    /// Lists keys.
    ListKeys,
    /// Registers a tenant.
    CreateTenant,
    /// Deletes a tenant.
    DeleteTenant,
    /// Lists tenants.
    ListTenants,
    /// Lists what was audited.
    ListAudit,
}

/// What a [`ModelCommand`] comes to.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ModelOutput {
    /// The broker's reply or refusal.
    Reply(Result<Reply, Refusal>),
    /// The command is decided and waits for the disk; its reply comes with this ticket.
    Held(Ticket),
    /// The delivery that was taken, if there was one.
    Delivery(Option<Box<Delivery>>),
    /// Success, no payload.
    Done,
    /// What recovery found.
    Recovered(Box<Recovered>),
    /// The log could not be opened again.
    NotOpened(OpenError),
}

/// A broker on an in-memory log with an injected clock.
#[derive(Clone, Debug)]
pub struct Model<F: Faults = NoFaults> {
    config: PipelineConfig,
    faults: F,
    storage: MemoryStorage,
    pipeline: Pipeline<F>,
    /// The monotonic clock.
    now: Timestamp,
    /// How far the wall clock is ahead of it, in milliseconds.
    wall_ahead: i64,
    stalled: bool,
    replies: BTreeMap<Ticket, Result<Reply, Refusal>>,
    deliveries: BTreeMap<ConsumerId, VecDeque<Delivery>>,
    closed: Vec<(ConsumerId, CloseCause)>,
}

impl Model {
    /// A model with an empty log.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        // Small segments keep an idle model small.
        let config = PipelineConfig {
            limits,
            segment_bytes: 1 << 20,
            reserve_bytes: 64 << 10,
            snapshot_every_bytes: u64::MAX,
            ..PipelineConfig::default()
        };
        Self::with_config(config)
    }

    /// A model with an empty log and this configuration.
    ///
    /// # Panics
    /// If the segment size has no room for a single record.
    #[must_use]
    pub fn with_config(config: PipelineConfig) -> Self {
        Self::with_faults(config, NoFaults)
    }
}

impl<F: Faults> Model<F> {
    /// [`Model::with_config`] with a planted bug.
    ///
    /// # Panics
    /// As [`Model::with_config`].
    #[doc(hidden)]
    #[must_use]
    pub fn with_faults(config: PipelineConfig, faults: F) -> Self {
        let config = PipelineConfig { limits: faults.limits(config.limits), ..config };
        let mut storage = MemoryStorage::new();
        let options = OpenOptions::new().config(config.clone()).create(LOG_ID).faults(faults);
        let (pipeline, _) = options.open(&mut storage, START).expect("an empty memory storage opens");
        let (replies, deliveries, closed) = Default::default();
        let (now, wall_ahead, stalled) = (START, 0, false);
        let mut model =
            Self { config, faults, storage, pipeline, now, wall_ahead, stalled, replies, deliveries, closed };
        model.settle();
        model
    }

    /// Applies one command. This is the whole model; the other methods are shorthands.
    pub fn apply(&mut self, command: impl Into<ModelCommand>) -> ModelOutput {
        let command = match command.into().into_command() {
            Ok(command) => {
                let ticket = self.submit(command);
                return self.replies.remove(&ticket).map_or(ModelOutput::Held(ticket), ModelOutput::Reply);
            }
            Err(command) => *command,
        };
        match command {
            ModelCommand::Deliver { consumer } => ModelOutput::Delivery(self.deliver(consumer).map(Box::new)),
            ModelCommand::Tick { by } => {
                self.tick(by);
                ModelOutput::Done
            }
            ModelCommand::SetWallClock { by_ms } => {
                self.wall_ahead = self.wall_ahead.saturating_add(by_ms);
                self.tick(Millis(0));
                ModelOutput::Done
            }
            ModelCommand::RebaseWallClock => {
                let rebased = self.pipeline.rebase_wall_clock(self.clocks());
                debug_assert_eq!(rebased, Ok(()), "the log of a model has space");
                self.settle();
                ModelOutput::Done
            }
            ModelCommand::Stall => {
                self.stalled = true;
                ModelOutput::Done
            }
            ModelCommand::Sync => {
                self.stalled = false;
                self.settle();
                ModelOutput::Done
            }
            ModelCommand::FailSync => {
                self.storage.fail_syncs(1);
                ModelOutput::Done
            }
            ModelCommand::FillDisk => {
                let files = self.storage.list().expect("a memory storage lists its files");
                self.storage.set_budget(Some(files.iter().map(|file| file.len).sum()));
                ModelOutput::Done
            }
            ModelCommand::FreeDisk => {
                self.storage.set_budget(None);
                ModelOutput::Done
            }
            ModelCommand::Snapshot => {
                self.pipeline.request_snapshot();
                self.settle();
                ModelOutput::Done
            }
            ModelCommand::Restart => {
                self.stalled = false;
                self.pipeline.close();
                self.settle();
                self.reopen()
            }
            // Commands of the broker were taken above.
            _ => self.reopen(),
        }
    }

    /// Sends a request and lets the disk work until it is answered.
    ///
    /// # Errors
    /// The refusal.
    ///
    /// # Panics
    /// If the disk is stalled: then there is no reply. Use [`Model::submit`] and [`Model::reply`].
    pub fn ask<R: Request>(&mut self, request: R) -> Result<R::Reply, Refusal> {
        assert!(!self.stalled, "a stalled model does not reply");
        let ticket = self.submit(request.into());
        self.replies.remove(&ticket).expect("every command is answered once the log is synced").map(R::reply)
    }

    /// Passes a command to the broker and performs its log jobs, unless it is stalled.
    pub fn submit(&mut self, mut command: Command) -> Ticket {
        if let Some(first) = self.faults.command(self.pipeline.state(), &self.config.limits, &mut command) {
            self.pipeline.handle(self.clocks(), first);
        }
        let ticket = self.pipeline.handle(self.clocks(), command);
        self.settle();
        ticket
    }

    /// The reply to a submitted command, if it has left the broker and was not taken before.
    pub fn reply(&mut self, ticket: Ticket) -> Option<Result<Reply, Refusal>> {
        self.replies.remove(&ticket)
    }

    /// Takes the oldest delivery that the consumer has not taken yet.
    pub fn deliver(&mut self, consumer: ConsumerId) -> Option<Delivery> {
        self.deliveries.get_mut(&consumer)?.pop_front()
    }

    /// The streams that the broker closed since the last call.
    pub fn take_closed(&mut self) -> Vec<(ConsumerId, CloseCause)> {
        std::mem::take(&mut self.closed)
    }

    /// Advances both clocks. Timers fire in order, each at its own time.
    pub fn tick(&mut self, by: Millis) {
        let end = self.now.after(by);
        while let Some(at) = self.pipeline.poll_timeout().filter(|at| *at <= end) {
            // A stalled disk leaves work due that cannot be finished; time passes all the same.
            if self.stalled && at <= self.now {
                break;
            }
            self.now = self.now.max(at);
            self.pipeline.handle_timeout(self.clocks());
            self.settle();
        }
        self.now = end;
        self.pipeline.handle_timeout(self.clocks());
        self.settle();
    }

    /// Loses everything that was not synced and recovers from the log.
    ///
    /// # Errors
    /// [`OpenError`] if the log does not open, which would be a bug of the broker.
    pub fn crash(&mut self) -> Result<Recovered, OpenError> {
        match self.reopen() {
            ModelOutput::Recovered(recovered) => Ok(*recovered),
            ModelOutput::NotOpened(error) => Err(error),
            other => unreachable!("reopening either succeeds or fails: {other:?}"),
        }
    }

    /// The monotonic clock. It shows broker time, unless a restart found the wall clock changed.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Both clocks.
    #[must_use]
    pub fn clocks(&self) -> Now {
        Now { mono: self.now, wall: self.now.shifted(self.wall_ahead) }
    }

    /// The durable state and what was decided since.
    #[must_use]
    pub fn state(&self) -> &State {
        self.pipeline.state()
    }

    /// The pipeline inside.
    #[must_use]
    pub fn pipeline(&self) -> &Pipeline<F> {
        &self.pipeline
    }

    fn reopen(&mut self) -> ModelOutput {
        self.stalled = false;
        self.storage = self.storage.crash();
        let options = OpenOptions::new().config(self.config.clone()).faults(self.faults);
        let now = self.clocks();
        let (pipeline, recovered) = match options.open(&mut self.storage, now) {
            Ok(opened) => opened,
            Err(error) => return ModelOutput::NotOpened(error),
        };
        self.pipeline = pipeline;
        self.replies.clear();
        self.deliveries.clear();
        self.closed.clear();
        self.settle();
        ModelOutput::Recovered(Box::new(recovered))
    }

    /// Performs all I/O there is, unless the disk is stalled, and collects what leaves the broker.
    fn settle(&mut self) {
        loop {
            if !self.stalled {
                let now = self.clocks();
                self.pipeline.drive(now, &mut self.storage);
            }
            self.collect();
            if self.stalled || self.pipeline.poll_timeout().is_none_or(|at| at > self.now) {
                return;
            }
            self.pipeline.handle_timeout(self.clocks());
        }
    }

    fn collect(&mut self) {
        while let Some(output) = self.pipeline.poll_output() {
            match output {
                Output::Reply { ticket, result } => drop(self.replies.insert(ticket, result)),
                Output::Deliver { consumer, delivery } => {
                    self.deliveries.entry(consumer).or_default().push_back(*delivery);
                }
                Output::Closed { consumer, cause } => self.closed.push((consumer, cause)),
            }
        }
    }
}
