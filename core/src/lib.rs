//! The heart of DriftQ.
#![forbid(unsafe_code)]

pub mod broker;
pub mod codec;
pub mod command;
mod decide;
pub mod faults;
mod index;
pub mod log;
pub mod pipeline;
pub mod record;
pub mod reply;
pub mod state;
pub mod types;

pub use broker::{Broker, LogFault, LogRefusal, LogSink, Need};
pub use command::Command;
pub use pipeline::{Job, Lane, Pipeline, PipelineConfig};
pub use reply::{Output, Refusal, Reply};
