//! Client of the DriftQ message broker: producers, consumers, and workers whose effects happen once.
//!
//! A worker in ten lines:
//!
//! ```no_run
//! use driftq_client::{Client, Worker};
//!
//! # async fn bake(_: &str) -> Result<(), std::io::Error> { Ok(()) }
//! # async fn example() -> Result<(), driftq_client::Error> {
//! let client = Client::builder().url("http://127.0.0.1:8080").build()?;
//! Worker::new(&client, "orders", "kitchen", |order, _context| async move {
//!     bake(order.text()?).await?;
//!     Ok(())
//! })
//! .run(async { drop(tokio::signal::ctrl_c().await) })
//! .await?;
//! # Ok(())
//! # }
//! ```
//!
//! * [`Client`] has the requests of the broker. It goes on with its next URL when one does not answer, and repeats
//!   requests only where they cannot double. [`Error`] says whether repeating a call is safe.
//! * [`Producer`] batches by itself: what waits while a batch is on the wire is the next batch.
//! * [`Consumer`] is a stream of deliveries that reconnects.
//! * [`Worker`] runs a handler for each message: once where the message has an idempotency key. Its [`Context`] has
//!   [`side_effect`](Context::side_effect), for each step that must happen once by itself.
//! * [`Store`] is the idempotency store by itself, for services; [`idempotency_key`] and [`request_hash`] make keys and
//!   hashes that are the same in every language.
//!
//! With the feature `tls` URLs may be `https`.

#![forbid(unsafe_code)]

mod base64;
mod batch;
mod broker_store;
mod cancel;
mod canonical;
mod client;
mod envelope;
mod error;
mod event;
mod heartbeat;
mod idempotency_key;
mod message;
mod operation;
mod produce;
mod producer;
mod store;
mod stream;
mod strict;
mod topics;
mod transport;
mod worker;

pub use broker_store::{BrokerStore, EffectPage, ListedEffect};
pub use canonical::{canonical_json, request_hash, request_hash_of_text};
pub use client::{Client, ClientBuilder, Failing, Redrive, ServerVersion, Step};
pub use envelope::{DeadLetter, Envelope, RetryPolicy, Routing};
pub use error::{Error, ErrorKind};
pub use event::Event;
pub use idempotency_key::{KeyPart, idempotency_key};
pub use message::{Claim, Message, MessageId};
pub use operation::Probe;
pub use produce::{Payload, Produce, Produced};
pub use producer::{Pending, Producer, ProducerOptions};
pub use store::{
    Begin, Begun, DeliveryRef, Effect, EffectStatus, Ended, Finish, Grant, Identity, OnExpired, Scope, Store,
    StoreFuture,
};
pub use stream::{Consume, Consumer};
pub use topics::{CreateTopic, GroupInfo, PartitionInfo, ProgressInfo, SeekTo, TopicInfo, TopicSettings};
pub use worker::{
    Context, HandlerError, HandlerResult, Json, Outputs, Permanent, Retry, RunningWorker, Summary, Worker, WorkerScope,
};
