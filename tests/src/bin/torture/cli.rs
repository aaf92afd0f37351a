//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Parser, ValueEnum};
use driftq_tests::torture::disk::FileSystem;

/// Injects faults into a real driftqd under load, and verifies everything its clients observed.
///
/// Each fault is tried on its own brokers, on temporary folders, while producers and workers continue over every
/// restart. At the end each broker is drained twice and stopped; then the recorded history is checked against DriftQ's
/// invariants, and the log is replayed and compared with it. What needs root (mounting disks) or a missing tool
/// (strace, faketime, xfs_io) is skipped with a line that says so.
#[derive(Debug, Parser)]
#[command(name = "torture", version, group = ArgGroup::new("what").multiple(true).required(true))]
#[command(after_help = "Exit code: 0 passed, 1 an invariant was violated, 2 the run failed, 130 interrupted.\n\
    Example: cargo run --release -p driftq-tests --bin torture -- --kills 200 --power 40")]
pub(crate) struct Cli {
    /// Kill the broker N times with kill -9, at random times under load
    #[arg(long, value_name = "N", group = "what")]
    kills: Option<u64>,
    /// Cut the power of the broker's disk N times under load, divided among the file systems (root)
    #[arg(long, value_name = "N", group = "what")]
    power: Option<u64>,
    /// The file systems for --power
    #[arg(long, value_name = "FS", value_delimiter = ',', default_values = ["ext4", "xfs"])]
    pub(crate) power_fs: Vec<Kind>,
    /// Kill the broker at every write, sync and rename of its start and of a fixed sequence of calls (strace)
    #[arg(long, group = "what")]
    pub(crate) syscalls: bool,
    /// Disks that fail, fill up or are slow, short writes, a second broker on the folder (strace, root)
    #[arg(long, group = "what")]
    pub(crate) disks: bool,
    /// Pause the broker's process for longer than its leases
    #[arg(long, group = "what")]
    pub(crate) pauses: bool,
    /// Let the wall clock jump between two starts (faketime)
    #[arg(long, group = "what")]
    pub(crate) clocks: bool,
    /// All faults: 200 kills, 40 power losses and 10 canaries unless set otherwise
    #[arg(long, group = "what")]
    pub(crate) all: bool,
    /// Cut the power of a broker that does not sync N times; 9 of 10 must be detected (root)
    #[arg(long, value_name = "N", group = "what")]
    canary: Option<u64>,
    /// The seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keep history, server log and data folder of every violation here
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// The program to test [default: built by cargo when run by cargo, else the driftqd beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) driftqd: Option<PathBuf>,
}

impl Cli {
    pub(crate) fn kills(&self) -> u64 {
        self.kills.unwrap_or(if self.all { 200 } else { 0 })
    }

    pub(crate) fn power(&self) -> u64 {
        self.power.unwrap_or(if self.all { 40 } else { 0 })
    }

    pub(crate) fn canary(&self) -> u64 {
        self.canary.unwrap_or(if self.all { 10 } else { 0 })
    }
}

/// A file system, as named on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    pub(crate) fn file_system(self) -> FileSystem {
        match self {
            Self::Ext4 => FileSystem::Ext4,
            Self::Xfs => FileSystem::Xfs,
        }
    }
}
