//! Logs of a real core, read back: the state at any point, the lives of messages, the story for a viewer.

mod folder;
mod lives;
mod measure;
mod points;
mod rig;
mod snapshots;
mod story;
