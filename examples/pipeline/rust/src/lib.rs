//! A pipeline of three steps under crashes: an agent plans, calls a tool, and writes a report.
//!
//! The workers are programs of their own, in three languages. [`run()`] starts a broker, an outside service and three
//! workers, kills workers and broker at random while it produces requests, and then verifies that each request had
//! each of its effects exactly once.

#![forbid(unsafe_code)]

mod broker;
mod crashes;
mod evidence;
mod ledger;
mod metrics;
mod options;
mod process;
mod producer;
mod programs;
mod random;
mod report;
mod run;
mod service;
mod verify;
mod workers;

pub use options::{Language, Options};
pub use report::Report;
pub use run::run;
pub use service::{Service, ServiceError};
pub use verify::Finding;
