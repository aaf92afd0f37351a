//! Conformance of clients: runs the client of any language, behind a recording proxy, against a broker that misbehaves
//! on purpose, and judges it by what the proxy and a ledger outside of it saw. A client takes part through an
//! *adapter*, a program that does what it is told over standard input; `PROTOCOL.md` describes it.
//!
//! [`run()`] runs a [scenario](Scenario) once and returns what was seen; [`judge()`] decides by that alone.
#![forbid(unsafe_code)]

mod adapter;
mod broker;
pub mod http;
mod judge;
mod keys;
mod proxy;
mod results;
mod run;
mod scenario;
mod stalls;
mod suite;
pub mod trace;

pub use self::adapter::AdapterError;
pub use self::broker::program;
pub use self::judge::{Conviction, RULES, judge};
pub use self::keys::idempotency_key;
pub use self::results::Results;
pub use self::run::{RunError, Setting, run};
pub use self::scenario::{Scenario, built_in};
pub use self::suite::{Plan, RunResult, Suite, table};
