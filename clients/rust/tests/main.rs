//! Tests of the client: against a stub server that misbehaves, and against a real broker.

mod bad_servers;
mod bad_streams;
mod batches;
mod broker;
mod failover;
mod faults;
mod handlers;
mod log;
mod observability;
mod pages;
mod producer;
mod side_effects;
mod store;
mod store_cases;
mod stub;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod vectors;
mod workers;
