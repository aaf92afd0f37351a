//! Measurements: each is of one or more rows, and is made if any of them is chosen.

use std::fs::File;
use std::time::Duration;

use super::names::RowName;
use super::options::TableOptions;
use super::rows::Reading;
use super::{flows, instructions, produces, reactors, redis, sequencer, sizes, stores};
use crate::load::error::Result;
use crate::load::modes::compare::Work;
use crate::load::report::Failures;

/// What a measurement has found.
#[derive(Debug)]
pub(super) enum Measured {
    /// What was measured for each of its rows.
    Readings(Vec<(RowName, Reading)>),
    /// Why it cannot be made here.
    Skipped(String),
}

/// What is measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measurement {
    Produces,
    ProducesRedis,
    Batches,
    EndToEndRedis,
    EndToEnd,
    Paced,
    SequencerProduce,
    SequencerSettle,
    Keys,
    Effects,
    ReactorsProduces,
    ReactorsBatches,
    ReactorsEndToEnd,
    OneConnection,
    SlowSync64,
    SlowSync1024,
    Backlog,
    Idle,
    Steps,
    EffectsHyper,
    Instructions,
}

impl Measurement {
    /// All of them. The last one compiles, which leaves the disk busy.
    pub(super) const ALL: [Self; 21] = [
        Self::Produces,
        Self::ProducesRedis,
        Self::Batches,
        Self::EndToEndRedis,
        Self::EndToEnd,
        Self::Paced,
        Self::SequencerProduce,
        Self::SequencerSettle,
        Self::Keys,
        Self::Effects,
        Self::ReactorsProduces,
        Self::ReactorsBatches,
        Self::ReactorsEndToEnd,
        Self::OneConnection,
        Self::SlowSync64,
        Self::SlowSync1024,
        Self::Backlog,
        Self::Idle,
        Self::Steps,
        Self::EffectsHyper,
        Self::Instructions,
    ];

    /// Its rows.
    pub(super) fn rows(self) -> &'static [RowName] {
        match self {
            Self::Produces => &[RowName::ProducesHyper, RowName::ProducesCpu],
            Self::ProducesRedis => &[RowName::ProducesRedis],
            Self::Batches => &[RowName::Batches],
            Self::EndToEndRedis => &[RowName::EndToEndRedis],
            Self::EndToEnd => &[RowName::EndToEnd, RowName::EndToEndCpu],
            Self::Paced => &[RowName::EndToEndP99],
            Self::SequencerProduce => &[RowName::SequencerProduce],
            Self::SequencerSettle => &[RowName::SequencerSettle],
            Self::Keys => &[RowName::KeysCpu],
            Self::Effects => &[RowName::EffectsCpu, RowName::EffectsMemory],
            Self::ReactorsProduces => &[RowName::ReactorsProduces],
            Self::ReactorsBatches => &[RowName::ReactorsBatches],
            Self::ReactorsEndToEnd => &[RowName::ReactorsEndToEnd],
            Self::OneConnection => &[RowName::OneConnection],
            Self::SlowSync64 => &[RowName::SlowSync64],
            Self::SlowSync1024 => &[RowName::SlowSync1024],
            Self::Backlog => &[RowName::BacklogMemory, RowName::BacklogP50, RowName::Restart],
            Self::Idle => &[RowName::IdleStreams, RowName::IdleBroker],
            Self::Steps => &[RowName::Steps],
            Self::EffectsHyper => &[RowName::EffectsHyper],
            Self::Instructions => {
                &[RowName::InstructionsPlain, RowName::InstructionsKeyed, RowName::InstructionsEffect]
            }
        }
    }

    /// What it is called while it is made, and where failures are counted.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Produces => "single produces",
            Self::ProducesRedis => "single produces beside Redis",
            Self::Batches => "batches",
            Self::EndToEndRedis => "produce → stream → ack beside Redis",
            Self::EndToEnd => "produce → stream → ack",
            Self::Paced => "produce → stream → ack at half the rate",
            Self::SequencerProduce => "sequencer's own CPU, produces",
            Self::SequencerSettle => "sequencer's own CPU, deliveries and acks",
            Self::Keys => "remembered keys",
            Self::Effects => "effects",
            Self::ReactorsProduces => "reactors, single produces",
            Self::ReactorsBatches => "reactors, batches",
            Self::ReactorsEndToEnd => "reactors, produce → stream → ack",
            Self::OneConnection => "single produces, 1 connection",
            Self::SlowSync64 => "sync slowed to 2 ms, 64 connections",
            Self::SlowSync1024 => "sync slowed to 2 ms, 1,024 connections",
            Self::Backlog => "backlog and restart",
            Self::Idle => "idle streams and idle broker",
            Self::Steps => "complete with two outputs",
            Self::EffectsHyper => "begin + finish of an effect",
            Self::Instructions => "instructions",
        }
    }

    /// Makes it, and counts what fails meanwhile.
    pub(super) async fn make(self, options: &TableOptions, failures: &mut Failures) -> Result<Measured> {
        let turns = &mut Turns { title: self.title(), options, failures };
        let readings = match self {
            Self::Produces => produces::beside_hyper(turns).await?,
            Self::ProducesRedis => {
                return redis::compare(turns, RowName::ProducesRedis, Work { producers: 64, consumers: 0, batch: 1 })
                    .await;
            }
            Self::Batches => produces::batches(turns).await?,
            Self::EndToEndRedis => {
                return redis::compare(turns, RowName::EndToEndRedis, Work { producers: 16, consumers: 16, batch: 1 })
                    .await;
            }
            Self::EndToEnd => flows::unpaced(turns).await?,
            Self::Paced => flows::paced(turns).await?,
            Self::SequencerProduce => sequencer::produces(turns).await?,
            Self::SequencerSettle => sequencer::settles(turns).await?,
            Self::Keys => stores::keys(turns).await?,
            Self::Effects => stores::effects(turns).await?,
            Self::ReactorsProduces => reactors::produces(turns).await?,
            Self::ReactorsBatches => reactors::batches(turns).await?,
            Self::ReactorsEndToEnd => reactors::end_to_end(turns).await?,
            Self::OneConnection => produces::one_connection(turns).await?,
            Self::SlowSync64 => produces::slow_sync(turns, RowName::SlowSync64, 64).await?,
            Self::SlowSync1024 => produces::slow_sync(turns, RowName::SlowSync1024, 1_024).await?,
            Self::Backlog => sizes::backlog(turns).await?,
            Self::Idle => sizes::idle(turns).await?,
            Self::Steps => stores::steps(turns).await?,
            Self::EffectsHyper => stores::effects_beside_hyper(turns).await?,
            Self::Instructions => return instructions::count().await,
        };
        Ok(Measured::Readings(readings))
    }
}

/// The turns of a measurement.
#[derive(Debug)]
pub(super) struct Turns<'a> {
    title: &'static str,
    /// The options of the table.
    pub(super) options: &'a TableOptions,
    /// What has failed in any turn.
    pub(super) failures: &'a mut Failures,
}

impl Turns<'_> {
    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        self.options.turns
    }

    /// How long a turn drives a broker.
    pub(super) fn length(&self) -> Duration {
        Duration::from_secs_f64(self.options.seconds.max(0.01))
    }

    /// Begins a turn, counted from 0.
    pub(super) fn begin(&self, turn: u32) -> Result<()> {
        println!("\n# {}, turn {} of {}", self.title, turn + 1, self.count());
        self.sync()
    }

    /// Begins what is measured once, or takes its turns by itself.
    pub(super) fn begin_all(&self) -> Result<()> {
        println!("\n# {}", self.title);
        self.sync()
    }

    /// Has written what others have left to be written: it would be written while something is measured.
    fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(File::open(self.options.broker.parent_folder()?)?)?;
        Ok(())
    }

    /// Makes each turn, and returns what they measured.
    pub(super) async fn each<T>(
        &mut self,
        measure: impl AsyncFn(&TableOptions, u32) -> Result<(T, Failures)>,
    ) -> Result<Vec<T>> {
        let mut all = Vec::new();
        for turn in 0..self.count() {
            self.begin(turn)?;
            let (measured, failures) = measure(self.options, turn).await?;
            self.failures.merge(&failures);
            all.push(measured);
        }
        Ok(all)
    }
}

/// One figure of each turn, as far as it is known.
pub(super) fn of_each<T>(all: &[T], figure: impl Fn(&T) -> Option<f64>) -> Vec<f64> {
    all.iter().filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_row_belongs_to_exactly_one_measurement() {
        let mut measured: Vec<RowName> =
            Measurement::ALL.iter().flat_map(|measurement| measurement.rows().iter().copied()).collect();
        measured.sort_unstable();
        assert_eq!(measured, RowName::value_variants());
    }
}
