//! The heart of DriftQ: a durable message broker as one pure, deterministic state machine.
//!
//! Nothing in here reads a clock, opens a file, draws a random number or starts a thread. The caller says what time it is,
//! performs the I/O it is asked for, and tells how that went. The same calls therefore give the same records, byte for byte, on
//! every machine: in production, in a simulator that crashes the disk under it, and in your own tests.
//!
//! # A first message
//!
//! A [`Pipeline`] is a broker and its log. Commands go in by [`Pipeline::handle`], answers come out by
//! [`Pipeline::poll_output`]; in between, somebody has to write to a disk.
//!
//! ```
//! use driftq_core::command::Produce;
//! use driftq_core::faults::NoFaults;
//! use driftq_core::log::{LogId, MemoryStorage};
//! use driftq_core::record::Retention;
//! use driftq_core::types::{Timestamp, TopicName};
//! use driftq_core::{Command, Output, Pipeline, PipelineConfig, Reply};
//!
//! // A disk in memory; the identity of a new log comes from outside, as everything random does.
//! let mut disk = MemoryStorage::new();
//! let now = Timestamp(1_000);
//! let (mut broker, _) =
//!     Pipeline::open(&mut disk, PipelineConfig::default(), Some(LogId([7; 16])), now, NoFaults)?;
//!
//! let orders = TopicName::new("orders")?;
//! broker.handle(now, Command::CreateTopic {
//!     name: orders.clone(),
//!     partitions: Some(1),
//!     retention: Retention::default(),
//! });
//! let ticket = broker.handle(now, Command::Produce(Box::new(Produce::new(orders, "customer-7", "one pizza"))));
//!
//! // Decided, but not durable: nothing leaves.
//! assert_eq!(broker.poll_output(), None);
//!
//! // `drive` performs every job there is. A server does the same on a thread of its own, and goes on deciding meanwhile.
//! broker.drive(now, &mut disk);
//! let outputs: Vec<_> = std::iter::from_fn(|| broker.poll_output()).collect();
//! assert!(matches!(
//!     &outputs[..],
//!     [_, Output::Reply { ticket: replied, result: Ok(Reply::Produced(produced)) }]
//!         if *replied == ticket && produced.offset.0 == 0
//! ));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Delivery, a crash, and an ack
//!
//! A stream joins a group with [`Command::Subscribe`] and is handed leases. A lease is durable before its message is seen, so a
//! crash forgets neither the message nor who had it.
//!
//! ```
//! # use driftq_core::command::{Claim, OnDisconnect, Produce, Subscribe, TokenClaim};
//! # use driftq_core::faults::NoFaults;
//! # use driftq_core::log::{LogId, MemoryStorage};
//! # use driftq_core::record::{GroupStart, Retention};
//! # use driftq_core::reply::Delivery;
//! # use driftq_core::types::*;
//! # use driftq_core::{Command, Output, Pipeline, PipelineConfig, Reply};
//! # let mut disk = MemoryStorage::new();
//! # let mut now = Timestamp(1_000);
//! # let config = PipelineConfig::default();
//! # let (mut broker, _) = Pipeline::open(&mut disk, config.clone(), Some(LogId([7; 16])), now, NoFaults)?;
//! # let orders = TopicName::new("orders")?;
//! # let retention = Retention::default();
//! # broker.handle(now, Command::CreateTopic { name: orders.clone(), partitions: Some(1), retention });
//! # broker.handle(now, Command::Produce(Box::new(Produce::new(orders.clone(), "customer-7", "one pizza"))));
//! # fn delivered(broker: &mut Pipeline, disk: &mut MemoryStorage, now: Timestamp) -> Option<Delivery> {
//! #     broker.handle_timeout(now);
//! #     broker.drive(now, disk);
//! #     let mut found = None;
//! #     while let Some(output) = broker.poll_output() {
//! #         if let Output::Deliver { delivery, .. } = output {
//! #             found = Some(*delivery);
//! #         }
//! #     }
//! #     found
//! # }
//! let subscribe = Subscribe {
//!     topic: orders.clone(),
//!     group: GroupName::new("kitchen")?,
//!     owner: OwnerName::new("cook-1")?,
//!     lease: Some(Millis(2_000)),
//!     prefetch: 10,
//!     deliveries_max: None,
//!     start: GroupStart::Earliest,
//!     on_disconnect: OnDisconnect::Keep,
//! };
//! broker.handle(now, Command::Subscribe(subscribe.clone()));
//! let first = delivered(&mut broker, &mut disk, now).expect("the message is handed out");
//! assert_eq!((first.attempts, first.body.value()), (1, &b"one pizza"[..]));
//!
//! // The power goes. What was synced is there, and nothing else.
//! let mut disk = disk.crash();
//! let (mut broker, _) = Pipeline::open(&mut disk, config, None, now, NoFaults)?;
//! broker.handle(now, Command::Subscribe(subscribe));
//! assert_eq!(delivered(&mut broker, &mut disk, now), None, "the lease of the lost worker is still running");
//!
//! // The broker says when it wants to be called: at the lease's end.
//! now = first.lease_until;
//! let again = delivered(&mut broker, &mut disk, now).expect("the lease has ended");
//! assert_eq!((again.attempts, again.last_error.as_str()), (2, "ack_timeout"));
//! assert!(again.token > first.token, "no token is ever given twice, before or after any restart");
//!
//! // Only the newest delivery may finish the message.
//! let claim = |delivery: &Delivery| Claim {
//!     topic: orders.clone(),
//!     group: GroupName::new("kitchen").unwrap(),
//!     partition: delivery.partition,
//!     offset: delivery.offset,
//!     owner: OwnerName::new("cook-1").unwrap(),
//!     token: TokenClaim::Shown(delivery.token),
//! };
//! broker.handle(now, Command::Ack(claim(&first)));
//! broker.handle(now, Command::Ack(claim(&again)));
//! broker.drive(now, &mut disk);
//! let answers: Vec<_> = std::iter::from_fn(|| broker.poll_output()).collect();
//! assert!(matches!(&answers[0], Output::Reply { result: Err(driftq_core::Refusal::StaleLease), .. }));
//! assert!(matches!(&answers[1], Output::Reply { result: Ok(Reply::Done), .. }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The rooms
//!
//! * [`command`], [`reply`], [`record`]: the three vocabularies. What is asked, what is answered, what is remembered.
//! * [`broker`]: [`Broker`], which decides. It needs a [`LogSink`] and nothing else.
//! * [`pipeline`]: [`Pipeline`], a broker with its log: batches, syncs, releases, rotates, takes snapshots.
//! * [`state`]: what survives. [`State::apply`](state::State::apply) is the only code that changes it.
//! * [`idempotency`]: effects. Which were begun, by whom, and how they ended.
//! * [`log`] and [`codec`]: bytes. Frames, segments, snapshots, recovery; records to payloads and back.
//! * [`faults`]: bugs on purpose, for whoever tests the tests.
//! * [`types`]: names, numbers, time, messages.
//!
//! # Laws
//!
//! Decide, append, apply: a decision reads the state and changes nothing; the log takes its record; applying the record is all
//! that changes anything, live and in recovery alike. Nothing leaves before it is durable, refusals and reads included: each
//! output waits for the last position appended when it was decided. Time is an argument, jitter is a hash, tokens are counters.
#![forbid(unsafe_code)]

pub mod body;
pub mod broker;
pub mod codec;
pub mod command;
mod decide;
pub mod faults;
pub mod idempotency;
mod index;
pub mod log;
pub mod pipeline;
pub mod record;
pub mod reply;
pub mod state;
pub mod types;

pub use body::Body;
pub use broker::{Broker, Counters, DeadLetterCounts, LogFault, LogRefusal, LogSink, SpaceClass};
pub use command::Command;
pub use pipeline::{Job, JobClass, Pipeline, PipelineConfig};
pub use reply::{Output, Refusal, Reply};
