//! Export over OTLP from `driftqd` to a collector, with the feature `otlp`.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod broker;
mod collector;
mod failures;
mod metrics;
mod settings;
mod spans;
