//! The conformance suite: every clause of the DriftQ v1 specification that is observable over HTTP, checked against any
//! server.
//!
//! A [`Case`] is one clause and a function that observes a server and returns a [`Verdict`]. Cases are independent:
//! each uses its own topics and groups with unique names, and at most two messages and twenty bytes per partition, so
//! that it works with the specification's default limits. Where DriftQ is deliberately stricter than the specification,
//! a case accepts both behaviours and reports which one it observed.

mod case;
mod cases;
mod probe;
mod report;
mod restart;
mod run;
mod verdict;

pub use self::case::{Case, Needs};
pub use self::cases::cases;
pub use self::probe::Probe;
pub use self::report::{Entry, Report};
pub use self::run::{Options, Restart, RunError, run};
pub use self::verdict::{Finding, Verdict, VerdictKind};
