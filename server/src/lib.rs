//! The DriftQ broker as a process: real files, a real clock, HTTP.
//!
//! Everything that decides is in `driftq-core`. What lives here performs the core's I/O ([`driftq_files`]), tells it the time, carries
//! requests to it and answers back, and reads the settings ([`config`]).
#![forbid(unsafe_code)]

pub mod cli;
mod clock;
pub mod config;
mod driver;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod json;
mod metrics;
pub mod openapi;
mod rfc3339;
pub mod router;
pub mod serve;
pub mod wal;
