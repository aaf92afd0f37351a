//! The broker's promises, one file for each family, over the whole core: decisions, log, pipeline, recovery.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::needless_pass_by_value)]

mod acks;
mod dead_letters;
mod deadlines;
mod expiry;
mod leases_and_fencing;
mod order_priority_delay;
mod produce_and_partitions;
mod redrive;
mod retry_and_backoff;
mod rig;
mod tape;
