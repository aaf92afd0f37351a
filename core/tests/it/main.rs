//! The broker's promises, one file for each family, over the whole core: decisions, log, pipeline, recovery.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::needless_pass_by_value)]

mod acks;
mod rig;
