//! The options of `load table`.

use clap::{Args, ValueEnum};

use super::names::RowName;
use crate::load::cli::{BrokerOptions, seconds};
use crate::load::error::Result;

/// `load table`.
#[derive(Debug, Clone, Args)]
pub(crate) struct TableOptions {
    /// The rows to measure, by short names separated by commas [default: all but those of instructions]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) rows: Vec<RowName>,
    /// Turns of each rate, time and CPU cost; the median of the turns is printed, of a ratio that of each turn's ratio
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) turns: u32,
    /// How long each turn drives the broker; the idle rows are measured for twice as long
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Count the instructions of the core too: has cargo build a bench, and runs it under valgrind
    #[arg(long)]
    pub(crate) instructions: bool,
    /// Messages of the backlog rows; the goals apply to the default
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) backlog: u64,
    /// Streams of the idle row; the goal applies to the default
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=500_000))]
    pub(crate) streams: u32,
    /// Remembered keys, and effects, of their rows; the goals apply to the default
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: u64,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

impl TableOptions {
    /// The rows to measure, in their order.
    pub(super) fn chosen(&self) -> Result<Vec<RowName>> {
        let names_instructions = self.rows.iter().any(|row| row.counts_instructions());
        if names_instructions && !self.instructions {
            return Err("rows of instructions need --instructions: a bench is built for them".into());
        }
        let is_chosen = |row: &RowName| match row.counts_instructions() {
            true if !names_instructions => self.instructions,
            true => self.rows.contains(row),
            false => self.rows.is_empty() || self.rows.contains(row),
        };
        Ok(RowName::value_variants().iter().copied().filter(is_chosen).collect())
    }
}
