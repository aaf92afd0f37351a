//! Broker state machine of DriftQ: durable, deterministic, and free of I/O.
//!
//! Nothing in this crate reads a clock, opens a file, draws a random number or starts a thread. The caller passes the
//! time, performs the I/O it is given, and reports the result. The same calls therefore produce the same records, byte
//! for byte, on every machine: in the production server, in a simulator that crashes the disk under it, and in your
//! tests.
//!
//! # Try it: the reference model
//!
//! [`Model`] is a complete broker on an in-memory log with an injected clock. It is the shortest way to ask what the
//! specification says; `core/tests/scenarios/*.txt` does nothing else.
//!
//! ```
//! use driftq_core::command::{Ack, CreateTopic, Produce, Subscribe};
//! use driftq_core::types::{GroupName, Millis, OwnerName, Retention, TopicName};
//! use driftq_core::{Limits, Model, Refusal};
//!
//! let mut broker = Model::new(Limits::production());
//! let orders = TopicName::new("orders")?;
//! broker.ask(CreateTopic { name: orders.clone(), partitions: Some(1), retention: Retention::default() })?;
//! let stored = broker.ask(Produce::new(orders.clone(), "customer-7", "one pizza"))?;
//! assert_eq!(stored.offset.0, 0);
//!
//! // A consumer joins a group and is leased the message.
//! let stream = Subscribe::new(orders, GroupName::new("kitchen")?, OwnerName::new("cook-1")?).lease(Millis(2_000));
//! let consumer = broker.ask(stream.clone())?;
//! let first = broker.deliver(consumer).expect("a message is ready");
//!
//! // The power fails. The message and its lease were durable before they were delivered, so both are still there.
//! broker.crash()?;
//! let consumer = broker.ask(stream.clone())?;
//! assert_eq!(broker.deliver(consumer), None, "the lease of the lost worker is still running");
//!
//! // The lease expires; the message is redelivered under a new token.
//! broker.tick(Millis(2_000));
//! let second = broker.deliver(consumer).expect("the lease has expired");
//! assert_eq!((second.attempts, second.last_error.as_str()), (2, "ack_timeout"));
//! assert!(second.token > first.token, "no token is issued twice, before or after any restart");
//!
//! // Only the newest delivery can ack the message.
//! assert_eq!(broker.ask(Ack(first.claim(&stream))), Err(Refusal::StaleLease));
//! assert_eq!(broker.ask(Ack(second.claim(&stream))), Ok(()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Embed it: the pipeline
//!
//! A [`Pipeline`] is the broker and its log. Commands go in by [`Pipeline::handle`]; jobs for a disk and outputs for
//! clients come out by [`Pipeline::poll_job`] and [`Pipeline::poll_output`]. Each command is a type of its own that
//! names its reply ([`Request`]).
//!
//! ```
//! use driftq_core::command::{CreateTopic, Produce};
//! use driftq_core::log::{LogId, MemoryStorage};
//! use driftq_core::types::{Retention, Timestamp, TopicName};
//! use driftq_core::{JobClass, OpenOptions, Output, Request};
//!
//! let mut disk = MemoryStorage::new();
//! let now = Timestamp(1_000);
//! let (mut broker, _) = OpenOptions::new().create(LogId([7; 16])).open(&mut disk, now)?;
//!
//! let orders = TopicName::new("orders")?;
//! let create = CreateTopic { name: orders.clone(), partitions: Some(1), retention: Retention::default() };
//! broker.handle(now, create.into());
//! let ticket = broker.handle(now, Produce::new(orders, "customer-7", "one pizza").into());
//!
//! // Decided, but not durable: nothing leaves.
//! assert_eq!(broker.poll_output(), None);
//!
//! // One batch holds both records. A server performs it on another thread and goes on deciding meanwhile.
//! let job = broker.poll_job(JobClass::Log).expect("records were appended");
//! let result = job.perform(&mut disk);
//! broker.complete(now, job, result);
//!
//! let outputs: Vec<_> = std::iter::from_fn(|| broker.poll_output()).collect();
//! let [_, Output::Reply { ticket: replied, result }] = &outputs[..] else { panic!("two replies") };
//! assert_eq!(*replied, ticket);
//! assert_eq!(Produce::reply(result.clone()?).offset.0, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The poll contract
//!
//! A driver repeats these calls; [`Pipeline`] documents each of them.
//!
//! | call | when | if it is not called |
//! |---|---|---|
//! | [`handle`](Pipeline::handle) | a command arrives | – |
//! | [`poll_timeout`](Pipeline::poll_timeout), [`handle_timeout`](Pipeline::handle_timeout) | after every other call; at the time it names | leases, retries and delays come late; nothing is lost |
//! | [`poll_job`](Pipeline::poll_job) | after every `handle`, `handle_timeout` and `complete`, for each [`JobClass`] that has none under way | nothing becomes durable, so nothing is answered |
//! | [`complete`](Pipeline::complete) | exactly once per job, with its result | that class stops |
//! | [`poll_output`](Pipeline::poll_output) | after every `handle`, `handle_timeout` and `complete`, until it returns `None` | outputs accumulate in memory |
//! | [`close`](Pipeline::close) | to stop; then jobs until [`is_closed`](Pipeline::is_closed) | the next start reports an unclean stop; nothing durable is lost |
//!
//! Jobs of one class are performed in order; jobs of different classes may overlap. A `now` earlier than one passed
//! before counts as the latest. After a failed job (except a full disk in a background job) held replies become
//! [`Refusal::LogFailed`], held deliveries are dropped, and only a restart continues; whether their records are on the
//! disk is unknown until then. `examples/threaded.rs` is a driver with a thread for the log, `examples/by_hand.rs` one
//! without.
//!
//! # Where to find what
//!
//! | question | answer |
//! |---|---|
//! | Where is an ack decided? | `decide/settle.rs`: `ack`, called from `broker/execute.rs` |
//! | Where does the lease of a delivery expire? | `broker/timeouts.rs`: `expire_lease`, when a timer of `index/timers.rs` is due; every command and every timeout fires the due timers first |
//! | Where does the lease of an effect expire? | nowhere: `decide/effects.rs` compares its end with the time of each request |
//! | What is synced when? | `pipeline/mod.rs`: a [`Job`] of [`JobClass::Log`] ends with a sync; [`Pipeline::complete`] reports it durable |
//! | What holds an output back until then? | `broker/mod.rs`: `hold` stamps it with the last LSN, `poll_output` compares (`is_releasable` in `faults/seams.rs`, whose default bodies are the production behaviour) |
//! | What changes durable state? | `state/apply.rs`: [`State::apply`](state::State::apply), live and in recovery |
//! | What does a record look like on disk? | `codec/`, framed by `log/frame.rs`; `docs/wal.md` |
//! | How is a command added? | `CONTRIBUTING.md` lists the files in order |
//! | What makes recovery refuse a log? | `log/recovery.rs` and `log/proof.rs` |
//!
//! The layers, each using only those above it in this list: `wire` and [`types`] (ids, names, messages), `collections`
//! (copy-on-write maps), [`command`], [`reply`] and [`record`] (requested, answered, remembered), [`codec`], [`log`],
//! [`state`] (what survives), `index` (what is rebuilt: cursors, timers, consumers), [`faults`] (seams for planted
//! bugs), `decide` (one file per family of commands), [`broker`], [`pipeline`], [`Model`].
//!
//! # Principles
//!
//! * **Decide, append, apply.** A decision reads the state and changes nothing; the log takes its record; applying the
//!   record is the only way to change state, live and in recovery.
//! * **Nothing leaves before it is durable**, refusals and reads included: each output waits for the last record
//!   appended when it was decided.
//! * **Pure.** Time is an argument, jitter is a hash, tokens are counters, iteration order is defined.
#![forbid(unsafe_code)]

pub mod broker;
pub mod codec;
mod collections;
pub mod command;
mod decide;
pub mod faults;
mod index;
pub mod log;
mod model;
pub mod pipeline;
pub mod record;
pub mod reply;
mod request;
pub mod state;
pub mod types;

/// The volatile state of a broker as plain data, for checks that recount it from the durable state.
pub mod volatile {
    pub use crate::index::contents::*;
    pub use crate::index::{Due, LeaseEnd, Sweep, Timer};
}
mod wire;

pub use broker::{Broker, Counters, DeadLetterCounts, LogFault, LogRefusal, LogSink, SpaceClass};
pub use command::Command;
pub use model::{Model, ModelCommand, ModelOutput};
pub use pipeline::{Job, JobClass, OpenError, OpenOptions, Pipeline, PipelineConfig, ReadJob, Room};
pub use reply::{Output, Refusal, Reply};
pub use request::{BeginReply, Grant, Redriven, Request, TopicCreated};
pub use types::{Body, Limits};
