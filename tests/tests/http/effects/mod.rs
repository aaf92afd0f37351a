//! The idempotency store: its decision table, its records, deliveries and acks, and what it refuses.

mod decisions;
mod deliveries;
mod invalid;
mod records;
mod support;

pub use self::support::before_and_after_crash;
