//! The server's library, `driftqd` in memory and its offline commands: settings, router hook, `driftqd wal`.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod config;
mod help;
mod memory;
mod otlp_settings;
mod rebase;
mod router;
mod wal;
