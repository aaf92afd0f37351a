//! Fuzz targets for every parser and decoder in DriftQ.
//!
//! A target is a function of bytes that panics if a check fails. The binaries in `fuzz_targets` pass it to libFuzzer
//! and need a nightly compiler; `tests/corpus` calls the same functions on a stable compiler, with the inputs in
//! `corpus` and with thousands derived from them. `docs/fuzzing.md` lists what each target checks and how a finding
//! becomes a test.
//!
//! Random bytes fail at the first checksum. Targets that read checksummed files therefore start from the golden log and
//! interpret their input as a list of changes to it. [`damage`](mod@damage) leaves checksums unchanged, and recovery
//! must detect it. A [`forgery`] corrects every checksum, and recovery must refuse it or reach a consistent state.
#![forbid(unsafe_code)]

mod actions;
mod commands;
pub mod damage;
mod folder;
mod footer;
pub mod forgery;
mod frame;
mod golden;
mod http;
mod input;
mod record;
mod recovered_log;
mod recovery;
mod relocation;
mod salvage;

pub use commands::{commands, commands_with};
pub use footer::{FooterEncoder, footer, footer_with};
pub use frame::{FrameEncoder, frame, frame_with};
pub use http::{RequestParser, json_bodies, json_bodies_with, ndjson, query, query_with};
pub use record::{RecordEncoder, record, record_with};
pub use recovery::{recovery, recovery_with, segment, segment_with, snapshot, snapshot_with};
pub use relocation::{relocation, relocation_with};
pub use salvage::{SalvageFn, salvage, salvage_with};

/// A fuzz target: panics if a check fails on the input.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also the name of its binary and of its folder in `corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("frame", frame),
    ("footer", footer),
    ("segment", segment),
    ("snapshot", snapshot),
    ("recovery", recovery),
    ("record", record),
    ("json_bodies", json_bodies),
    ("query", query),
    ("ndjson", ndjson),
    ("commands", commands),
    ("relocation", relocation),
    ("salvage", salvage),
];
