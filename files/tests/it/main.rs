//! The log's files on a real disk keep what the storage trait promises.
//!
//! What needs root (a small tmpfs, a loop device) says in one line that it was left out where there is none. Figures:
//! `cargo test --release -p driftq-server --test files -- --ignored --nocapture measure`.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod contract;
mod folder;
mod life;
mod measure;
mod medium;
mod mounts;
