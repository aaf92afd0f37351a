//! The clauses, one module per part of the specification: a table of cases, and a function for each.

mod backpressure;
mod beyond;
mod beyond_worker;
mod dead_letters;
mod durability;
mod effects;
mod envelope;
mod expect;
mod groups;
mod http_api;
mod http_consume;
mod http_produce;
mod idempotency;
mod offsets;
mod partitions;
mod redelivery;
mod retries;
mod router;

use super::case::Case;

/// Every case, in the order of the specification.
#[must_use]
pub fn cases() -> Vec<Case> {
    let modules = [
        http_api::CASES,
        http_produce::CASES,
        http_consume::CASES,
        groups::CASES,
        offsets::CASES,
        redelivery::CASES,
        backpressure::CASES,
        partitions::CASES,
        durability::CASES,
        envelope::CASES,
        router::CASES,
        redelivery::CASES_V1_6,
        idempotency::CASES,
        retries::CASES,
        effects::CASES,
        dead_letters::CASES,
        beyond::CASES,
        beyond_worker::CASES,
    ];
    modules.concat()
}
