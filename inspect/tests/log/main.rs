//! Reads back logs that a real broker core wrote: the state at any point, message histories, damaged and shortened
//! logs.
#![allow(clippy::unwrap_used)]

mod harness;
mod measure;
mod messages;
mod payloads;
mod points;
mod snapshots;
