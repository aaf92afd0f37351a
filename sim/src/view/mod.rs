//! What happened, to be looked at.

pub mod story;
