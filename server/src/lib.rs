//! The DriftQ broker as a process: real files, a real clock, HTTP.
//!
//! Everything that decides is in `driftq-core`. What lives here performs the core's I/O ([`files`]), tells it the time, carries
//! requests to it and answers back, and reads the settings ([`config`]).
#![forbid(unsafe_code)]

pub mod config;
pub mod files;
pub mod openapi;
pub mod router;
pub mod wal;
