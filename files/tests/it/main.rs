//! Integration tests of the storage on real files.
//!
//! Tests that need root (a small tmpfs, a loop device) print one line and pass where it is missing. Measurements:
//! `cargo test --release -p driftq-files --test it -- --ignored --nocapture --test-threads 1 measure`.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod broker;
mod contract;
mod folder;
mod measure;
mod medium;
mod mounts;
mod restarts;
