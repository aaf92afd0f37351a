//! The log layer by itself: bytes, files, damage and recovery, with no idea of what the records mean.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod arbitrary;
mod crash;
mod damage;
mod frame;
mod recovery;
mod snapshot;
mod storage;
mod support;
