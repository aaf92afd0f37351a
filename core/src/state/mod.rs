//! Durable state.

pub mod cow;
pub mod done;
