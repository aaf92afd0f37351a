//! Slow and generated tests: the codec, damaged and forged logs, golden files, and every bit of a 64 KiB log.
//!
//! `scenario` is one fixed run that writes every kind of record; `random_traffic` generates small runs. Properties of
//! whole sequences of commands, crashes and restarts are tested by the simulator.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::needless_pass_by_value)]

mod arbitrary;
mod codec;
mod contradictions;
mod damage;
mod exhaustive;
mod forged;
mod golden;
mod keys_scenario;
mod random_traffic;
mod runner;
mod scenario;
#[path = "../it/test_broker/mod.rs"]
#[allow(dead_code, reason = "only a part of it is used here")]
mod test_broker;
