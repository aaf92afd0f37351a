//! What must hold of any sequence of commands, crashes and restarts, of any record's bytes, and of any damage to a log.
//!
//! `steps` says what can happen, `world` makes it happen, `observer` judges it from outside and `inside` from within;
//! `durability` judges what a restart finds. The rest of the modules are the tests.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::needless_pass_by_value)]

mod aftermath;
mod arbitrary;
mod codec;
mod commands;
mod contradictions;
mod damage;
mod deliveries;
mod durability;
mod forged;
mod golden;
mod inside;
mod ledger;
mod observer;
mod planted;
mod regressions;
mod scenario;
mod sequences;
mod steps;
mod verdict;
mod world;
