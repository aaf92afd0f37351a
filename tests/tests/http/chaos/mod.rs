//! Faults of `--chaos` as clients see them, on the broker that tests run in their own process.

mod batches;
mod contract;
mod deliveries;
mod determinism;
mod requests;
mod restarts;
mod support;
mod testing;

pub use self::support::TestBroker;
