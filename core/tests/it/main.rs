//! Integration tests of the core: the broker through its public API, and the log layer by itself.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::needless_pass_by_value)]

mod acks;
mod backpressure;
mod boot_and_time;
mod clocks;
mod committed_skips;
mod complete;
mod consume_effects;
mod counters;
mod damage;
mod dead_letters;
mod deadlines;
mod durability;
mod effect_lifetime;
mod effects;
mod expiry;
mod groups;
mod leases_and_fencing;
mod log;
mod order_priority_delay;
mod pause;
mod produce_and_partitions;
mod produce_dedupe;
mod recording_broker;
mod redrive;
mod restart_equivalence;
mod retry_and_backoff;
mod round_robin_and_credit;
mod routing;
mod seek;
mod snapshots;
mod storage_full;
mod test_broker;
mod timers;
mod topics;
mod trimming_and_retention;
