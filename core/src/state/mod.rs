//! Durable state.

pub mod cow;
