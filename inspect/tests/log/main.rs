//! Logs of a real core, read back: the state at any point, the lives of messages, the story for a viewer.
#![allow(clippy::unwrap_used)]

mod harness;
mod measure;
mod messages;
mod points;
mod snapshots;
