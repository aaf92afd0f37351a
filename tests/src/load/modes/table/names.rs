//! The rows of the table: their short names, what they measure, and their goals.

use clap::ValueEnum;

use super::goals::{
    BYTES, CPU_SECONDS, Goal, INSTRUCTIONS, KIBIBYTES, MEGABYTES, MICROS, MILLIS, PER_SECOND, PERCENT, RATIO, SECONDS,
    TIMES,
};
use super::options::TableOptions;
use crate::numbers::grouped;

/// What must be reached with NDJSON acks; the latency row is driven at half of it.
const END_TO_END_MUST: f64 = 40_000.0;
/// The rate at which the latency goal applies.
pub(super) const PACED_RATE: f64 = END_TO_END_MUST / 2.0;

/// A row, by its short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum RowName {
    /// Single produces beside a bare hyper server
    ProducesHyper,
    /// Single produces beside Redis Streams, where it is installed
    ProducesRedis,
    /// Batches of produces
    Batches,
    /// Produce, delivery and an ack request each, beside Redis Streams
    EndToEndRedis,
    /// Produce, delivery and NDJSON acks
    EndToEnd,
    /// Latency of deliveries at half the rate that must be reached
    EndToEndP99,
    /// Server CPU of single produces
    ProducesCpu,
    /// Server CPU of produce, delivery and NDJSON acks
    EndToEndCpu,
    /// CPU of the sequencer's thread per produce
    SequencerProduce,
    /// CPU of the sequencer's thread per delivery and ack
    SequencerSettle,
    /// Instructions of the core and the log; these three need --instructions
    InstructionsPlain,
    /// The same with an idempotency key
    InstructionsKeyed,
    /// The same for begin and finish of an effect
    InstructionsEffect,
    /// Server CPU of produces beside many remembered keys
    KeysCpu,
    /// Server CPU of begin and finish beside many effects
    EffectsCpu,
    /// Two reactors beside one: single produces
    ReactorsProduces,
    /// Two reactors beside one: batches
    ReactorsBatches,
    /// Two reactors beside one: produce, delivery and an ack request each
    ReactorsEndToEnd,
    /// Latency of single produces on one connection
    OneConnection,
    /// Single produces on a slow disk, 64 connections
    #[value(name = "slow-sync-64")]
    SlowSync64,
    /// Single produces on a slow disk, 1,024 connections
    #[value(name = "slow-sync-1024")]
    SlowSync1024,
    /// Memory with a large backlog
    BacklogMemory,
    /// Latency of produces with a large backlog, beside an empty broker
    BacklogP50,
    /// Restart with a large backlog
    Restart,
    /// Memory of idle streams
    IdleStreams,
    /// CPU of an idle broker
    IdleBroker,
    /// Memory of effects
    EffectsMemory,
    /// Completes with two outputs
    Steps,
    /// Begin and finish of an effect beside a bare hyper server
    EffectsHyper,
}

impl RowName {
    /// Whether it is a row of instructions.
    pub(super) fn counts_instructions(self) -> bool {
        matches!(self, Self::InstructionsPlain | Self::InstructionsKeyed | Self::InstructionsEffect)
    }

    /// What is measured.
    pub(super) fn work(self, options: &TableOptions) -> String {
        let records = grouped(options.records);
        let (backlog, streams) = (grouped(options.backlog), grouped(u64::from(options.streams)));
        match self {
            Self::ProducesHyper => "single produces, 64 connections ÷ bare hyper".to_owned(),
            Self::ProducesRedis => "single produces, 64 connections ÷ Redis Streams, `appendfsync always`".to_owned(),
            Self::Batches => "NDJSON batches of 100, 16 connections, 16 partitions".to_owned(),
            Self::EndToEndRedis => {
                "produce → stream → ack, 16 + 16 clients, one ack request each ÷ Redis (XREADGROUP + XACK)".to_owned()
            }
            Self::EndToEnd => "produce → stream → ack, 16 + 16 clients, NDJSON acks".to_owned(),
            Self::EndToEndP99 => {
                format!("p99 from produce to delivery at {}/s, NDJSON acks", grouped(PACED_RATE as u64))
            }
            Self::ProducesCpu => "server CPU per million single produces".to_owned(),
            Self::EndToEndCpu => "server CPU per million produce → stream → ack, NDJSON acks".to_owned(),
            Self::SequencerProduce => "sequencer's own CPU per produce, 2 reactors".to_owned(),
            Self::SequencerSettle => "sequencer's own CPU per delivery + ack, 2 reactors".to_owned(),
            Self::InstructionsPlain => "instructions per produce + delivery + ack, core and log alone".to_owned(),
            Self::InstructionsKeyed => {
                "instructions per produce + delivery + ack with an idempotency key, core and log alone".to_owned()
            }
            Self::InstructionsEffect => "instructions per begin + finish, core and log alone".to_owned(),
            Self::KeysCpu => format!("server CPU per produce with a key, {records} remembered ÷ none"),
            Self::EffectsCpu => format!("server CPU per begin or finish, {records} effects ÷ none"),
            Self::ReactorsProduces => "2 reactors ÷ 1: single produces, 64 connections".to_owned(),
            Self::ReactorsBatches => "2 reactors ÷ 1: NDJSON batches of 100, 16 connections".to_owned(),
            Self::ReactorsEndToEnd => "2 reactors ÷ 1: produce → stream → ack, one ack request each".to_owned(),
            Self::OneConnection => "single produces, 1 connection: p50 beyond hyper's + 1.3 × fdatasync p50".to_owned(),
            Self::SlowSync64 => "single produces, sync slowed to 2 ms, 64 connections".to_owned(),
            Self::SlowSync1024 => "single produces, sync slowed to 2 ms, 1,024 connections".to_owned(),
            Self::BacklogMemory => format!("{backlog} × 200 B queued: RSS, 16 MiB of payloads in memory"),
            Self::BacklogP50 => format!("{backlog} × 200 B queued: produce p50 ÷ an empty broker's"),
            Self::Restart => format!("{backlog} × 200 B queued: restart (`kill -9`), exec to first delivery"),
            Self::IdleStreams => format!("{streams} idle streams: memory each"),
            Self::IdleBroker => "idle broker: share of a core".to_owned(),
            Self::EffectsMemory => format!("{records} effects: memory each beyond key and result"),
            Self::Steps => "complete with two outputs, 16 workers: steps".to_owned(),
            Self::EffectsHyper => "begin + finish of an effect, 64 connections ÷ bare hyper".to_owned(),
        }
    }

    /// What must be reached, and what is aimed at.
    pub(super) fn goal(self) -> Goal {
        match self {
            Self::ProducesHyper => Goal::at_least(0.65, RATIO).aims_at(0.75),
            Self::ProducesRedis => Goal::at_least(0.9, RATIO).aims_at(1.05),
            Self::Batches => Goal::at_least(600_000.0, PER_SECOND).aims_at(900_000.0),
            Self::EndToEndRedis => Goal::at_least(1.5, RATIO).aims_at(2.0),
            Self::EndToEnd => Goal::at_least(END_TO_END_MUST, PER_SECOND).aims_at(60_000.0),
            Self::EndToEndP99 => Goal::at_most(5.0, MILLIS),
            Self::ProducesCpu => Goal::at_most(11.0, CPU_SECONDS).aims_at(9.0),
            Self::EndToEndCpu => Goal::at_most(25.0, CPU_SECONDS).aims_at(18.0),
            Self::SequencerProduce => Goal::at_most(2.0, MICROS).aims_at(1.2),
            Self::SequencerSettle => Goal::at_most(3.5, MICROS).aims_at(2.0),
            Self::InstructionsPlain => Goal::at_most(7_500.0, INSTRUCTIONS).aims_at(5_500.0),
            Self::InstructionsKeyed => Goal::at_most(11_000.0, INSTRUCTIONS).aims_at(8_000.0),
            Self::InstructionsEffect => Goal::none(INSTRUCTIONS),
            Self::KeysCpu | Self::EffectsCpu => Goal::at_most(1.5, TIMES).aims_at(1.2),
            Self::ReactorsProduces | Self::ReactorsBatches | Self::ReactorsEndToEnd => {
                Goal::at_least(0.95, RATIO).aims_at(1.1)
            }
            Self::OneConnection => Goal::at_most(30.0, MICROS).aims_at(15.0),
            Self::SlowSync64 => Goal::at_least(14_000.0, PER_SECOND).aims_at(28_000.0),
            Self::SlowSync1024 => Goal::at_least(200_000.0, PER_SECOND).aims_at(300_000.0),
            Self::BacklogMemory => Goal::at_most(60.0, MEGABYTES),
            Self::BacklogP50 => Goal::at_most(1.2, TIMES),
            Self::Restart => Goal::at_most(0.3, SECONDS),
            Self::IdleStreams => Goal::at_most(32.0, KIBIBYTES),
            Self::IdleBroker => Goal::at_most(0.5, PERCENT),
            Self::EffectsMemory => Goal::at_most(300.0, BYTES),
            Self::Steps => Goal::at_least(15_000.0, PER_SECOND),
            Self::EffectsHyper => Goal::at_least(0.6, RATIO),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::load::cli::{Cli, Command};

    #[test]
    fn page_has_every_row_with_its_goals() {
        let Command::Table(options) = Cli::parse_from(["load", "table"]).command else { panic!("another mode") };
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md"));
        let page = page.expect("the page");
        let rows = page.lines().skip_while(|line| *line != "| work | must | goal | measured | met |").skip(2);
        let rows: Vec<Vec<&str>> = rows
            .take_while(|line| line.starts_with('|'))
            .map(|row| row.trim_matches('|').split('|').map(str::trim).take(3).collect())
            .collect();
        let expected: Vec<Vec<String>> = RowName::value_variants()
            .iter()
            .map(|row| vec![row.work(&options), row.goal().must_text(), row.goal().aim_text()])
            .collect();
        assert_eq!(rows, expected);
    }
}
