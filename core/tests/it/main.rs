//! The broker's promises, one file for each family, over the whole core: decisions, log, pipeline, recovery.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::needless_pass_by_value)]

mod acks;
mod backpressure;
mod boot_and_time;
mod complete;
mod consume_effects;
mod counters;
mod damage;
mod dead_letters;
mod deadlines;
mod durability;
mod effects;
mod expiry;
mod groups;
mod leases_and_fencing;
mod order_priority_delay;
mod pause;
mod produce_and_partitions;
mod produce_gate;
mod rebuilt;
mod redrive;
mod retry_and_backoff;
mod rig;
mod round_robin_and_credit;
mod routing;
mod seek;
mod snapshots;
mod storage_full;
mod tape;
mod timers;
mod topics;
mod trimming_and_retention;
