//! The server's library and `driftqd`'s offline commands: settings, router hook, `driftqd wal`.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod config;
mod help;
mod rebase;
mod router;
mod wal;
