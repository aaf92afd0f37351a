//! Logs of a real core, read back: the state at any point, the lives of messages, the story for a viewer.
#![allow(clippy::unwrap_used)]

mod folder;
mod lives;
mod measure;
mod points;
mod rig;
mod snapshots;
mod story;
