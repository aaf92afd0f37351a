//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Parser, ValueEnum};
use driftq_tests::torture::disk::FileSystem;

/// Kills, cuts off and deceives a real driftqd while clients work with it, and judges everything they were told.
///
/// Each fault is tried on brokers of its own, on temporary folders, while producers and workers go on over every restart. In the
/// end the broker is healed, drained twice and stopped; then every answer that a client ever got is held against what
/// DriftQ promises, and the log is replayed beside it. What needs root (disks of our own) or a tool (strace, faketime, xfs_io)
/// that is not there is skipped with a line that says so.
#[derive(Debug, Parser)]
#[command(name = "torture", version, group = ArgGroup::new("what").multiple(true).required(true))]
#[command(
    after_help = "Exit code: 0 every promise was kept, 1 one was broken, 2 the run could not be made, 130 interrupted.\n\
    Example: cargo run --release -p driftq-tests --bin torture -- --kills 200 --power 40"
)]
pub(crate) struct Cli {
    /// Kill the broker so often with kill -9, at random moments under load
    #[arg(long, value_name = "N", group = "what")]
    kills: Option<u64>,
    /// Cut the power of the broker's disk so often, under load; shared among the file systems (root)
    #[arg(long, value_name = "N", group = "what")]
    power: Option<u64>,
    /// The file systems whose power is cut
    #[arg(long, value_name = "FS", value_delimiter = ',', default_values = ["ext4", "xfs"])]
    pub(crate) power_fs: Vec<Kind>,
    /// Kill the broker at every single write, sync and rename of its start and of a fixed piece of work (strace)
    #[arg(long, group = "what")]
    pub(crate) syscalls: bool,
    /// Disks that fail, fill up or are slow, writes that are cut short, a second broker on the folder (strace, root)
    #[arg(long, group = "what")]
    pub(crate) disks: bool,
    /// Stop the broker's process for longer than its leases
    #[arg(long, group = "what")]
    pub(crate) pauses: bool,
    /// Let the wall clock jump between two starts (faketime)
    #[arg(long, group = "what")]
    pub(crate) clocks: bool,
    /// All of it: 200 kills, 40 power losses and 10 canaries unless told otherwise
    #[arg(long, group = "what")]
    pub(crate) all: bool,
    /// Cut the power of a broker that does not sync so often; 9 of 10 must be convicted (root)
    #[arg(long, value_name = "N", group = "what")]
    canary: Option<u64>,
    /// What the random numbers begin with
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keep histories, logs and folders of broken promises here
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// The program to torture [default: built by cargo when run by cargo, else the driftqd beside this program]
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

/// A file system, as it is named on the command line.
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
