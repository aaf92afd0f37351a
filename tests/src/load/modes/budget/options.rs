//! The options of `load budget`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::kind::Kind;
use crate::load::cli::{BrokerOptions, seconds};

/// What measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// CPU time and context switches of each thread, from /proc
    Threads,
    /// Instructions by category, where valgrind is installed
    Callgrind,
    /// Samples of the CPU by category, where perf works
    Perf,
}

/// `load budget`.
#[derive(Debug, Clone, Args)]
pub(crate) struct BudgetOptions {
    /// Kinds of work, separated by commas [default: all]
    #[arg(long = "kind", value_enum, value_delimiter = ',')]
    pub(crate) kinds: Vec<Kind>,
    /// What measures, separated by commas [default: everything that works here]
    #[arg(long = "source", value_enum, value_delimiter = ',')]
    pub(crate) sources: Vec<Source>,
    /// How long the broker is driven for each measurement of times
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Measurements of times, in turns; medians are printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) turns: u32,
    /// Messages of each measurement of instructions, and several times as many lines of batches
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) messages: u64,
    /// A page with tables of an earlier run, e.g. docs/performance.md; each figure is then printed as "old → new"
    #[arg(long, value_name = "PATH")]
    pub(crate) old: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

impl BudgetOptions {
    /// The kinds to print, in their order.
    pub(super) fn kinds(&self) -> Vec<Kind> {
        let is_chosen = |kind: &Kind| self.kinds.is_empty() || self.kinds.contains(kind);
        Kind::value_variants().iter().copied().filter(is_chosen).collect()
    }

    /// What measures, in its order.
    pub(super) fn sources(&self) -> Vec<Source> {
        let is_chosen = |source: &Source| self.sources.is_empty() || self.sources.contains(source);
        Source::value_variants().iter().copied().filter(is_chosen).collect()
    }
}
