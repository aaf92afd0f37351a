//! What can be typed: the commands and the flags they share. The flags of a command stand beside it.

use clap::{Args, Parser, Subcommand};

use crate::commands::{bench, consume, context, dlq, doctor, effects, groups, peek, produce, settle, tail, topics};
use crate::failure::EXIT_CODES;
use crate::output::Format;
use crate::settings::Connect;
use crate::top;

/// The whole command line.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "driftq",
    version,
    about = "The command line of the DriftQ message broker",
    after_help = "\
Examples:
  driftq topics create orders --partitions 3
  driftq produce orders 'one pizza' --key customer-7
  driftq consume orders --group kitchen --ack
  driftq doctor

`driftq help exit-codes` explains exit codes.",
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = false
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connect: Connect,
    #[command(flatten)]
    pub(crate) printing: Printing,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The flags that choose how results look.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Printing {
    /// Print JSON, one object per line for streams [default: where the output is no terminal]
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
    /// Print tables [default: on a terminal; NO_COLOR is honoured]
    #[arg(long, global = true, conflicts_with = "json", help_heading = "Output")]
    table: bool,
}

impl Printing {
    pub(crate) fn format(self) -> Option<Format> {
        match (self.json, self.table) {
            (true, _) => Some(Format::Json),
            (_, true) => Some(Format::Table),
            _ => None,
        }
    }
}

/// The commands.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Command {
    /// List, describe, create, change, delete and purge topics
    #[command(subcommand, visible_alias = "topic")]
    Topics(topics::Command),
    /// List, describe, create, move, pause and delete groups
    #[command(subcommand, visible_alias = "group")]
    Groups(groups::Command),
    /// Produce one message, or one per line of the input
    Produce(Box<produce::Options>),
    /// Receive messages for a group
    Consume(consume::Options),
    /// Read messages without consuming them
    Peek(peek::Options),
    /// Finish a delivered message
    Ack(settle::Ack),
    /// Fail the delivery of a message
    Nack(settle::Nack),
    /// Prolong the lease of a message
    Extend(settle::Extend),
    /// Return a message without counting a failure
    Release(settle::Release),
    /// List, read, redrive and purge dead letters
    #[command(subcommand)]
    Dlq(dlq::Command),
    /// Read, list and forget effects of the idempotency store
    #[command(subcommand, visible_alias = "effect")]
    Effects(effects::Command),
    /// Watch rates, lag and deliveries, live
    Top(top::Options),
    /// Measure producing and consuming
    Bench(bench::Options),
    /// Follow a topic without consuming it
    Tail(tail::Options),
    /// Check a broker and say what to do
    Doctor(doctor::Options),
    /// Keep brokers by name
    #[command(subcommand)]
    Context(context::Command),
    /// Print the completion script of a shell
    #[command(after_help = "\
Examples:
  driftq completions bash > /etc/bash_completion.d/driftq
  driftq completions zsh > ~/.zfunc/_driftq
  driftq completions fish > ~/.config/fish/completions/driftq.fish")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// What exit codes mean
    #[command(name = "exit-codes", hide = true, override_help = EXIT_CODES)]
    ExitCodes,
}

/// A message by its place: `TOPIC/PARTITION/OFFSET`. The name of the topic may contain slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MessageAt {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    pub(crate) offset: u64,
}

impl std::str::FromStr for MessageAt {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SHAPE: &str = "a message is TOPIC/PARTITION/OFFSET, such as orders/0/17";
        let (rest, offset) = text.rsplit_once('/').ok_or(SHAPE)?;
        let (topic, partition) = rest.rsplit_once('/').ok_or(SHAPE)?;
        if topic.is_empty() {
            return Err(SHAPE);
        }
        let (partition, offset) = (partition.parse().map_err(|_| SHAPE)?, offset.parse().map_err(|_| SHAPE)?);
        Ok(Self { topic: topic.to_owned(), partition, offset })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_passes_claps_own_checks() {
        Cli::command().debug_assert();
    }

    #[test]
    fn message_is_named_by_topic_partition_and_offset() {
        let at = |topic: &str| MessageAt { topic: topic.to_owned(), partition: 1, offset: 17 };
        assert_eq!("orders/1/17".parse(), Ok(at("orders")));
        assert_eq!("orders/eu/1/17".parse(), Ok(at("orders/eu")));
        for text in ["", "orders", "orders/1", "/1/17", "orders/x/17", "orders/1/-1"] {
            assert!(text.parse::<MessageAt>().is_err(), "{text}");
        }
    }
}
