//! Arbitrary bytes against everything in DriftQ that reads bytes.
//!
//! Each target is a plain function of bytes that panics where something is wrong. The shells in `fuzz_targets` hand it to libFuzzer, on a
//! nightly compiler; `tests/corpus.rs` calls the very same functions on a stable one, with the inputs in `corpus` and with
//! thousands made from them. `docs/fuzzing.md` says what each checks and how a finding becomes a test.
//!
//! Bytes drawn at random end at the first checksum. Targets that read checksummed files therefore begin with a good log and take
//! their input for a [script] of what is done to it: damage, which recovery must see through, or forgery with all
//! checksums put right, which must be refused or make sense.
#![forbid(unsafe_code)]

mod actions;
mod commands;
mod frame;
mod golden;
mod http;
mod opened;
mod record;
mod recovery;
mod salvage;
pub mod script;

pub use commands::{commands, commands_with};
pub use frame::{Encode, frame, frame_with};
pub use golden::Golden;
pub use http::{Reads, json_bodies, json_bodies_with, ndjson, query, query_with};
pub use opened::Opened;
pub use record::{Spell, record, record_with};
pub use recovery::{recovery, recovery_with, segment, segment_with, snapshot, snapshot_with};
pub use salvage::{Salvages, salvage, salvage_with};

/// A target's body: returns if all is well, panics if not.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also that of its shell and of its folder of inputs.
pub const TARGETS: &[(&str, Target)] = &[
    ("frame", frame),
    ("segment", segment),
    ("snapshot", snapshot),
    ("recovery", recovery),
    ("record", record),
    ("json_bodies", json_bodies),
    ("query", query),
    ("ndjson", ndjson),
    ("commands", commands),
    ("salvage", salvage),
];
