//! The heart of DriftQ.
#![forbid(unsafe_code)]

pub mod log;
pub mod state;
pub mod types;
