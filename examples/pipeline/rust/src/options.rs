//! What a run is told.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// The language of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// `rust/src/bin/worker.rs`
    Rust,
    /// `python/worker.py`
    Python,
    /// `typescript/worker.mjs`
    Typescript,
    /// One worker of each.
    Mixed,
}

/// Runs a pipeline of three steps, kills its workers and its broker, and verifies that each effect happened once.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// The language of the workers.
    #[arg(long, value_enum, default_value_t = Language::Rust)]
    pub language: Language,
    /// For how long requests are produced and processes killed.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Requests, spread evenly over the time.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub requests: u64,
    /// Determines when which process is killed; drawn if absent.
    #[arg(long)]
    pub seed: Option<u64>,
    /// The outside service ignores identities: shows how often an effect was executed again.
    #[arg(long)]
    pub no_unique: bool,
    /// Workers without idempotency store and keys, on a service that ignores identities: plain at-least-once delivery.
    /// They are written in Rust.
    #[arg(long)]
    pub no_store: bool,
    /// Factor of the pauses between two kills: 1 to 2 s for the workers, 5 to 8 s for the broker.
    #[arg(long, default_value_t = 1.0, value_parser = pause_factor)]
    pub pauses: f64,
    /// Use the Rust worker that is there, also where cargo could build it.
    #[arg(long)]
    pub no_build: bool,
    /// The broker; `driftqd` beside this program if absent.
    #[arg(long, env = "DRIFTQD")]
    pub driftqd: Option<PathBuf>,
    /// The Python interpreter that has the package `driftq`.
    #[arg(long, env = "PYTHON", default_value = "python3")]
    pub python: PathBuf,
    /// Node 20 or later.
    #[arg(long, env = "NODE", default_value = "node")]
    pub node: PathBuf,
}

fn pause_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().map_err(|error| format!("{error}"))?;
    if (0.01..=1_000.0).contains(&factor) { Ok(factor) } else { Err("it is 0.01 to 1000".to_owned()) }
}
